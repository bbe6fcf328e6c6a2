"""Bands of what every row chooses alone, at the prices of the bound.

What is spread is spread over all holders of its kind; a table's sums have one owner in each group
of their scope, dealt out by what they do, the heaviest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rowtier.band import Band, Bands
from rowtier.plan.joint.bound import BoundCase, Least, allowed_shelves, is_possible
from rowtier.plan.joint.dual import MASSES, Priced, at_prices
from rowtier.plan.joint.homes import NO_SUMS, Home
from rowtier.plan.joint.problem import FlatTables, Pricing
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile, TableStats

TILT = 0.02  # of the weights, to either side
SHARES = 20  # of lookups, that are tried


class _Chosen(NamedTuple):
    """What one table chooses."""

    homes: tuple[Home, ...]
    at: Ints  # home of each bucket
    owned_s: float  # what owners of sums do


def freely(pricing: Pricing, tables: FlatTables, priced: Priced) -> Bands:
    """The bands of what rows choose; they may not fit."""
    chosen = [_chosen(pricing, tables, priced, index) for index in range(tables.count)]
    busy: dict[tuple[int, int], Floats] = {}
    bands: dict[str, tuple[Band, ...]] = {}
    for index in np.argsort([-one.owned_s for one in chosen], kind="stable").tolist():
        stats = pricing.profile.stats[index]
        found = _bands(stats, index, chosen[index], busy)
        bands[stats.table.name] = tuple(found)
    return bands


def _chosen(pricing: Pricing, tables: FlatTables, priced: Priced, index: int) -> _Chosen:
    """The best home on the shelf of each bucket."""
    here = slice(int(tables.first[index]), int(tables.first[index + 1]))
    homes, seconds, _ = pricing.seconds(pricing.profile.stats[index], tables.weights)
    costs, mine = homes.costs, homes.shelf[:, None] == priced.shelf[here]
    at = np.where(mine, seconds, np.inf).argmin(axis=0)
    by_sums = costs.sums[at] != NO_SUMS
    busy_s = seconds[at, np.arange(len(at))] * by_sums
    return _Chosen(costs.homes, at, float(busy_s @ tables.widths[here]))


def _bands(
    stats: TableStats, index: int, chosen: _Chosen, busy: dict[tuple[int, int], Floats]
) -> Iterator[Band]:
    """A band for every run of buckets with the same home; one owner for all of a table's sums."""
    stops = [0, *stats.curve.stops.tolist(), stats.table.num_embeddings]
    edges = [0, *(np.flatnonzero(np.diff(chosen.at)) + 1).tolist(), len(chosen.at)]
    owners: dict[tuple[int, int], tuple[int, ...]] = {}
    for first, last in pairwise(edges):
        if stops[last] > stops[first]:
            home = chosen.homes[int(chosen.at[first])]
            band = home.placed(stops[first], stops[last], index)
            if home.band.exchange == "sums":
                key = (home.level, home.kind)
                if key not in owners:
                    load = busy.setdefault(key, np.zeros(len(home.holders)))
                    owner = int(np.argmin(load))
                    load[owner] += chosen.owned_s
                    owners[key] = (home.holders[owner],)
                band = band.model_copy(update={"members": owners[key]})
            yield band


def mixed(profile: Profile, hot: Bands, cold: Bands, share: float) -> Bands:
    """Rows with so much of each table's lookups as one plan says, the others as another."""
    bands: dict[str, tuple[Band, ...]] = {}
    for stats in profile.stats:
        name, curve = stats.table.name, stats.curve
        served = np.concatenate(([0.0], np.cumsum(curve.lookups)))
        stops = np.concatenate(([0], curve.stops))
        cut = int(np.interp(share * served[-1], served, stops)) if served[-1] else 0
        kept = [_within(band, 0, cut) for band in hot[name]]
        kept += [_within(band, cut, stats.table.num_embeddings) for band in cold[name]]
        bands[name] = tuple(band for band in kept if band is not None)
    return bands


def shared_with_servers(least: Least, case: BoundCase) -> Iterator[Bands]:
    """Rows divided between devices and servers by rank.

    Where a row costs as much on either, prices do not say how many go where. So both extremes are
    asked for, at weights a little to either side, and mixed in many shares.
    """
    weights = least.tables.weights
    near, far = (least.pricing.tables(_tilted(weights, by), MASSES) for by in (-TILT, TILT))
    allowed = allowed_shelves(least.tables, case.phase)
    for sums in (True, False):
        kept = allowed if sums else allowed * (least.tables.sums_of == NO_SUMS)
        if not is_possible(least.tables, kept):
            continue  # pins leave some rows nothing but sums
        ends = []
        for tables in (near, far):
            priced = at_prices(tables, case.fits.prices, kept)
            ends.append(freely(least.pricing, tables, priced))
        for share in np.arange(1, SHARES) / SHARES:
            yield mixed(least.pricing.profile, ends[0], ends[1], float(share))
            yield mixed(least.pricing.profile, ends[1], ends[0], float(share))


def _tilted(weights: Floats, towards_devices: float) -> Floats:
    """The same weights, devices counting so much more, and servers less."""
    devices = min(1.0, max(0.0, float(weights[0]) + towards_devices))
    rest = float(weights[1:].sum())
    others = weights[1:] / rest if rest else np.full(len(weights) - 1, 1 / (len(weights) - 1))
    return np.concatenate(([devices], (1 - devices) * others))


def _within(band: Band, start: int, stop: int) -> Band | None:
    """The part of a band between two ranks."""
    start, stop = max(band.start, start), min(band.stop, stop)
    return band.model_copy(update={"start": start, "stop": stop}) if start < stop else None

"""Plans of whatever each row would choose alone, at the prices and weights of the bound.

Every way that a band can say is open (`_bounds_least.py`): owners inside groups, rows that are
fetched lookup by lookup, copies on servers of a group. What is spread is spread over all holders of
its kind; a table's sums have one owner in each group of their scope, dealt out by what they do.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from _bounds_least import Holding, Least, TableChoice, Weights

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.tree import tree_of
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile


def chosen_freely(
    profile: Profile, cluster: Cluster, least: Least, prices: Floats, weights: Weights,
    *, sums: bool = True,
) -> Bands:  # fmt: skip
    """The bands of what rows choose, or would choose without sums; they may not fit."""
    busy: dict[tuple[str, int], Floats] = {}
    bands: dict[str, tuple[Band, ...]] = {}
    choices = [c.chosen(prices, weights, least.scale, sums=sums) for c in least.choices]
    heaviest = np.argsort([-_owned_s(c, at) for c, at in zip(least.choices, choices, strict=True)])
    for index in heaviest.tolist():
        stats, choice, chosen = profile.stats[index], least.choices[index], choices[index]
        stops = [*stats.curve.stops.tolist(), stats.table.num_embeddings]
        edges = [0, *(np.flatnonzero(np.diff(chosen)) + 1).tolist(), len(chosen)]
        found: list[Band] = []
        members: dict[Holding, tuple[int, ...] | str] = {}  # one owner for all of a table's sums
        for first, last in pairwise(edges):
            way = choice.ways[int(chosen[first])]
            start, stop = (stops[first - 1] if first else 0), stops[last - 1]
            if stop > start:
                of = way._replace(memory=0, band=way.band.model_copy(update={"tier": "any"}))
                if of not in members:
                    members[of] = _members(way, choice, chosen, cluster, busy)
                changes = {"start": start, "stop": stop, "members": members[of], "offset": index}
                found.append(way.band.model_copy(update=changes))
        bands[stats.table.name] = tuple(found)
    return bands


def mixed(profile: Profile, hot: Bands, cold: Bands, share: float) -> Bands:
    """Rows with so much of each table's lookups as one plan says, the others as another."""
    bands: dict[str, tuple[Band, ...]] = {}
    for stats in profile.stats:
        name, curve = stats.table.name, stats.curve
        served = np.concatenate(([0.0], np.cumsum(curve.lookups)))
        at = share * served[-1]
        stops = np.concatenate(([0], curve.stops))
        cut = int(np.interp(at, served, stops)) if served[-1] else 0
        kept = [_within(band, 0, cut) for band in hot[name]]
        kept += [_within(band, cut, stats.table.num_embeddings) for band in cold[name]]
        bands[name] = tuple(band for band in kept if band is not None)
    return bands


def _within(band: Band, start: int, stop: int) -> Band | None:
    """The part of a band between two ranks."""
    start, stop = max(band.start, start), min(band.stop, stop)
    return band.model_copy(update={"start": start, "stop": stop}) if start < stop else None


def _owned_s(choice: TableChoice, chosen: Ints) -> float:
    """What owners do for a table's sums."""
    here = np.arange(len(chosen))
    sums = (choice.sum_links_s + choice.sum_work_s)[chosen] > 0
    return float((choice.busy_s[chosen, here] * choice.widths * sums).sum())


def _members(
    way: Holding, choice: TableChoice, chosen: Ints, cluster: Cluster,
    busy: dict[tuple[str, int], Floats],
) -> tuple[int, ...] | str:  # fmt: skip
    """All holders of the kind; for sums the one that has had the least to do so far."""
    tree = tree_of(cluster)
    here = tree.kinds[tree.members[tree.scopes[way.band.scope]][0]] == way.kind
    places = np.flatnonzero(here)
    if way.band.exchange != "sums":
        return "all" if way.kind == 0 else tuple(places.tolist())
    load = busy.setdefault((way.band.scope, way.kind), np.zeros(len(places)))
    owner = int(np.argmin(load))
    load[owner] += _owned_s(choice, chosen)
    return (int(places[owner]),)

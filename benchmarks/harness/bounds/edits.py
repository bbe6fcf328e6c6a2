"""The best edit of one or two bands of a plan, as far as a few hundred drawn ones show it.

What tables ask of holders adds up (`cost/load.py`), so an edit costs one table to price, and two
edits in two tables nothing more. Those that look best are priced exactly, and checked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from harness.bounds.draw import Instance
from harness.bounds.plans import TableBands, edited, legal_cost
from rowtier.band import Bands
from rowtier.cost.load import Load, chosen, stacked, total_load
from rowtier.cost.memory import pools
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import TableStats

ONCE, TWICE = 40, 16  # edits of each table; and of each of the best edited ones, once more
AGAIN = 2  # of the best edits, edited once more
IN_PAIRS = 24  # of the best edits of one table, tried with as many of another
EXACTLY = 6  # of all, priced exactly


@dataclass(frozen=True, eq=False)
class BestEdit:
    """The fastest legal plan found, and how many that fit were looked at."""

    bands: Bands
    step_s: float
    tried: int


@dataclass(frozen=True, eq=False)
class Edits:
    """Placements of one table; the first is the one that it has."""

    bands: list[TableBands]
    loads: Load


def load_of(instance: Instance, stats: TableStats, bands: TableBands) -> Load:
    """What one table asks of every holder."""
    options = instance.options.cost
    return Load.of(stats, bands, instance.profile, instance.cluster, options)


def step_times(instance: Instance, loads: Load) -> Floats:
    """Seconds of a step of each placement; endless where rows do not fit."""
    values = loads.step_s(instance.cluster, instance.options.cost)
    names = instance.cluster.tier_names
    for pool in pools(instance.cluster):
        used = loads.kept[list(pool.holders), names.index(pool.tier)].sum(axis=0)
        values = np.where(used > pool.capacity_bytes + 0.5, np.inf, values)
    return np.asarray(values)


def best_edit(instance: Instance, bands: Bands, random: np.random.Generator) -> BestEdit:
    """The best of one edit, two edits of one table, and one edit in each of two tables."""
    every = instance.profile.stats
    names = [stats.table.name for stats in every]
    now = [load_of(instance, stats, bands[stats.table.name]) for stats in every]
    spaces = []
    found: list[tuple[float, dict[str, TableBands]]] = []
    tried = 0
    for index, stats in enumerate(every):
        rest = _rest(now, {index})
        space = _edits_of(instance, stats, bands[names[index]], rest, random)
        spaces.append(space)
        values = step_times(instance, rest + space.loads)
        tried += int(np.isfinite(values[1:]).sum())
        best = np.argsort(values, kind="stable")[:EXACTLY].tolist()
        found += [(float(values[at]), {names[index]: space.bands[at]}) for at in best]
    for one, other in combinations(range(len(every)), 2):
        rest = _rest(now, {one, other})
        pairs, legal = _best_pairs(instance, rest, spaces[one], spaces[other])
        tried += legal
        for value, a, b in pairs:
            both = {names[one]: spaces[one].bands[a], names[other]: spaces[other].bands[b]}
            found.append((value, both))
    found.sort(key=lambda entry: entry[0])
    return _exactly(instance, bands, [changes for _, changes in found[:EXACTLY]], tried)


def _rest(loads: list[Load], without: set[int]) -> Load:
    """The load of all other tables, with an axis for placements."""
    kept = [load for index, load in enumerate(loads) if index not in without]
    return stacked([total_load(kept) if kept else loads[0] * 0.0])


def _exactly(
    instance: Instance, bands: Bands, edits: list[dict[str, TableBands]], tried: int
) -> BestEdit:
    """The best legal one of some edits, by the exact cost."""
    best = BestEdit(bands, np.inf, tried)
    for changes in edits:
        cost = legal_cost(instance, made := {**bands, **changes})
        if cost is not None and cost.step_s < best.step_s:
            best = replace(best, bands=made, step_s=cost.step_s)
    return best


def _edits_of(
    instance: Instance, stats: TableStats, now: TableBands, rest: Load,
    random: np.random.Generator,
) -> Edits:  # fmt: skip
    """One edit, and two in turn from the best of those."""
    bands = [now, *(edited(instance, stats, now, random) for _ in range(ONCE))]
    bands = [each for each in bands if _is_placeable(instance, each)]
    loads = stacked([load_of(instance, stats, each) for each in bands])
    values = step_times(instance, rest + loads)
    more = [
        edited(instance, stats, bands[at], random)
        for at in np.argsort(values, kind="stable")[:AGAIN].tolist()
        for _ in range(TWICE)
    ]
    more = [each for each in more if _is_placeable(instance, each)]
    found = [load_of(instance, stats, each) for each in more]
    once = [chosen(loads, at) for at in range(len(bands))]
    return Edits(bands + more, stacked(once + found))


def _is_placeable(instance: Instance, bands: TableBands) -> bool:
    """Whether all members of a table's bands exist, and have the tier."""
    cluster = instance.cluster
    for band in bands:
        level = cluster.level_of(band.scope)
        group = cluster.members(level)
        for member in band.member_list(cluster.group_size(level)):
            if member >= len(group):
                return False
            if band.tier not in {tier.name for tier in cluster.tiers_of(group[member])}:
                return False
    return True


def _best_pairs(
    instance: Instance, rest: Load, one: Edits, other: Edits
) -> tuple[list[tuple[float, int, int]], int]:
    """Of pairs of edits that are good alone those that are the best together; and how many fit."""
    top = [
        np.argsort((rest + each.loads).step_s(instance.cluster, instance.options.cost))[:IN_PAIRS]
        for each in (one, other)
    ]
    first, second = (np.ravel(grid) for grid in np.meshgrid(*top, indexing="ij"))
    values = step_times(instance, rest + chosen(one.loads, first) + chosen(other.loads, second))
    best: Ints = np.argsort(values, kind="stable")[:EXACTLY]
    pairs = [(float(values[at]), int(first[at]), int(second[at])) for at in best.tolist()]
    return pairs, int(np.isfinite(values).sum())

"""Every plan of a tiny problem that is made of a few bands, and what is best of all.

A table is one band, two or three with cuts where its heat changes, or two of half the columns each.
A band may have any scope, tier, exchange, staging and sync, on all members of a group, on one or on
two of them. Left out are `order` and `offset`, which only say who has the row that is left over.

What bands ask of holders adds up, but for partial sums that one owner sends for two bands of a
table, or that are staged: those are priced together. A part of a plan that alone takes as long as
the time to beat is dropped, and of two tables those whose averages over holders do: nothing that is
dropped is better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.bounds.draw import Instance
from harness.bounds.edits import load_of, step_times
from harness.bounds.plans import TableBands, legal_cost
from rowtier import Band
from rowtier.band import Bands
from rowtier.cluster import Cluster
from rowtier.cost.links import Flow
from rowtier.cost.load import Load, chosen, side_by_side, stacked
from rowtier.cost.time import link_time_s, memory_time_s
from rowtier.cost.tree import tree_of
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import TableStats

MOST_TRIPLES = 30_000  # ways to keep three bands, for them to be tried
AT_ONCE = 200_000  # pairs of tables' placements that are priced together
GOOD = 200  # placements of each of two tables that are tried first
BETTER = 1e-9


@dataclass(frozen=True, eq=False)
class Searched:
    """The best plan that is faster than the time to beat, if any, and how many there were."""

    bands: Bands | None
    step_s: float
    plans: int


class Run(NamedTuple):
    """Rows and columns of a table that are kept in one way."""

    start: int
    stop: int
    columns: tuple[int, int] | None


@dataclass(frozen=True, eq=False)
class Placements:
    """What is left of a table's placements."""

    bands: list[TableBands]
    loads: Load
    count: int  # before any was dropped


def best_of_all(instance: Instance, beat_s: float) -> Searched:
    """The fastest legal plan, if one is faster than this."""
    tables = [_placements(instance, stats, beat_s) for stats in instance.profile.stats]
    plans = int(np.prod([table.count for table in tables]))
    nothing = Searched(None, beat_s, plans)
    if not all(table.bands for table in tables):
        return nothing
    if len(tables) == 1:
        value, picks = _best_alone(instance, tables[0])
    else:
        value, picks = _best_pair(instance, tables[0], tables[1], beat_s)
    if value >= beat_s * (1 - BETTER):
        return nothing
    names = [stats.table.name for stats in instance.profile.stats]
    bands = {n: t.bands[at] for n, t, at in zip(names, tables, picks, strict=True)}
    cost = legal_cost(instance, bands)
    assert cost is not None, f"{bands} are not legal"
    assert abs(cost.step_s / value - 1) < 1e-6, f"{bands} take {cost.step_s}, not {value}"
    return Searched(bands, cost.step_s, plans)


def ways_of(instance: Instance, stats: TableStats) -> list[Band]:
    """Every way to keep some rows of a table."""
    return [
        way
        for scope in instance.cluster.scopes
        for base in _held(instance.cluster, scope)
        for way in _sent(base, instance.cluster, stats.table.pooling != "none")
    ]


def _held(cluster: Cluster, scope: str) -> Iterator[Band]:
    """By all devices of a group or all servers of a kind, by one holder or by two."""
    kinds: dict[tuple[str, ...], list[int]] = {}
    for member, holder in enumerate(cluster.members(cluster.level_of(scope))):
        tiers = tuple(tier.name for tier in cluster.tiers_of(holder))
        kinds.setdefault(tiers, []).append(member)
    for tiers, places in kinds.items():
        sets = {tuple(places), *((place,) for place in places), *combinations(places, 2)}
        for members, tier in product(sorted(sets), tiers):
            yield Band(start=0, stop=1, scope=scope, members=members, tier=tier)


def _sent(base: Band, cluster: Cluster, pooled: bool) -> Iterator[Band]:
    level, top = cluster.level_of(base.scope), len(cluster.levels)
    ways: list[dict[str, Any]] = [{}]
    if level:
        ways += [{"coalesced": True}] + [{"exchange": "sums"}] * pooled
    if level > 1:
        ways += [{"coalesced": True, "staged": True}]
        ways += [{"exchange": "sums", "staged": True}] * pooled
    for way, sync in product(ways, ("dense", "sparse") if level < top else ("dense",)):
        yield base.model_copy(update={**way, "sync": sync})


def _placements(instance: Instance, stats: TableStats, beat_s: float) -> Placements:
    """All placements of a table that alone are faster than the time to beat."""
    table, ways = stats.table, ways_of(instance, stats)
    whole = Run(0, table.num_embeddings, None)
    cuts = [int(stop) for stop in stats.curve.stops if stop < whole.stop]
    most = 3 if len(ways) ** 3 <= MOST_TRIPLES else 2
    shapes = [
        [Run(start, stop, None) for start, stop in pairwise([0, *inner, whole.stop])]
        for count in range(most)
        for inner in combinations(cuts, count)
    ]
    middle = table.embedding_dim // 2
    if middle:
        halves = (0, middle), (middle, table.embedding_dim)
        shapes.append([whole._replace(columns=columns) for columns in halves])
    bands = {
        run: [way.model_copy(update=run._asdict()) for way in ways] for s in shapes for run in s
    }
    loads = {
        run: stacked([load_of(instance, stats, (band,)) for band in bands[run]]) for run in bands
    }
    kept = [
        _kept(instance, stats, [bands[run] for run in shape], [loads[run] for run in shape], beat_s)
        for shape in shapes
    ]
    every = [each for one in kept for each in one.bands]
    count = sum(one.count for one in kept)
    return Placements(every, side_by_side([one.loads for one in kept]), count)


def _kept(
    instance: Instance, stats: TableStats, bands: Sequence[list[Band]], loads: Sequence[Load],
    beat_s: float,
) -> Placements:  # fmt: skip
    """Every choice of a way for each of some bands, but for those that are too slow alone."""
    count, by_rows = len(bands), bands[0][0].columns is None
    grids = np.meshgrid(*[np.arange(len(bands[0]))] * count, indexing="ij")
    picks = np.stack([np.ravel(grid) for grid in grids])
    together = np.zeros(picks.shape[1], dtype=bool)
    if by_rows:
        shared = _share_sums(bands[0], instance.cluster)
        for one, other in combinations(range(count), 2):
            together |= shared[picks[one], picks[other]]
    least = _least(loads, picks, together)
    fast = step_times(instance, least) < beat_s * (1 - BETTER)
    if by_rows:  # neighbours that are kept alike are one band, and were tried as such
        fast &= ~(picks[1:] == picks[:-1]).any(axis=0)
    exact = np.flatnonzero(fast & ~together)
    parts, found = [chosen(least, exact)], [_at(bands, picks[:, at]) for at in exact.tolist()]
    for at in np.flatnonzero(fast & together).tolist():
        both = _at(bands, picks[:, at])
        found.append(both)
        parts.append(stacked([load_of(instance, stats, both)]))
    return Placements(found, side_by_side(parts), picks.shape[1])


def _at(bands: Sequence[list[Band]], picks: Ints) -> TableBands:
    return tuple(each[pick] for each, pick in zip(bands, picks.tolist(), strict=True))


def _share_sums(bands: list[Band], cluster: Cluster) -> NDArray[np.bool_]:
    """Ways × ways: whether what two bands send may be less than the sum of both."""
    tree = tree_of(cluster)
    held = np.zeros((len(bands), tree.holders), dtype=bool)
    for index, band in enumerate(bands):
        if band.exchange == "sums" and band.scope != cluster.scopes[0]:
            held[index, np.ravel(tree.holders_of(band))] = True
    sums: NDArray[np.bool_] = np.asarray(held.any(axis=1))
    staged = np.array([band.staged for band in bands])
    counts: Ints = held.astype(np.int64) @ held.T.astype(np.int64)
    meet: NDArray[np.bool_] = (counts > 0) | staged[:, None]
    return np.asarray(meet & sums[:, None] & sums & (staged[:, None] == staged))


def _least(loads: Sequence[Load], picks: Ints, together: NDArray[np.bool_]) -> Load:
    """What all choices ask at least: the sum, but where sums may be shared the larger of them."""
    parts = [chosen(load, at) for load, at in zip(loads, picks, strict=True)]
    total = parts[0]
    for part in parts[1:]:
        most = [np.maximum(getattr(total.forward, way), getattr(part.forward, way))
                for way in ("sent", "received")]  # fmt: skip
        added = total + part
        both = [added.forward.sent, added.forward.received]
        forward = Flow(*(np.where(together, m, b) for m, b in zip(most, both, strict=True)))
        total = replace(added, forward=forward)
    return total


def _best_alone(instance: Instance, table: Placements) -> tuple[float, tuple[int, ...]]:
    values = step_times(instance, table.loads)
    at = int(np.argmin(values))
    return float(values[at]), (at,)


def _best_pair(
    instance: Instance, one: Placements, other: Placements, beat_s: float
) -> tuple[float, tuple[int, ...]]:
    """The best two placements: first of those that are good alone, then of all that may be better.

    Together they take at least the averages over holders of both, and the waiting of either.
    """
    alone = [table.loads.step_s(instance.cluster) for table in (one, other)]
    good = [np.argsort(values, kind="stable")[:GOOD] for values in alone]
    start = [(np.full(len(good[1]), first), good[1]) for first in good[0].tolist()]
    best = min((beat_s, (0, 0)), _priced(instance, one, other, start))
    means = [_mean_s(instance.cluster, table.loads) for table in (one, other)]
    least = means[0] + _waiting_s(instance.cluster, one.loads)
    second = np.flatnonzero(alone[1] < best[0])
    second = second[np.argsort(means[1][second], kind="stable")]
    rising, pairs = means[1][second], []
    for first in np.flatnonzero(alone[0] < best[0]).tolist():
        room = int(np.searchsorted(rising, best[0] - least[first]))
        pairs.append((np.full(room, first), second[:room]))
        if sum(len(entry[0]) for entry in pairs) > AT_ONCE:
            best = min(best, _priced(instance, one, other, pairs))
            pairs = []
    return min(best, _priced(instance, one, other, pairs))


def _waiting_s(cluster: Cluster, loads: Load) -> Floats:
    """What latencies and messages alone take."""
    return replace(loads * 0.0, rounds=loads.rounds).step_s(cluster)


def _priced(
    instance: Instance, one: Placements, other: Placements, pairs: list[tuple[Ints, Ints]]
) -> tuple[float, tuple[int, ...]]:
    if not sum(len(first) for first, _ in pairs):
        return np.inf, (0, 0)
    first, second = (np.concatenate(column) for column in zip(*pairs, strict=True))
    both = chosen(one.loads, first) + chosen(other.loads, second)
    values = step_times(instance, both)
    at = int(np.argmin(values))
    return float(values[at]), (int(first[at]), int(second[at]))


def _mean_s(cluster: Cluster, loads: Load) -> Floats:
    """Seconds that adding up gives at least: memory and links of the average holder, no waiting."""
    tree = tree_of(cluster)
    exchange = [Flow(flow.sent, flow.sent) for flow in (loads.ids, loads.forward)]
    exchange.append(Flow(loads.forward.received, loads.forward.received))  # gradients go back
    links_s = link_time_s(tree, exchange, "exchange").mean(axis=0).sum(axis=0)
    sync = Flow(loads.sync.sent, loads.sync.sent)
    sync_s = link_time_s(tree, [sync], "sync").mean(axis=0).sum(axis=0)
    return np.asarray(memory_time_s(tree, loads.moved).mean(axis=0) + links_s + sync_s)

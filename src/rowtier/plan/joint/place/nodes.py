"""Owners inside every node: sums that never leave it, from the same place in each.

Rows that many readers want, but not all, may have a copy in every node, on one device that sends
its sums to the others there. Nodes are alike, so what remains to be said is which place in a node
has which table, and whether several places have a part of its columns each: what is best beside
all that devices do otherwise, the heaviest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.cost.load import Load, chosen, stacked
from rowtier.cost.options import CostOptions
from rowtier.cost.tree import tree_of
from rowtier.plan.joint.place.ways import LEAST_COLUMNS
from rowtier.profile.curve import Floats
from rowtier.profile.profile import Profile, TableStats

MUCH = 0.4  # of what a place has on average: a table with more is cut by columns
ROUNDS, LEAST_GAIN = 3, 1e-4  # over all tables, and what one must bring of a step for another


def with_places(
    bands: Mapping[str, list[Band]], profile: Profile, cluster: Cluster, cost: CostOptions
) -> dict[str, list[Band]]:
    """The same bands with a place in the node for every table that has an owner in each."""
    found = {name: list(mine) for name, mine in bands.items()}
    for level in range(1, len(cluster.levels)):
        scope = cluster.scopes[level]
        inside = [
            stats
            for stats in profile.stats
            if any(_is_in_node(band, scope, cluster) for band in found[stats.table.name])
        ]
        if inside:
            beside = {name: _beside(mine, scope, cluster) for name, mine in found.items()}
            rest = Load.of_all(beside, profile, cluster, cost)
            nodes = _Nodes(profile, cluster, cost, level, rest)
            for stats, columns in nodes.places(inside, found):
                found[stats.table.name] = [
                    one
                    for band in found[stats.table.name]
                    for one in (
                        _with(band, columns) if _is_in_node(band, scope, cluster) else [band]
                    )
                ]
    return found


Columns = list[tuple[int, tuple[int, int] | None]]  # places in a node, and the columns of each


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Groups of a level, and what their devices have to do already."""

    profile: Profile
    cluster: Cluster
    cost: CostOptions
    level: int
    rest: Load

    def places(
        self, inside: list[TableStats], bands: Mapping[str, list[Band]]
    ) -> Iterator[tuple[TableStats, Columns]]:
        """Where each table is best, the heaviest first, then each again beside all others."""
        size, scope = tree_of(self.cluster).sizes[self.level], self.cluster.scopes[self.level]
        mine = [
            [b for b in bands[s.table.name] if _is_in_node(b, scope, self.cluster)] for s in inside
        ]
        whole = [self._turns(*facts, 1) for facts in zip(inside, mine, strict=True)]
        alone_s = [float(self._step_s(load)[0]) for load in whole]
        much_s = MUCH * sum(alone_s) / size
        parts = [
            _parts(one_s / max(much_s, 1e-300), size, stats.table.embedding_dim)
            for one_s, stats in zip(alone_s, inside, strict=True)
        ]
        loads = [
            load if count == 1 else self._turns(stats, own, count)
            for load, count, stats, own in zip(whole, parts, inside, mine, strict=True)
        ]
        order = np.argsort(alone_s)[::-1].tolist()
        now, picks = self.rest, [-1] * len(inside)
        for again in range(ROUNDS):
            before = float(self._step_s(now))
            for at in order:
                if again:
                    now = now - chosen(loads[at], picks[at])
                values = self._step_s(stacked([now]) + loads[at])
                busy = (stacked([now]) + loads[at]).forward.sent.max(axis=0).sum(axis=0)
                picks[at] = int(np.lexsort((busy, values))[0])
                now = now + chosen(loads[at], picks[at])
            if again and float(self._step_s(now)) > (1 - LEAST_GAIN) * before:
                break
        for stats, count, pick in zip(inside, parts, picks, strict=True):
            yield stats, _turned(count, pick, size, stats.table.embedding_dim)

    def _step_s(self, load: Load) -> Floats:
        return load.step_s(self.cluster, self.cost)

    def _turns(self, stats: TableStats, bands: list[Band], parts: int) -> Load:
        """Loads of a table in so many parts, beginning at each place of a node."""
        size, devices = tree_of(self.cluster).sizes[self.level], self.cluster.num_devices
        columns = _turned(parts, 0, size, stats.table.embedding_dim)
        placed = tuple(one for band in bands for one in _with(band, columns))
        first = Load.of(stats, placed, self.profile, self.cluster, self.cost)
        nothing = Load.of(stats, (), self.profile, self.cluster, self.cost)  # is in the rest
        holders = np.arange(len(first.work_s))
        node, place = np.divmod(np.arange(devices), size)
        found = []
        for turn in range(size):
            holders[:devices] = node * size + (place - turn) % size
            found.append((first - nothing).of_holders(holders))
        return stacked(found)


def _parts(times: float, size: int, dim: int) -> int:
    """Into how many parts columns are cut that are so many times too much for one place."""
    parts = 1
    while parts < times and 2 * parts <= size and 2 * parts * LEAST_COLUMNS <= dim:
        parts *= 2
    return parts


def _turned(parts: int, first: int, size: int, dim: int) -> Columns:
    """Parts of the columns, at places as far from each other as can be."""
    if parts == 1:
        return [(first, None)]
    edges = [dim * part // parts // LEAST_COLUMNS * LEAST_COLUMNS for part in range(parts)]
    places = [(first + part * size // parts) % size for part in range(parts)]
    return list(zip(places, zip(edges, [*edges[1:], dim], strict=True), strict=True))


def _with(band: Band, columns: Columns) -> list[Band]:
    return [band.model_copy(update={"members": (at,), "columns": part}) for at, part in columns]


def _beside(bands: list[Band], scope: str, cluster: Cluster) -> tuple[Band, ...]:
    """All other bands, of devices in fast memory: how much it has room for is not known yet."""
    fast = {"tier": cluster.device.tiers[0].name}
    others = [band for band in bands if not _is_in_node(band, scope, cluster)]
    return tuple(
        band.model_copy(update=fast) if _on_devices(band, cluster) else band for band in others
    )


def _is_in_node(band: Band, scope: str, cluster: Cluster) -> bool:
    return band.scope == scope and band.exchange == "sums" and _on_devices(band, cluster)


def _on_devices(band: Band, cluster: Cluster) -> bool:
    tree = tree_of(cluster)
    return bool(tree.kinds[tree.holders_of(band)[0, 0]] == 0)

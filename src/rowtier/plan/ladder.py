"""Where `flexshard` may cut a table: what its hottest rows cost together, at every bucket edge.

At one price for a byte the best cuts are exact, by running minima over the edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.cost.terms import row_terms
from rowtier.cost.touch import table_basis
from rowtier.cost.tree import tree_of
from rowtier.plan.tiers import Run
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile, TableStats


class Cuts(NamedTuple):
    """Where a table is cut, a rank per scope (the last is the table's end), and each one's way."""

    stops: tuple[int, ...]
    ways: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Ladder:
    """One sequence table: what its hottest rows cost together, for every way to keep them.

    `seconds`, `stored` and `kept` hold an array per scope, ways × edges: link time, bytes of rows
    and bytes that are priced, all a device's share, of the rows before each bucket edge.
    """

    stats: TableStats
    homes: tuple[tuple[Band, ...], ...]  # per scope, from `device` outwards: dense, sparse
    edges: Ints
    seconds: tuple[Floats, ...]
    stored: tuple[Floats, ...]
    kept: tuple[Floats, ...]
    devices: tuple[int, ...]  # in a group of each scope

    @classmethod
    def of(cls, stats: TableStats, profile: Profile, cluster: Cluster) -> Ladder:
        """Price every scope for every bucket of a table."""
        stops, rest = stats.curve.stops, stats.curve.positions < stats.table.num_embeddings
        if rest:
            stops = np.append(stops, stats.table.num_embeddings)
        basis = table_basis(stats, profile, tree_of(cluster).sizes, rest=rest)
        widths = np.diff(stops, prepend=0)
        homes = _homes(cluster)
        seconds, stored, kept = [], [], []
        for ways in homes:
            terms = [row_terms(home, stats.table, basis, cluster) for home in ways]
            times = [(t.exchange_s + t.sync_s).sum(axis=0) for t in terms]
            buffers = [t.buffer_bytes / t.group_devices for t in terms]
            rows = np.array([[t.stored_bytes / t.group_devices] for t in terms])
            seconds.append(_running(np.stack(times) * widths))
            stored.append(_running(rows * widths))
            kept.append(stored[-1] + _running(np.stack(buffers) * widths))
        edges = np.concatenate(([0], stops))
        devices = tuple(cluster.group_size(cluster.level_of(ways[0].scope)) for ways in homes)
        return cls(stats, homes, edges, tuple(seconds), tuple(stored), tuple(kept), devices)

    def best(self, price: float) -> Cuts:
        """The cuts with the least seconds + price · bytes.

        `least[c]` is the least for the rows before c with the scopes so far; the next scope
        takes the rows from some earlier c′ on, and a running minimum finds the best c′.
        """
        back: list[tuple[Ints, Ints]] = []
        least: Floats | None = None
        for seconds, kept in zip(self.seconds, self.kept, strict=True):
            costs = seconds + price * kept
            starts = np.zeros(costs.shape, dtype=np.int64)
            if least is not None:
                drops = least - costs
                starts = _first_least(drops)
                costs = costs + np.take_along_axis(drops, starts, axis=1)
            ways = costs.argmin(axis=0)
            least = np.take_along_axis(costs, ways[None], axis=0)[0]
            back.append((ways, np.take_along_axis(starts, ways[None], axis=0)[0]))
        at, found = len(self.edges) - 1, []
        for way, start in reversed(back):
            found.append((int(self.edges[at]), int(way[at])))
            at = int(start[at])
        found.reverse()
        return Cuts(tuple(stop for stop, _ in found), tuple(way for _, way in found))

    def amounts(self, cuts: Cuts) -> tuple[float, float]:
        """Seconds and bytes of any cuts, also inside buckets, whose rows are all alike."""
        totals, start = [0.0, 0.0], 0
        for scope, (stop, way) in enumerate(zip(*cuts, strict=True)):
            for index, sums in enumerate((self.seconds, self.kept)):
                first, last = np.interp([start, stop], self.edges, sums[scope][way])
                totals[index] += float(last - first)
            start = stop
        return totals[0], totals[1]

    @property
    def without_copies(self) -> Cuts:
        """All rows in the widest scope."""
        inner = (0,) * (len(self.homes) - 1)
        return Cuts((*inner, self.stats.table.num_embeddings), (*inner, 0))

    @property
    def bytes_in_nodes(self) -> float:
        """Bytes of a device if no row that is ever looked up is further away than its node."""
        seen, table = self.stats.curve.positions, self.stats.table
        near, far = self.devices[-2:][0], self.devices[-1]
        rows = seen / near + (table.num_embeddings - seen) / far
        return rows * table.stored_row_bytes

    def runs(self, cuts: Cuts, offset: int) -> Iterator[Run]:
        """What some cuts give each scope that has rows."""
        start = 0
        for homes, stop, way in zip(self.homes, *cuts, strict=True):
            if stop > start:
                changes = {"start": start, "stop": stop, "offset": offset}
                yield Run(self.stats, homes[way].model_copy(update=changes))
            start = stop


def _homes(cluster: Cluster) -> tuple[tuple[Band, ...], ...]:
    """Dense and sparse copies of each scope; links do not ask which tier they are in."""
    scopes, tier = dict.fromkeys([*cluster.scopes[:2], cluster.top]), cluster.device.tiers[0].name
    homes = []
    for scope in scopes:
        dense = Band(start=0, stop=1, scope=scope, tier=tier)
        copies = (dense, dense.model_copy(update={"sync": "sparse"}))
        homes.append(copies if scope != cluster.top else (dense,))
    return tuple(homes)


def _running(amounts: Floats) -> Floats:
    return np.concatenate((np.zeros((len(amounts), 1)), np.cumsum(amounts, axis=1)), axis=1)


def _first_least(values: Floats) -> Ints:
    """For each position, where the least value so far was met first."""
    least = np.minimum.accumulate(values, axis=1)
    new = np.zeros(values.shape, dtype=np.int64)
    new[:, 1:] = np.where(values[:, 1:] < least[:, :-1], np.arange(1, values.shape[1]), 0)
    return np.maximum.accumulate(new, axis=1)

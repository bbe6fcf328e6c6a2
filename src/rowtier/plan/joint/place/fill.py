"""Fill what is left of fast memory with the rows that gain most from it, by rank.

Prices decide bucket by bucket, and owners never fill a device to the last byte. Here the edges
between fast and slow bands are moved outwards, rows of each owner first, then rows that several
devices have, then those that lie on all of them, until the memory is full or nothing gains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.amounts import RowSizes
from rowtier.cost.memory import Room, band_bytes, row_bytes
from rowtier.cost.options import CostOptions
from rowtier.cost.rates import Way
from rowtier.cost.terms import row_terms
from rowtier.cost.touch import rows_at, table_basis
from rowtier.cost.tree import tree_of
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile, TableStats
from rowtier.tables import Table


@dataclass(frozen=True, eq=False)
class _Slow:
    """A band in slow memory, and what its rows would gain in a faster one."""

    table: Table
    band: Band
    holders: int  # devices that have a copy together
    stops: Ints  # of its buckets
    gain: Floats  # seconds per byte, by bucket
    bytes_of_each: Floats  # on each of its holders, by bucket

    @property
    def owners(self) -> tuple[int, ...]:
        """Who has it, if not all devices have."""
        return () if self.band.members == "all" else self.band.members


def fill(
    bands: Mapping[str, Sequence[Band]],
    profile: Profile,
    cluster: Cluster,
    room: Room,
    cost: CostOptions,
    fixed: frozenset[str] = frozenset(),
) -> Bands:
    """The same bands with faster tiers filled; tables in `fixed` stay as they are."""
    filling = _Filling(profile, cluster, cost, room, {n: list(mine) for n, mine in bands.items()})
    names = [tier.name for tier in cluster.device.tiers]
    for index, fast in enumerate(names[:-1]):
        filling.relieve(fast, names[index + 1], fixed)
        filling.fill(fast, frozenset(names[index + 1 :]), fixed)
    return {name: tuple(mine) for name, mine in filling.bands.items()}


@dataclass(frozen=True, eq=False)
class _Filling:
    profile: Profile
    cluster: Cluster
    cost: CostOptions
    room: Room
    bands: dict[str, list[Band]]
    known: dict[object, Floats] = field(default_factory=dict)  # memory seconds on the basis

    def fill(self, fast: str, slower: frozenset[str], fixed: frozenset[str]) -> None:
        """Fill one memory with rows of slower ones."""
        free = [stats for stats in self.profile.stats if stats.table.name not in fixed]
        slow = [one for stats in free for one in self._slow_bands(stats, slower, fast)]
        by_owner: dict[tuple[int, ...], list[_Slow]] = {}
        for one in slow:
            by_owner.setdefault(one.owners, []).append(one)
        for owners, mine in sorted(by_owner.items(), key=lambda one: (not one[0], len(one[0]))):
            self._move(_take(mine, self._free_bytes(owners, fast)), fast)

    def relieve(self, full: str, slower: str, fixed: frozenset[str]) -> None:
        """Where a memory has too much, bring the ends of bands of several devices to a slower one.

        Prices see how much all devices have together; what some of them share may be more than
        those have.
        """
        if self.room.free_on(full).min() >= 0:
            return
        shared = [
            (band.rows / band.stop, stats.table, band)  # long tails first, which are cold
            for stats in self.profile.stats
            if stats.table.name not in fixed
            for band in self.bands[stats.table.name]
            if band.tier == full and band.members != "all" and _on_devices(band, self.cluster)
        ]
        for _, table, band in sorted(shared, key=lambda one: -one[0]):
            missing = -int(self.room.free_on(full)[list(band.member_list(0))].min())
            if missing > 0:
                rows = -(-missing // row_bytes(table, band)) * len(band.members)
                cut = max(band.start, band.stop - rows)
                tail = band.model_copy(update={"start": cut, "tier": slower})
                kept = [band.model_copy(update={"stop": cut})] if cut > band.start else []
                mine = self.bands[table.name]
                at = next(i for i, other in enumerate(mine) if other is band)
                mine[at : at + 1] = [*kept, tail]
                freed = band_bytes(table, band, self.cluster)
                for one in kept:
                    freed = freed - band_bytes(table, one, self.cluster)
                self.room.take(-freed, full)
                self.room.take(band_bytes(table, tail, self.cluster), slower)

    def _free_bytes(self, owners: tuple[int, ...], fast: str) -> float:
        """Bytes that rows of these owners may take of each; what is shared is divided."""
        if not owners:
            return self.room.free_of_each(fast)
        left = self.room.free_on(fast)
        return min(float(left[owner]) / self._sharers_to_come(owner, fast) for owner in owners)

    def _sharers_to_come(self, owner: int, name: str) -> int:
        """The devices that share a tier with one and have higher numbers, and itself."""
        tier = next(tier for tier in self.cluster.device.tiers if tier.name == name)
        if tier.shared_by is None:
            return 1
        size = self.cluster.group_size(self.cluster.level_of(tier.shared_by))
        return size - owner % size

    def _slow_bands(self, stats: TableStats, slower: frozenset[str], fast: str) -> Iterator[_Slow]:
        mine = [band for band in self.bands[stats.table.name] if band.tier in slower]
        mine = [band for band in mine if _on_devices(band, self.cluster)]
        if not mine:
            return
        curve, table = stats.curve, stats.table
        basis = table_basis(stats, self.profile, tree_of(self.cluster).sizes)
        saved: dict[object, Floats] = {}
        for band in mine:
            first = int(np.searchsorted(curve.stops, band.start, side="right"))
            last = int(np.searchsorted(curve.stops, band.stop, side="left")) + 1
            stops = np.minimum(curve.stops[first:last], band.stop)
            if not len(stops):
                continue  # rows that are never looked up
            size, holders = row_bytes(table, band), _holders(band, self.cluster)
            key = (size, Way.of(band, tree_of(self.cluster)), band.tier)
            if key not in saved:
                saved[key] = self._saved_s(band, table, fast) @ basis / size
            widths = np.diff(stops, prepend=band.start)
            gain = saved[key][first:last]
            yield _Slow(table, band, holders, stops, gain, widths * size / holders)

    def _saved_s(self, band: Band, table: Table, fast: str) -> Floats:
        """Memory seconds that a row saves in a faster tier, on the basis."""
        tree = tree_of(self.cluster)
        kind = (RowSizes.of(table, band, self.cost), Way.of(band, tree))
        there, here = (
            self._memory_s(kind, band.model_copy(update={"tier": tier}), table)
            for tier in (band.tier, fast)
        )
        return there - here

    def _memory_s(self, kind: object, band: Band, table: Table) -> Floats:
        key = (kind, band.tier)
        if key not in self.known:
            eye = np.eye(rows_at(len(self.cluster.levels)) + 1)
            self.known[key] = row_terms(band, table, eye, self.cluster, self.cost).memory_s
        return self.known[key]

    def _move(self, moves: list[tuple[_Slow, int]], fast: str) -> None:
        """Move the head of each band, less a row or two of each holder if rounding asks for it."""
        for one, stop in moves:
            band = one.band
            for end in (stop, stop - one.holders, stop - 2 * one.holders):
                if end <= band.start:
                    break
                head = band.model_copy(update={"stop": end, "tier": fast})
                if self._swap(one, head, fast):
                    rest = [band.model_copy(update={"start": end})] if end < band.stop else []
                    mine = self.bands[one.table.name]
                    at = next(i for i, other in enumerate(mine) if other is band)
                    mine[at : at + 1] = [head, *rest]
                    break

    def _swap(self, one: _Slow, head: Band, fast: str) -> bool:
        """Take the room of the head of a band in fast memory, if it is there."""
        room, tier = self.room, one.band.tier
        if len(one.owners) == 1:
            (owner,), needed = one.owners, head.rows * row_bytes(one.table, head)
            if needed > room.free_bytes(owner, fast):
                return False
            room.take_from(owner, fast, needed)
            room.take_from(owner, tier, -needed)
            return True
        each = band_bytes(one.table, head, self.cluster)
        if not room.fits(each, fast):
            return False
        room.take(each, fast)
        room.take(-each, tier)
        return True


def _on_devices(band: Band, cluster: Cluster) -> bool:
    if band.members == "all" or band.order == "blocks":
        return band.order == "spread"
    return band.scope == cluster.top and max(band.members) < cluster.num_devices


def _holders(band: Band, cluster: Cluster) -> int:
    """How many devices have a copy together."""
    if band.members != "all":
        return len(band.members)
    return cluster.group_size(cluster.level_of(band.scope))


def _take(slow: list[_Slow], free: float) -> list[tuple[_Slow, int]]:
    """Up to which rank each band may come, best gain first."""
    if not slow or free <= 0:
        return []
    gain = np.concatenate([one.gain for one in slow])
    size = np.concatenate([one.bytes_of_each for one in slow])
    of = np.repeat(np.arange(len(slow)), [len(one.gain) for one in slow])
    order = np.argsort(-gain, kind="stable")
    order = order[gain[order] > 0]
    used = np.cumsum(size[order])
    whole = int(np.searchsorted(used, free, side="right"))
    taken = np.bincount(of[order[:whole]], minlength=len(slow))
    moves = [
        (one, int(one.stops[count - 1]))
        for one, count in zip(slow, taken.tolist(), strict=True)
        if count
    ]
    if whole < len(order):
        one, count = slow[int(of[order[whole]])], int(taken[of[order[whole]]])
        left = free - (float(used[whole - 1]) if whole else 0.0)
        start = int(one.stops[count - 1]) if count else one.band.start
        width = int(one.stops[count]) - start
        rows = int(width * left / float(one.bytes_of_each[count]))
        moves = [move for move in moves if move[0] is not one]
        moves.append((one, start + min(rows, width)))
    return [(one, stop) for one, stop in moves if stop > one.band.start]


def tidied(bands: Mapping[str, Sequence[Band]]) -> Bands:
    """In order of ranks, and as few bands as say the same."""
    return {name: tuple(joined(mine)) for name, mine in bands.items()}


def joined(bands: Sequence[Band]) -> list[Band]:
    """Neighbouring bands that came to be alike are one."""
    found: list[Band] = []
    for band in sorted(bands, key=lambda b: (b.columns or (0, 0), b.start)):
        last = found[-1] if found else None
        if last is not None and last.stop == band.start and _alike(last, band):
            found[-1] = last.model_copy(update={"stop": band.stop})
        else:
            found.append(band)
    return sorted(found, key=lambda b: (b.start, b.columns or (0, 0)))


def _alike(one: Band, other: Band) -> bool:
    return one.model_copy(update={"start": 0, "stop": 1}) == other.model_copy(
        update={"start": 0, "stop": 1}
    )

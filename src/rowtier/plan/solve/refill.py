"""Fill what is left of fast memory with the rows that gain most from it, by rank.

Prices decide bucket by bucket, and owners never fill a device to the last byte. Here the
edges between fast and slow bands are moved outwards, rows that several owners have together
first (together.py), then rows of each owner, then those that lie on all devices, until the memory
is full or nothing gains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.memory import Room, band_bytes, row_bytes
from rowtier.cost.options import CostOptions
from rowtier.cost.step import step_cost
from rowtier.cost.terms import row_terms
from rowtier.cost.touch import table_basis
from rowtier.cost.tree import tree_of
from rowtier.plan.solve.together import Saving, shared_bytes
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile, TableStats


@dataclass(frozen=True, eq=False)
class _Slow:
    """A band in slow memory, and what its rows would gain in a faster one."""

    stats: TableStats
    place: int  # in the table's bands
    band: Band
    stops: Ints  # of its buckets
    gain: Floats  # seconds per byte, by bucket
    bytes_of_each: Floats  # on each of its holders, by bucket

    @property
    def owners(self) -> tuple[int, ...]:
        """Who has it, if not all devices have."""
        return () if self.band.members == "all" else self.band.members


def refill(
    bands: Mapping[str, Sequence[Band]],
    profile: Profile,
    cluster: Cluster,
    room: Room,
    cost: CostOptions,
    fixed: frozenset[str] = frozenset(),
) -> Bands:
    """The same bands with faster tiers filled; tables in `fixed` stay as they are."""
    found = {name: list(mine) for name, mine in bands.items()}
    names = [tier.name for tier in cluster.device.tiers]
    for index, fast in enumerate(names[:-1]):
        slower = frozenset(names[index + 1 :])
        slow = [
            one
            for stats in profile.stats
            if stats.table.name not in fixed
            for one in _slow_bands(stats, found, slower, fast, profile, cluster, cost)
        ]
        by_owner: dict[int, list[_Slow]] = {}
        for one in slow:
            if len(one.owners) == 1:
                by_owner.setdefault(one.owners[0], []).append(one)
        shared = [one for one in slow if len(one.owners) > 1]
        if shared:
            now = {name: tuple(mine) for name, mine in found.items()}
            time = step_cost(now, profile, cluster, None, cost).time
            busy_s = time.memory_s + time.work_s
            moves = _shared_out(shared, by_owner, room, fast, cluster, busy_s)
            _move(moves, found, fast, room, cluster)
        for owner, mine in sorted(by_owner.items()):
            free = room.free_bytes(owner, fast) / _sharers_to_come(owner, fast, cluster)
            _move(_take(mine, free), found, fast, room, cluster)
        even = [one for one in slow if one.band.members == "all"]
        _move(_take(even, room.free_of_each(fast)), found, fast, room, cluster)
    return {name: tuple(mine) for name, mine in found.items()}


def _shared_out(
    slow: list[_Slow],
    by_owner: Mapping[int, list[_Slow]],
    room: Room,
    fast: str,
    cluster: Cluster,
    busy_s: Floats,
) -> list[tuple[_Slow, int]]:
    """Up to which rank bands that several owners have together may come."""
    groups: dict[tuple[int, ...], list[_Slow]] = {}
    for one in slow:
        groups.setdefault(one.owners, []).append(one)
    devices = cluster.num_devices
    moves: list[tuple[_Slow, int]] = []
    for owners, shared in sorted(groups.items()):
        own = [_saving(by_owner.get(owner, []), devices) for owner in owners]
        free = [room.free_bytes(owner, fast) for owner in owners]
        left = np.array(free) / _sharers_to_come(owners[0], fast, cluster)
        taken = shared_bytes(_saving(shared, devices), own, left, busy_s[list(owners)])
        moves += _take(shared, taken)
    return moves


def _saving(slow: list[_Slow], devices: int) -> Saving:
    nothing = [np.zeros(0)]
    gain = np.concatenate(nothing + [one.gain for one in slow])
    size = np.concatenate(nothing + [one.bytes_of_each for one in slow])
    return Saving.of(devices * gain, size)


def _sharers_to_come(owner: int, name: str, cluster: Cluster) -> int:
    """The devices that share a tier with one and have higher numbers, and itself."""
    tier = next(tier for tier in cluster.device.tiers if tier.name == name)
    if tier.shared_by is None:
        return 1
    size = cluster.group_size(cluster.level_of(tier.shared_by))
    return size - owner % size


def tidied(bands: Mapping[str, Sequence[Band]]) -> Bands:
    """In order of ranks, and as few bands as say the same."""
    return {name: tuple(joined(mine)) for name, mine in bands.items()}


def _slow_bands(
    stats: TableStats,
    bands: Mapping[str, Sequence[Band]],
    slower: frozenset[str],
    fast: str,
    profile: Profile,
    cluster: Cluster,
    cost: CostOptions,
) -> Iterator[_Slow]:
    mine = [
        (place, band)
        for place, band in enumerate(bands[stats.table.name])
        if band.tier in slower and _on_devices(band, cluster)
    ]
    if not mine:
        return
    curve = stats.curve
    basis = table_basis(stats, profile, tree_of(cluster).sizes)
    for place, band in mine:
        first = int(np.searchsorted(curve.stops, band.start, side="right"))
        last = int(np.searchsorted(curve.stops, band.stop, side="left")) + 1
        stops = np.minimum(curve.stops[first:last], band.stop)
        if not len(stops):
            continue  # rows that are never looked up
        there, here = (
            row_terms(home, stats.table, basis[:, first:last], cluster, cost).memory_s
            for home in (band, band.model_copy(update={"tier": fast}))
        )
        size = row_bytes(stats.table, band)
        count = _holders(band, cluster)
        widths = np.diff(stops, prepend=band.start)
        yield _Slow(stats, place, band, stops, (there - here) / size, widths * size / count)


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


def _move(
    moves: list[tuple[_Slow, int]],
    bands: dict[str, list[Band]],
    fast: str,
    room: Room,
    cluster: Cluster,
) -> None:
    """Move the head of each band, less a row or two of each holder if rounding asks for it."""
    for one, stop in moves:
        band, table = one.band, one.stats.table
        step = _holders(band, cluster)
        if len(one.owners) > 1:  # what one of them has no room for, none takes
            free = min(room.free_bytes(owner, fast) for owner in one.owners)
            stop = min(stop, band.start + step * (free // row_bytes(table, band)))
        for less in range(3):
            end = stop - less * step
            if end <= band.start:
                break
            head = band.model_copy(update={"stop": end, "tier": fast})
            needed = band_bytes(table, head, cluster)
            if room.fits(needed, fast):
                room.take(needed, fast)
                room.take(-needed, band.tier)
                rest = [band.model_copy(update={"start": end})] if end < band.stop else []
                mine = bands[table.name]
                at = next(i for i, other in enumerate(mine) if other is band)
                mine[at : at + 1] = [head, *rest]
                break


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

"""Owners of rows that lie on one device: cut, dealt out, and levelled.

What owners carry does not spread by itself, as other rows do. A *piece* is a run of a
table's buckets, in some columns, that one device owns. It keeps the owner busy in three
ways: memory, ids that come, rows or sums that go. Each has its own peak over the devices,
and the peaks add up to what uneven owners cost.

Cutting a table by columns repeats its ids; cutting it by rows repeats partial sums, if a
sample has several lookups. The cheaper cut is taken, and only as far as it helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.cost.memory import Room, row_bytes
from rowtier.cost.options import CostOptions
from rowtier.plan.solve.menu import Menu, sums_seconds
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile

LEAST_COLUMNS = 8
LEAST_GAIN = 1e-5  # of all peaks; less is not worth another band
WAYS = 3  # memory, asking, answering with sums
_PIECES_TRIED = 8  # of a device at its peak
_ROUNDS = 8  # of changes, per device
_TARGETS = 2  # for each of the ways
_NORM = 24  # of the loads: high enough to be nearly their peak
_CUTS = 16
_BYTES_PER_ROOM = 1.25  # pieces per memory that they fill, as it is seldom empty
_DEPTH = 4  # of halving a piece that has no room


@dataclass(eq=False)
class Course:
    """What the rows of a table that have owners ask of them, added up bucket by bucket."""

    menu: Menu
    choice: Ints
    index: int  # of the table
    profile: Profile
    cluster: Cluster
    cost: CostOptions
    owner: int | None = None  # if it is decided already
    whole: bool = False  # may not be cut
    group: int | None = None  # tables that have one owner together

    @cached_property
    def owned(self) -> Floats:
        """1 for the buckets whose home has one owner."""
        return self.menu.owned[self.choice]

    @cached_property
    def _sums(self) -> Floats:
        menu, buckets = self.menu, np.arange(len(self.choice))
        memory_s = menu.memory_s[self.choice, buckets]
        asking_s = menu.seconds[self.choice, buckets] - memory_s
        by_sums = menu.by_sums[self.choice]
        parts = np.stack([memory_s, asking_s, menu.mass * by_sums]) * self.owned * menu.widths
        parts[:2] *= self.cluster.num_devices
        return np.concatenate([np.zeros((3, 1)), np.cumsum(parts, axis=1)], axis=1)

    @cached_property
    def _bytes(self) -> Floats:
        """Rows' bytes of each tier (row) before a bucket, in all columns."""
        menu, names = self.menu, [tier.name for tier in self.cluster.device.tiers]
        held = np.zeros((len(names), len(self.choice) + 1))
        for home_index, home in enumerate(menu.homes):
            if home.band.tier in names:
                mine = (self.choice == home_index) * self.owned * menu.widths
                size = row_bytes(menu.stats.table, home.band)
                held[names.index(home.band.tier), 1:] += mine * size
        return np.cumsum(held, axis=1)

    def load(self, first: Ints | int, last: Ints | int, share: float) -> Floats:
        """Seconds in each of the ways (first axis) of runs of buckets in a share of columns."""
        found = self._sums[:, last] - self._sums[:, first]
        sums_s = sums_seconds(
            self.menu.stats, self.profile, self.cluster, self.cost, np.clip(found[2], 0.0, 1.0)
        )
        sums_s = sums_s * self.cluster.num_devices
        return np.stack([found[0] * share, found[1], sums_s * share])

    def bytes(self, first: Ints | int, last: Ints | int, share: float) -> Floats:
        """Bytes of each tier (first axis) of runs of buckets."""
        return (self._bytes[:, last] - self._bytes[:, first]) * share

    def evenly(self, first: int, last: int, count: int) -> list[int]:
        """Where to cut a run into so many pieces of about the same weight."""
        weight = self._sums[:2].sum(axis=0)
        mass = self._sums[2]
        weight = weight + mass * (self.load(first, last, 1.0)[2] / max(mass[-1], 1e-30))
        return self._evenly(weight, first, last, count)

    def halves(self, first: int, last: int) -> list[int]:
        """Where to cut a run into two pieces of about the same bytes."""
        return self._evenly(self._bytes.sum(axis=0), first, last, 2)

    @staticmethod
    def _evenly(weight: Floats, first: int, last: int, count: int) -> list[int]:
        wanted = weight[first] + (weight[last] - weight[first]) * np.arange(1, count) / count
        inner = np.clip(np.searchsorted(weight, wanted), first + 1, last - 1)
        return sorted({first, *inner.tolist(), last})


@dataclass(frozen=True, eq=False)
class Piece:
    """A run of buckets, in some columns, that one device is to own."""

    course: Course
    first: int
    last: int
    columns: tuple[int, int] | None = None
    outwards: int = 0  # memories further out than was chosen, for want of room

    @property
    def share(self) -> float:
        """Of the columns."""
        if self.columns is None:
            return 1.0
        dim = self.course.menu.stats.table.embedding_dim
        return (self.columns[1] - self.columns[0]) / dim

    @property
    def byte_share(self) -> float:
        """Of the bytes; optimizer state that a row has once comes with every cut."""
        if self.columns is None:
            return 1.0
        table, width = self.course.menu.stats.table, self.columns[1] - self.columns[0]
        return (width * table.item_bytes + table.state_bytes(width)) / table.stored_row_bytes

    @cached_property
    def load(self) -> Floats:
        """Seconds that the owner is busy with it, in each of the ways."""
        return self.course.load(self.first, self.last, self.share)

    @cached_property
    def bytes(self) -> Floats:
        """Bytes of each tier."""
        held = self.course.bytes(self.first, self.last, self.byte_share)
        moved = np.zeros_like(held)
        for tier, amount in enumerate(held):
            moved[min(tier + self.outwards, len(held) - 1)] += amount
        return moved

    @cached_property
    def parts(self) -> tuple[list[tuple[int, int]], Floats, Floats, Floats]:
        """Parts that may go elsewhere: buckets, their load, the load that stays, and bytes."""
        course, first, last = self.course, self.first, self.last
        if self.outwards or course.whole or last - first == 1:
            nothing = np.zeros((WAYS, 1))
            return [(first, last)], self.load[:, None], nothing, self.bytes[:, None]
        cuts = course.evenly(first, last, _CUTS)[1:-1]
        ranges = [(first, last), *((cut, last) for cut in cuts), *((first, cut) for cut in cuts)]
        starts, stops = np.array(ranges).T
        goes = course.load(starts, stops, self.share)
        left = np.where(starts == first, stops, first), np.where(starts == first, last, starts)
        return (
            ranges,
            goes,
            course.load(*left, self.share),
            (course.bytes(starts, stops, self.byte_share)),
        )

    def cut(self, at: Sequence[int]) -> list[Piece]:
        """The pieces between neighbouring buckets of a list."""
        return [replace(self, first=a, last=b) for a, b in pairwise(at)]

    def bands(self, owner: int) -> Iterator[Band]:
        """One band for every run of buckets with the same home."""
        course, names = self.course, [tier.name for tier in self.course.cluster.device.tiers]
        for band, owned in course.menu.runs(course.choice, course.index, self.first, self.last):
            if owned:
                tier = band.tier
                if self.outwards and tier in names:
                    tier = names[min(names.index(tier) + self.outwards, len(names) - 1)]
                changes = {"members": (owner,), "columns": self.columns, "tier": tier}
                yield band.model_copy(update=changes)


@dataclass(eq=False)
class Owners:
    """Pieces and their owners, while they are dealt out."""

    cluster: Cluster
    room: Room
    memory_s: Sequence[float] = ()  # that devices are busy with rows of all
    pieces: list[Piece] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.busy = np.zeros((WAYS, self.cluster.num_devices))
        if len(self.memory_s):
            self.busy[0] = self.memory_s
        self._tiers = [tier.name for tier in self.cluster.device.tiers]

    def deal(self, pieces: list[Piece]) -> int | None:
        """Give the heaviest piece first, where the peaks rise the least.

        Returns the index of a table that there is no room for, if there is one.
        """
        units: dict[object, list[Piece]] = {}
        for number, piece in enumerate(pieces):
            group = piece.course.group
            units.setdefault(("group", group) if group is not None else number, []).append(piece)
        loads = {key: sum(float(one.load.sum()) for one in unit) for key, unit in units.items()}
        for _, unit in sorted(units.items(), key=lambda entry: -loads[entry[0]]):
            given = self._give(unit[0], _DEPTH) if len(unit) == 1 else self._give_all(unit)
            if not given:
                return unit[0].course.index
        return None

    def _give_all(self, unit: list[Piece]) -> bool:
        """Give several pieces to one owner, which they then keep."""
        order = self._by_load(unit[0])
        for outwards in range(len(self._tiers)):
            moved = [replace(piece, outwards=outwards) for piece in unit]
            needed = np.sum([piece.bytes for piece in moved], axis=0)
            owner = next((device for device in order if self._fits(needed, device)), None)
            if owner is not None:
                for piece in moved:
                    piece.course.owner = owner
                    self._add(piece, owner)
                return True
        return False

    def _give(self, piece: Piece, depth: int) -> bool:
        order = self._by_load(piece)
        owner = self._with_room(piece, order)
        if owner is None and depth and not piece.course.whole and piece.last - piece.first > 1:
            halves = piece.cut(piece.course.halves(piece.first, piece.last))
            return len(halves) > 1 and all(self._give(half, depth - 1) for half in halves)
        outwards = 0
        while owner is None and outwards + 1 < len(self._tiers):
            outwards += 1
            piece = replace(piece, outwards=outwards)
            owner = self._with_room(piece, order)
        if owner is None:
            return False
        self._add(piece, owner)
        return True

    def _by_load(self, piece: Piece) -> list[int]:
        if piece.course.owner is not None:
            return [piece.course.owner]
        peaks = np.maximum(self.busy + piece.load[:, None], self.busy.max(axis=1, keepdims=True))
        order: list[int] = np.lexsort((self.busy.sum(axis=0), peaks.sum(axis=0))).tolist()
        return order

    def _with_room(self, piece: Piece, order: list[int]) -> int | None:
        return next((owner for owner in order if self._fits(piece.bytes, owner)), None)

    def _fits(self, needed: Floats, owner: int) -> bool:
        pairs = zip(self._tiers, needed, strict=True)
        return all(self.room.free_bytes(owner, tier) >= amount for tier, amount in pairs)

    def _add(self, piece: Piece, owner: int) -> None:
        self.pieces.append(piece)
        self.owners.append(owner)
        self._take(piece, owner, 1)

    def _take(self, piece: Piece, owner: int, sign: int) -> None:
        self.busy[:, owner] += sign * piece.load
        for tier, amount in zip(self._tiers, piece.bytes, strict=True):
            self.room.take_from(owner, tier, sign * int(np.ceil(amount)))

    def level(self) -> None:
        """Move or swap pieces, or parts of them, away from the peaks until it helps no more."""
        for _ in range(_ROUNDS * self.cluster.num_devices + 64):
            if not self.pieces or not self._improve():
                return

    def _improve(self) -> bool:
        """Make the one change that helps most; False if none does."""
        ways = [*self.busy, self.busy.sum(axis=0)]
        targets = {int(d) for way in ways for d in np.argsort(way, kind="stable")[:_TARGETS]}
        view = _View.of(self)
        best = _Change(view.total * (1 - LEAST_GAIN), -1)
        for device in sorted({int(way.argmax()) for way in ways}):
            others = np.array(sorted(targets - {device}), dtype=np.int64)
            mine = [i for i, owner in enumerate(self.owners) if owner == device]
            mine = [i for i in mine if self.pieces[i].course.owner is None]
            mine.sort(key=lambda i: -float(self.pieces[i].load.sum()))
            for index in mine[:_PIECES_TRIED]:
                if len(others):
                    best = min(best, self._best_move(view, index, others), key=lambda c: c.total)
                best = min(best, self._best_swap(view, index), key=lambda c: c.total)
        if best.index < 0:
            return False
        self._apply(best)
        return True

    def _best_move(self, view: _View, index: int, targets: Ints) -> _Change:
        """Move a piece, or a part of it, to one of the targets."""
        piece, device = self.pieces[index], self.owners[index]
        ranges, goes, stays, needed = piece.parts
        left = (self.busy[:, device] - piece.load)[:, None, None] + stays[:, :, None]
        right = self.busy[:, None, targets] + goes[:, :, None]
        totals = view.totals(device, targets, left, right)
        totals[(needed[:, :, None] > view.free[:, None, targets]).any(axis=0)] = np.inf
        part, target = np.unravel_index(int(np.argmin(totals)), totals.shape)
        return _Change(
            float(totals[part, target]), index, target=int(targets[target]), part=ranges[part]
        )

    def _best_swap(self, view: _View, index: int) -> _Change:
        """Swap a piece with one of another device."""
        piece, device = self.pieces[index], self.owners[index]
        change = view.loads - piece.load[:, None]
        left, right = self.busy[:, [device]] + change, self.busy[:, view.owners] - change
        totals = view.totals(device, view.owners, left, right)
        more = view.needed - piece.bytes[:, None]
        lacks = (more > view.free[:, [device]]) | (-more > view.free[:, view.owners])
        totals[lacks.any(axis=0) | (view.owners == device) | view.fixed] = np.inf
        other = int(np.argmin(totals))
        return _Change(float(totals[other]), index, other=other)

    def _apply(self, change: _Change) -> None:
        index, piece, device = change.index, self.pieces[change.index], self.owners[change.index]
        self._take(piece, device, -1)
        if change.other is not None:
            other, owner = self.pieces[change.other], self.owners[change.other]
            self._take(other, owner, -1)
            self.owners[index], self.owners[change.other] = owner, device
            self._take(piece, owner, 1)
            self._take(other, device, 1)
            return
        assert change.target is not None
        start, stop = change.part
        going = replace(piece, first=start, last=stop)
        if (start, stop) == (piece.first, piece.last):
            self.pieces[index], self.owners[index] = going, change.target
            self._take(going, change.target, 1)
            return
        staying = replace(piece, first=stop) if start == piece.first else replace(piece, last=start)
        self.pieces[index] = staying
        self._take(staying, device, 1)
        self._add(going, change.target)


@dataclass(frozen=True, eq=False)
class _View:
    """Pieces and devices as arrays, while one change is looked for."""

    powers: Floats  # of the devices' loads
    sums: Floats
    loads: Floats  # of the pieces
    needed: Floats  # bytes of each tier
    owners: Ints
    fixed: NDArray[np.bool_]
    free: Floats  # bytes of each tier on each device

    @classmethod
    def of(cls, owners: Owners) -> _View:
        # Peaks that two devices share fall only with two moves, so near-peaks count as well.
        powers, devices = owners.busy**_NORM, owners.cluster.num_devices
        tiers = [tier.name for tier in owners.cluster.device.tiers]
        return cls(
            powers,
            powers.sum(axis=1)[:, None],
            np.stack([piece.load for piece in owners.pieces], axis=1),
            np.stack([piece.bytes for piece in owners.pieces], axis=1),
            np.array(owners.owners),
            np.array([piece.course.owner is not None for piece in owners.pieces]),
            np.stack([owners.room.free_on(tier)[:devices] for tier in tiers]).astype(np.float64),
        )

    @property
    def total(self) -> float:
        """The sum of near-peaks."""
        return float((self.sums ** (1 / _NORM)).sum())

    def totals(self, device: int, targets: Ints, left: Floats, right: Floats) -> Floats:
        """The same if `device` has the load `left` and each of `targets` `right`."""
        rest = self.sums - self.powers[:, [device]] - self.powers[:, targets]
        rest = np.maximum(rest, 0.0).reshape(WAYS, *(1,) * (left.ndim - 2), -1)
        changed = np.maximum(left, 0.0) ** _NORM + np.maximum(right, 0.0) ** _NORM
        return np.asarray(((changed + rest) ** (1 / _NORM)).sum(axis=0))


@dataclass(frozen=True)
class _Change:
    """A move of a part of a piece to a target, or a swap with another piece."""

    total: float  # the sum of near-peaks after it
    index: int
    target: int | None = None
    part: tuple[int, int] = (0, 0)
    other: int | None = None


class Cut(NamedTuple):
    """A table in pieces, and what that adds to a step: repeated ids or sums."""

    pieces: list[Piece]
    overhead_s: float


def cut_tables(courses: Sequence[Course], pieces: float, cluster: Cluster) -> list[Cut]:
    """Pieces of each table, none above a fraction of what a device can take of time or memory."""
    whole = [Piece(course, 0, len(course.choice)) for course in courses]
    mean = sum((one.load for one in whole), np.zeros(WAYS)) / cluster.num_devices
    capacity = np.array([float(tier.capacity_bytes) for tier in cluster.device.tiers])
    found: list[Cut] = []
    for piece in whole:
        by_load = pieces * float(piece.load.sum()) / max(float(mean.sum()), 1e-30)
        by_bytes = _BYTES_PER_ROOM * float((piece.bytes / capacity).max())
        count = int(np.ceil(max(by_load, by_bytes)))
        found.append(_cut(piece, count, mean, cluster.num_devices))
    return found


def _cut(piece: Piece, count: int, mean: Floats, devices: int) -> Cut:
    """By rows or by columns, whichever adds less to a step; `mean` is a device's mean load."""
    course = piece.course
    if count <= 1 or course.whole:
        return Cut([piece], 0.0)
    edges = course.evenly(piece.first, piece.last, count)
    loads = course.load(np.array(edges[:-1]), np.array(edges[1:]), 1.0)
    by_rows_s = float(loads[2].sum() - piece.load[2]) / devices
    rows_peak_s = _above(loads.max(axis=1), mean)
    dim = course.menu.stats.table.embedding_dim
    count = min(count, max(1, dim // LEAST_COLUMNS))
    # All ids of the table come to each of its columns' owners.
    by_columns_s = (count - 1) * float(piece.load[1]) / devices
    columns_peak_s = _above(piece.load / np.array([count, 1, count]), mean)
    if by_rows_s + rows_peak_s <= by_columns_s + columns_peak_s or count == 1:
        return Cut(piece.cut(edges), by_rows_s)
    columns = pairwise([dim * index // count for index in range(count + 1)])
    return Cut([replace(piece, columns=pair) for pair in columns], by_columns_s)


def _above(load: Floats, mean: Floats) -> float:
    """How much a piece raises the peaks for certain: what it has more than a device on average."""
    return float(np.maximum(load - mean, 0.0).sum())

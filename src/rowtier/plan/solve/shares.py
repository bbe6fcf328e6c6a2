"""What one device can own of a table: pieces, and where to cut.

What owners carry does not spread by itself, as other rows do. A *piece* is a run of a
table's buckets, in some columns, that one device owns. It keeps the owner busy in three
ways: memory, ids that come, rows or sums that go.

Cutting a table by columns repeats its ids; cutting it by rows repeats partial sums, if a
sample has several lookups. The cheaper cut is taken, and only as far as it helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.cost.memory import row_bytes
from rowtier.cost.options import CostOptions
from rowtier.plan.solve.menu import Menu, sums_seconds
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile

LEAST_COLUMNS = 8
WAYS = 3  # memory, asking, answering with sums
_CUTS = 16  # places at which a piece may be cut when a part of it moves
_BYTES_PER_ROOM = 1.25  # pieces per memory that they fill, as it is seldom empty


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

"""Into how many pieces tables are cut before they are dealt out.

Cutting a table by columns repeats its ids; cutting it by rows repeats partial sums, if a sample
has several lookups. Both together may be the cheapest, or all devices of a node that add their
sums up before they leave it. What a cut adds to a step is weighed against what pieces that are
too large for one device add to its peaks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rowtier.cluster import Cluster
from rowtier.plan.solve.menu import node_size
from rowtier.plan.solve.shares import LEAST_COLUMNS, MAIN, WAYS, Course, Piece
from rowtier.profile.curve import Floats

_MAYBE = 0.02  # how much of a piece that is large, but not too large, raises peaks
_BYTES_PER_ROOM = 1.25  # pieces per memory that they fill, as it is seldom empty


class Cut(NamedTuple):
    """A table in pieces, and what that adds to a step: repeated ids or sums."""

    pieces: list[Piece]
    overhead_s: float
    instead: Sequence[Piece] = ()  # if no node has room for all of it


def cut_tables(courses: Sequence[Course], pieces: float, cluster: Cluster) -> list[Cut]:
    """Each table in as many pieces as cost least: more are easier to level, but repeat things."""
    whole = [Piece(course, 0, len(course.choice)) for course in courses]
    mean = sum((one.load for one in whole), np.zeros(WAYS)) / cluster.num_devices
    capacity = sum(float(tier.capacity_bytes) for tier in cluster.device.tiers)
    found: list[Cut] = []
    for piece in whole:
        least = max(1, int(np.ceil(_BYTES_PER_ROOM * piece.bytes / capacity)))
        most = int(np.ceil((pieces * piece.load / np.maximum(mean, 1e-30))[:MAIN].max()))
        if max(least, most) == 1 or piece.course.whole:
            found.append(Cut([piece], 0.0))
            continue
        knife = _Knife(piece, mean, pieces, cluster.num_devices)
        found.append(knife.best(_counts(least, min(most, cluster.num_devices))))
    return found


def _counts(least: int, most: int) -> list[int]:
    """Numbers to try: all small ones, and ever fewer of the larger."""
    found = [least]
    while found[-1] < most:
        found.append(min(most, found[-1] + max(1, found[-1] // 3)))
    return found


@dataclass(frozen=True, eq=False)
class _Knife:
    """One table, and what its pieces are measured by."""

    piece: Piece
    mean: Floats  # what a device is busy with on average, in each way
    pieces: float  # of a device's mean that no way of a piece should be above
    devices: int

    def best(self, counts: Sequence[int]) -> Cut:
        """The cut into any of these numbers of pieces that costs least."""
        by_rows = {
            tuple(evenly(self.piece.first, self.piece.last, count))
            for count in {-(-count // columns) for count in counts for columns in self._columns}
            for evenly in (self.piece.course.evenly, self.piece.course.evenly_asked)
        }
        tried = [
            (self._cost_s(edges, columns), columns, edges)
            for edges in by_rows
            for columns in self._columns
            if counts[0] <= columns * (len(edges) - 1) <= counts[-1]
        ]
        if not tried:  # too few rows and columns for so many pieces
            tried = [(0.0, self._columns[-1], edges) for edges in by_rows]
            tried.sort(key=lambda one: -len(one[2]))
            tried = tried[:1]
        cost_s, columns, edges = min(tried)
        pieces = [
            one if columns == 1 else replace(one, columns=pair)
            for one in self.piece.cut(edges)
            for pair in self._column_pairs(columns)
        ]
        if self.piece.course.fits_a_node and self._node_cost_s < cost_s:
            shares = [replace(self.piece, node=True)] * node_size(self.piece.course.cluster)
            return Cut(shares, self._node_overhead_s, pieces)
        return Cut(pieces, self._overhead_s(edges, columns))

    @property
    def _node_overhead_s(self) -> float:
        """Sums are added up inside the node."""
        size = node_size(self.piece.course.cluster)
        levels = len(self.piece.course.level_shares)
        sums_s = self.piece.course.node_load[levels : 2 * levels].sum() * size
        return float(sums_s - self.piece.load[1]) / self.devices

    @property
    def _node_cost_s(self) -> float:
        return self._node_overhead_s + self._peaks_s(self.piece.course.node_load)

    @property
    def _units(self) -> int:
        return self.piece.course.menu.stats.table.embedding_dim // LEAST_COLUMNS

    @property
    def _columns(self) -> list[int]:
        return _counts(1, max(1, self._units))

    def _column_pairs(self, count: int) -> Iterator[tuple[int, int]]:
        edges = [self._units * index // count * LEAST_COLUMNS for index in range(count)]
        return pairwise([*edges, self.piece.course.menu.stats.table.embedding_dim])

    def _cost_s(self, edges: Sequence[int], columns: int) -> float:
        """What a cut adds to a step, and how much its pieces raise the peaks."""
        widest = max(self._column_pairs(columns), key=lambda pair: pair[1] - pair[0])
        share = replace(self.piece, columns=widest if columns > 1 else None).share
        first, last = np.array(edges[:-1]), np.array(edges[1:])
        most = self.piece.course.load(first, last, share).max(axis=1)
        return self._overhead_s(edges, columns) + self._peaks_s(self.piece.course.by_level(most))

    def _peaks_s(self, most: Floats) -> float:
        """What the largest piece has more than a device on average raises the peaks for certain.

        Pieces that are large, but not as large, may raise them.
        """
        main = 2 * len(self.piece.course.level_shares) + 1  # memory at its price alone
        mean = self.piece.course.by_level(self.mean)[:main]
        surely_s = np.maximum(most[:main] - mean, 0.0).sum()
        maybe_s = np.maximum(most[:main] - mean / self.pieces, 0.0).sum()
        return float(surely_s + _MAYBE * maybe_s)

    def _overhead_s(self, edges: Sequence[int], columns: int) -> float:
        """All ids come to the owners of all columns; each run of rows has sums of its own."""
        first, last = np.array(edges[:-1]), np.array(edges[1:])
        loads = self.piece.course.load(first, last, self.piece.share)
        sums_s = float(loads[1].sum() - self.piece.load[1])
        return (sums_s + (columns - 1) * float(self.piece.load[0])) / self.devices

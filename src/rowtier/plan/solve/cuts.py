"""Into how many pieces tables are cut before they are dealt out.

Cutting a table by columns repeats its ids; cutting it by rows repeats partial sums, if a sample
has several lookups. Both together may be the cheapest, or all devices of a node that add their
sums up before they leave it. Which rows have owners at all depends on it: where ids are
repeated, fewer go by sums. What a cut costs is weighed against what pieces that are too large for
one device add to its peaks. A peak is paid for once, however many tables reach it, so how high
peaks may be is chosen for all tables together. The next best ways are kept, to be tried once all
are dealt out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rowtier.cluster import Cluster
from rowtier.plan.solve.menu import Cutting, node_size
from rowtier.plan.solve.shares import LEAST_COLUMNS, MAIN, WAYS, Course, Piece
from rowtier.profile.curve import Floats

_MAYBE = 0.02  # how much of a piece that is large, but not too large, raises peaks
_BYTES_PER_ROOM = 1.25  # pieces per memory that they fill, as it is seldom empty
_LIGHT = 4.0  # tables that are below a device's mean by so much are left whole
_KEPT = 8  # ways to cut a table, the best ones
_HIGHER = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0)  # than the mean, peaks
_PASSES = 2  # over the heights of all peaks


class Cut(NamedTuple):
    """A table in pieces, what that costs, and how much its pieces may raise peaks."""

    course: Course
    pieces: tuple[Piece, ...]  # one for each owner
    cost_s: float  # of a step, for rows with owners and without, with what memory is worth
    most: Floats  # what its largest piece keeps an owner busy with, level by level
    peaks_s: float = 0.0


def cut_tables(courses: Sequence[Course], pieces: float, cluster: Cluster) -> list[list[Cut]]:
    """The ways to cut each table, the best one first.

    A device should have about so many pieces: more are easier to level, but repeat things.
    """
    if not courses:
        return []
    whole = [Piece(course, 0, len(course.choice)) for course in courses]
    mean = sum((one.load for one in whole), np.zeros(WAYS)) / cluster.num_devices
    capacity = sum(float(tier.capacity_bytes) for tier in cluster.device.tiers)
    found: list[list[Cut]] = []
    for piece in whole:
        least = max(1, int(np.ceil(_BYTES_PER_ROOM * piece.bytes / capacity)))
        heavy = float((piece.load / np.maximum(mean, 1e-30))[:MAIN].max())
        knife = _Knife(piece.course, cluster.num_devices)
        if max(least, _LIGHT * heavy) <= 1 or piece.course.whole:
            found.append([knife.uncut(piece)])
        else:
            most = max(least, min(int(np.ceil(_LIGHT * heavy)), cluster.num_devices))
            found.append(knife.ways(max(least, int(heavy / 2)), most))
    mean = courses[0].main(courses[0].by_level(mean))
    heights = _heights(found, mean, pieces)
    return [_best_first(cuts, heights, pieces) for cuts in found]


def _heights(ways: Sequence[Sequence[Cut]], mean: Floats, pieces: float) -> Floats:
    """How high each peak should be, so that tables and peaks together cost the least."""
    most = np.stack([cut.most for cuts in ways for cut in cuts])
    cost_s = np.array([cut.cost_s for cuts in ways for cut in cuts])
    first = np.cumsum([0, *(len(cuts) for cuts in ways[:-1])])

    def total_s(heights: Floats) -> float:
        best_s = np.minimum.reduceat(cost_s + _peaks_s(most, heights, pieces), first)
        return float(best_s.sum() + (heights - mean).sum())

    levels = len(mean) // 2
    both = [[level, levels + level] for level in range(levels)]  # ids and sums of a level
    found, found_s = mean.copy(), total_s(mean)
    for _ in range(_PASSES):
        for raised in (*both, *([way] for way in range(len(mean)))):
            for factor in _HIGHER:
                tried = found.copy()
                tried[raised] = factor * mean[raised]
                tried_s = total_s(tried)
                if tried_s < found_s:
                    found, found_s = tried, tried_s
    return found


def _peaks_s(most: Floats, heights: Floats, pieces: float) -> Floats:
    """What the largest piece has more than that raises the peaks for certain.

    Pieces that are large, but not as large, may raise them.
    """
    surely_s = np.maximum(most - heights, 0.0).sum(axis=-1)
    maybe_s = np.maximum(most - heights / pieces, 0.0).sum(axis=-1)
    return np.asarray(surely_s + _MAYBE * maybe_s)


def _best_first(cuts: Sequence[Cut], heights: Floats, pieces: float) -> list[Cut]:
    priced = [cut._replace(peaks_s=float(_peaks_s(cut.most, heights, pieces))) for cut in cuts]
    return sorted(priced, key=lambda cut: cut.cost_s + cut.peaks_s)[:_KEPT]


def _counts(most: int) -> list[int]:
    """Numbers to try: 1, 2, 3, 4, 6, 8, 12, ..., and the most."""
    found = [number for k in range(most.bit_length()) for number in (2**k, 3 * 2**k // 2)]
    return sorted({number for number in found if number <= most} | {most})


@dataclass(frozen=True, eq=False)
class _Knife:
    """One table that is to be cut."""

    course: Course
    devices: int

    def uncut(self, piece: Piece) -> Cut:
        """All of it for one owner."""
        course = self.course
        cost_s = course.even_cost_s + piece.weight / self.devices
        return Cut(course, (piece,), cost_s, course.main(course.by_level(piece.load)))

    def ways(self, least: int, most: int) -> list[Cut]:
        """The ways to cut it into so many pieces."""
        found = [self._without()] if not self.course.menu.owned.all() else []
        for cutting in self._cuttings(least, most):
            course = self.course.when_cut(cutting)
            if not course.owned.any():
                continue
            if not cutting.node:
                found += self._on_devices(course, cutting)
            elif course.fits_a_node:
                found.append(self._on_nodes(course, cutting))
            course.forget()
        return found

    def _cuttings(self, least: int, most: int) -> Iterator[Cutting]:
        node = node_size(self.course.cluster)
        for columns in _counts(min(most, max(1, self._units))):
            for rows in _counts(most // columns):
                count = rows * columns
                if count >= least:
                    yield Cutting(rows, columns)
                if node > 1 and count * node >= least and (count - 1) * node < most:
                    yield Cutting(rows, columns, node=True)

    def _without(self) -> Cut:
        course = self.course.without_owners()
        return Cut(course, (), course.even_cost_s, course.main(np.zeros_like(course.even_busy)))

    def _on_devices(self, course: Course, cutting: Cutting) -> list[Cut]:
        buckets = len(course.choice)
        edges = {
            tuple(evenly(0, buckets, cutting.rows))
            for evenly in (course.evenly, course.evenly_asked)
        }
        return [self._cut(course, one, cutting.columns) for one in sorted(edges)]

    def _cut(self, course: Course, edges: Sequence[int], columns: int) -> Cut:
        first, last = np.array(edges[:-1]), np.array(edges[1:])
        widths = list(self._column_pairs(columns))
        widest = max(widths, key=lambda pair: pair[1] - pair[0])
        share = Piece(course, 0, 1, widest if columns > 1 else None).share
        most = course.main(course.by_level(course.load(first, last, share).max(axis=1)))
        parts = course.load(first, last, Piece(course, 0, 1).share)
        sums_s, ids_s, memory_s = parts[1].sum(), parts[0].sum(), parts[2].sum()
        cost_s = course.even_cost_s + float(sums_s + columns * ids_s + memory_s) / self.devices
        return Cut(course, self._pieces(course, edges, widths), cost_s, most)

    def _pieces(
        self, course: Course, edges: Sequence[int], widths: Sequence[tuple[int, int]]
    ) -> tuple[Piece, ...]:
        return tuple(
            Piece(course, first, last, pair if len(widths) > 1 else None)
            for first, last in pairwise(edges)
            for pair in widths
        )

    def _on_nodes(self, course: Course, cutting: Cutting) -> Cut:
        """Each part to all devices of a node, which add their sums up."""
        size = node_size(course.cluster)
        edges = course.evenly_asked(0, len(course.choice), cutting.rows)
        parts = self._pieces(course, edges, list(self._column_pairs(cutting.columns)))
        loads = np.stack([course.node_load(one.first, one.last, one.share) for one in parts])
        loads = loads[:, : len(course.main(loads[0]))]
        cost_s = course.even_cost_s + float(loads.sum()) * size / self.devices
        pieces = tuple(replace(part, place=place) for part in parts for place in range(size))
        return Cut(course, pieces, cost_s, loads.max(axis=0))

    @property
    def _units(self) -> int:
        return self.course.menu.stats.table.embedding_dim // LEAST_COLUMNS

    def _column_pairs(self, count: int) -> Iterator[tuple[int, int]]:
        edges = [self._units * index // count * LEAST_COLUMNS for index in range(count)]
        return pairwise([*edges, self.course.menu.stats.table.embedding_dim])

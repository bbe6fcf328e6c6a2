"""Statistics by positions in another order than that of heat.

A plan names rows by their position in the hotness order that it was made with. Where data has
moved on, rows are still where they were put, so what they cost now is asked by those positions:
the curve of an *arranged* table says how hot the rows of each run of positions are. Heat falls
inside a run, and may rise from one run to the next.

What a row costs depends on the band that it is in and on the member that keeps it, not on its place
among the rows that have both in common. So the curve takes them hottest first: rows of a bucket are
about as hot as each other, as they are in the curve of a profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rowtier.profile.curve import MAX_BUCKETS, Curve, Floats, Ints
from rowtier.profile.order import NarrowInts, rows_by_position
from rowtier.profile.profile import Profile, TableStats

_LEAST_BUCKETS = 100  # of a run
_NOTHING = 1e-12  # lookups of a bucket that nobody looks up: a curve has some in each
_ALIKE = 1e-9  # relative variance of rows that are equally hot but for rounding


@dataclass(frozen=True)
class DealtRun:
    """Positions `start` to `stop`: rows that are `turns` apart have the same holders."""

    start: int
    stop: int
    turns: int = 1


def in_order_of(stats: TableStats, order: NarrowInts, runs: Sequence[DealtRun]) -> TableStats:
    """A counted table's statistics by positions in `order`, which lists rows as plans do.

    Rows that it does not name follow by their ids. `runs` are all positions, cut where any band
    begins or ends.
    """
    assert stats.counts is not None
    if np.array_equal(order, stats.counts.rows):
        return stats.to_curve()
    curve = _arranged_curve(stats, _positions(stats, order), list(_cut(runs, len(order))))
    return replace(stats.to_curve(), bucketed=curve, seen_rows=len(order), arranged=True)


def by_heat(profile: Profile) -> Profile:
    """The same statistics with the hottest rows of every table first; which they are is lost."""
    stats = tuple(_falling(stats) if stats.arranged else stats for stats in profile.stats)
    return replace(profile, stats=stats)


def _falling(stats: TableStats) -> TableStats:
    curve = stats.curve
    hottest = np.argsort(-curve.probabilities, kind="stable")
    arrays = (array[hottest] for array in (curve.lookups, curve.shape, curve.once))
    lookups, shape, once = arrays
    sorted_curve = Curve(np.cumsum(curve.widths[hottest]), lookups, shape=shape, once=once)
    return replace(stats, bucketed=sorted_curve, arranged=False)


def _positions(stats: TableStats, order: NarrowInts) -> Ints:
    """By place in an order, its row's position; rows never looked up share the one behind."""
    assert stats.counts is not None
    total_rows = stats.table.num_embeddings
    position = np.full(total_rows, stats.touched, dtype=np.int64)
    position[stats.counts.rows] = np.arange(stats.touched)
    return np.asarray(position[rows_by_position(order, total_rows)])


def _cut(runs: Sequence[DealtRun], named: int) -> list[DealtRun]:
    """The same runs, also cut where the order ends: rows behind it were not seen by its maker."""
    found: list[DealtRun] = []
    for run in runs:
        if run.start < named < run.stop:
            found += [replace(run, stop=named), replace(run, start=named)]
        else:
            found.append(run)
    return found


def _arranged_curve(stats: TableStats, positions: Ints, runs: list[DealtRun]) -> Curve:
    if not len(stats.curve.stops):
        return stats.curve
    many = max(_LEAST_BUCKETS, MAX_BUCKETS // len(runs))
    stops, sums = [], []
    heat = _Heat.of(stats)
    for run in runs:
        ends = _stops(run.stop - run.start, many)
        sorted_positions = _by_turn(positions[run.start : run.stop], run.turns)
        starts = np.concatenate(([0], ends[:-1]))
        sums.append([np.add.reduceat(known[sorted_positions], starts) for known in heat.arrays()])
        stops.append(run.start + ends)
    lookups, squares, first = np.concatenate(sums, axis=1)
    return _curve(np.concatenate(stops), lookups, squares, first)


def _stops(rows: int, many: int) -> Ints:
    """Ends of buckets, counted from the run's start: of single rows, then longer and longer."""
    if rows <= many:
        return np.arange(1, rows + 1, dtype=np.int64)
    return np.unique(np.rint(np.geomspace(1, rows, min(rows, many))).astype(np.int64))


def _by_turn(positions: Ints, turns: int) -> Ints:
    """The positions of a run's rows: those that have the same holders take their places by heat."""
    if turns == 1:
        return np.sort(positions)
    if turns >= len(positions):
        return positions
    turn = np.arange(len(positions), dtype=np.int64) % turns
    found = np.empty_like(positions)
    found[np.argsort(turn, kind="stable")] = positions[np.lexsort((positions, turn))]
    return found


def _curve(stops: Ints, lookups: Floats, squares: Floats, first: Floats) -> Curve:
    """Buckets from sums over their rows: of heat, of its square, of first lookups of a sample."""
    widths = np.diff(stops, prepend=0)
    last = int(np.flatnonzero(lookups)[-1]) + 1
    seen, mean = lookups > 0, lookups / widths
    variance = squares / widths - mean**2
    varies = seen & (variance > _ALIKE * mean**2)
    shape = np.where(varies, mean**2 / np.where(varies, variance, 1.0), np.inf)
    once = np.where(seen, np.clip(first / np.where(seen, lookups, 1.0), 1e-12, 1.0), 1.0)
    lookups = np.maximum(lookups, _NOTHING)
    return Curve(stops[:last], lookups[:last], shape=shape[:last], once=once[:last])


@dataclass(frozen=True, eq=False)
class _Heat:
    """Of the row of every position, and last of one never looked up: nobody knows which."""

    lookups: Floats
    squares: Floats  # count how heat varies in time, too
    first: Floats  # lookups that are the first of the row in their sample

    @classmethod
    def of(cls, stats: TableStats) -> _Heat:
        curve, touched, unseen = stats.curve, stats.touched, stats.untouched
        each = curve.lookups / curve.widths
        bucket = np.searchsorted(curve.stops, np.arange(touched), side="right")
        beyond = curve.widths - np.diff(np.minimum(curve.stops, touched), prepend=0)
        # The cost model takes hotter rows to be in no fewer samples (cost/touch.py).
        first = np.minimum.accumulate(each * curve.once)
        found = []
        for known in (each, each**2 * (1 + 1 / curve.shape), first):
            rest = beyond @ known / unseen if unseen else 0.0
            # Rows that the curve leaves out have no heat.
            found.append(np.append(np.append(known, 0.0)[bucket], rest))
        return cls(*found)

    def arrays(self) -> tuple[Floats, Floats, Floats]:
        return self.lookups, self.squares, self.first

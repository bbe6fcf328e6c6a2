"""How the data changes over time: what its slices would have said of each other.

A forecast is made inside the past: rows are picked from some slices and scored on the slices
that follow, as many (times the horizon) as they were picked from. That is done twice: with
windows as long as the data allows, and with windows half as long. Each pair of windows says how
much less the picked rows cover than the leave-one-out of `coverage.py` claims (δ), and by which
factor the distinct rows of a batch changed (ρ, in logarithms).

What is reported, and how far it may be off, follows from both (figures in docs/statistics.md):

* δ is the mean of both scales. What counting scatters by is taken off first: a difference d
  with variance v is worth d·(1 − v/d²), and nothing where that is negative.
* The interval grows by what drift leaves open: a share of δ, of the difference between the
  scales, and of how δ scatters over the short windows, which are the blocks of a block bootstrap;
  added as squares, which is what drawing from them comes to.
* Distinct rows go on as they went by two fifths of ρ.

The factors are round numbers that hold 90 % over six real data sets, six pairs of windows each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rowtier.profile.rarefaction import rarefied
from rowtier.profile.slices import LEAST_SLICES, Slices
from rowtier.profile.tally import CountGroups, Floats, Ints, leave_one_out

_LEAST_LOOKUPS = 100  # in the slices, to say anything about change
_HALF_TOUCHED = 0.5
_GROUPS = 12  # of positions that are equally steady
_STEADIEST, _LEAST_STEADY = 1e6, 1e-3


@dataclass(frozen=True)
class Factors:
    """How much of each thing that is seen in the past an interval grows by."""

    change: float  # of the change itself
    scales: float  # of the difference between long and short windows
    scatter: float  # of how it scatters over the short windows
    least: float


COVERAGE = Factors(change=0.7, scales=1.4, scatter=2.2, least=0.002)
DISTINCT = Factors(change=1.2, scales=0.8, scatter=1.2, least=0.015)
_GOES_ON = 0.4  # of a change of distinct rows
_OF_90 = NormalDist().inv_cdf(0.95)  # standard deviations that hold nine times in ten


@dataclass(frozen=True, eq=False)
class Change:
    """What is to be expected, and by how much more than chance it may be off (90 %)."""

    mean: Floats
    reach: Floats


@dataclass(frozen=True, eq=False)
class Pair:
    """Lookups of the kept rows in a window and in the one after it."""

    before: NDArray[np.int64]
    after: NDArray[np.int64]
    samples: tuple[int, int]
    unseen_rows: int  # kept rows of the table that were in no slice

    @cached_property
    def tally(self) -> CountGroups:
        """The first window, scored on the second."""
        rows = np.append(np.ones(len(self.before), dtype=np.int64), self.unseen_rows)
        scored = np.append(self.after, 0).astype(np.float64)
        return CountGroups.of(np.append(self.before, 0), rows, scored)

    @property
    def touched(self) -> int:
        """Rows that were looked up in the first window."""
        return int(np.count_nonzero(self.before))

    def shortfall(self, positions: Ints) -> tuple[Floats, Floats]:
        """δ at some positions, and its variance by chance."""
        tally, total = self.tally, max(int(self.after.sum()), 1)
        cut = tally.cut(positions)
        tied = cut.inside / cut.size * tally.scored[cut.group]
        found = (tally.scored_above[cut.group] + tied) / total
        claimed, variance = leave_one_out(tally, positions)
        return claimed - found, np.maximum(variance, 0) + found * (1 - found) / total

    def growth(self, sizes: Floats, occurrences: float) -> Floats:
        """ρ for batches of some sizes; NaN for those that a window does not hold."""
        ends = zip((self.before, self.after), self.samples, strict=True)
        first, second = (rarefied(held * occurrences, n, sizes)[0] for held, n in ends)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(sizes <= min(self.samples), np.log(second / first), np.nan)


@dataclass(frozen=True, eq=False)
class Drift:
    """What the slices of a table say about change; `long` and `short` pairs of windows."""

    slices: Slices
    num_embeddings: int
    horizon: float = 1.0

    @property
    def unknown(self) -> str | None:
        """Why nothing can be said, in words."""
        known = int(np.count_nonzero(self.slices.samples))
        if known < LEAST_SLICES:
            return (
                f"the data has {int(self.slices.samples.sum()):,} samples in {known} time slices, "
                f"and {LEAST_SLICES} slices are the least that show how it changes: profile more"
            )
        if not self.long:
            return (
                f"looking {self.horizon:g} times the length of the data ahead takes windows that "
                f"its {known} time slices do not have: choose a --horizon below {known}"
            )
        if int(self.slices.counts.sum()) < _LEAST_LOOKUPS:
            return f"fewer than {_LEAST_LOOKUPS} lookups do not show how the data changes"
        return None

    @cached_property
    def long(self) -> tuple[Pair, ...]:
        """Pairs of windows as long as the slices allow."""
        return self.pairs(1.0)

    @cached_property
    def short(self) -> tuple[Pair, ...]:
        """Pairs of windows half as long."""
        return self.pairs(0.5) or self.long

    def pairs(self, scale: float) -> tuple[Pair, ...]:
        """Windows that follow each other, the latest last; empty ones are left out."""
        count = len(self.slices.samples)
        before = int(scale * (count / (1 + self.horizon)) + 1e-9)
        after = round(before * self.horizon)
        if not before or not after:
            return ()
        starts = range(count - before - after, -1, -max(1, before // 2))
        found = [self._pair(start, before, after) for start in reversed(starts)]
        return tuple(pair for pair in found if pair.before.any() and pair.after.any())

    def _pair(self, start: int, before: int, after: int) -> Pair:
        edges = (start, start + before, start + before + after)
        first, second = (self._running[b] - self._running[a] for a, b in pairwise(edges))
        samples = [int(self.slices.samples[a:b].sum()) for a, b in pairwise(edges)]
        kept = (self.num_embeddings >> self.slices.thinning) + 1
        return Pair(first, second, (samples[0], samples[1]), max(1, kept - len(first)))

    @cached_property
    def _running(self) -> NDArray[np.int64]:
        """Lookups of every row before each slice, slices × rows."""
        counts = self.slices.counts
        running = np.zeros((counts.shape[1] + 1, len(counts)), dtype=np.int64)
        np.cumsum(counts.T, axis=0, out=running[1:])
        return running

    def coverage(self, positions: Ints, touched: int) -> Change:
        """How much less than leave-one-out claims the hottest rows will cover."""
        ends = [self._shortfalls(pairs, positions, touched) for pairs in (self.long, self.short)]
        (long, long_noise), (short, short_noise) = ends
        return combined(long, short, long_noise, short_noise, COVERAGE, 1.0)

    def _shortfalls(
        self, pairs: Sequence[Pair], positions: Ints, touched: int
    ) -> tuple[Floats, Floats]:
        """δ of every pair (row), and its variance."""
        found = [pair.shortfall(self._positions_in(pair, positions, touched)) for pair in pairs]
        return np.stack([d for d, _ in found]), np.stack([v for _, v in found])

    def _positions_in(self, pair: Pair, positions: Ints, touched: int) -> Ints:
        """The positions in a window that touched fewer rows: the same, or the same share."""
        rows = pair.touched + int(np.count_nonzero(pair.before == 0)) + pair.unseen_rows
        thin = 2.0**-self.slices.thinning
        share = np.minimum(positions / max(touched, 1), 1.0)
        inside = np.where(
            positions * thin <= _HALF_TOUCHED * pair.touched, positions * thin, share * pair.touched
        )
        beyond = (positions - touched) / max(self.num_embeddings - touched, 1)
        outside = pair.touched + beyond * (rows - pair.touched)
        placed = np.rint(np.where(positions <= touched, inside, outside)).astype(np.int64)
        return np.clip(placed, 1, rows - 1)

    def distinct(self, sizes: Floats, noise: Floats, occurrences: float) -> Change:
        """By how much distinct rows will change, in logarithms; `noise` is chance's variance."""
        long, short = (
            np.stack([_carried(pair.growth(sizes, occurrences)) for pair in pairs])
            for pairs in (self.long, self.short)
        )
        noises = [np.broadcast_to(by * noise, held.shape) for by, held in ((2, long), (4, short))]
        return combined(long, short, noises[0], noises[1], DISTINCT, _GOES_ON)

    def steadiness(self, stops: Ints) -> Floats:
        """The shape of the gamma distribution of heat among rows of about the same position.

        Rows that one window ranked alike differ in the next by more than chance if some of them
        kept their heat and others lost it: variance = mean + mean²/shape.
        """
        pair = self.long[-1]
        order = _hottest_first(pair.before)
        after = pair.after[order].astype(np.float64)
        touched, most = pair.touched, len(after)
        edges = np.unique(np.rint(np.geomspace(4, max(touched, 8), _GROUPS)).astype(np.int64))
        edges = np.unique(np.concatenate(([0], np.minimum(edges, most), [most])))
        rows = np.diff(edges)
        sums, squares = (np.add.reduceat(power, edges[:-1]) for power in (after, after**2))
        mean = sums / rows
        excess = squares / rows - mean**2 - mean
        shape = np.where(mean > 0, mean**2 / np.maximum(excess, mean**2 / _STEADIEST + 1e-300), 0.0)
        shape = np.log(np.where(mean > 0, np.clip(shape, _LEAST_STEADY, _STEADIEST), _STEADIEST))
        middle = np.sqrt(np.maximum(edges[:-1], 1.0) * edges[1:]) * 2.0**self.slices.thinning
        return np.asarray(np.exp(np.interp(np.log(stops), np.log(middle), shape)))


def _hottest_first(counts: NDArray[np.int64]) -> NDArray[np.intp]:
    """The order of falling counts; small ones are sorted by counting."""
    colder = int(counts.max(initial=0)) - counts
    small = len(counts) and int(colder.max()) < 2**16
    return np.argsort(colder.astype(np.uint16) if small else colder, kind="stable")


def _carried(values: Floats) -> Floats:
    """The last known value for all sizes after it; nothing is known: 0."""
    known = np.flatnonzero(np.isfinite(values))
    if not len(known):
        return np.zeros_like(values)
    return np.asarray(values[known[np.searchsorted(known, np.arange(len(values)), "right") - 1]])


def shrunk(change: Floats, variance: Floats) -> Floats:
    """A difference without what chance explains of it."""
    return np.asarray(change * np.maximum(0.0, 1 - variance / np.maximum(change**2, 1e-300)))


def combined(
    long: Floats,
    short: Floats,
    long_noise: Floats,
    short_noise: Floats,
    factors: Factors,
    goes_on: float,
) -> Change:
    """What pairs of windows (rows) of both scales say about the windows to come."""
    noise = long_noise.mean(axis=0) / np.sqrt(len(long))
    noise_short = short_noise.mean(axis=0) / max(1.0, len(short) / 2)  # windows overlap by half
    at_long, at_short = long.mean(axis=0), short.mean(axis=0)
    change = shrunk(at_long, noise)
    apart = shrunk(at_long - at_short, noise + noise_short)
    scatter = np.zeros_like(change)
    if len(short) > 1:
        scatter = np.maximum(short.var(axis=0, ddof=1) - short_noise.mean(axis=0), 0)
    squares = (factors.change * change) ** 2 + (factors.scales * apart) ** 2
    squares += factors.scatter**2 * scatter
    # What is taken off is known no better than chance lets it be.
    squares += noise * (_OF_90 * change / np.where(at_long == 0, 1.0, at_long)) ** 2
    return Change(goes_on * (change - apart / 2), np.sqrt(squares) + factors.least)

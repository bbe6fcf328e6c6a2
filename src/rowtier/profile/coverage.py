"""What share of lookups to come the hottest K rows take, honestly, for every K.

Counts flatter the hot set that was picked from them: a row is in it partly because it was
lucky. So no lookup may help to pick the row it is scored on. Let t be the count of the
first row that is out, N the rows seen t times and m those of them that are in.

* Leave one out. A lookup of a row seen c times is covered if the row stays in with count
  c − 1: surely above t, with probability q = (m+1)/(N+1) on it, not below. The mean over
  all n lookups is C(K); its expectation is exactly the coverage that n − 1 lookups pick.
  At K = touched rows it is Good–Turing's 1 − n₁/n, which it extends to every K.
* Few rows near t. Only rows within one of t tell how lucky the picked ones were. Where they
  are few, rows within h on both sides tell, weighted by a triangle; h = 2 is about the
  same as before. h grows until 20 rows are met on one side, at most to 2√t, inside of
  which counts scatter by chance alone.
* Variance. For Poisson counts E[c·g(c−1)] = λ·E[g(c)] (Robbins; Stein–Chen), so with
  g = P(in | c) − C the squared error Σ(c·g(c−1) − λ·g(c))² has the unbiased estimate
  Σ c²g(c−1)² − 2c(c−1)g(c−2)g(c−1) + c(c−1)g(c−2)²: c(1−C)² far above t, cC² far below.
  Breaking ties by row id adds q(1−q) times the scatter of λ among the tied rows.
* Drift. Sessions that repeat an id and hot rows that fade make the past look better than the
  future. What the time slices of the data would have said of each other shows by how much, and
  how far that may be off: see `drift.py`. Without drift the interval is Wilson's, with the above
  variance; what drift leaves open is added to it as squares.
* Shape. To plan with, rows are taken to be the hotter the more often they were seen: the nearest
  curve that is concave in K. (What is reported need not be: the hottest row of the past may
  have faded.) Unseen rows share the missing mass evenly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rowtier.profile.curve import Curve, bucket_stops
from rowtier.profile.drift import Change, Drift
from rowtier.profile.order import narrow
from rowtier.profile.tally import CountGroups, Floats, Ints, leave_one_out, sum_by
from rowtier.units import show_count

Counts = NDArray[np.integer]

_MOST_SPLITS = 20
_ROWS_TO_SPLIT = 2_000_000  # the larger a table, the less a single random split is off
_NARROWEST = 1e-12  # an interval narrower than this weighs no more in a fit


@dataclass(frozen=True, eq=False)
class CoverageCurve:
    """The share of lookups to come that the hottest `stops[i]` rows take, with its interval."""

    stops: Ints
    share: Floats
    low: Floats
    high: Floats
    confidence: float
    spread: Floats = field(default_factory=lambda: np.empty(0), kw_only=True)  # of the share
    touched: int = field(default=0, kw_only=True)  # stops up to the last row that was seen
    lookups: float = field(default=0.0, kw_only=True)  # that it was estimated from

    def at(self, position: int) -> tuple[float, float, float]:
        """Share, low and high of the hottest `position` rows; without lookups all is possible."""
        if not len(self.stops):
            return 0.0, 0.0, 1.0
        positions = np.concatenate(([0], self.stops))
        share, low, high = (
            float(np.interp(position, positions, np.concatenate(([0.0], known))))
            for known in (self.share, self.low, self.high)
        )
        return share, low, high

    def smoothed(self, *, pessimistic: bool = False) -> Curve:
        """What to plan with: the estimate, or its low end, where hot rows take less."""
        if not len(self.stops):
            return Curve(self.stops, np.empty(0))
        share = self.low if pessimistic else self.share
        # Unseen rows may be hotter than rows seen once: few rows for much missing mass.
        seen = slice(self.touched)
        kept = share.copy()
        kept[seen] = np.cumsum(concave(self.stops[seen], share[seen], self.spread[seen]))
        mass = concave(self.stops, np.minimum(kept, 1.0), self.spread)
        everywhere = 0.5 / (self.lookups + 0.5)  # half a lookup over all rows, so that p > 0
        widths = np.diff(self.stops, prepend=0) / self.stops[-1]
        mass = (1 - everywhere) * mass + everywhere * widths
        return Curve(self.stops, self.lookups / mass.sum() * mass)


@dataclass(frozen=True, eq=False)
class Estimate:
    """Coverage at some positions before it is given its shape, and what drift does to it."""

    share: Floats
    variance: Floats
    drift: Change

    def interval(self, lookups: float, confidence: float) -> tuple[Floats, Floats]:
        """Wilson's interval with our variance, wider by what drift leaves open."""
        z = _quantile(confidence)
        # What decides narrow cases comes in pairs (a row seen twice), hence half the lookups.
        weight = lookups / 2 / (lookups / 2 + z**2)
        middle = weight * self.share + (1 - weight) / 2
        chance = z**2 * self.variance * weight**2 + ((1 - weight) / 2) ** 2
        half = np.sqrt(chance + self.drift_reach(confidence) ** 2)
        return np.clip(middle - half, 0, 1), np.clip(middle + half, 0, 1)

    def drift_reach(self, confidence: float) -> Floats:
        """What drift leaves open; more data of the same time does not shrink it."""
        return self.drift.reach * (_quantile(confidence) / _quantile(0.9))


def coverage_curve(
    counts: Counts, drift: Drift | None, num_embeddings: int, confidence: float = 0.9
) -> CoverageCurve:
    """Estimate the coverage of every hot set of a table from its touched rows' counts.

    Where `drift` is None or cannot tell, it is taken to be zero. The rows may be in any order.
    """
    tally = CountGroups.of_counts(narrow(counts), num_embeddings)
    return _curve(tally, drift, _stops(len(counts), num_embeddings), confidence)


def smoothed_curve(
    counts: Counts, drift: Drift | None, num_embeddings: int, confidence: float | None = None
) -> Curve:
    """The curve to plan with: every row has p > 0, and heat never rises with position.

    Smoothed by leave-one-out, which is Good–Turing for every K: it needs no model of the
    tail, and what it gives to rows seen once or never is what such rows really get. With
    a confidence hot rows take only the low end of that interval, and the tail the rest.
    """
    known = coverage_curve(counts, drift, num_embeddings, 0.9 if confidence is None else confidence)
    return known.smoothed(pessimistic=confidence is not None)


def estimate(tally: CountGroups, drift: Drift | None, positions: Ints) -> Estimate:
    """Coverage at rising positions between 1 and the number of rows, exclusive."""
    share, variance = leave_one_out(tally, positions)
    none = np.zeros(len(positions))
    change = Change(none, none)
    if drift is not None and drift.unknown is None:
        change = drift.coverage(positions, _touched(tally))
    return Estimate(np.clip(share - change.mean, 0, 1), variance, change)


def _quantile(confidence: float) -> float:
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _touched(tally: CountGroups) -> int:
    return int(tally.rows[tally.count > 0].sum())


def _stops(touched: int, num_embeddings: int, *more: int) -> Ints:
    """Buckets over the touched rows; behind them coverage is a line."""
    ends = np.array([*more, num_embeddings], dtype=np.int64)
    return np.unique(np.concatenate((bucket_stops(touched), ends)))


def _curve(
    tally: CountGroups, drift: Drift | None, stops: Ints, confidence: float
) -> CoverageCurve:
    """Estimate at the stops, the last of which are all rows, and give it its shape."""
    lookups = tally.lookups
    if not lookups:
        none = np.empty(0)
        return CoverageCurve(stops[:0], none, none, none, confidence)
    found = estimate(tally, drift, stops[:-1])
    low, high = (np.append(end, 1.0) for end in found.interval(lookups, confidence))
    raw = np.append(found.share, 1.0)
    share = np.maximum.accumulate(raw)
    # Larger hot sets cover more: what bounds one from below bounds all larger ones.
    low = np.maximum.accumulate(low)
    high = np.maximum(np.minimum.accumulate(high[::-1])[::-1], share)
    chance = np.append(np.sqrt(np.maximum(found.variance, 0)), 0.0)
    weigh = np.sqrt(chance**2 + float(found.drift.reach.max(initial=0.0)) ** 2)
    touched = int(np.searchsorted(stops, _touched(tally), side="right"))
    return CoverageCurve(
        stops, share, low, high, confidence, spread=weigh, touched=touched, lookups=lookups
    )


def concave(stops: Ints, share: Floats, spread: Floats) -> Floats:
    """Mass per bucket of a rising concave curve near the estimate, with the same end.

    Its corners are those of the least concave curve above. That one hangs on lucky positions
    and is too high, so the heights of its corners are fitted by least squares, and those
    that then are no corners are dropped until all are.
    """
    corners = _corners(stops, share)
    while True:
        heights = np.minimum(_fit(stops, share, spread, corners), share[-1])
        kept = _corners(stops[corners], heights)
        if len(kept) == len(corners):
            break
        corners = corners[kept]
    heat = np.diff(heights, prepend=0.0) / np.diff(stops[corners], prepend=0)
    return np.asarray(np.diff(stops, prepend=0) * np.repeat(heat, np.diff(corners, prepend=-1)))


def _corners(stops: Ints, share: Floats) -> Ints:
    """Where the least concave curve above bends: neighbours whose heat rises are pooled."""
    pools: list[tuple[float, float, int]] = []  # mass, width, last bucket
    masses = np.diff(share, prepend=0.0).tolist()
    widths = np.diff(stops, prepend=0).astype(np.float64).tolist()
    for last, (mass, width) in enumerate(zip(masses, widths, strict=True)):
        while pools and pools[-1][0] * width <= mass * pools[-1][1]:
            hotter = pools.pop()
            mass, width = mass + hotter[0], width + hotter[1]
        pools.append((mass, width, last))
    return np.array([last for *_, last in pools])


def _fit(stops: Ints, share: Floats, spread: Floats, corners: Ints) -> Floats:
    """Heights of the corners of the broken line from 0 to the end that fits best."""
    inner = len(corners) - 1
    ends = np.concatenate(([0], stops[corners])).astype(np.float64)
    left = np.searchsorted(ends, stops, side="left") - 1
    right_part = (stops - ends[left]) / (ends[left + 1] - ends[left])
    left_part = 1 - right_part
    weight = np.maximum(spread, _NARROWEST) ** -2.0
    # Normal equations of a broken line are tridiagonal; the corners at 0 and the end are known.
    size = inner + 2
    diagonal = sum_by(left, weight * left_part**2, size)
    diagonal += sum_by(left + 1, weight * right_part**2, size)
    beside = sum_by(left, weight * left_part * right_part, size)
    wanted = sum_by(left, weight * left_part * share, size)
    wanted += sum_by(left + 1, weight * right_part * share, size)
    wanted[inner] -= beside[inner] * share[-1]
    inside = slice(1, inner + 1)
    return np.append(_solve(diagonal[inside], beside[inside], wanted[inside]), share[-1])


def _solve(diagonal: Floats, beside: Floats, wanted: Floats) -> Floats:
    """Solve a symmetric tridiagonal system; beside[i] joins i and i + 1."""
    d, b, x = diagonal.tolist(), beside.tolist(), wanted.tolist()
    for i in range(1, len(d)):
        factor = b[i - 1] / d[i - 1]
        d[i] -= factor * b[i - 1]
        x[i] -= factor * x[i - 1]
    for i in range(len(d) - 1, -1, -1):
        x[i] = (x[i] - (b[i] * x[i + 1] if i + 1 < len(d) else 0.0)) / d[i]
    return np.array(x)


@dataclass(frozen=True)
class Overlap:
    """How much of the hottest `position` rows two windows of the data have in common."""

    position: int
    overlap: float
    expected: float  # if nothing drifted: chance alone parts the hot sets this far
    spread: float  # standard deviation of chance

    @property
    def change(self) -> float:
        """Share of the hot set that changed beyond what chance explains; 0 if it explains all."""
        if self.overlap >= self.expected - 3 * self.spread:
            return 0.0
        return 1 - self.overlap / self.expected


def drift_overlap(early: Counts, late: Counts, position: int, seed: int = 0) -> Overlap:
    """Compare the hot sets of two windows with those of random windows of the same counts.

    Both count the same rows, in the order of their ids. Rows that a window did not see are in no
    hot set of it, so `position` ends where one window does.
    """
    counts, rows = early + late, np.arange(len(early))
    position = min(position, int(np.count_nonzero(early)), int(np.count_nonzero(late)))
    if position <= 0:
        return Overlap(0, 1.0, 1.0, 0.0)
    random = np.random.default_rng(seed)
    share = float(late.sum() / counts.sum())
    chance = []
    for _ in range(max(1, min(_MOST_SPLITS, _ROWS_TO_SPLIT // len(counts)))):
        drawn = random.binomial(counts, share)
        chance.append(_common(rows, counts - drawn, drawn, position))
    expected = float(np.mean(chance))
    spread = math.sqrt(max(expected * (1 - expected), 1 / position) / position)
    return Overlap(position, _common(rows, early, late, position), expected, spread)


def _common(rows: Counts, early: Counts, late: Counts, position: int) -> float:
    both = _hottest(rows, early, position) & _hottest(rows, late, position)
    return float(np.count_nonzero(both)) / position


def _hottest(rows: Counts, counts: Counts, position: int) -> NDArray[np.bool_]:
    """Which rows are among the hottest `position`, ties by row id."""
    place = len(counts) - position
    last = np.partition(counts, place)[place]
    hot = counts > last
    tied = np.flatnonzero(counts == last)
    needed = position - int(np.count_nonzero(hot))
    hot[tied[np.argpartition(rows[tied], needed - 1)[:needed]]] = True
    return np.asarray(hot)


@dataclass(frozen=True)
class Enough:
    """Whether the data is enough to cut a table at a position, in numbers and in words."""

    position: int
    share: float
    low: float
    high: float
    seen: int  # how often the coldest row of the hot set was seen
    drift: float  # what drift takes off the share
    more_data: float  # times as much data as this narrows the interval enough; 1 if it is
    enough: bool
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def enough(
    counts: Counts,
    drift: Drift | None,
    num_embeddings: int,
    position: int,
    *,
    confidence: float = 0.9,
    within: float = 0.02,
) -> Enough:
    """Judge a cut: is its coverage known to ± `within`, and is it more than chance?"""
    position = min(max(position, 1), num_embeddings)
    tally = CountGroups.of_counts(narrow(counts), num_embeddings)
    if not tally.lookups:
        words = f"no lookup was seen: nothing is known of the hottest {show_count(position)} rows"
        return Enough(position, 0.0, 0.0, 1.0, 0, 0.0, math.inf, False, words)
    stops = _stops(len(counts), num_embeddings, position)
    share, low, high = _curve(tally, drift, stops, confidence).at(position)
    taken = reach = 0.0
    if position < num_embeddings:
        found = estimate(tally, drift, np.array([position]))
        taken, reach = float(found.drift.mean[0]), float(found.drift_reach(confidence)[0])
    half = max(high - share, share - low)
    chance = math.sqrt(max(half**2 - reach**2, 0.0))
    more_data = max(1.0, (chance / within) ** 2)
    seen = int(tally.cut(np.array([position - 1])).count[0])
    advice = list(_advice(tally, position, seen, reach, more_data, within))
    words = (
        f"the hottest {show_count(position)} rows take {share:.1%} ± {_percent(half)} of lookups: "
        + ("; ".join(advice) or "enough data")
    )
    return Enough(position, share, low, high, seen, taken, more_data, not advice, words)


def _advice(
    tally: CountGroups, position: int, seen: int, reach: float, more_data: float, within: float
) -> Iterator[str]:
    """What stands between this data and a cut one can rely on."""
    if more_data > 1:
        factor = f"{more_data:.2g}" if more_data < 10 else f"{more_data:,.0f}"
        yield f"profile about {factor}× as much data to bring it to ± {_percent(within)}"
    if reach > within:
        yield (
            f"hot rows change over time, which alone leaves ± {_percent(reach)}: "
            "profile newer data, and again when it has aged"
        )
    if seen <= 1 and position < tally.rows_above[-1]:
        twice = int(tally.rows[tally.count >= 2].sum())
        sooner = f"cut at {show_count(twice)} rows, or " if twice else ""
        yield (
            "the cut reaches into rows that were seen once or never, where chance picks: "
            f"{sooner}profile more data"
        )


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{100 * max(share, 1e-4):.2g}%"

"""The intervals that profiles had before they knew time slices, to be compared with.

Coverage: leave-one-out, less the drift between the halves of the data, which also widens the
interval. Distinct rows: the curve of that coverage taken for the distribution of lookups; the
interval is what chance, and rows that are unequally hot, were said to explain. Kept as it was,
since figures are stated as ratios to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rowtier.jit import compiled
from rowtier.profile.curve import Curve, bucket_stops
from rowtier.profile.order import NarrowInts, narrow

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Counts = NDArray[np.integer]
_NARROWEST = 1e-12
_STUDENT = (1.96, 12.71, 4.303, 3.182, 2.776, 2.571)

_NEIGHBOURS = 20  # rows on one side of the cut that are enough to tell of luck
# Rows seen at most so often are kept as groups (at most 2,080 of them), others one by one.
_OFTEN = 63


@compiled
def _count_cells(counts: NarrowInts, late: NarrowInts, side: int, sizes: Ints) -> None:
    for i in range(len(counts)):
        if counts[i] < side:
            sizes[counts[i] * side + late[i]] += 1


def sum_by(place: Ints, weights: Floats, size: int) -> Floats:
    """Add up the weights that belong to the same place."""
    return np.asarray(np.bincount(place, weights, size), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Tally:
    """Groups of rows that one sample saw equally often, hottest first, unseen rows last."""

    count: Ints  # how often a row of the group was seen
    rows: Ints  # how many rows the group has
    scored: Floats  # lookups that the sample to score on has in the group

    @classmethod
    def of(cls, count: Ints, rows: Ints, scored: Floats) -> Tally:
        """Merge groups that were seen equally often."""
        negative, place = np.unique(-count, return_inverse=True)
        merged = np.zeros(len(negative), dtype=np.int64)
        np.add.at(merged, place, rows)
        return cls(-negative, merged, sum_by(place, scored, len(negative)))

    @cached_property
    def own(self) -> Floats:
        """Lookups of the sample itself, per group."""
        return self.count.astype(np.float64) * self.rows

    @cached_property
    def lookups(self) -> float:
        """All lookups of the sample itself."""
        return float(self.own.sum())

    @cached_property
    def rows_above(self) -> Ints:
        """Rows in hotter groups, per group; one entry more, for all of them."""
        return np.concatenate(([0], np.cumsum(self.rows)))

    @cached_property
    def own_above(self) -> Floats:
        """The sample's own lookups in hotter groups."""
        return np.concatenate(([0.0], np.cumsum(self.own)))

    @cached_property
    def scored_above(self) -> Floats:
        """Lookups to score on, in hotter groups."""
        return np.concatenate(([0.0], np.cumsum(self.scored)))

    def rows_seen(self, times: Ints) -> Ints:
        """How many rows were seen exactly so often."""
        place = np.minimum(np.searchsorted(-self.count, -times), len(self.count) - 1)
        return np.where(self.count[place] == times, self.rows[place], 0)

    def cut(self, ranks: Ints) -> Cut:
        """Where the hottest `ranks` rows end; there must be a row that is not among them."""
        group = np.searchsorted(self.rows_above, ranks, side="right") - 1
        inside = ranks - self.rows_above[group]
        return Cut(group, inside, self.count[group], self.rows[group])


@dataclass(frozen=True, eq=False)
class Cut:
    """The hottest K rows end inside the group of the first row that is not among them."""

    group: Ints
    inside: Ints  # rows of the group that are among the hottest K: 0 ≤ inside < size
    count: Ints  # how often the rows of the group were seen
    size: Ints  # rows of the group

    def holds(self, count: Ints) -> Floats:
        """Probability that a row seen so often is among the hottest K, ties drawn by lot."""
        return _at_threshold(count, self.count, self.inside / self.size)

    def keeps(self, count: Ints) -> Floats:
        """The same for a row seen so often, once one of its lookups is taken away."""
        return _at_threshold(count - 1, self.count, (self.inside + 1) / (self.size + 1))


def _at_threshold(count: Ints, threshold: Ints, tied: Floats) -> Floats:
    """1 above the threshold, 0 below, `tied` on it."""
    return np.where(count == threshold, tied, (count > threshold).astype(np.float64))


@dataclass(frozen=True, eq=False)
class Halves:
    """Cells of rows that were seen `early` times in the first and `late` times in the second half.

    The first `grouped` cells hold rows that were seen seldom, many rows each; in the cells
    behind them a row stands for itself.
    """

    early: Ints
    late: Ints
    rows: Ints
    grouped: int

    @classmethod
    def of(cls, counts: NarrowInts, late: NarrowInts, num_embeddings: int) -> Halves:
        """Group the touched rows of a table; those never touched are a cell too."""
        side = _OFTEN + 1
        sizes = np.zeros(side * side, dtype=np.int64)
        _count_cells(counts, late, side, sizes)
        sizes[0] = num_embeddings - len(counts)
        cells = np.flatnonzero(sizes)
        total, second = cells // side, cells % side
        often = counts > _OFTEN
        second = np.concatenate((second, late[often]))
        total = np.concatenate((total, counts[often]))
        rows = np.concatenate((sizes[cells], np.ones(len(total) - len(cells), dtype=np.int64)))
        return cls(total - second, second, rows, len(cells))

    @cached_property
    def tallies(self) -> tuple[Tally, Tally]:
        """The first half scored on the second, and the second scored on the first."""
        early = self.early.astype(np.float64) * self.rows
        late = self.late.astype(np.float64) * self.rows
        return Tally.of(self.early, self.rows, late), Tally.of(self.late, self.rows, early)

    @cached_property
    def whole(self) -> Tally:
        """Both halves together."""
        total = self.early + self.late
        return Tally.of(total, self.rows, total.astype(np.float64) * self.rows)

    @property
    def touched(self) -> int:
        """Rows that were seen at all."""
        return int(self.rows[self.early + self.late > 0].sum())


def leave_one_out(
    tally: Tally, ranks: Ints, neighbours: int = _NEIGHBOURS
) -> tuple[Floats, Floats]:
    """Coverage that no lookup helped to pick, and its variance under Poisson sampling."""
    cut, last_in = tally.cut(ranks), tally.cut(ranks - 1).count
    width = _window(tally, ranks, neighbours)
    windowed = _windowed(tally, cut, last_in, np.maximum(width, 2.0))
    share, variance = np.where(width > 2, windowed, _exact(tally, cut))
    return share, variance


def _exact(tally: Tally, cut: Cut) -> Floats:
    """Leave-one-out to the letter: share and variance."""
    n, t = tally.lookups, cut.count
    c1, c2 = (t + 1).astype(np.float64), (t + 2).astype(np.float64)
    rows1, rows2 = tally.rows_seen(t + 1), tally.rows_seen(t + 2)
    above = tally.own_above[cut.group]
    q = (cut.inside + 1) / (cut.size + 1)
    share = (above - c1 * rows1 * (1 - q)) / n
    below, tied, over = -share, q - share, 1 - share  # what g is below t, on it and above
    squares = over**2 * (above - c1 * rows1 - c2 * rows2) + below**2 * (n - above)
    squares += rows1 * _square(c1, tied, below) + rows2 * _square(c2, over, tied)
    scatter = c1 * c2 * rows2 - (c1 * rows1) ** 2 / cut.size
    squares += q * (1 - q) * np.maximum(scatter, 0)
    return np.stack((share, squares / n**2))


def _square(c: Floats, g1: Floats, g2: Floats) -> Floats:
    """A row's squared error, estimated without bias; g1 = g(c−1), g2 = g(c−2)."""
    return np.asarray(c**2 * g1**2 - 2 * c * (c - 1) * g2 * g1 + c * (c - 1) * g2**2)


def _window(tally: Tally, ranks: Ints, neighbours: int) -> Floats:
    """How far from the cut rows tell of luck: until there are enough, and never too far."""
    end = int(tally.rows_above[-1])
    first_out, last_in = tally.cut(ranks).count, tally.cut(ranks - 1).count
    hotter = tally.cut(np.maximum(ranks - neighbours, 0)).count - first_out
    colder = last_in - tally.cut(np.minimum(ranks + neighbours, end) - 1).count
    enough_hotter, enough_colder = ranks > neighbours, ranks + neighbours < end
    reach = np.where(enough_hotter, hotter, first_out)
    reach = np.minimum(reach, np.where(enough_colder, colder, first_out))
    # No wider than the count itself: unseen rows, which may be very many, stay outside.
    return np.asarray(np.minimum(reach, np.minimum(first_out, 2 * np.sqrt(first_out))))


def _windowed(tally: Tally, cut: Cut, last_in: Ints, width: Floats) -> Floats:
    """Share and variance where rows tell of luck up to `width` from the cut, on both sides."""
    n, t = tally.lookups, cut.count.astype(np.float64)
    group, own_above, rows_above = cut.group, tally.own_above, tally.rows_above
    inside = own_above[group] + cut.inside * t
    top = np.searchsorted(-tally.count, -(t + width), side="right")
    bottom = np.searchsorted(-tally.count, width - last_in, side="left")
    # Rows in, by how much they are above the first one out …
    rows, own = rows_above[group] - rows_above[top], own_above[group] - own_above[top]
    near = cut.inside + rows - (own - t * rows) / width
    # … and rows out, by how much they are below the last one in.
    rows = rows_above[bottom] - rows_above[group] - cut.inside
    near += rows - (last_in * rows.astype(np.float64) - (own_above[bottom] - inside)) / width
    luck = t / width * near
    share = (inside - luck) / n
    squares = (1 - share) ** 2 * inside + share**2 * (n - inside) + t / width * luck
    return np.stack((share, squares / n**2))


def halves_drift(halves: Halves, ranks: Ints) -> Floats:
    """How much less of the other half a half's hot set covers than of its own."""
    first, second = halves.tallies
    drift = np.zeros(len(ranks))
    for half, other in ((first, second), (second, first)):
        cut = half.cut(ranks)
        tied = cut.inside / cut.size * half.scored[cut.group]
        across = (half.scored_above[cut.group] + tied) / other.lookups
        drift += (leave_one_out(half, ranks)[0] - across) / 2
    return drift


def halves_drift_variance(halves: Halves, ranks: Ints) -> Floats:
    """Σd² over the rows, rows in groups first, then those that stand for themselves."""
    (first, second), grouped = halves.tallies, halves.grouped
    early_cut, late_cut = first.cut(ranks), second.cut(ranks)
    early, late = halves.early[:grouped, None], halves.late[:grouped, None]
    part = early / first.lookups * (early_cut.keeps(early) - late_cut.holds(late))
    part += late / second.lookups * (late_cut.keeps(late) - early_cut.holds(early))
    variance = halves.rows[:grouped] @ (part / 2) ** 2
    # A row seen often counts at the ranks where it is in one half's hot set only.
    early, late = halves.early[grouped:], halves.late[grouped:]
    square = ((early / first.lookups - late / second.lookups) / 2) ** 2
    enters = np.searchsorted(-early_cut.count, -early, side="right")
    enters_late = np.searchsorted(-late_cut.count, -late, side="right")
    steps = sum_by(np.minimum(enters, enters_late), square, len(ranks) + 1)
    steps -= sum_by(np.maximum(enters, enters_late), square, len(ranks) + 1)
    return np.asarray(variance + np.maximum(np.cumsum(steps)[:-1], 0))


@dataclass(frozen=True, eq=False)
class CoverageCurve:
    """The share of lookups to come that the hottest `stops[i]` rows take, with its interval."""

    stops: Ints
    share: Floats
    low: Floats
    high: Floats
    confidence: float
    lookups: float = field(default=0.0, kw_only=True)  # that it was estimated from

    def at(self, rank: int) -> tuple[float, float, float]:
        """Share, low and high of the hottest `rank` rows; without lookups all is possible."""
        if not len(self.stops):
            return 0.0, 0.0, 1.0
        ranks = np.concatenate(([0], self.stops))
        share, low, high = (
            float(np.interp(rank, ranks, np.concatenate(([0.0], known))))
            for known in (self.share, self.low, self.high)
        )
        return share, low, high

    def smoothed(self, *, pessimistic: bool = False) -> Curve:
        """What to plan with: the estimate, or its low end, where hot rows take less."""
        if not len(self.stops):
            return Curve(self.stops, np.empty(0))
        share = self.low if pessimistic else self.share
        mass = _concave(self.stops, share, self.high - self.low)
        everywhere = 0.5 / (self.lookups + 0.5)  # half a lookup over all rows, so that p > 0
        widths = np.diff(self.stops, prepend=0) / self.stops[-1]
        mass = (1 - everywhere) * mass + everywhere * widths
        return Curve(self.stops, self.lookups / mass.sum() * mass)


@dataclass(frozen=True, eq=False)
class Estimate:
    """Coverage at some ranks before it is given its shape, and what drift took off it."""

    share: Floats
    variance: Floats
    drift: Floats
    drift_variance: Floats

    def interval(self, lookups: float, confidence: float) -> tuple[Floats, Floats]:
        """Wilson's interval with our variance, wider by what drift leaves open."""
        z = _quantile(confidence)
        # What decides narrow cases comes in pairs (a row seen twice), hence half the lookups.
        weight = lookups / 2 / (lookups / 2 + z**2)
        middle = weight * self.share + (1 - weight) / 2
        half = np.sqrt(z**2 * self.variance * weight**2 + ((1 - weight) / 2) ** 2)
        open_ = self.drift_reach(confidence)
        return np.clip(middle - half - open_, 0, 1), np.clip(middle + half + open_, 0, 1)

    def drift_reach(self, confidence: float) -> Floats:
        """Half of the drift that noise does not explain; more data does not shrink it."""
        noise = _quantile(confidence) * np.sqrt(self.drift_variance)
        return np.maximum(self.drift - noise, 0) / 2


def coverage_curve(
    counts: Counts, late: Counts | None, num_embeddings: int, confidence: float = 0.9
) -> CoverageCurve:
    """Estimate the coverage of every hot set of a table from its touched rows' counts.

    `late` says how many of each row's lookups fell into the second half of the data; with
    None drift is taken to be zero. The rows may stand in any order.
    """
    halves = _halves(counts, late, num_embeddings)
    return _curve(halves, _stops(len(counts), num_embeddings), confidence)


def smoothed_curve(
    counts: Counts, late: Counts | None, num_embeddings: int, confidence: float | None = None
) -> Curve:
    """The curve to plan with: every row has p > 0, and heat never rises with rank.

    Smoothed by leave-one-out, which is Good–Turing for every K: it needs no model of the
    tail, and what it gives to rows seen once or never is what such rows really get. With
    a confidence hot rows take only the low end of that interval, and the tail the rest.
    """
    known = coverage_curve(counts, late, num_embeddings, 0.9 if confidence is None else confidence)
    return known.smoothed(pessimistic=confidence is not None)


def estimate(halves: Halves, ranks: Ints) -> Estimate:
    """Coverage at rising ranks between 1 and the number of rows, exclusive."""
    share, variance = leave_one_out(halves.whole, ranks)
    drift = drift_variance = np.zeros(len(ranks))
    if all(half.lookups for half in halves.tallies):
        drift = halves_drift(halves, ranks)
        drift_variance = halves_drift_variance(halves, ranks)
    return Estimate(np.clip(share - drift, 0, 1), variance + drift_variance, drift, drift_variance)


def _quantile(confidence: float) -> float:
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _halves(counts: Counts, late: Counts | None, num_embeddings: int) -> Halves:
    second = np.zeros_like(counts) if late is None else late
    return Halves.of(narrow(counts), narrow(second), num_embeddings)


def _stops(touched: int, num_embeddings: int, *more: int) -> Ints:
    """Buckets over the touched rows; behind them coverage is a line."""
    ends = np.array([*more, num_embeddings], dtype=np.int64)
    return np.unique(np.concatenate((bucket_stops(touched), ends)))


def _curve(halves: Halves, stops: Ints, confidence: float) -> CoverageCurve:
    """Estimate at the stops, the last of which are all rows, and give it its shape."""
    lookups = halves.whole.lookups
    if not lookups:
        none = np.empty(0)
        return CoverageCurve(stops[:0], none, none, none, confidence)
    found = estimate(halves, stops[:-1])
    low, high = (np.append(end, 1.0) for end in found.interval(lookups, confidence))
    raw = np.append(found.share, 1.0)
    # Unseen rows may be hotter than rows seen once: few rows for much missing mass.
    touched = int(np.searchsorted(stops, halves.touched, side="right"))
    share = raw.copy()
    share[:touched] = np.cumsum(_concave(stops[:touched], raw[:touched], (high - low)[:touched]))
    share = np.minimum(np.maximum.accumulate(share), 1.0)
    share[-1] = 1.0
    # Larger hot sets cover more: what bounds one from below bounds all larger ones.
    low = np.maximum.accumulate(np.clip(share + (low - raw), 0.0, 1.0))
    high = np.minimum.accumulate(np.clip(share + (high - raw), 0.0, 1.0)[::-1])[::-1]
    return CoverageCurve(stops, share, low, high, confidence, lookups=lookups)


def _concave(stops: Ints, share: Floats, spread: Floats) -> Floats:
    """Mass per bucket of a rising concave curve near the estimate, with the same end.

    Its corners are those of the least concave curve above. That one hangs on lucky ranks
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


def distinct_interval(
    curve: Curve, lookups_per_sample: float, samples: int, profiled: int, seen: Floats
) -> tuple[float, float, float]:
    """Distinct rows of a batch, from low to high; `seen` are those of the batches to come."""
    value = _distinct(curve, samples * lookups_per_sample)
    parted = _distinct(_parted(curve), samples * lookups_per_sample)
    steps = len(seen)
    spread = float(seen.std(ddof=1)) if steps > 1 else math.sqrt(value)
    freedom = steps - 1
    t = _STUDENT[freedom] if freedom < len(_STUDENT) else 1.96 + 2.4 / freedom + 2.8 / freedom**2
    reach = t * spread * math.sqrt(1 / steps + samples / max(profiled, 1))
    reach = max(reach, 3.0 / steps if spread == 0 else 0.0) + 1e-9 * value
    return value, min(value, parted) - reach, max(value, parted) + reach


def _distinct(curve: Curve, lookups: float) -> float:
    p = np.minimum(curve.probabilities, 1 - 1e-16)
    return float(curve.widths @ -np.expm1(lookups * np.log1p(-p)))


def _parted(curve: Curve) -> Curve:
    """The curve with a hotter and a colder half in every bucket that has two rows."""
    if not len(curve.stops):
        return curve
    cold = curve.widths // 2
    hot = curve.widths - cold
    heat = curve.lookups / curve.widths
    off = np.minimum(heat, np.sqrt(heat)) * (cold > 0)
    lookups = np.stack([hot * heat + cold * off, cold * (heat - off)], axis=1).reshape(-1)
    stops = np.stack([curve.stops - cold, curve.stops], axis=1).reshape(-1)
    kept = np.stack([hot > 0, cold > 0], axis=1).reshape(-1)
    return Curve(stops[kept], np.maximum(lookups[kept], 1e-300))

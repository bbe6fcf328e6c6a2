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
from rowtier.profile.coverage import concave
from rowtier.profile.curve import Curve, bucket_stops
from rowtier.profile.order import NarrowInts, narrow
from rowtier.profile.tally import CountGroups, leave_one_out, sum_by

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
    def tallies(self) -> tuple[CountGroups, CountGroups]:
        """The first half scored on the second, and the second scored on the first."""
        early = self.early.astype(np.float64) * self.rows
        late = self.late.astype(np.float64) * self.rows
        return CountGroups.of(self.early, self.rows, late), CountGroups.of(
            self.late, self.rows, early
        )

    @cached_property
    def whole(self) -> CountGroups:
        """Both halves together."""
        total = self.early + self.late
        return CountGroups.of(total, self.rows, total.astype(np.float64) * self.rows)

    @property
    def touched(self) -> int:
        """Rows that were seen at all."""
        return int(self.rows[self.early + self.late > 0].sum())


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

    def smoothed(self) -> Curve:
        """What to plan with."""
        if not len(self.stops):
            return Curve(self.stops, np.empty(0))
        mass = concave(self.stops, self.share, self.high - self.low)
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
    share[:touched] = np.cumsum(concave(stops[:touched], raw[:touched], (high - low)[:touched]))
    share = np.minimum(np.maximum.accumulate(share), 1.0)
    share[-1] = 1.0
    # Larger hot sets cover more: what bounds one from below bounds all larger ones.
    low = np.maximum.accumulate(np.clip(share + (low - raw), 0.0, 1.0))
    high = np.minimum.accumulate(np.clip(share + (high - raw), 0.0, 1.0)[::-1])[::-1]
    return CoverageCurve(stops, share, low, high, confidence, lookups=lookups)


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

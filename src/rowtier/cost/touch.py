"""Touch probabilities: how likely a step needs a row, and a sample a partial sum.

The *basis* of a table is what one row of each bucket expects per step; every cost of a
`rows` exchange is a weighted sum of it:

    row 0        lookups one device makes of the row, L·p
    row 1 + k    u_k: probability that any of the n_k devices of a level-k group needs it
    last row     1: what is paid per row, needed or not (dense sync)

A curve alone gives u = 1 − (1 − p)^(L·n_k). Where samples were counted, two more things are known:
how many distinct rows a batch touches in all, D(n), and how steady the heat of the rows of a
bucket is. Rows that gain heat and lose it are touched less often than their mean heat says, as
u is concave: with a gamma distribution of shape k, u = 1 − (1 + n·x/k)^(−k), where x is the mean
heat. All shapes of a table are multiplied by one factor, so that u adds up to D(n).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from rowtier.jit import compiled
from rowtier.profile.curve import Floats
from rowtier.profile.profile import FeatureStats, Profile, TableStats
from rowtier.profile.rarefaction import Batches

LOOKUPS = 0
_ALL_BUT_INFINITE = 30.0  # logarithm of a factor


def touched(level: int) -> int:
    """Where the basis holds u_level."""
    return 1 + level


def rows_at(levels: int) -> int:
    """Where the basis of a cluster with so many levels holds the ones."""
    return levels + 2


def touch_probability(probability: Floats, lookups: float) -> Floats:
    """Probability that at least one of `lookups` independent lookups hits a row: 1 − (1−p)^x.

    Exact for tiny p and for p = 1. Fewer than one expected lookup means at most one, so
    there it is x·p: the power, taken to an exponent below 1, would exceed x·p and have
    coalescing move more rows than there are lookups.
    """
    return _touched(probability, _log_miss(probability), lookups)


def _log_miss(probability: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log1p(-np.minimum(probability, 1.0)))


def _touched(probability: Floats, log_miss: Floats, lookups: float) -> Floats:
    if lookups < 1.0:
        return lookups * probability
    return np.asarray(-np.expm1(lookups * log_miss))


def table_basis(
    stats: TableStats, profile: Profile, group_sizes: Sequence[int], *, rest: bool = False
) -> Floats:
    """The basis of a table, one column per bucket of its curve; kept, since it is asked often.

    With `rest` one more, for the rows after the last bucket, which are never looked up.
    """
    known = _KNOWN_BASES.setdefault(stats, {})
    key = (profile.batch_size, profile.batches, tuple(group_sizes), rest)
    if key not in known:
        known[key] = _basis(stats, profile, group_sizes, rest)
        known[key].flags.writeable = False
    return known[key]


def _basis(stats: TableStats, profile: Profile, group_sizes: Sequence[int], rest: bool) -> Floats:
    curve, lookups = stats.curve, profile.lookups_per_step(stats)
    basis = basis_of(curve.probabilities, lookups, group_sizes)
    if stats.distinct_rows is not None and len(curve.stops):
        before = curve.probabilities * 0.0
        for level, devices in enumerate(group_sizes):
            u = _counted(stats, profile.batch_size * devices, profile.batches)
            # Each level by itself may be off by a rounding: more devices touch no fewer rows.
            before = np.maximum(u, before)
            basis[touched(level)] = before
    if not rest:
        return basis
    never = np.zeros((len(basis), 1))
    never[-1] = 1.0
    return np.concatenate((basis, never), axis=1)


_Key = tuple[int, Batches, tuple[int, ...], bool]
_KNOWN_BASES: WeakKeyDictionary[TableStats, dict[_Key, Floats]] = WeakKeyDictionary()
_KNOWN: WeakKeyDictionary[TableStats, dict[tuple[int, str], Floats]] = WeakKeyDictionary()


def _counted(stats: TableStats, samples: int, batches: Batches) -> Floats:
    """u of every bucket for a group that reads so many samples; kept, since it is asked often."""
    known = _KNOWN.setdefault(stats, {})
    if (samples, batches) not in known:
        ladder, curve = stats.distinct_rows, stats.curve
        assert ladder is not None
        held = curve.probabilities * curve.once * stats.lookups_per_sample
        hazard = -np.log1p(-np.minimum(held, 1 - 1e-12))
        target = ladder.at(samples, batches)[0]
        widths = curve.widths.astype(np.float64)
        # As for any curve, the hottest come first, also where positions are not by heat.
        by_heat = np.argsort(-curve.probabilities, kind="stable") if stats.arranged else slice(None)
        hazard, shape, widths = hazard[by_heat], curve.shape[by_heat], widths[by_heat]
        u = np.empty_like(hazard)
        u[by_heat] = fitted(hazard, shape, widths, float(samples), target)
        known[samples, batches] = u
    return known[samples, batches]


@compiled
def fitted(hazard: Floats, shape: Floats, widths: Floats, samples: float, rows: float) -> Floats:
    """u of buckets whose rows together are touched `rows` times; falling with the bucket.

    Found by bisection of one number: below 0 it is the logarithm of the factor on all shapes,
    from all but infinite down; above 0 rows keep their heat, and samples of the profile met less
    often than independent ones would, as if there were more of them.
    """
    u = np.empty_like(hazard)
    low, high = -2 * _ALL_BUT_INFINITE, 10.0
    for _ in range(80):
        middle = (low + high) / 2
        total = _total(hazard, shape, widths, samples, middle, u)
        if abs(total - rows) <= 1e-9 * rows or high - low < 1e-9:
            break
        if total > rows:
            high = middle
        else:
            low = middle
    return u


@compiled
def _total(
    hazard: Floats, shape: Floats, widths: Floats, samples: float, at: float, u: Floats
) -> float:
    total, before = 0.0, 1.0
    factor = math.exp(min(at, 0.0) + _ALL_BUT_INFINITE)
    more = math.exp(max(at, 0.0))
    for i in range(len(hazard)):
        steady = shape[i] * factor
        x = samples * hazard[i] * more
        miss = math.exp(-x) if steady > 1e12 else math.exp(-steady * math.log1p(x / steady))
        before = min(before, 1.0 - miss, samples * hazard[i])
        u[i] = before
        total += widths[i] * before
    return total


def basis_of(probability: Floats, lookups: float, group_sizes: Sequence[int]) -> Floats:
    """The basis, one column per probability, for L `lookups` per device and step."""
    basis = np.ones((len(group_sizes) + 2, len(probability)))
    np.multiply(probability, lookups, out=basis[LOOKUPS])
    log_miss = _log_miss(probability)
    for level, devices in enumerate(group_sizes):
        basis[touched(level)] = _touched(probability, log_miss, lookups * devices)
    return basis


@dataclass(frozen=True, eq=False)
class BagLengths:
    """How many lookups a sample brings: `weights[i]` samples in one bring `lengths[i]`.

    Features that read the same table are listed together, since each has sums of its own.
    Where the profile has no length distribution, a sample that has the feature brings the
    mean pooling, rounded up or down so that the mean is kept.
    """

    lengths: Floats
    weights: Floats

    @classmethod
    def of(cls, stats: TableStats) -> BagLengths:
        """From a table's statistics; kept, since it is asked often."""
        if stats in _KNOWN_BAGS:
            return _KNOWN_BAGS[stats]
        pairs = [pair for feature in stats.features for pair in _lengths(feature)]
        kept = [pair for pair in pairs if pair[0] and pair[1]]
        lengths, samples = np.array(kept, dtype=np.float64).reshape(-1, 2).T
        _KNOWN_BAGS[stats] = cls(lengths, samples / max(stats.samples, 1))
        return _KNOWN_BAGS[stats]

    def sums(self, mass: Floats) -> Floats:
        """Partial sums a sample needs of a holder whose rows take `mass` of all lookups.

        Per feature v = 1 − E[(1 − mass)^length], the probability that at least one lookup
        of the sample falls there; added over the features.
        """
        hit = -np.expm1(_log_miss(mass)[..., None] * self.lengths)
        return np.asarray(hit @ self.weights)


_KNOWN_BAGS: WeakKeyDictionary[TableStats, BagLengths] = WeakKeyDictionary()


def _lengths(feature: FeatureStats) -> tuple[tuple[float, float], ...]:
    if feature.lengths or not feature.present:
        return feature.lengths
    whole, rest = divmod(feature.lookups, feature.present)
    return (whole, feature.present - rest), (whole + 1, rest)

"""Touch probabilities: how likely a step needs a row, and a sample a partial sum.

The *basis* of a table is what one row of each bucket expects per step; every cost of a
`rows` exchange is a weighted sum of it:

    row 0        lookups one device makes of the row, L·p
    row 1 + k    u_k: probability that any of the n_k devices of a level-k group needs it
    last row     1: what is paid per row, needed or not (dense sync)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rowtier.profile.curve import Floats
from rowtier.profile.profile import FeatureStats, TableStats

LOOKUPS = 0


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


def basis_of(probability: Floats, lookups: float, group_sizes: Sequence[int]) -> Floats:
    """The basis, one column per probability, for L `lookups` per device and step."""
    basis = np.ones((len(group_sizes) + 2, len(probability)))
    np.multiply(probability, lookups, out=basis[LOOKUPS])
    log_miss = _log_miss(probability)
    for level, devices in enumerate(group_sizes):
        basis[touched(level)] = _touched(probability, log_miss, lookups * devices)
    return basis


@dataclass(frozen=True, eq=False)
class Bags:
    """How many lookups a sample brings: `weights[i]` samples in one bring `lengths[i]`.

    Features that read the same table are listed together, since each has sums of its own.
    Where the profile has no length distribution, a sample that has the feature brings the
    mean pooling, rounded up or down so that the mean is kept.
    """

    lengths: Floats
    weights: Floats

    @classmethod
    def of(cls, stats: TableStats) -> Bags:
        """From a table's statistics."""
        pairs = [pair for feature in stats.features for pair in _lengths(feature)]
        kept = [pair for pair in pairs if pair[0] and pair[1]]
        lengths, samples = np.array(kept, dtype=np.float64).reshape(-1, 2).T
        return cls(lengths, samples / max(stats.samples, 1))

    def sums(self, mass: Floats) -> Floats:
        """Partial sums a sample needs of a holder whose rows take `mass` of all lookups.

        Per feature v = 1 − E[(1 − mass)^length], the probability that at least one lookup
        of the sample falls there; added over the features.
        """
        hit = -np.expm1(_log_miss(mass)[..., None] * self.lengths)
        return np.asarray(hit @ self.weights)


def _lengths(feature: FeatureStats) -> tuple[tuple[float, float], ...]:
    if feature.lengths or not feature.present:
        return feature.lengths
    whole, rest = divmod(feature.lookups, feature.present)
    return (whole, feature.present - rest), (whole + 1, rest)

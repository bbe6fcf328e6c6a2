"""The largest of independent normal variables: its mean, its spread and its percentiles.

Loads of a step are sums over very many rows and samples, so each is nearly normal. Of two, mean
and variance of the larger one are known in closed form (Clark, 1961). Of many, the distribution
function is the product of theirs, and everything follows from it by integration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rowtier.jit import compiled
from rowtier.profile.curve import Floats

_REACH = 8.0  # deviations: beyond, less than 1e-15 of a normal variable lies
_P99 = 2.3263478740408408  # deviations that a normal variable exceeds once in a hundred
_EACH = 65  # points around each variable that integrals go through
_MOST = 513  # of all variables together; with more no figure changes by 0.0001 deviations


@dataclass(frozen=True)
class Largest:
    """The largest of some variables."""

    mean: float
    deviation: float
    p50: float
    p99: float

    def plus(self, variance: float) -> Largest:
        """With something added to all variables alike, whose mean is 0."""
        late = math.hypot(self.p99 - self.p50, _P99 * math.sqrt(variance))
        return Largest(
            self.mean, math.hypot(self.deviation, math.sqrt(variance)), self.p50, self.p50 + late
        )


def larger_of_two(
    mean: Floats, variance: Floats, other_mean: Floats, other_variance: Floats
) -> tuple[Floats, Floats]:
    """Mean and variance of the larger of two independent normal variables, one by one."""
    apart, gap = np.sqrt(variance + other_variance), mean - other_mean
    z = np.divide(gap, apart, out=np.copysign(np.inf, gap), where=apart > 0)
    share, density = normal_cdf(z), np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    # What E[max] is above max(E): nothing large cancels.
    excess = np.maximum(apart * density - np.abs(gap) * np.minimum(share, 1 - share), 0.0)
    top = np.maximum(mean, other_mean)
    below, other_below = mean - top, other_mean - top
    square = (below**2 + variance) * share + (other_below**2 + other_variance) * (1 - share)
    square += (below + other_below) * apart * density
    return np.asarray(top + excess), np.asarray(np.maximum(square - excess**2, 0.0))


def largest(mean: Floats, variance: Floats) -> Largest:
    """The largest of independent normal variables, some of which may be constant."""
    deviation = np.sqrt(variance)
    top = float(mean.max())
    low = float((mean - _REACH * deviation).max())
    high = float((mean + _REACH * deviation).max())
    if len(mean) == 1 or not high > low:
        spread = float(deviation[0]) if len(mean) == 1 else 0.0
        return Largest(top, spread, top, top + _P99 * spread)
    matters = mean + _REACH * deviation > low
    mean, deviation = mean[matters], deviation[matters]
    points = _points(mean, deviation, low)
    points = np.sort(np.concatenate([points, (points[1:] + points[:-1]) / 2]))
    chance = _product(points, mean, deviation)
    below = _integral(chance, points)
    square = 2 * _integral(chance * (high - points), points)
    p50, p99 = (_percentile(share, low, high, mean, deviation) for share in (0.5, 0.99))
    return Largest(max(top, high - below), math.sqrt(max(0.0, square - below**2)), p50, p99)


def _points(mean: Floats, deviation: Floats, low: float) -> Floats:
    """Where to look at the distribution: everywhere that any of the variables is likely to be."""
    around = np.linspace(-_REACH, _REACH, _EACH)[:, None] * deviation + mean
    points = np.unique(np.maximum(around, low))
    if len(points) <= _MOST:
        return points
    return points[np.linspace(0, len(points) - 1, _MOST).astype(np.int64)]


def _integral(values: Floats, points: Floats) -> float:
    """Simpson's rule from every other point to the next such one, with the one in the middle."""
    weighted = values[:-2:2] + 4 * values[1::2] + values[2::2]
    return float(weighted @ (points[2::2] - points[:-2:2])) / 6


def normal_cdf(z: Floats) -> Floats:
    """Probability that a standard normal variable is at most z."""
    flat = np.ascontiguousarray(z, dtype=np.float64).reshape(-1)
    return _cdf(flat).reshape(np.shape(z))


@compiled
def _cdf(z: Floats) -> Floats:
    found = np.empty_like(z)
    for i in range(len(z)):
        found[i] = 0.5 * math.erfc(-z[i] / math.sqrt(2.0))
    return found


@compiled
def _product(points: Floats, mean: Floats, deviation: Floats) -> Floats:
    """Probability that all variables are at most each of the points."""
    found = np.ones_like(points)
    for i in range(len(points)):
        for j in range(len(mean)):
            if deviation[j] > 0:
                z = (points[i] - mean[j]) / deviation[j]
                found[i] *= 0.5 * math.erfc(-z / math.sqrt(2.0))
    return found


@compiled
def _percentile(share: float, low: float, high: float, mean: Floats, deviation: Floats) -> float:
    """Where all variables are below with a probability of `share`, by bisection."""
    for _ in range(60):
        middle = np.array([(low + high) / 2])
        if _product(middle, mean, deviation)[0] < share:
            low = middle[0]
        else:
            high = middle[0]
    return (low + high) / 2

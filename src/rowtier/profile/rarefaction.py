"""How many distinct rows a batch touches, in total: rarefaction, which needs no model.

Of S samples, d of which hold a row, n drawn at random hold it with probability
1 − C(S − d, n) / C(S, n). Summed over the rows, that is the mean over all batches of n that could
have been drawn from the data, and for samples that are independent of each other an unbiased
estimate for batches yet to come: whatever drift does to *which* rows are hot, how many distinct
ones a batch has is a matter of how skewed the data is. It counts samples, not lookups, since
sessions look the same id up again.

A `DistinctRows` is that on a ladder of batch sizes, small enough to travel inside a plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import Mistake
from rowtier.fields import MOST_COUNT
from rowtier.jit import compiled

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Batches = Literal["shuffled", "in_time_order"]
BATCHES: tuple[Batches, ...] = ("shuffled", "in_time_order")

LADDER: Floats = np.unique(np.rint(2.0 ** (np.arange(57) / 2)))  # 1 to 2^28 samples


@compiled
def _rarefied(
    held: Floats, rows: Floats, samples: float, sizes: Floats, found: Floats, spread: Floats
) -> None:
    for j in range(len(sizes)):
        n = min(sizes[j], samples)
        total, variance = 0.0, 0.0
        for i in range(len(held)):
            d = min(held[i], samples)
            if samples - d < n:
                total += rows[i]
                continue
            miss = math.exp(
                math.lgamma(samples - d + 1)
                - math.lgamma(samples - d - n + 1)
                - math.lgamma(samples + 1)
                + math.lgamma(samples - n + 1)
            )
            total += rows[i] * (1 - miss)
            variance += rows[i] * miss * (1 - miss)
        found[j], spread[j] = total, variance


def rarefied(held: NDArray[np.number], samples: float, sizes: Floats) -> tuple[Floats, Floats]:
    """Distinct rows of `sizes` samples, at most all; and Σ u(1 − u), how much a batch scatters.

    `held` says in how many of the samples each row is; it need not be whole.
    """
    values, rows = np.unique(held[held > 0], return_counts=True)
    found, spread = np.zeros((2, len(sizes)))
    _rarefied(
        values.astype(np.float64), rows.astype(np.float64), float(samples), sizes, found, spread
    )
    return found, spread


@dataclass(frozen=True, eq=False)
class DistinctRows:
    """Distinct rows of batches on the ladder of sizes; a line in logarithms between its rungs.

    `low` and `high` hold nine times in ten for data to come; they are NaN where the data cannot
    tell. `locality` is what batches of neighbouring samples have of that; NaN where not known.
    """

    value: Floats
    low: Floats
    high: Floats
    locality: Floats

    def arrays(self) -> tuple[Floats, ...]:
        """What a fingerprint is made of."""
        return self.value, self.low, self.high, self.locality

    def at(self, samples: float, batches: Batches = "shuffled") -> tuple[float, float, float]:
        """Value, low and high for a batch."""
        found = tuple(self._between(known, samples) for known in (self.value, self.low, self.high))
        factor = 1.0 if batches == "shuffled" else self.locality_at(samples)
        value, low, high = (factor * amount for amount in found)
        return value, low, high

    def locality_at(self, samples: float) -> float:
        """Distinct rows of neighbours over those of a shuffled batch; NaN if nobody knows."""
        known = np.flatnonzero(np.isfinite(self.locality))
        if not len(known):
            return math.nan
        logs = np.log(self.locality[known])
        return float(np.exp(np.interp(math.log(max(samples, 1.0)), np.log(LADDER[known]), logs)))

    def _between(self, known: Floats, samples: float) -> float:
        if samples <= 1:
            return float(samples * known[0])
        with np.errstate(divide="ignore"):
            return float(np.exp(np.interp(math.log(samples), np.log(LADDER), np.log(known))))

    def mistakes(self) -> Iterator[Mistake]:
        """What is wrong with it."""
        for values in self.arrays():
            if len(values) != len(LADDER):
                yield Mistake("distinct", len(values), f"must be {len(LADDER)} numbers each")
                return
        if not (np.isfinite(self.value).all() and (self.value >= 0).all()):
            yield Mistake("distinct.value", None, "must be finite and at least zero")
        elif (np.diff(self.value) < -1e-9 * self.value[1:]).any():
            yield Mistake("distinct.value", None, "must not fall: larger batches touch more rows")
        if any((np.isfinite(values) & (values > MOST_COUNT)).any() for values in self.arrays()):
            yield Mistake("distinct", None, f"its numbers must be at most {MOST_COUNT}")
            return
        for name in ("low", "high", "locality"):
            known = getattr(self, name)
            small = known <= 0 if name == "locality" else known < 0  # of which a logarithm is taken
            if (np.isinf(known) | small).any():
                yield Mistake(f"distinct.{name}", None, "must be finite and above zero, or NaN")
                return
        if not np.isfinite(self.value).all():
            return
        known = np.isfinite(self.low)
        if (self.low[known] > self.value[known]).any() or (
            self.high[known] < self.value[known]
        ).any():
            yield Mistake("distinct.low", None, "the interval must hold the value")

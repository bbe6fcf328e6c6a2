"""A table's hotness curve: how many lookups the hottest rows take, in geometric buckets.

Positions are grouped so that planning does not depend on the number of rows: the first
positions have a bucket each, later buckets grow by a constant factor. All rows of a
bucket count as equally hot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import Mistake

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_BUCKETS = 1000


@dataclass(frozen=True, eq=False)
class Curve:
    """`lookups[i]` fall on the rows of position `stops[i−1]` to `stops[i]`, hottest first.

    No lookup is expected on rows after the last stop. That is the mean over rows and time: rows
    of a bucket may gain heat and lose it. `shape` is that of the gamma distribution of their
    heat: the less, the more they differ; infinite where all are alike, or nobody knows. The share
    of lookups up to each stop will be between `low` and `high` nine times in ten; NaN where
    nobody knows. `once` is the share of a bucket's lookups that are the first of their row in
    their sample: sessions look hot rows up again.
    """

    stops: Ints
    lookups: Floats
    shape: Floats = field(default_factory=lambda: np.empty(0))
    low: Floats = field(default_factory=lambda: np.empty(0))
    high: Floats = field(default_factory=lambda: np.empty(0))
    once: Floats = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        """What is not given is not known."""
        defaults = {"shape": np.inf, "low": np.nan, "high": np.nan, "once": 1.0}
        for name, unknown in defaults.items():
            if len(getattr(self, name)) != len(self.stops):
                assert not len(getattr(self, name))
                object.__setattr__(self, name, np.full(len(self.stops), unknown))

    @classmethod
    def from_counts(cls, counts: NDArray[np.integer]) -> Curve:
        """Bucket counts that are already sorted, hottest first."""
        stops = bucket_stops(len(counts))
        if not len(stops):
            return cls(stops, np.empty(0))
        starts = np.concatenate(([0], stops[:-1]))
        sums = np.add.reduceat(counts, starts, dtype=np.int64)
        return cls(stops, sums.astype(np.float64))

    @property
    def positions(self) -> int:
        """How many rows are expected to be looked up at all."""
        return int(self.stops[-1]) if len(self.stops) else 0

    @cached_property
    def total(self) -> float:
        """All lookups."""
        return float(self.lookups.sum())

    @cached_property
    def widths(self) -> Ints:
        """Rows per bucket."""
        return np.diff(self.stops, prepend=0)

    @cached_property
    def probabilities(self) -> Floats:
        """Probability that a lookup hits one given row, per bucket (p_r)."""
        return self.lookups / (self.widths * max(self.total, 1e-300))

    def share(self, position: float | Ints) -> Floats:
        """Share of all lookups that the hottest `position` rows take."""
        positions = np.concatenate(([0.0], self.stops))
        shares = np.concatenate(([0.0], np.cumsum(self.lookups))) / max(self.total, 1e-300)
        return np.asarray(np.interp(position, positions, shares))

    def arrays(self) -> tuple[NDArray[np.number], ...]:
        """What a fingerprint is made of."""
        return self.stops, self.lookups, self.shape, self.low, self.high, self.once

    def interval(self, position: int) -> tuple[float, float]:
        """Where the share of the hottest `position` rows will be; NaN where nobody knows."""
        positions, share = np.concatenate(([0.0], self.stops)), float(self.share(position))
        low, high = (
            float(np.interp(position, positions, np.concatenate(([0.0], known))))
            for known in (self.low, self.high)
        )
        return min(low, share), max(high, share)

    def mistakes(self, num_embeddings: int, *, falling: bool = True) -> Iterator[Mistake]:
        """What is wrong with the curve of a table with this many rows; heat must be `falling`."""
        if len(self.stops) != len(self.lookups):
            yield Mistake("stop", len(self.stops), "needs as many entries as lookups")
            return
        if not len(self.stops):
            return
        if not (self.widths > 0).all():
            yield Mistake("stop", None, "stops must rise from bucket to bucket")
        if self.positions > num_embeddings:
            yield Mistake(
                "stop", self.positions, f"must not exceed num_embeddings {num_embeddings}"
            )
        if not (self.shape > 0).all():
            yield Mistake("shape", None, "must be above zero in every bucket")
        for name in ("low", "high"):
            known = getattr(self, name)
            if ((known < 0) | (known > 1)).any():
                yield Mistake(name, None, "must be a share from zero to one, or NaN")
        if not ((self.once > 0) & (self.once <= 1)).all():
            yield Mistake("once", None, "must be above zero, and at most one, in every bucket")
        if not (np.isfinite(self.lookups).all() and (self.lookups > 0).all()):
            yield Mistake("lookups", None, "must be finite and above zero in every bucket")
        elif falling and (self.widths > 0).all():
            heat = self.lookups / self.widths
            if (np.diff(heat) > 1e-9 * heat[:-1]).any():
                yield Mistake("lookups", None, "buckets must be ordered, hottest rows first")


def bucket_stops(rows: int) -> Ints:
    """Where buckets end: after every position at first, then growing by a constant factor."""
    if rows <= 0:
        return np.empty(0, dtype=np.int64)
    if rows <= MAX_BUCKETS // 2:
        return np.arange(1, rows + 1, dtype=np.int64)
    edges = np.rint(np.geomspace(1, rows, MAX_BUCKETS)).astype(np.int64)
    return np.unique(edges)

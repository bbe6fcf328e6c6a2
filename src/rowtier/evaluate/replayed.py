"""A figure of a step, replayed beside predicted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rowtier.evaluate.figures import Label

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Figure:
    """One figure of a step, replayed and predicted. Percentiles: only of a step, tier or level."""

    label: Label
    replayed: float  # mean over the steps
    spread: float  # standard deviation from step to step
    worst: float
    predicted: float
    low: float  # where the replayed mean is expected, predicted ± chance
    high: float
    events: float  # how many were counted in all steps, at least
    percentiles: tuple[float, float, float] | None = None

    @property
    def error(self) -> float:
        """How far the prediction is off, as a share of what was replayed."""
        if self.replayed:
            return self.predicted / self.replayed - 1
        return math.inf if self.predicted else 0.0

    @property
    def as_expected(self) -> bool:
        """Whether chance alone explains the error."""
        return self.low <= self.replayed <= self.high

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        label, error = self.label, self.error
        shown = dict(zip((f"p{p}" for p in PERCENTILES), self.percentiles or (), strict=False))
        return {
            **{name: getattr(label, name) for name in ("kind", "of", "name", "at", "unit")},
            "replayed": self.replayed,
            "predicted": self.predicted,
            "error": error if math.isfinite(error) else None,
            "low": self.low,
            "high": self.high,
            "spread": self.spread,
            "worst": self.worst,
            **shown,
        }

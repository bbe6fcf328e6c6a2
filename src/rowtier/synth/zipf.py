"""How much the hottest values of a Zipf–Mandelbrot distribution weigh, in closed form."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_EXACT = 1024  # positions that are added one by one; behind them sums are integrals


class ZipfMass:
    """p(k) ∝ (k + shift)^−exponent for k = 1..n, with any n at the same price.

    The first positions are summed exactly. Behind them Euler–Maclaurin about the midpoints,
    Σ f(k) = ∫ f − [f′]/24 + …, leaves an error below 1e-12 of the sum.
    """

    def __init__(self, n: int, exponent: float, shift: float = 0.0):
        self.n, self.exponent, self.shift = n, exponent, shift

    @cached_property
    def _head(self) -> Floats:
        positions = np.arange(1, min(self.n, _EXACT) + 1)
        return np.concatenate(([0.0], np.cumsum((positions + self.shift) ** -self.exponent)))

    def share(self, positions: Floats) -> Floats:
        """Share of all mass that the hottest `positions` values take; concave in between."""
        positions = np.asarray(positions, dtype=np.float64)
        return self._sum(positions) / self._sum(np.array(float(self.n)))

    def _sum(self, positions: Floats) -> Floats:
        head = np.interp(positions, np.arange(len(self._head)), self._head)
        return head + np.where(positions > _EXACT, self._tail(np.maximum(positions, _EXACT)), 0.0)

    def _tail(self, positions: Floats) -> Floats:
        """Σ f(k) from the end of the head to `positions`."""
        a = self.exponent
        low, high = _EXACT + 0.5 + self.shift, positions + 0.5 + self.shift
        span = np.log(high / low)
        steps = (1 - a) * span
        # ∫ t^−a from low to high, written so that a = 1 is no exception.
        exact = np.expm1(steps) / np.where(steps, steps, 1.0)
        stretch = np.where(np.abs(steps) > 1e-8, exact, 1 + steps / 2)
        slopes = -a * (high ** (-a - 1) - low ** (-a - 1))
        return np.asarray(low ** (1 - a) * span * stretch - slopes / 24)

"""How much of the rows that several devices have together lies in fast memory.

Such rows are in one memory on all of their owners. What each owner saves with them it cannot save
with rows of its own, for which less memory is left. So the slowest of the owners decides: the time
of each is convex in the bytes that are given to what they have together, and so is the
largest of these times. One band after the other is set where that is least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from rowtier.profile.curve import Floats

_PASSES = 3  # over the bands of one group of owners
_STEPS = 40  # of narrowing down where one of them is best
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, eq=False)
class Saving:
    """Seconds that a device saves with the first so many bytes in fast memory: concave."""

    bytes: Floats  # rising from 0
    seconds: Floats

    @classmethod
    def of(cls, gain: Floats, size: Floats, *, best_first: bool) -> Saving:
        """From seconds per byte and bytes of buckets, as they come or the best ones first."""
        if best_first:
            order = np.argsort(-gain, kind="stable")
            gain, size = gain[order], size[order]
        saved = np.maximum(gain, 0.0) * size
        nothing = np.zeros(1)
        return cls(
            np.concatenate([nothing, np.cumsum(size)]), np.concatenate([nothing, np.cumsum(saved)])
        )

    def at(self, taken_bytes: float) -> float:
        """Seconds saved with so many bytes."""
        return float(np.interp(taken_bytes, self.bytes, self.seconds))


def share_out(
    shared: Sequence[Saving], own: Sequence[Saving], free_bytes: Floats, busy_s: Floats
) -> list[float]:
    """Bytes of each shared band that lie in the fast memory of every owner.

    `own`, `free_bytes` and `busy_s` are those of the owners: what rows of their own would save,
    the memory that is free, and how long they take with all of it in slow memory.
    """
    taken = [0.0] * len(shared)
    least = float(free_bytes.min())

    def slowest_s(index: int, tried: float) -> float:
        given = [*taken[:index], tried, *taken[index + 1 :]]
        saved_s = sum(band.at(size) for band, size in zip(shared, given, strict=True))
        left = free_bytes - sum(given)
        each = (t - one.at(b) for t, one, b in zip(busy_s, own, left, strict=True))
        return float(max(each)) - saved_s

    for _ in range(_PASSES):
        for index, band in enumerate(shared):
            most = min(float(band.bytes[-1]), least - sum(taken) + taken[index])
            taken[index] = _least(partial(slowest_s, index), max(0.0, most))
    return taken


def _least(cost: Callable[[float], float], most: float) -> float:
    """Where a convex function of 0 to `most` is least, by golden section."""
    low, high = 0.0, most
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = cost(left), cost(right)
    for _ in range(_STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = cost(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = cost(right)
    return min((0.0, most, (low + high) / 2), key=cost)

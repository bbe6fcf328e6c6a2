"""How much of the rows that several devices have together lies in fast memory.

Such rows are in one memory on all of their owners. What each owner saves with them it cannot save
with rows of its own, for which less memory is left. So the slowest of the owners decides: the time
of each is convex in the bytes that are given to what they have together, and so is the
largest of these times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rowtier.profile.curve import Floats

_STEPS = 40  # of narrowing down where the slowest is fastest
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, eq=False)
class Saving:
    """Seconds that a device saves with the best so many bytes in fast memory: concave."""

    bytes: Floats  # rising from 0
    seconds: Floats

    @classmethod
    def of(cls, gain: Floats, size: Floats) -> Saving:
        """From seconds per byte and bytes of buckets."""
        order = np.argsort(-gain, kind="stable")
        order = order[gain[order] > 0]
        saved, nothing = gain[order] * size[order], np.zeros(1)
        return cls(
            np.concatenate([nothing, np.cumsum(size[order])]),
            np.concatenate([nothing, np.cumsum(saved)]),
        )

    def at(self, taken_bytes: float) -> float:
        """Seconds saved with so many bytes."""
        return float(np.interp(taken_bytes, self.bytes, self.seconds))


def shared_bytes(
    shared: Saving, own: Sequence[Saving], free_bytes: Floats, busy_s: Floats
) -> float:
    """Bytes of what owners have together that should lie in the fast memory of each of them.

    `own`, `free_bytes` and `busy_s` are those of the owners: what rows of their own would save,
    the memory that is free, and how long they take with all of it in slow memory.
    """

    def slowest_s(taken: float) -> float:
        left = free_bytes - taken
        each = [busy - one.at(size) for busy, one, size in zip(busy_s, own, left, strict=True)]
        return float(max(each)) - shared.at(taken)

    return _least(slowest_s, max(0.0, min(float(shared.bytes[-1]), float(free_bytes.min()))))


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

"""The inner loops, on host memory: find distinct rows, group by rank, gather, pool, add up.

Values lie in flat buffers of floats; where a row begins in one is its *spot*. All loops run in
one fixed order, so that sums are the same in every run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowtier.jit import compiled

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
_LOW = 0xFFFFFFFF


def distinct(address: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """The distinct addresses, rising, and for each lookup which of them it is."""
    if not len(address):
        return address, np.empty(0, dtype=np.int64)
    if address.dtype != np.int32:
        found, inverse = np.unique(address, return_inverse=True)
        return found, inverse.astype(np.int64)
    # Address and position in one number: numpy sorts those several times faster than an argsort.
    keys = (address.astype(np.int64) << 32) | np.arange(len(address))
    keys.sort()
    found, inverse = np.empty(len(keys), dtype=np.int32), np.empty(len(keys), dtype=np.int64)
    return found[: _number(keys, found, inverse)], inverse


@compiled
def _number(keys: Ints, found: NDArray[np.int32], inverse: Ints) -> int:
    count, last = 0, np.int64(-1)
    for key in keys:
        address = key >> 32
        if address != last:
            found[count] = address
            last = address
            count += 1
        inverse[key & _LOW] = count - 1
    return count


@compiled
def group(ranks: Ints, size: int) -> tuple[Ints, Ints]:
    """The order that brings entries together rank by rank, each rank's as they were; counts."""
    counts = np.zeros(size, dtype=np.int64)
    for rank in ranks:
        counts[rank] += 1
    at = np.zeros(size, dtype=np.int64)
    for rank in range(1, size):
        at[rank] = at[rank - 1] + counts[rank - 1]
    order = np.empty(len(ranks), dtype=np.int64)
    for i in range(len(ranks)):
        order[at[ranks[i]]] = i
        at[ranks[i]] += 1
    return order, counts


@compiled
def spots(starts: Ints, counts: Ints, width: int) -> Ints:
    """Where the rows of each rank begin, one after the other from the rank's start."""
    found = np.empty(counts.sum(), dtype=np.int64)
    i = 0
    for rank in range(len(counts)):
        for k in range(counts[rank]):
            found[i] = starts[rank] + k * width
            i += 1
    return found


@compiled
def gather(rows: Floats, slots: Ints, flat: Floats, at: Ints) -> None:
    """Copy rows to their spots."""
    width = rows.shape[1]
    for i in range(len(slots)):
        row, to = slots[i], at[i]
        for c in range(width):
            flat[to + c] = rows[row, c]


@compiled
def copy_spots(source: Floats, come: Ints, flat: Floats, at: Ints, width: int) -> None:
    """Copy values from spots to spots."""
    for i in range(len(at)):
        for c in range(width):
            flat[at[i] + c] = source[come[i] + c]


@compiled
def add_spots(source: Floats, come: Ints, flat: Floats, at: Ints, width: int) -> None:
    """Add values from spots to spots, in order."""
    for i in range(len(at)):
        for c in range(width):
            flat[at[i] + c] += source[come[i] + c]


@compiled
def take_spots(at: Ints, inverse: Ints) -> Ints:
    """The spot of every lookup's row."""
    found = np.empty(len(inverse), dtype=np.int64)
    for i in range(len(inverse)):
        found[i] = at[inverse[i]]
    return found


@compiled
def pool(
    flat: Floats, at: Ints, edges: Ints, weights: Floats, out: Floats, first: int, width: int
) -> None:
    """Add the rows of every bag to its columns from `first`; spots below 0 are elsewhere."""
    weighted = len(weights) > 0
    for bag in range(len(edges) - 1):
        for i in range(edges[bag], edges[bag + 1]):
            spot = at[i]
            if spot < 0:
                continue
            if weighted:
                weight = weights[i]
                for c in range(width):
                    out[bag, first + c] += weight * flat[spot + c]
            else:
                for c in range(width):
                    out[bag, first + c] += flat[spot + c]


@compiled
def pool_back(
    flat: Floats, at: Ints, edges: Ints, weights: Floats, grad: Floats, first: int, width: int
) -> None:
    """Add the gradient of every bag to the spots of its rows."""
    weighted = len(weights) > 0
    for bag in range(len(edges) - 1):
        for i in range(edges[bag], edges[bag + 1]):
            spot = at[i]
            if spot < 0:
                continue
            if weighted:
                weight = weights[i]
                for c in range(width):
                    flat[spot + c] += weight * grad[bag, first + c]
            else:
                for c in range(width):
                    flat[spot + c] += grad[bag, first + c]


@compiled
def weights_back(
    flat: Floats, at: Ints, edges: Ints, grad: Floats, first: int, width: int, out: Floats
) -> None:
    """Add to the gradient of each lookup's weight: its row times its bag's gradient."""
    for bag in range(len(edges) - 1):
        for i in range(edges[bag], edges[bag + 1]):
            spot = at[i]
            if spot >= 0:
                total = np.float32(0)
                for c in range(width):
                    total += flat[spot + c] * grad[bag, first + c]
                out[i] += total


@compiled
def spread_rows(flat: Floats, at: Ints, out: Floats, first: int, width: int) -> None:
    """Copy every lookup's row to its line of the output."""
    for i in range(len(at)):
        spot = at[i]
        if spot >= 0:
            for c in range(width):
                out[i, first + c] = flat[spot + c]


@compiled
def collect_rows(flat: Floats, at: Ints, grad: Floats, first: int, width: int) -> None:
    """Add the gradient of every lookup to the spot of its row."""
    for i in range(len(at)):
        spot = at[i]
        if spot >= 0:
            for c in range(width):
                flat[spot + c] += grad[i, first + c]


@compiled
def add_bags(flat: Floats, at: Ints, bags: Ints, out: Floats, first: int, width: int) -> None:
    """Add partial sums to their bags."""
    for i in range(len(at)):
        for c in range(width):
            out[bags[i], first + c] += flat[at[i] + c]


@compiled
def take_bags(flat: Floats, at: Ints, bags: Ints, grad: Floats, first: int, width: int) -> None:
    """Copy the gradients of bags to the spots of their partial sums."""
    for i in range(len(at)):
        for c in range(width):
            flat[at[i] + c] = grad[bags[i], first + c]


@compiled
def number_bags(counts: Ints, bags: Ints, inside: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """Number the bags that each rank's entries inside belong to.

    Entries stand rank by rank and bag by bag. Which of the numbered bags each entry is of (−1:
    outside), how many every rank has, and the bag of each.
    """
    number = np.full(len(bags), -1, dtype=np.int64)
    found = np.zeros(len(counts), dtype=np.int64)
    of = np.empty(len(bags), dtype=np.int64)
    total, i = 0, 0
    for rank in range(len(counts)):
        last = np.int64(-1)
        for _ in range(counts[rank]):
            if inside[i]:
                if bags[i] != last:
                    last = bags[i]
                    of[total] = last
                    total += 1
                    found[rank] += 1
                number[i] = total - 1
            i += 1
    return number, found, of[:total].copy()


@compiled
def sum_rows(
    rows: Floats, slots: Ints, weights: Floats, flat: Floats, at: Ints, first: int, width: int
) -> None:
    """Add rows, from column `first`, to the partial sums at their spots."""
    weighted = len(weights) > 0
    for i in range(len(slots)):
        row, to = slots[i], at[i]
        weight = weights[i] if weighted else np.float32(1)
        for c in range(width):
            flat[to + c] += weight * rows[row, first + c]


@compiled
def add_grads(
    sums: Floats, index: Ints, flat: Floats, at: Ints, weights: Floats, first: int, width: int
) -> None:
    """Add gradients from spots to the sums of their rows, from column `first`, in order."""
    weighted = len(weights) > 0
    for i in range(len(index)):
        to, come = index[i], at[i]
        if weighted:
            for c in range(width):
                sums[to, first + c] += weights[i] * flat[come + c]
        else:
            for c in range(width):
                sums[to, first + c] += flat[come + c]

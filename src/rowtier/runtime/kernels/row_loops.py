"""The inner loops over rows, on host memory: gather, pool, lay out, add up.

Values lie in *lanes*, buffers of rows of one width; a row's number in one is its *spot*. All
loops run in one fixed order, so that sums are the same in every run. Rows are taken as
one-dimensional views: only then does the compiler use the processor's wide instructions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowtier.jit import compiled
from rowtier.runtime.kernels.prefetch import prefetch_row

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
_CACHED_FLOATS = 1 << 18  # so many are in the cache, and asking ahead costs more


@compiled
def gather(rows: NDArray[Any], slots: Ints, lane: NDArray[Any], at: Ints) -> None:
    """Copy rows to their spots."""
    for i in range(len(slots)):
        prefetch_row(rows, slots, i)
        row, to = rows[slots[i]], lane[at[i]]
        for c in range(len(to)):
            to[c] = row[c]


@compiled
def copy_spots(source: Floats, come: Ints, lane: Floats, at: Ints) -> None:
    """Copy rows from spots to spots."""
    for i in range(len(at)):
        prefetch_row(source, come, i)
        row, to = source[come[i]], lane[at[i]]
        for c in range(len(to)):
            to[c] = row[c]


@compiled
def add_spots(source: Floats, come: Ints, lane: Floats, at: Ints) -> None:
    """Add rows from spots to spots, in order."""
    for i in range(len(at)):
        prefetch_row(lane, at, i)
        row, to = source[come[i]], lane[at[i]]
        for c in range(len(to)):
            to[c] += row[c]


@compiled
def pool(lane: Floats, at: Ints, edges: Ints, weights: Floats, out: Floats, first: int) -> None:
    """Add the rows of every bag to its columns from `first`."""
    weighted, width = len(weights) > 0, lane.shape[1]
    for bag in range(len(edges) - 1):
        to = out[bag, first : first + width]
        for i in range(edges[bag], edges[bag + 1]):
            prefetch_row(lane, at, i)
            row = lane[at[i]]
            if weighted:
                weight = weights[i]
                for c in range(len(to)):
                    to[c] += weight * row[c]
            else:
                for c in range(len(to)):
                    to[c] += row[c]


@compiled
def pool_back(
    lane: Floats, at: Ints, edges: Ints, weights: Floats, grad: Floats, first: int, rows: int
) -> None:
    """Add the gradient of every bag to the spots of its rows, of which so many are distinct."""
    weighted, width = len(weights) > 0, lane.shape[1]
    large = rows * width > _CACHED_FLOATS
    for bag in range(len(edges) - 1):
        come = grad[bag, first : first + width]
        for i in range(edges[bag], edges[bag + 1]):
            if large:
                prefetch_row(lane, at, i)
            row = lane[at[i]]
            if weighted:
                weight = weights[i]
                for c in range(len(come)):
                    row[c] += weight * come[c]
            else:
                for c in range(len(come)):
                    row[c] += come[c]


@compiled
def weights_back(
    lane: Floats, at: Ints, edges: Ints, grad: Floats, first: int, out: Floats
) -> None:
    """Add to the gradient of each lookup's weight: its row times its bag's gradient."""
    width = lane.shape[1]
    for bag in range(len(edges) - 1):
        come = grad[bag, first : first + width]
        for i in range(edges[bag], edges[bag + 1]):
            if at[i] >= 0:
                row, total = lane[at[i]], np.float32(0)
                for c in range(len(come)):
                    total += row[c] * come[c]
                out[i] += total


@compiled
def spread_rows(lane: Floats, at: Ints, out: Floats, first: int) -> None:
    """Copy every lookup's row to its line of the output."""
    width = lane.shape[1]
    for i in range(len(at)):
        prefetch_row(lane, at, i)
        if at[i] >= 0:
            row, to = lane[at[i]], out[i, first : first + width]
            for c in range(len(row)):
                to[c] = row[c]


@compiled
def collect_rows(lane: Floats, at: Ints, grad: Floats, first: int) -> None:
    """Add the gradient of every lookup to the spot of its row."""
    width = lane.shape[1]
    for i in range(len(at)):
        prefetch_row(lane, at, i)
        if at[i] >= 0:
            row, come = lane[at[i]], grad[i, first : first + width]
            for c in range(len(row)):
                row[c] += come[c]


@compiled
def add_bags(lane: Floats, at: Ints, bags: Ints, out: Floats, first: int) -> None:
    """Add partial sums to their bags."""
    width = lane.shape[1]
    for i in range(len(at)):
        row, to = lane[at[i]], out[bags[i], first : first + width]
        for c in range(len(row)):
            to[c] += row[c]


@compiled
def take_bags(lane: Floats, at: Ints, bags: Ints, grad: Floats, first: int) -> None:
    """Copy the gradients of bags to the spots of their partial sums."""
    width = lane.shape[1]
    for i in range(len(at)):
        row, come = lane[at[i]], grad[bags[i], first : first + width]
        for c in range(len(row)):
            row[c] = come[c]


@compiled
def sum_rows(
    rows: Floats, slots: Ints, weights: Floats, lane: Floats, at: Ints, first: int
) -> None:
    """Add rows, from column `first`, to the partial sums at their spots."""
    weighted, width = len(weights) > 0, lane.shape[1]
    for i in range(len(slots)):
        prefetch_row(rows, slots, i)
        row, to = rows[slots[i], first : first + width], lane[at[i]]
        if weighted:
            weight = weights[i]
            for c in range(len(to)):
                to[c] += weight * row[c]
        else:
            for c in range(len(to)):
                to[c] += row[c]


@compiled
def add_grads(
    sums: Floats, index: Ints, lane: Floats, at: Ints, weights: Floats, first: int
) -> None:
    """Add gradients from spots to the sums of their rows, from column `first`, in order."""
    weighted, width = len(weights) > 0, lane.shape[1]
    for i in range(len(index)):
        to, come = sums[index[i], first : first + width], lane[at[i]]
        if weighted:
            weight = weights[i]
            for c in range(len(come)):
                to[c] += weight * come[c]
        else:
            for c in range(len(come)):
                to[c] += come[c]


@compiled
def sum_segments(
    lane: Floats,
    at: Ints,
    weights: Floats,
    order: Ints,
    starts: Ints,
    first: int,
    scale: np.float32,
    out: Floats,
) -> None:
    """Sum the gradients of rows `first` and on, as many as `out` has, each in its order."""
    weighted, spots = len(weights) > 0, at[order[starts[first] : starts[first + len(out)]]]
    place = 0
    for k in range(len(out)):
        to, start = out[k], starts[first + k]
        for i in range(start, starts[first + k + 1]):
            prefetch_row(lane, spots, place)
            come = lane[spots[place]]
            place += 1
            weight = weights[order[i]] if weighted else np.float32(1)
            if i == start:
                for c in range(len(to)):
                    to[c] = weight * come[c]
            else:
                for c in range(len(to)):
                    to[c] += weight * come[c]
        if scale != 1:
            for c in range(len(to)):
                to[c] *= scale

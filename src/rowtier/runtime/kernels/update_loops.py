"""Loops that change rows by their gradients, one kind of optimizer each.

Weights lie at `rows` of an array, state at `slots` of others; both are prefetched.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rowtier.jit import compiled
from rowtier.runtime.kernels.prefetch import prefetch_row

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@compiled
def sgd(weights: Floats, rows: Ints, _: Ints, grads: Floats, lr: np.float32) -> None:
    """Plain SGD."""
    for i in range(len(rows)):
        prefetch_row(weights, rows, i)
        row, grad = weights[rows[i]], grads[i]
        for c in range(len(row)):
            row[c] -= lr * grad[c]


@compiled
def sum_and_sgd(
    weights: Floats, slots: Ints, lane: Floats, at: Ints, of_lookups: Floats, order: Ints,
    starts: Ints, scale: np.float32, lr: np.float32,
) -> None:  # fmt: skip
    """What `sum_segments` and `sgd` do one after the other, to the last bit."""
    spots, weighted = at[order], len(of_lookups) > 0
    total = np.empty(weights.shape[1], dtype=np.float32)
    for k in range(len(slots)):
        prefetch_row(weights, slots, k)
        for i in range(starts[k], starts[k + 1]):
            prefetch_row(lane, spots, i)
            come, weight = lane[spots[i]], of_lookups[order[i]] if weighted else np.float32(1)
            if i == starts[k]:
                for c in range(len(total)):
                    total[c] = weight * come[c]
            else:
                for c in range(len(total)):
                    total[c] += weight * come[c]
        row = weights[slots[k]]
        for c in range(len(row)):
            row[c] -= lr * (total[c] * scale)


@compiled
def adagrad(
    weights: Floats, rows: Ints, slots: Ints, grads: Floats, state: Floats,
    lr: np.float32, eps: np.float32,
) -> None:  # fmt: skip
    """Adagrad with a state for every number."""
    for i in range(len(rows)):
        prefetch_row(weights, rows, i)
        prefetch_row(state, slots, i)
        row, sums, grad = weights[rows[i]], state[slots[i]], grads[i]
        for c in range(len(row)):
            total = sums[c] + grad[c] * grad[c]
            sums[c] = total
            row[c] -= lr * (grad[c] / (np.sqrt(total) + eps))


@compiled
def rowwise_adagrad(
    weights: Floats, rows: Ints, slots: Ints, grads: Floats, squares: Floats, state: Floats,
    lr: np.float32, eps: np.float32,
) -> None:  # fmt: skip
    """Adagrad with one state a row, from the mean of g² over the whole row."""
    for i in range(len(rows)):
        prefetch_row(weights, rows, i)
        prefetch_row(state, slots, i)
        row, grad = weights[rows[i]], grads[i]
        total = state[slots[i], 0] + squares[i]
        state[slots[i], 0] = total
        rate = lr / (np.sqrt(total) + eps)
        for c in range(len(row)):
            row[c] -= rate * grad[c]


@compiled
def momentum(
    weights: Floats, rows: Ints, slots: Ints, grads: Floats, state: Floats,
    lr: np.float32, kept: np.float32,
) -> None:  # fmt: skip
    """SGD along a running sum of gradients, of which `kept` is left in every step."""
    for i in range(len(rows)):
        prefetch_row(weights, rows, i)
        prefetch_row(state, slots, i)
        row, sums, grad = weights[rows[i]], state[slots[i]], grads[i]
        for c in range(len(row)):
            total = kept * sums[c] + grad[c]
            sums[c] = total
            row[c] -= lr * total


@compiled
def adam(
    weights: Floats, rows: Ints, slots: Ints, grads: Floats, first: Floats, second: Floats,
    rate: np.float32, beta1: np.float32, beta2: np.float32, eps: np.float32, kept: np.float32,
) -> None:  # fmt: skip
    """Adam on rows of which only `kept` is left; `rate` and `eps` have the step's correction."""
    one = np.float32(1)
    for i in range(len(rows)):
        prefetch_row(weights, rows, i)
        prefetch_row(first, slots, i)
        prefetch_row(second, slots, i)
        row, grad = weights[rows[i]], grads[i]
        moment, square = first[slots[i]], second[slots[i]]
        for c in range(len(row)):
            m = moment[c] + (one - beta1) * (grad[c] - moment[c])
            v = square[c] + (one - beta2) * (grad[c] * grad[c] - square[c])
            moment[c] = m
            square[c] = v
            row[c] = kept * row[c] - rate * (m / (np.sqrt(v) + eps))


@compiled
def squares_of(grads: Floats) -> Floats:
    """Sum of g² of every row, added up in double precision."""
    found = np.empty(len(grads), dtype=np.float32)
    for i in range(len(grads)):
        total = 0.0
        for c in range(grads.shape[1]):
            total += np.float64(grads[i, c]) * np.float64(grads[i, c])
        found[i] = total
    return found

"""Optimizers: one update per row and step, from the sum of all its gradients.

    SGD              w ← w − lr·g
    Adagrad          s ← s + g²;  w ← w − lr·g / (√s + eps)                torch.optim.Adagrad
    RowwiseAdagrad   s ← s + mean of g² over the whole row;  w ← w − lr·g / (√s + eps)
                     one s a row; fbgemm's exact_row_wise_adagrad, whose eps is 1e-8
    SparseAdam       m ← m + (1 − b1)(g − m);  v ← v + (1 − b2)(g² − v), rows with gradients only;
                     w ← w − lr·√(1 − b2ᵗ)/(1 − b1ᵗ) · m / (√v + eps)      torch.optim.SparseAdam

State is fp32 whatever the table's type; 16-bit weights are computed with in fp32 and rounded
to the nearest when they are stored.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.jit import compiled
from rowtier.runtime.prefetch import prefetch_row
from rowtier.runtime.storage import Segments, Shard, from_bits, to_bits

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Optimizer(ABC):
    """What all have: a learning rate, which a scheduler may change later."""

    lr: float = 1e-2

    kind: ClassVar[str] = ""
    state_names: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if not self.lr >= 0:
            raise UserError(f"lr {self.lr}: give 0 or more")

    @abstractmethod
    def update(self, update: Update) -> None:
        """Change rows by their gradients."""


@dataclass(frozen=True, eq=False)
class Update:
    """Rows of a shard with their gradients, already summed and scaled; no more than one chunk."""

    shard: Shard
    slots: Ints
    grads: Floats
    lr: float
    step: int  # counted from 1
    squares: Floats | None = None  # mean of g² over whole rows, for row-wise Adagrad

    def run(self, kernel: Any, *args: Any) -> None:
        """Call a kernel with the weights where they lie, or with a copy that is written back."""
        shard, places = self.shard, self.shard.rows.places(self.slots)
        if shard.plain:
            kernel(shard.weights, places, places, self.grads, *args)
        else:
            dtype = shard.piece.table.dtype
            rows = from_bits(shard.weights[places], dtype)
            kernel(rows, np.arange(len(places)), places, self.grads, *args)
            shard.weights[places] = to_bits(rows, dtype)
        shard.rows.change(places)


@dataclass(frozen=True)
class SGD(Optimizer):
    """Plain stochastic gradient descent."""

    kind: ClassVar[str] = "sgd"

    def update(self, update: Update) -> None:
        """Change rows by their gradients."""
        update.run(_sgd, np.float32(update.lr))

    def update_sums(self, shard: Shard, found: Segments, scale: np.float32, lr: float) -> None:
        """Sum gradients and change their rows, each while it is at hand."""
        slots, starts, order, part = found
        _sum_and_sgd(
            shard.weights, slots, part.lane, part.at, part.weights, order, starts, scale,
            np.float32(lr),
        )  # fmt: skip


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """torch.optim.Adagrad, with its eps."""

    eps: float = 1e-10

    kind: ClassVar[str] = "adagrad"
    state_names: ClassVar[tuple[str, ...]] = ("sum",)

    def update(self, update: Update) -> None:
        """Change rows by their gradients."""
        state = update.shard.state["sum"]
        update.run(_adagrad, state, np.float32(update.lr), np.float32(self.eps))


@dataclass(frozen=True)
class RowwiseAdagrad(Optimizer):
    """Adagrad with one state a row, as fbgemm's exact_row_wise_adagrad."""

    eps: float = 1e-8

    kind: ClassVar[str] = "rowwise_adagrad"
    state_names: ClassVar[tuple[str, ...]] = ("sum",)

    def update(self, update: Update) -> None:
        """Change rows by their gradients."""
        state = update.shard.state["sum"]
        assert update.squares is not None
        lr, eps = np.float32(update.lr), np.float32(self.eps)
        update.run(_rowwise, update.squares, state, lr, eps)


@dataclass(frozen=True)
class SparseAdam(Optimizer):
    """torch.optim.SparseAdam: moments of rows without gradients rest. Counts every step."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    kind: ClassVar[str] = "adam"
    state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def update(self, update: Update) -> None:
        """Change rows by their gradients."""
        first, second = self.betas
        correct = math.sqrt(1 - second**update.step) / (1 - first**update.step)
        state = update.shard.state
        update.run(
            _adam, state["exp_avg"], state["exp_avg_sq"], np.float32(update.lr * correct),
            np.float32(first), np.float32(second), np.float32(self.eps),
        )  # fmt: skip


KINDS: dict[str, type[Optimizer]] = {
    kind.kind: kind for kind in (SGD, Adagrad, RowwiseAdagrad, SparseAdam)
}


@compiled
def _sgd(weights: Floats, rows: Ints, _: Ints, grads: Floats, lr: np.float32) -> None:
    for i in range(len(rows)):
        prefetch_row(weights, rows, i)
        row, grad = weights[rows[i]], grads[i]
        for c in range(len(row)):
            row[c] -= lr * grad[c]


@compiled
def _sum_and_sgd(
    weights: Floats, slots: Ints, lane: Floats, at: Ints, of_lookups: Floats, order: Ints,
    starts: Ints, scale: np.float32, lr: np.float32,
) -> None:  # fmt: skip
    """What `sum_segments` and `_sgd` do one after the other, to the last bit."""
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
def _adagrad(
    weights: Floats, rows: Ints, slots: Ints, grads: Floats, state: Floats,
    lr: np.float32, eps: np.float32,
) -> None:  # fmt: skip
    for i in range(len(rows)):
        prefetch_row(weights, rows, i)
        prefetch_row(state, slots, i)
        row, sums, grad = weights[rows[i]], state[slots[i]], grads[i]
        for c in range(len(row)):
            total = sums[c] + grad[c] * grad[c]
            sums[c] = total
            row[c] -= lr * (grad[c] / (np.sqrt(total) + eps))


@compiled
def _rowwise(
    weights: Floats, rows: Ints, slots: Ints, grads: Floats, squares: Floats, state: Floats,
    lr: np.float32, eps: np.float32,
) -> None:  # fmt: skip
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
def _adam(
    weights: Floats, rows: Ints, slots: Ints, grads: Floats, first: Floats, second: Floats,
    rate: np.float32, beta1: np.float32, beta2: np.float32, eps: np.float32,
) -> None:  # fmt: skip
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
            row[c] -= rate * (m / (np.sqrt(v) + eps))


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

"""Optimizers: one update per row and step, from the sum of all its gradients.

    SGD              w ← w − lr·g
    MomentumSGD      b ← momentum·b + g;  w ← w − lr·b                     torch.optim.SGD
    Adagrad          s ← s + g²;  w ← w − lr·g / (√s + eps)                torch.optim.Adagrad
    RowwiseAdagrad   s ← s + mean of g² over the whole row;  w ← w − lr·g / (√s + eps)
                     one s a row; fbgemm's exact_row_wise_adagrad, whose eps is 1e-8
    SparseAdam       m ← m + (1 − b1)(g − m);  v ← v + (1 − b2)(g² − v)
                     w ← w − lr·√(1 − b2ᵗ)/(1 − b1ᵗ) · m / (√v + eps)      torch.optim.SparseAdam
    SparseAdamW      w ← w·(1 − lr·weight_decay);  m and v as above
                     w ← w − lr/(1 − b1ᵗ) · m / (√(v / (1 − b2ᵗ)) + eps)   torch.optim.AdamW

All in the sparse sense, as fbgemm has it: a row that has no gradient in a step does not change,
nor does its state. Weight decay of all but SparseAdamW is L2: g is the gradient plus
weight_decay·w, and what is made of g (squares, moments) has the decay in it.

State is fp32 whatever the table's type; 16-bit weights are computed with in fp32 and rounded
to the nearest when they are stored.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from rowtier.errors import UserError
from rowtier.runtime.kernels.rule import Rule


@dataclass(frozen=True)
class Optimizer(ABC):
    """What all have: a learning rate and weight decay; a parameter group may change numbers."""

    lr: float = 1e-2
    weight_decay: float = field(default=0.0, kw_only=True)

    kind: ClassVar[str] = ""
    state_names: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name, value in self.numbers().items():
            if isinstance(value, (int, float)) and not value >= 0:
                raise UserError(f"{name} {value} of {type(self).__name__}: give 0 or more")

    def numbers(self) -> dict[str, Any]:
        """Everything that is chosen, by name: what a parameter group holds."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    def with_numbers(self, group: Mapping[str, Any]) -> Optimizer:
        """The same kind with the numbers that a parameter group has now."""
        return replace(self, **{name: group[name] for name in self.numbers()})

    @property
    def l2(self) -> float:
        """How much of a weight is added to its gradient before all else."""
        return self.weight_decay

    @property
    def first_state(self) -> float:
        """What state is before the first step."""
        return 0.0

    @abstractmethod
    def rule(self, step: int) -> Rule:
        """How rows change in a step, counted from 1."""


@dataclass(frozen=True)
class SGD(Optimizer):
    """Plain stochastic gradient descent. `weight_decay` is L2, as in torch.optim.SGD."""

    kind: ClassVar[str] = "sgd"

    def rule(self, step: int) -> Rule:  # noqa: ARG002
        """How rows change in a step."""
        return Rule("sgd", self.lr)


@dataclass(frozen=True)
class MomentumSGD(Optimizer):
    """torch.optim.SGD with momentum (dampening 0) on rows that have a gradient.

    Where a row has none, its momentum rests, and does not move it. `weight_decay` is L2, as in
    torch.optim.SGD, and goes into the momentum.
    """

    momentum: float = 0.9

    kind: ClassVar[str] = "momentum"
    state_names: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    def rule(self, step: int) -> Rule:  # noqa: ARG002
        """How rows change in a step."""
        return Rule("momentum", self.lr, kept=self.momentum)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """torch.optim.Adagrad, with its eps. `weight_decay` is L2, as there, and is in the squares.

    `initial_accumulator_value` is what state is when the module is made.
    """

    eps: float = 1e-10
    initial_accumulator_value: float = field(default=0.0, kw_only=True)

    kind: ClassVar[str] = "adagrad"
    state_names: ClassVar[tuple[str, ...]] = ("sum",)

    @property
    def first_state(self) -> float:
        """What state is before the first step."""
        return self.initial_accumulator_value

    def rule(self, step: int) -> Rule:  # noqa: ARG002
        """How rows change in a step."""
        return Rule("adagrad", self.lr, self.eps)


@dataclass(frozen=True)
class RowwiseAdagrad(Optimizer):
    """Adagrad with one state a row, as fbgemm's exact_row_wise_adagrad.

    `weight_decay` is L2, as fbgemm's WeightDecayMode.L2: the mean of squares that the whole row
    shares has it. `initial_accumulator_value` is what state is when the module is made.
    """

    eps: float = 1e-8
    initial_accumulator_value: float = field(default=0.0, kw_only=True)

    kind: ClassVar[str] = "rowwise_adagrad"
    state_names: ClassVar[tuple[str, ...]] = ("sum",)

    @property
    def first_state(self) -> float:
        """What state is before the first step."""
        return self.initial_accumulator_value

    def rule(self, step: int) -> Rule:  # noqa: ARG002
        """How rows change in a step."""
        return Rule("rowwise_adagrad", self.lr, self.eps)


@dataclass(frozen=True)
class SparseAdam(Optimizer):
    """torch.optim.SparseAdam: moments of rows without gradients rest. Counts every step.

    `weight_decay`, which torch's has not, is L2 as in torch.optim.Adam, and is in the moments;
    fbgemm's Adam decays as `SparseAdamW` does.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    kind: ClassVar[str] = "adam"
    state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "betas", tuple(self.betas))  # a list would be no dict's key
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(
                f"betas {self.betas} of {type(self).__name__}: give two numbers from 0 to less "
                "than 1"
            )

    def rule(self, step: int) -> Rule:
        """How rows change in a step, counted from 1."""
        return self._rule(step, self.eps, 1.0)

    def _rule(self, step: int, eps: float, kept: float) -> Rule:
        first, second = self.betas
        rate = self.lr * self._correction(step) / (1 - first**step)
        return Rule("adam", rate, eps, first, second, kept)

    def _correction(self, step: int) -> float:
        """By how much √v is too small, as it began with 0."""
        return math.sqrt(1 - self.betas[1] ** step)


@dataclass(frozen=True)
class SparseAdamW(SparseAdam):
    """torch.optim.AdamW on rows that have a gradient, and what fbgemm's Adam is with decay.

    `weight_decay` is decoupled: the row itself shrinks, and the moments do not see it. Where a
    row has no gradient, its moments rest and it does not decay. Counts every step.
    """

    weight_decay: float = field(default=1e-2, kw_only=True)

    kind: ClassVar[str] = "adamw"

    @property
    def l2(self) -> float:
        """Nothing is added to gradients."""
        return 0.0

    def rule(self, step: int) -> Rule:
        """How rows change in a step, counted from 1."""
        # √v/c + eps, as torch has it here, is (√v + c·eps)/c.
        eps = self.eps * self._correction(step)
        return self._rule(step, eps, 1 - self.lr * self.weight_decay)


KINDS: dict[str, type[Optimizer]] = {
    kind.kind: kind for kind in (SGD, MomentumSGD, Adagrad, RowwiseAdagrad, SparseAdam, SparseAdamW)
}

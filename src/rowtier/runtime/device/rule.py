"""An optimizer's numbers in one step, as kernels take them: in fp32, with its corrections."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

import numpy as np

from rowtier.runtime.optim import (
    SGD,
    Adagrad,
    MomentumSGD,
    Optimizer,
    RowwiseAdagrad,
    SparseAdam,
    SparseAdamW,
)

Kind = Literal["sgd", "momentum", "adagrad", "rowwise_adagrad", "adam"]
KINDS: tuple[Kind, ...] = get_args(Kind)
STATES = {"sgd": 0, "momentum": 1, "adagrad": 1, "rowwise_adagrad": 1, "adam": 2}


@dataclass(frozen=True)
class Rule:
    """How rows change: the formulas are in `optim.py`, and in `plain.py` as tensors.

    `kept` is what is left of the momentum, or for Adam of the row.
    """

    kind: Kind
    rate: float
    eps: float = 0.0
    beta1: float = 0.0
    beta2: float = 0.0
    kept: float = 1.0

    def __post_init__(self) -> None:
        for entry in fields(self)[1:]:
            object.__setattr__(self, entry.name, float(np.float32(getattr(self, entry.name))))

    @property
    def states(self) -> int:
        """How many arrays of state it has; that of row-wise Adagrad has one column."""
        return STATES[self.kind]

    @classmethod
    def of(cls, optimizer: Optimizer, step: int) -> Rule:
        """The numbers of an optimizer in a step, counted from 1."""
        match optimizer:
            case SGD(lr=lr):
                return cls("sgd", lr)
            case MomentumSGD(lr=lr, momentum=momentum):
                return cls("momentum", lr, kept=momentum)
            case Adagrad(lr=lr, eps=eps):
                return cls("adagrad", lr, eps)
            case RowwiseAdagrad(lr=lr, eps=eps):
                return cls("rowwise_adagrad", lr, eps)
            case SparseAdam():
                return cls._adam(optimizer, step)
        raise AssertionError(f"no kernel for {type(optimizer).__name__}")

    @classmethod
    def _adam(cls, optimizer: SparseAdam, step: int) -> Rule:
        first, second = optimizer.betas
        correction = math.sqrt(1 - second**step)
        rate = optimizer.lr * correction / (1 - first**step)
        if isinstance(optimizer, SparseAdamW):
            left = 1 - optimizer.lr * optimizer.weight_decay
            return cls("adam", rate, optimizer.eps * correction, first, second, left)
        return cls("adam", rate, optimizer.eps, first, second)

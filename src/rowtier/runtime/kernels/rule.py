"""An optimizer's numbers in one step, as kernels take them: in fp32, with its corrections."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

import numpy as np

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

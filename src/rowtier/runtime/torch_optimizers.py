"""Torch's own optimizers: why they cannot update rows, and which of ours stands for them.

Most have a dense meaning: every step changes every row, also those that have no gradient. Kept
exactly, that would touch all rows of all tables in every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rowtier.errors import UserError
from rowtier.runtime.optim import (
    KINDS,
    SGD,
    Adagrad,
    MomentumSGD,
    Optimizer,
    RowwiseAdagrad,
    SparseAdam,
    SparseAdamW,
)

_OURS: Mapping[str, type[Optimizer]] = {  # by the names of torch's and TorchRec's classes
    "SGD": SGD,
    "Adagrad": Adagrad,
    "RowWiseAdagrad": RowwiseAdagrad,
    "Adam": SparseAdam,
    "SparseAdam": SparseAdam,
    "AdamW": SparseAdamW,
}
_NOT_OURS = ("amsgrad", "nesterov", "maximize", "dampening", "lr_decay")


def refusal(given: object) -> UserError:
    """Why something is no optimizer for rows, with what to give instead."""
    if isinstance(given, type) and issubclass(given, Optimizer):
        name = given.__name__
        return UserError(f"optimizer {name} is a class: give one with its numbers, {name}(lr=…)")
    if isinstance(given, torch.optim.Optimizer):
        return UserError(f"optimizer {instead_of(type(given), _numbers(given))}")
    if isinstance(given, type) and issubclass(given, torch.optim.Optimizer):
        return UserError(f"optimizer {instead_of(given, {})}")
    return UserError(
        f"optimizer {given!r}: give one of rowtier.torch ({_every()}), a list with one for each "
        "kind, or a mapping from names of tables to optimizers"
    )


def refuse_in_backward(module: torch.nn.Module) -> None:
    """Raise if weights were given optimizers (apply_optimizer_in_backward), which would be lost."""
    for name, weight in module.named_parameters():
        for theirs in getattr(weight, "_in_backward_optimizers", ()):
            raise UserError(
                f"{name} was given an optimizer by apply_optimizer_in_backward, which its rows "
                "would not be updated by, and none is given here: "
                f"{instead_of(type(theirs), _numbers(theirs))}"
            )


def instead_of(torchs: type, numbers: Mapping[str, Any]) -> str:
    """An optimizer of torch by name, why it is none for rows, and which of ours to give."""
    name, ours = _name(torchs), _ours(torchs, numbers)
    why = _dense_meaning(torchs, numbers) or "updates parameters, and the rows are none"
    if ours is None:
        return f"{name} {why}: give one of rowtier.torch ({_every()})"
    known = ", ".join(f"{key}={numbers[key]}" for key in ours().numbers() if key in numbers)
    lost = ", ".join(key for key in _NOT_OURS if numbers.get(key))
    without = f", which has no {lost}" if lost else ""
    return (
        f"{name} {why}: give rowtier.torch.{ours.__name__}({known or 'lr=…'}){without}, for tables "
        f"with `optimizer: {ours.kind}`; it changes rows that have a gradient in the step and no "
        "others"
    )


def _numbers(torchs: torch.optim.Optimizer) -> Mapping[str, Any]:
    groups = getattr(torchs, "param_groups", None)
    return groups[0] if groups else getattr(torchs, "_kwargs", {})  # TorchRec's placeholders


def _name(torchs: type) -> str:
    module = torchs.__module__
    for package in ("torch.optim", "torchrec.optim"):
        if module.startswith(package):
            return f"{package}.{torchs.__name__}"
    return f"{module}.{torchs.__name__}"


def _ours(torchs: type, numbers: Mapping[str, Any]) -> type[Optimizer] | None:
    if torchs.__name__ == "SGD" and numbers.get("momentum"):
        return MomentumSGD
    if _is_fused(torchs) and torchs.__name__ == "Adam" and numbers.get("weight_decay"):
        return SparseAdamW  # fbgemm's Adam decays weights, not gradients
    return _OURS.get(torchs.__name__)


def _is_fused(torchs: type) -> bool:
    """Whether a class only names one of fbgemm's optimizers, which have a sparse meaning."""
    return torchs.__module__.startswith("torchrec.optim")


def _dense_meaning(torchs: type, numbers: Mapping[str, Any]) -> str | None:
    """What an optimizer does to rows that have no gradient in a step; None: nothing."""
    if _is_fused(torchs):
        return None
    does = []
    if torchs.__name__ in ("Adam", "AdamW"):
        does.append("lets their moments decay and moves them by what is left")
    if numbers.get("momentum"):
        does.append("moves them by their momentum")
    if numbers.get("weight_decay", torchs.__name__ == "AdamW"):  # which decays unless told not to
        does.append("lets their weights decay")
    if not does:
        return None
    return f"also changes rows that have no gradient in a step (it {' and '.join(does)})"


def _every() -> str:
    return ", ".join(kind.__name__ for kind in KINDS.values())

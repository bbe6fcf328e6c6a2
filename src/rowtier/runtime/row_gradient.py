"""What stands for the gradients of all rows where PyTorch looks for `.grad`.

The module has one parameter of one number, its handle. After `backward` the handle's gradient is
a `RowGradient`: the norm of the gradients of all rows of all ranks, worked out when somebody asks
for it. So what PyTorch does to gradients as a whole is done to rows as well:

- `zero_grad` of the model, or of any optimizer that has its parameters, drops them;
- `clip_grad_norm_(model.parameters(), …)` takes the norm over rows and all else, and scales both;
- a `GradScaler` finds rows that are not finite, on all ranks alike, and takes its scale off.

What looks at single elements cannot be right, and is refused by name. An optimizer of other
parameters that was given the handle, too, gets zeros, and rows are not measured for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from rowtier.errors import UserError
from rowtier.runtime.engine import Engine
from rowtier.runtime.exchange.step import Trip
from rowtier.runtime.kernels.protocol import Array

_NORMS = ("linalg_vector_norm", "_foreach_norm")
_UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"
_SCALED = ("mul_", "div_", "_foreach_mul_", "_foreach_div_")
_DROPPED = ("zero_", "_foreach_zero_")
_ADDED = ("add", "add_", "_foreach_add", "_foreach_add_")
_LOOKED_AT = ("eq", "ne", "abs", "isnan", "isinf", "clone", "_to_copy", "detach", "item")
_MANY_PASSES = 100  # backward passes that surely should have led to a step
_MANY_LOST = 10  # whose gradients another's zero_grad dropped; a scaler skips a few, to begin with
_READ = (*_NORMS, _UNSCALE, *_SCALED, *_LOOKED_AT, "_local_scalar_dense")


class RowGradient(torch.Tensor):  # type: ignore[misc]
    """The norm of the gradients of all rows, measured when it is read; one number."""

    _measure: Callable[[], float]
    _norm: torch.Tensor | None
    _measured: float
    is_unscaled: bool  # a scaler has taken its scale off
    is_dropped: bool

    @staticmethod
    def __new__(
        cls, handle: torch.Tensor, measure: Callable[[], float], is_unscaled: bool = False
    ) -> RowGradient:
        """For a handle, with what works out the norm; all ranks do so together."""
        made: RowGradient = torch.Tensor._make_wrapper_subclass(
            cls, handle.shape, dtype=handle.dtype, device=handle.device
        )
        made._measure, made._norm, made._measured = measure, None, 0.0
        made.is_unscaled, made.is_dropped = is_unscaled, False
        return made

    @property
    def factor(self) -> float:
        """By what the gradients of rows were multiplied since they were measured."""
        if self._norm is None or self._measured == 0:
            return 1.0
        return float(self._norm) / self._measured

    def read(self) -> torch.Tensor:
        """The norm, with all that was done to it."""
        if self._norm is None:
            self._measured = self._measure()
            self._norm = torch.full(self.shape, self._measured, device=self.device)
        return self._norm

    def __repr__(self, **_: Any) -> str:
        return f"RowGradient({'not measured' if self._norm is None else float(self._norm)})"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """What an operation gets to see: the norm, or zeros if it changes something else."""
        name, kwargs = func._schema.name.split("::")[1], kwargs or {}
        mine = [leaf for leaf in tree_leaves(args[:1]) if isinstance(leaf, RowGradient)]
        if name in _ADDED and mine:
            return _added(func, args, kwargs)
        if func._schema.is_mutable and not mine:
            return _called(func, _zeros, args, kwargs)
        if name in _DROPPED:
            for gradient in mine:
                gradient.is_dropped = True
            others = [leaf for leaf in tree_leaves(args[:1]) if not isinstance(leaf, RowGradient)]
            return torch._foreach_zero_(others) if others else args[0]
        _refuse_elements(name, args, kwargs)
        if name == _UNSCALE:
            return _unscaled(func, args, kwargs)
        return _called(func, RowGradient.read, args, kwargs)


def _called(func: Any, shown: Callable[[Any], Any], args: Any, kwargs: Any) -> Any:
    args, kwargs = tree_map_only(RowGradient, shown, (args, kwargs))
    return func(*args, **kwargs)


def _zeros(gradient: RowGradient) -> torch.Tensor:
    return torch.zeros(gradient.shape, dtype=gradient.dtype, device=gradient.device)


def _added(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Add to other gradients; rows get theirs in other ways, and nothing from here."""
    found = _called(func, _zeros, args, kwargs)
    if not isinstance(args[0], (list, tuple)):
        return args[0]
    pairs = zip(args[0], found or args[0], strict=True)
    return [old if isinstance(old, RowGradient) else new for old, new in pairs]


def _unscaled(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Take a scale off once, though two optimizers may have the handle."""
    inverse = float(args[2])

    def shown(gradient: RowGradient) -> torch.Tensor:
        norm = gradient.read().clone() if gradient.is_unscaled else gradient.read()
        gradient.is_unscaled |= inverse != 1
        return norm

    return _called(func, shown, args, kwargs)


def _refuse_elements(name: str, args: Sequence[Any], kwargs: Any) -> None:
    order = args[1] if len(args) > 1 else kwargs.get("ord", 2)
    if name in _NORMS and order != 2:
        raise UserError(
            f"a norm of order {order} of the rows' gradients: only the 2-norm is known of all "
            "rows; clip with norm_type=2, or clip the dense part alone"
        )
    if name not in _READ:
        raise UserError(
            f"{name!r} of the gradient that stands for all rows: it is one number, their norm, "
            "and can be scaled or dropped; to clip single numbers call "
            "embeddings.clip_grad_value_(…), and leave the handle out of other parameters"
        )


class Waiting:
    """Gradients of rows that wait for a step, behind the handle that PyTorch sees of them."""

    def __init__(self, handle: torch.nn.Parameter, engine: Engine):
        self.handle, self._engine = handle, engine
        self._passes = self._lost = 0  # backward passes, and those whose gradients were dropped
        self._standing = engine.standing
        self._standing.are_dropped = lambda: self._gradient is None

    @property
    def _gradient(self) -> RowGradient | None:
        """What stands for them; None if somebody dropped them."""
        found = self.handle.grad
        return found if isinstance(found, RowGradient) and not found.is_dropped else None

    def add(self, trip: Trip, grads: Sequence[Array]) -> None:
        """Bring gradients of outputs to the rows, beside those that wait and were not dropped."""
        if self._gradient is None:
            self._lost += self._engine.has_gradients
            self.drop()
        self._engine.backward(trip, grads)
        self._standing.passes += 1
        if self.handle.grad is None:
            self.handle.grad = RowGradient(self.handle, self._engine.norm)
        if not self._engine.step_number:
            self._warn_if_never_stepped()

    def _warn_if_never_stepped(self) -> None:
        """An optimizer of all parameters leaves rows alone, so theirs is easily forgotten."""
        self._passes += 1
        if self._passes == _MANY_PASSES or self._lost == _MANY_LOST:
            self._lost += 1  # say it once
            warnings.warn(
                f"{self._passes} backward passes brought gradients to rows, and no row has "
                "changed: rows are updated by embeddings.optimizer.step() (of a TorchRec "
                "collection also by its fused_optimizer), and by no other optimizer",
                stacklevel=2,
            )

    def refuse(self, call: str) -> None:
        """Refuse a call while gradients wait for a step; forget those that somebody dropped."""
        if self._gradient is not None and self._standing.passes:
            raise UserError(
                f"{call} while gradients of {self._standing.passes} backward "
                f"pass{'es' if self._standing.passes > 1 else ''} wait: call optimizer.step() "
                "first, or optimizer.zero_grad() to drop them"
            )
        self.drop()

    def drop(self) -> None:
        """Forget what waits."""
        self._standing.passes = 0
        self._engine.forget_gradients()
        self.handle.grad = None

    def clip_values(self, largest: float) -> None:
        """Clamp every number of the gradients that wait, as they are scaled by now."""
        gradient = self._gradient
        if gradient is None:
            return
        self._engine.clip_values(largest, gradient.factor)
        self.handle.grad = RowGradient(self.handle, self._engine.norm, gradient.is_unscaled)

    def take(self) -> float:
        """What the gradients that wait are to be multiplied by; from now on they do not wait."""
        gradient = self._gradient
        if gradient is None:
            self.drop()
        self.handle.grad, self._standing.passes = None, 0
        return 1.0 if gradient is None else gradient.factor

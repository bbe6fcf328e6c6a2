"""Several optimizers as one, for those who step only one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rowtier.errors import UserError


class Together(torch.optim.Optimizer):  # type: ignore[misc]
    """Several optimizers as one, for those who step only one, as TorchRec's pipelines do.

    Parameter groups are theirs, so schedulers of either drive both. Where several have a
    parameter, such as the handle of rows that is among `model.parameters()`, the last keeps it.
    """

    def __init__(self, *optimizers: torch.optim.Optimizer):
        if not optimizers:
            raise UserError("Together() of no optimizer: give those of the dense and sparse part")
        self.optimizers = optimizers
        groups = [group for part in optimizers for group in part.param_groups]
        seen: set[int] = set()
        for group in reversed(groups):
            group["params"] = [param for param in group["params"] if id(param) not in seen]
            seen.update(map(id, group["params"]))
        super().__init__(groups, {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step all of them; the closure is called once."""
        loss = closure() if closure is not None else None
        for part in self.optimizers:
            part.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all."""
        for part in self.optimizers:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The states of all, in their order; all ranks must call this."""
        return {"optimizers": [part.state_dict() for part in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take states that were saved; all ranks must call this."""
        for part, state in zip(self.optimizers, state_dict["optimizers"], strict=True):
            part.load_state_dict(state)

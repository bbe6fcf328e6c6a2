"""`EmbeddingOptimizer`: torch's face of what updates the rows."""

from __future__ import annotations

from typing import Any

import torch

from rowtier.runtime.engine import Engine


class EmbeddingOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """Updates the rows of `ShardedEmbeddings`; a learning rate scheduler can drive it.

    One parameter group per kind of optimizer. `zero_grad` drops gradients that wait; without
    it, or `step`, the gradients of several backward passes add up.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        groups = [
            # One handle each: torch allows a tensor in one group only.
            {"params": [torch.zeros(0, requires_grad=True)], "kind": kind, "lr": optimizer.lr}
            for kind, optimizer in engine.optimizers.items()
        ]
        super().__init__(groups, {})

    def step(self, closure: Any = None) -> Any:
        """Apply the gradients since the last step; all ranks must call this."""
        loss = closure() if closure is not None else None
        rates = {group["kind"]: float(group["lr"]) for group in self.param_groups}
        with self._engine.inside():
            self._engine.step(rates)
        if self._engine.dense_time is not None:
            self._engine.dense_time.end_step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002
        """Drop gradients that were not applied."""
        self._engine.forget_gradients()

    def state_dict(self) -> dict[str, Any]:
        """State by the names of the logical tables; all ranks must call this."""
        from rowtier.runtime.logical import state_dict

        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.param_groups
        ]
        return {"state": state_dict(self._engine), "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take state that was saved under any plan and world size; all ranks must call this."""
        from rowtier.runtime.logical import load_state

        load_state(self._engine, state_dict["state"])
        for saved in state_dict["param_groups"]:
            for group in self.param_groups:
                if group["kind"] == saved["kind"]:
                    group.update(saved)

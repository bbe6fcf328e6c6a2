"""What one process with torch's own modules and optimizers gives: the truth to compare with.

Rows that have a gradient in a step are cut out, with their state, torch's own optimizer makes one
step on them, and they are put back: what an optimizer means in the sparse sense. Row-wise Adagrad,
which torch has not, is written down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from rowtier import Table

torch.sparse.check_sparse_tensor_invariants.disable()  # else torch warns where it builds them

LR = 0.25
Changes = Sequence[Mapping[str, float]]  # per step what numbers are multiplied with
KINDS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.SparseAdam,
    "adamw": torch.optim.AdamW,
}
STATE = {
    "momentum": ["momentum_buffer"],
    "adagrad": ["sum"],
    "rowwise_adagrad": ["sum"],
    "adam": ["exp_avg", "exp_avg_sq"],
    "adamw": ["exp_avg", "exp_avg_sq"],
}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def default_numbers(kind: str, lr: float = LR) -> dict[str, Any]:
    """Those that differ from torch's defaults."""
    return {"lr": lr, **({"momentum": 0.9} if kind == "momentum" else {})}


class Reference:
    """One table, trained by torch; weights are rounded to the table's type after each step."""

    def __init__(self, table: Table, weights: torch.Tensor, numbers: Mapping[str, Any]):
        self.table, self.given, self.numbers, self.steps = table, numbers, dict(numbers), 0
        self.weight = torch.nn.Parameter(self._rounded(weights))
        shape = (len(weights), 1) if table.optimizer == "rowwise_adagrad" else weights.shape
        first = float(numbers.get("initial_accumulator_value", 0))
        self._state = {name: torch.full(shape, first) for name in STATE.get(table.optimizer, [])}

    def change(self, factors: Mapping[str, float]) -> None:
        """Set numbers for the next step: those given first, times a factor."""
        for name, factor in factors.items():
            if name in self.given:
                self.numbers[name] = self.given[name] * factor

    def _rounded(self, weights: torch.Tensor) -> torch.Tensor:
        return weights.to(DTYPES[self.table.dtype]).float()

    def look_up(
        self, ids: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        """All samples of all ranks, one after the other."""
        if self.table.pooling == "none":
            return functional.embedding(ids, self.weight)
        edges = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        out = functional.embedding_bag(
            ids,
            self.weight,
            edges,
            include_last_offset=True,
            mode="sum",
            per_sample_weights=weights,
        )
        if self.table.pooling == "mean":
            out = out / lengths.clamp(min=1)[:, None]
        return out

    def step(self, touched: torch.Tensor, scale: float) -> None:
        """Update the rows that were looked up."""
        rows = touched.unique()
        grad = torch.zeros_like(self.weight) if self.weight.grad is None else self.weight.grad
        grads = grad[rows] * scale
        self.steps += 1
        if len(rows):
            self.update(rows, grads)
        self.weight.grad = None

    def update(self, rows: torch.Tensor, grads: torch.Tensor) -> None:
        """Change rows by their gradients."""
        part = torch.nn.Parameter(self.weight.detach()[rows].clone())
        state = {name: values[rows].clone() for name, values in self._state.items()}
        if self.table.optimizer == "rowwise_adagrad":
            self._row_wise(part, state, grads)
        else:
            state = self._torch(part, state, grads)
        with torch.no_grad():
            self.weight[rows] = self._rounded(part)
        for name, values in self._state.items():
            values[rows] = state[name]

    def _row_wise(self, part: Any, state: dict[str, torch.Tensor], grads: torch.Tensor) -> None:
        with torch.no_grad():
            grads = grads + self.numbers.get("weight_decay", 0) * part
            state["sum"] += grads.square().mean(dim=1, keepdim=True)
            rate = self.numbers["lr"] / (state["sum"].sqrt() + self.numbers.get("eps", 1e-8))
            part -= rate * grads

    def _torch(
        self, part: Any, state: dict[str, torch.Tensor], grads: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        numbers, steps = dict(self.numbers), self.steps - 1
        if self.table.optimizer == "adam":  # torch's has no decay: L2, as torch.optim.Adam
            grads = grads + numbers.pop("weight_decay", 0) * part.detach()
            every = torch.arange(len(grads))[None]
            grads = torch.sparse_coo_tensor(every, grads, check_invariants=False).coalesce()
        else:
            steps = torch.tensor(float(steps))
        part.grad = grads
        optimizer = KINDS[self.table.optimizer]([part], **numbers)
        optimizer.state[part].update({"step": steps, **state})
        optimizer.step()
        return {name: optimizer.state[part][name].detach() for name in state}

    def state(self) -> dict[str, torch.Tensor]:
        """Optimizer state, rows first."""
        return self._state

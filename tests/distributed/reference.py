"""What one process with torch's own modules and optimizers gives: the truth to compare with."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from rowtier import Table

torch.sparse.check_sparse_tensor_invariants.disable()  # else torch warns where it builds them

LR = 0.25
KINDS = {
    "sgd": lambda p, lr: torch.optim.SGD([p], lr=lr),
    "adagrad": lambda p, lr: torch.optim.Adagrad([p], lr=lr),
    "adam": lambda p, lr: torch.optim.SparseAdam([p], lr=lr),
}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Reference:
    """One table, trained by torch; weights are rounded to the table's type after each step."""

    def __init__(self, table: Table, weights: torch.Tensor, lr: float = LR):
        self.table, self.lr = table, lr
        self.weight = torch.nn.Parameter(self._rounded(weights))
        make = KINDS.get(table.optimizer)
        self.optimizer = None if make is None else make(self.weight, lr)
        self.squares = torch.zeros(table.num_embeddings)

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
        if self.optimizer is None:
            self.squares[rows] += grads.square().mean(dim=1)
            rate = self.lr / (self.squares[rows].sqrt() + 1e-8)
            with torch.no_grad():
                self.weight[rows] -= rate[:, None] * grads
        else:
            self.weight.grad = torch.sparse_coo_tensor(
                rows[None], grads, self.weight.shape, check_invariants=False
            ).coalesce()
            self.optimizer.step()
        self.weight.grad = None
        with torch.no_grad():
            self.weight.copy_(self._rounded(self.weight))

    def state(self) -> dict[str, torch.Tensor]:
        """Optimizer state, rows first."""
        if self.optimizer is None:
            return {"sum": self.squares[:, None]}
        found: dict[str, Any] = self.optimizer.state[self.weight]
        names = {"adagrad": ["sum"], "adam": ["exp_avg", "exp_avg_sq"]}
        none = torch.zeros_like(self.weight)
        return {n: found.get(n, none).detach() for n in names.get(self.table.optimizer, [])}

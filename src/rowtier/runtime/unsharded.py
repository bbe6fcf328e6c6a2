"""All tables in plain PyTorch, whole: to export, to serve, to look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from rowtier.errors import UserError
from rowtier.plan.bags import Bags
from rowtier.plan.remap import Read


class JaggedRows(NamedTuple):
    """The rows of one feature's lookups, sample after sample."""

    values: torch.Tensor  # lookups × embedding_dim
    lengths: torch.Tensor  # per sample


class UnshardedEmbeddings(nn.Module):  # type: ignore[misc]
    """The tables of `ShardedEmbeddings` as parameters, looked up with PyTorch's own operations.

    Takes dicts as the sharded module does, with tensors and rows: tables whose ids are hashed, or
    go by a vocabulary, get what `plan.rows_of` makes of them. State dicts have the same names.
    """

    def __init__(self, reads: Iterable[Read], weights: Mapping[str, torch.Tensor]):
        super().__init__()
        self.reads = [(r.key, r.feature, r.table.name, r.table.pooling) for r in reads]
        self.embedding_bags, self.embeddings = nn.ModuleDict(), nn.ModuleDict()
        for _, _, name, pooling in self.reads:
            kind = "embeddings" if pooling == "none" else "embedding_bags"
            holder = nn.Module()
            holder.weight = nn.Parameter(weights[f"{kind}.{name}.weight"])
            getattr(self, kind)[name] = holder

    def forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Look up a batch."""
        found: dict[str, Any] = {}
        for key, feature, table, pooling in self.reads:
            entry = _bags(batch[feature])
            if pooling == "none":
                found[key] = _rows(self.embeddings[table].weight, entry)
            else:
                found[key] = _pooled(self.embedding_bags[table].weight, entry, pooling)
        return found


def _bags(entry: Any) -> Bags:
    if isinstance(entry, Bags):
        return entry
    if isinstance(entry, torch.Tensor):
        return Bags(entry)
    if isinstance(entry, (tuple, list)) and 1 < len(entry) < 4:
        return Bags(entry[0], entry[1], weights=entry[2] if len(entry) == 3 else None)
    raise UserError(
        f"an entry of type {type(entry).__name__}: give a tensor of ids, (ids, lengths), "
        "(ids, lengths, weights) or Bags"
    )


def _rows(weight: torch.Tensor, entry: Bags) -> Any:
    rows = functional.embedding(entry.values, weight).float()
    lengths = entry.offsets.diff() if entry.offsets is not None else entry.lengths
    return rows if lengths is None else JaggedRows(rows, lengths)


def _pooled(weight: torch.Tensor, entry: Bags, pooling: str) -> torch.Tensor:
    ids, weights = entry.values, entry.weights
    if entry.lengths is None and entry.offsets is None:
        rows = functional.embedding(ids.reshape(len(ids), -1), weight).float()
        return rows.sum(dim=1) if pooling == "sum" else rows.mean(dim=1)
    offsets = entry.offsets
    if offsets is None:
        offsets = functional.pad(entry.lengths.cumsum(0), (1, 0))
    sums: torch.Tensor = functional.embedding_bag(
        ids, weight.float(), offsets.to(ids.dtype), mode="sum", include_last_offset=True,
        per_sample_weights=None if weights is None else weights.float(),
    )  # fmt: skip
    if pooling == "sum":
        return sums
    return sums / offsets.diff().clamp(min=1)[:, None]

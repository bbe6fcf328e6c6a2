"""A small model of rows and a dense part, sharded and plain, for what PyTorch does with models."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from cases import cluster_of
from strategies import counted
from torch import nn

from rowtier import Band, Plan, Profile, Table
from rowtier.torch import SGD, ShardedEmbeddings

ROWS, DIM = 20, 4


def plan_of(ranks: int, pooling: str = "sum", exchange: str = "rows") -> Plan:
    """Two tables; hot rows have copies, cold ones lie once."""
    cluster, stats, bands = cluster_of((ranks,)), [], {}
    for name in "ab":
        table = Table(
            name=name, num_embeddings=ROWS, embedding_dim=DIM, features=(f"f{name}",),
            pooling=pooling, optimizer="sgd",
        )  # fmt: skip
        stats.append(counted(table, np.arange(ROWS)[::-1].copy()))
        bands[name] = (
            Band(start=0, stop=6, scope="device", tier="ram"),
            Band(start=6, stop=ROWS, scope=cluster.top, tier="ram", exchange=exchange),
        )
    return Plan.build("by hand", Profile(4, tuple(stats)), cluster, bands)


def first_weights(name: str) -> torch.Tensor:
    """The first weights of a table or a layer, the same in every process."""
    shape = {"a": (ROWS, DIM), "b": (ROWS, DIM), "top": (1, 2 * DIM)}[name]
    seed = {"a": 1, "b": 2, "top": 3}[name]
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def batch_of(step: int, rank: int = 0) -> dict[str, torch.Tensor]:
    """Eight samples of two ids each."""
    random = torch.Generator().manual_seed(100 * step + rank)
    return {f: torch.randint(0, ROWS, (8, 2), generator=random) for f in ("fa", "fb")}


class Sharded(nn.Module):
    """Two tables under a plan, and a dense layer."""

    def __init__(self, plan: Plan, group: Any = None, lr: float = 0.5):
        super().__init__()
        self.embeddings = ShardedEmbeddings(
            plan, SGD(lr=lr), group, init=lambda table, rows: first_weights(table.name)[rows]
        )
        self.top = nn.Linear(2 * DIM, 1, bias=False)
        self.top.weight.data = first_weights("top").clone()

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        found = self.embeddings(batch)
        return self.top(torch.cat([found["fa"], found["fb"]], dim=1)).square().mean()

    def tables(self) -> dict[str, torch.Tensor]:
        """All weights, whole."""
        found = self.embeddings.unsharded().state_dict()
        return {name.split(".")[1]: value.detach() for name, value in found.items()}


class Plain(nn.Module):
    """The same in one process without rowtier."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.EmbeddingBag(ROWS, DIM, mode="sum") for _ in "ab")
        self.top = nn.Linear(2 * DIM, 1, bias=False)
        for name in ("a", "b", "top"):
            getattr(self, name).weight.data = first_weights(name).clone()

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        found = [self.a(batch["fa"]), self.b(batch["fb"])]
        return self.top(torch.cat(found, dim=1)).square().mean()

    def tables(self) -> dict[str, torch.Tensor]:
        return {name: getattr(self, name).weight.detach() for name in "ab"}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], rtol: float = 1e-5) -> None:
    """Whether tables have equal weights."""
    assert set(one) == set(other)
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=rtol, atol=rtol)

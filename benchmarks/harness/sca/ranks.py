"""sca.py: what runs on the ranks, which keep tables and samples from one call to the next."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from rowtier import Plan

Batch = dict[str, Any]

SEED = 3
LR, DENSE_LR = 0.05, 0.1
_HERE: dict[str, Any] = {}


class Contender:
    """A plan's tables and a dense part: one linear layer over all vectors, plain SGD."""

    def __init__(self, plan: Plan, workers: int):
        import torch

        from rowtier.torch import RowwiseAdagrad, ShardedEmbeddings

        self.tables = ShardedEmbeddings(
            plan, RowwiseAdagrad(lr=LR), local_world_size=workers, seed=SEED
        )
        torch.manual_seed(SEED)
        self.dense = torch.nn.Linear(
            sum(stats.table.embedding_dim for stats in plan.profile.stats), 1
        )
        self.optimizer = torch.optim.SGD(self.dense.parameters(), lr=DENSE_LR)

    def step(self, ids: Batch, labels: Any, readers: Any) -> float:
        """One training step; the server has no samples, and no dense part to train."""
        import torch

        vectors = torch.cat(list(self.tables(ids).values()), dim=1)
        if not len(labels):
            vectors.sum().backward()
            self.tables.optimizer.step()
            return math.nan
        logits = self.dense(vectors).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.dense.parameters() if readers is not None else ():
            torch.distributed.all_reduce(parameter.grad, torch.distributed.ReduceOp.AVG, readers)
        self.optimizer.step()
        self.tables.optimizer.step()
        return float(loss.detach())


def set_up(rank: int, world: int, folder: Path, names: list[str], batch: int) -> None:
    """Read the plans and the ids, and make the tables of every contender."""
    import torch.distributed as dist

    workers = world - 1
    group = dist.new_group(list(range(workers))) if workers > 1 else None
    with np.load(folder / "ids.npz") as kept:
        ids = {name: kept[name] for name in kept.files}
    _HERE.update(
        ids=ids, batch=batch, rank=rank, workers=workers, readers=group if rank < workers else None
    )
    for name in names:
        _HERE[name] = Contender(Plan.load(folder / name), workers)


def _batch_at(step: int) -> tuple[Batch, Any]:
    """This rank's samples of a step, with labels that follow from an id; a server has none."""
    import torch

    rank, batch, workers = _HERE["rank"], _HERE["batch"], _HERE["workers"]
    first = (step * workers + rank) * batch
    size = batch if rank < workers else 0
    ids = {
        name: torch.from_numpy(all_[first : first + size]) for name, all_ in _HERE["ids"].items()
    }
    labels = (next(iter(ids.values()))[:, 0] % 3 == 0).float()
    return ids, labels


def train(_: int, __: int, name: str, first: int, steps: int) -> tuple[float, list[float]]:
    """Seconds of some steps, until all ranks have updated, and the losses."""
    import torch.distributed as dist

    contender: Contender = _HERE[name]
    batches = [_batch_at(first + index) for index in range(steps)]
    dist.barrier()
    start = time.perf_counter()
    losses = [contender.step(ids, labels, _HERE["readers"]) for ids, labels in batches]
    dist.barrier()
    return time.perf_counter() - start, losses


def compare(_: int, __: int, names: list[str]) -> list[float]:
    """How far any weight of this rank's part of the tables is from the first contender's."""
    wanted: dict[str, Any] = {}
    largest = []
    for name in names:
        off = 0.0
        for key, value in _HERE[name].tables.state_dict().items():
            weights = value.to_local()
            first = wanted.setdefault(key, weights)
            if weights.numel():
                off = max(off, float((weights - first).abs().max()))
        largest.append(off)
    return largest

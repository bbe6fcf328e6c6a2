"""A small model on a plan, saved and loaded by the worker processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jobs import OPTIMIZERS, shards_of

import rowtier
from rowtier.torch import JaggedRows, ShardedEmbeddings, load_checkpoint, save_checkpoint

SAMPLES = 12  # of all ranks together; 1, 3 and 4 divide it


class Model(torch.nn.Module):
    """Embeddings of a plan below one dense layer."""

    def __init__(self, plan: rowtier.Plan, group: Any, **options: Any):
        super().__init__()
        self.embeddings = ShardedEmbeddings(
            plan,
            [OPTIMIZERS[kind](lr=0.05) for kind in dict.fromkeys(t.optimizer for t, _ in plan)],
            group,
            gradients="sum",
            local_world_size=plan.cluster.group_size(1) if plan.cluster.levels else None,
            seed=3,
            **options,
        )
        torch.manual_seed(5)
        self.dense = torch.nn.Linear(sum(t.embedding_dim * len(t.features) for t, _ in plan), 1)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """One number a sample; sequences are added up."""
        columns = []
        for found in self.embeddings(batch).values():
            if isinstance(found, JaggedRows):
                sample = torch.repeat_interleave(found.lengths)
                shape = (len(found.lengths), found.values.shape[1])
                found = torch.zeros(shape).index_add(0, sample, found.values)
            columns.append(found)
        return self.dense(torch.cat(columns, dim=1))


class Training:
    """Everything that a checkpoint has to carry."""

    def __init__(self, plan: rowtier.Plan, group: Any, **options: Any):
        self.plan, self.group = plan, group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)
        self.model = Model(plan, group, **options)
        self.dense = torch.optim.Adam(self.model.dense.parameters(), lr=0.01)
        rows = self.model.embeddings.optimizer
        self.schedule = torch.optim.lr_scheduler.StepLR(rows, 4, 0.5)
        self.step = 0

    @property
    def parts(self) -> dict[str, Any]:
        """What is saved."""
        return {
            "model": self.model,
            "rows": self.model.embeddings.optimizer,
            "dense": self.dense,
            "schedule": self.schedule,
            "step": self.step,
        }

    def save(self, folder: Path, **options: Any) -> Any:
        """All parts."""
        return save_checkpoint(folder, process_group=self.group, **options, **self.parts)

    def load(self, folder: Path) -> None:
        """All parts."""
        self.step = load_checkpoint(folder, process_group=self.group, **self.parts)["step"]

    def run(self, steps: int) -> None:
        """Train; the batch depends on the step only, and every rank takes its part."""
        for _ in range(steps):
            self.dense.zero_grad()
            loss = (self.model(self._batch()) - 1).square().sum()
            loss.backward()
            for parameter in self.model.dense.parameters():
                if self.size > 1:
                    dist.all_reduce(parameter.grad, group=self.group)
            self.dense.step()
            self.model.embeddings.optimizer.step()
            self.schedule.step()
            self.step += 1

    def _batch(self) -> dict[str, Any]:
        random, each = np.random.default_rng(self.step), SAMPLES // self.size
        batch = {}
        for table, _ in self.plan:
            for name in table.features:
                lengths = random.integers(0, 4, SAMPLES)
                ids = random.integers(0, table.num_embeddings, lengths.sum())
                edges = np.concatenate([[0], lengths.cumsum()])
                first = self.rank * each
                part = slice(edges[first], edges[first + each])
                batch[name] = (ids[part], lengths[first : first + each])
        return batch

    def whole(self) -> dict[str, Any]:
        """Weights and states of everything, as plain arrays."""
        state = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        rows = self.model.embeddings.optimizer.state_dict()["state"]
        state |= {f"rows.{k}.{f}": v for k, fields in rows.items() for f, v in fields.items()}
        for index, fields in self.dense.state_dict()["state"].items():
            state |= {f"dense.{index}.{name}": value for name, value in fields.items()}
        full = {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in state.items()}
        return {key: value.float().numpy() for key, value in full.items()}


def stage(
    rank: int, group: Any, plan: rowtier.Plan, folder: Path, steps: int, begin: bool
) -> dict[str, Any]:
    """Load unless it is the beginning, train some steps, save."""
    training = Training(plan, group)
    if not begin:
        training.load(folder)
    loaded = shards_of(training.model.embeddings)
    training.run(steps)
    training.save(folder)
    assert training.rank == rank
    return {"loaded": loaded, "whole": training.whole(), "lr": training.schedule.get_last_lr()}


def round_trip(rank: int, group: Any, plan: rowtier.Plan) -> dict[str, Any]:
    """Weights and state as logical tensors, after other values were loaded and these again."""
    module, other = Model(plan, group).embeddings, Model(plan, group).embeddings
    random = np.random.default_rng(rank)
    for shard in module.engine.shards.values():
        for values in shard.state.values():
            # Copies agree while training; here they are made equal by the first load.
            values[:] = random.random(values.shape, dtype=np.float32)
    other.load_state_dict(module.state_dict())
    other.optimizer.load_state_dict(module.optimizer.state_dict())
    plain = {
        key: value.full_tensor() if hasattr(value, "full_tensor") else value
        for key, value in other.state_dict().items()
    }
    module.load_state_dict(plain)  # whole tensors, the same on all ranks
    module.optimizer.load_state_dict(other.optimizer.state_dict())
    return {
        "weights": {key: value.float().numpy() for key, value in plain.items()},
        "shards": [shards_of(module), shards_of(other)],
    }


def load_placed(rank: int, group: Any, plan: rowtier.Plan, kind: str) -> list[Any]:
    """Load DTensors of another placement than rowtier's own; what the shards hold then."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    module = Model(plan, group).embeddings
    mesh = DeviceMesh.from_group(group, "cpu")
    placement = {"columns": Shard(1), "copies": Replicate(), "rows": Shard(0)}[kind]
    weights = {
        name: distribute_tensor(torch.from_numpy(numbered(shape)), mesh, [placement])
        for name, shape in ((n, tuple(w.shape)) for n, w in module.state_dict().items())
    }
    module.load_state_dict(weights)
    assert 0 <= rank < dist.get_world_size(group)
    return shards_of(module)


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    """Every number differs, and is exact in bf16 for small tables."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def fail_to_load(rank: int, group: Any, plan: rowtier.Plan, folder: Path) -> str:
    """The message of a load that must fail, on every rank."""
    training = Training(plan, group)
    try:
        training.load(folder)
    except rowtier.RowtierError as error:
        return str(error)
    return f"rank {rank} loaded it"

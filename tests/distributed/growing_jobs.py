"""What ranks do with growing tables: train on their parts of global batches."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from rowtier import Plan, Table
from rowtier.runtime.exchange.sockets import Sockets
from rowtier.runtime.store.world import World
from rowtier.torch import ShardedEmbeddings, load_checkpoint, save_checkpoint

Samples = list[list[list[Any]]]  # per sample and feature its ids


def first_values(table: Table, rows: np.ndarray) -> np.ndarray:
    """Weights that float32 can add up without rounding."""
    columns = np.arange(table.embedding_dim)
    return ((rows[:, None] * 7 + columns * 3) % 32).astype(np.float32) / 64


def features_of(samples: Samples) -> dict[str, Any]:
    """A batch as the module takes it."""
    return {
        name: (
            _ids([key for sample in samples for key in sample[at]]),
            torch.tensor([len(sample[at]) for sample in samples]),
        )
        for at, name in enumerate("ab")
    }


def _ids(keys: list[Any]) -> Any:
    return keys if keys and isinstance(keys[0], str) else np.array(keys, dtype=np.int64)


def part_of(samples: Samples, rank: int, size: int) -> Samples:
    """The samples of one rank."""
    each = len(samples) // size
    return samples[rank * each : (rank + 1) * each]


def targets_of(samples: Samples) -> torch.Tensor:
    """What the sums of samples are multiplied by: small whole numbers that the sample decides."""
    weigh = [1 + sum(len(bag) for bag in sample) % 3 for sample in samples]
    return torch.tensor(weigh, dtype=torch.float32)[:, None]


def train_step(module: ShardedEmbeddings, samples: Samples) -> torch.Tensor:
    """One step; returns the outputs."""
    found = module(features_of(samples))
    out = found["a"] + 2 * found["b"]
    (out * targets_of(samples)).sum().backward()
    module.optimizer.step()
    return out.detach()


def facts_of(module: ShardedEmbeddings) -> dict[str, Any]:
    """The vocabulary and all weights."""
    words = module.vocabulary("t")
    weights = module.unsharded().state_dict()
    state = module.optimizer.state_dict()["state"]
    whole = {
        key: value.full_tensor() if hasattr(value, "full_tensor") else value
        for entry in state.values()
        for key, value in entry.items()
    }
    return {
        "ids": list(
            words.ids.tolist() if isinstance(words.ids, np.ndarray) else words.ids.to_pylist()
        ),
        "counts": words.counts.tolist(),
        "weights": next(iter(weights.values())).clone(),
        "state": whole,
    }


def train_growing(
    rank: int, group: Any, plan: Plan, batches: list[Samples], optimizer: Any, load: str = "",
    save: str = "", gloo: bool = False, machines: int = 1, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Train on this rank's samples, from a checkpoint if there is one, and write one.

    `machines`: as if ranks were on so many, and shared memory only with those on their own.
    """
    size = group.size()
    meet = (lambda *_: None) if gloo else Sockets.meet
    with (
        patch.object(Sockets, "meet", meet),
        patch.object(World, "first_here", lambda world: world.rank % machines),
    ):
        module = ShardedEmbeddings(
            plan, optimizer, group, gradients="sum", init=first_values, counters=True,
            local_world_size=plan.cluster.group_size(1) if plan.cluster.levels else None, **options,
        )  # fmt: skip
    parts = {"model": module, "rows": module.optimizer}
    if load:
        load_checkpoint(load, process_group=group, **parts)
    outputs = [train_step(module, part_of(samples, rank, size)) for samples in batches]
    counted = module.count()
    if save:
        save_checkpoint(save, process_group=group, **parts)
    flows = {flow: counted.received(flow) for flow in ("ids", "forward", "backward", "sync")}
    return {"outputs": outputs, "flows": flows, **facts_of(module)}


def two_tables(rank: int, group: Any, plan: Plan, batches: list[dict[str, list[Any]]]) -> Any:
    """Train three tables, two of which grow; their ids, and what a repeated batch sends."""
    module = ShardedEmbeddings(plan, process_group=group, gradients="sum")

    def step(batch: dict[str, list[Any]]) -> None:
        each = len(batch["a"]) // group.size()
        mine = {name: ids[rank * each : (rank + 1) * each] for name, ids in batch.items()}
        sum(out.sum() for out in module(mine).values()).backward()
        module.optimizer.step()

    for batch in batches:
        step(batch)
    wire, sent = module.engine.wire, []
    swap, barrier = wire.swap_unknown, wire.barrier

    def noted(parts: Any) -> Any:
        sent.append(sum(len(part) for part in parts[1 - rank]))
        return swap(parts)

    def refused() -> None:
        raise AssertionError("nobody should wait")

    if group.size() > 1:
        wire.swap_unknown, wire.barrier = noted, refused
    step(batches[-1])
    wire.swap_unknown, wire.barrier = swap, barrier
    ids = {name: list(module.vocabulary(name).ids.tolist()) for name in ("words", "numbers")}
    return ids, sent[0] if sent else 0

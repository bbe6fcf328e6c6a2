"""What the worker processes do."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

import rowtier
from rowtier.cost import bundling
from rowtier.runtime.exchange import neighbours
from rowtier.runtime.exchange.sockets import Sockets
from rowtier.runtime.optim import KINDS as OPTIMIZERS
from rowtier.torch import ShardedEmbeddings


def embeddings_of(plan: rowtier.Plan, group: Any, weights: dict[str, Any], **options: Any) -> Any:
    """A module of a plan with weights that are given."""
    kinds = dict.fromkeys(table.optimizer for table, _ in plan)
    lr = options.pop("lr", 0.25)
    options.setdefault("counters", True)
    return ShardedEmbeddings(
        plan,
        options.pop("optimizer", None) or [OPTIMIZERS[kind](lr=lr) for kind in kinds],
        group,
        init=lambda table, rows: weights[table.name][rows],
        local_world_size=plan.cluster.group_size(1) if plan.cluster.levels else None,
        **options,
    )


def train(
    rank: int, group: dist.ProcessGroup, plan: rowtier.Plan, weights: dict[str, Any],
    steps: list[list[dict[str, Any]]], grads: list[list[dict[str, Any]]], follow: float,
    options: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Train some steps; outputs of each, and what every shard holds in the end.

    `near`: every message is read from its sender's memory, however short. `changes`: per step
    what numbers of parameter groups are multiplied with; `lr` by one of torch's schedulers.
    """
    changes = options.pop("changes", ())
    ahead, near, alone, gloo = (
        options.pop(name, False) for name in ("ahead", "near", "alone", "gloo")
    )
    key = (lambda *_: None) if alone else bundling.bundle_key
    meet = (lambda *_: None) if gloo else Sockets.meet
    with (
        patch.object(bundling, "bundle_key", key),
        patch.object(Sockets, "meet", meet),
    ):
        module = embeddings_of(plan, group, weights, **options)
    with patch.object(neighbours, "LEAST_BYTES", 1 if near else neighbours.LEAST_BYTES):
        return _trained(rank, module, steps, grads, follow, ahead, changes)


def _trained(
    rank: int, module: ShardedEmbeddings, steps: list[list[dict[str, Any]]],
    grads: list[list[dict[str, Any]]], follow: float, ahead: bool, changes: Any,
) -> dict[str, Any]:  # fmt: skip
    outputs, of_weights, scheduled = [], [], _Scheduled(module.optimizer, changes)
    learned = [r.feature for r in module.remapper.reads if r.table.weights == "learned"]
    for batches, given in zip(steps, grads, strict=True):
        batch = {
            name: tuple(None if a is None else torch.from_numpy(a) for a in entry)
            for name, entry in batches[rank].items()
        }
        trained = {name: batch[name][2].requires_grad_() for name in learned}
        found = look_up(module, batch)
        outputs.append({name: as_array(value) for name, value in found.items()})
        if ahead:  # more than the next batch reads, and rows that this step has still to update
            for shard in module.engine.shards.values():
                shard.prefetch(np.arange(shard.piece.rows_here))
        back = [
            torch.from_numpy(given[rank][k]).to(v.device) + follow * v.detach()
            for k, v in found.items()
        ]
        torch.autograd.backward(list(found.values()), back)
        of_weights.append({name: weights.grad.numpy() for name, weights in trained.items()})
        scheduled.step()
    counted = module.count()
    with torch.no_grad():
        last = {name: as_array(value) for name, value in look_up(module, batch).items()}
    return {
        "outputs": outputs,
        "of_weights": of_weights,
        "last": last,
        "shards": shards_of(module),
        "counted": _facts(counted),
    }


def as_array(value: torch.Tensor) -> Any:
    """A copy of a tensor of any device."""
    return value.detach().cpu().numpy().copy()


class _Scheduled:
    """An optimizer whose numbers change from step to step."""

    def __init__(self, optimizer: Any, changes: Any):
        self.optimizer, self.changes, self.at = optimizer, changes, 0
        self.first = [dict(group) for group in optimizer.param_groups]
        self.rates = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda at: changes[min(at, len(changes) - 1)]["lr"] if changes else 1.0
        )

    def step(self) -> None:
        """The numbers of this step, and the step."""
        factors = self.changes[self.at] if self.changes else {}
        for group, first in zip(self.optimizer.param_groups, self.first, strict=True):
            for name in (factors.keys() & group.keys()) - {"lr"}:
                group[name] = first[name] * factors[name]
        self.optimizer.step()
        self.rates.step()
        self.at += 1


def look_up(module: ShardedEmbeddings, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Outputs by feature, flat."""
    found = module({k: e if e[2] is not None else e[:2] for k, e in batch.items()})
    return {k: v if isinstance(v, torch.Tensor) else v.values for k, v in found.items()}


def shards_of(module: ShardedEmbeddings) -> list[tuple[str, Any, Any, Any, Any]]:
    """Table, rows, columns, weights and state of everything that this rank keeps."""
    engine = module.engine
    return [
        (
            shard.piece.table.name,
            engine.rows_of(shard),
            shard.piece.columns,
            shard.fetch(np.arange(shard.piece.rows_here)).copy(),
            {name: shard.take(name, np.arange(shard.piece.rows_here)) for name in shard.state},
        )
        for shard in engine.shards.values()
        if shard.piece.rows_here
    ]


def _facts(counted: Any) -> dict[str, Any]:
    read, written = counted.moved()
    flows = ("ids", "forward", "backward", "sync", "sync_ids")
    return {
        "sent": {flow: counted.sent(flow) for flow in flows},
        "links": counted.links[:, :6],
        "links_of_bands": counted.bands.links.sum(axis=1)[:, :6],
        "received": {flow: counted.received(flow) for flow in flows},
        "lookups": counted.lookups(),
        "read": read,
        "written": written,
        "bands": [{k: v for k, v in line.items() if k != "bytes"} for line in counted.lines()],
        "bytes": [{flow: line["bytes"][flow] for flow in flows} for line in counted.lines()],
    }

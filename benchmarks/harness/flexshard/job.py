"""What the ranks of `flexshard.py` do: hold all contenders, and train a step of one when told to.

Communication is timed by one wrapper for everyone: a barrier, then the collective, waited for
at once, then a barrier that is not timed. So nobody's time contains waiting for slower ranks,
nobody overlaps anything, and no rank computes on a core that another needs to communicate.
"""

from __future__ import annotations

import gc
import time
from typing import Any

import numpy as np

import rowtier
from harness.flexshard.data import DIM, FEATURE, TABLE, Batch, Data
from harness.torchrec_model import sharded

LR = 0.01
TORCHREC = "torchrec row_wise"
_COLLECTIVES = (
    "all_to_all_single", "all_to_all", "all_reduce", "all_gather", "all_gather_into_tensor",
    "reduce_scatter", "reduce_scatter_tensor", "broadcast",
)  # fmt: skip
_STATE: dict[str, Any] = {"contenders": {}, "data": None, "batch": (-1, None)}


class Clock:
    """Seconds inside each collective while it runs."""

    def __init__(self) -> None:
        self.on = False
        self.seconds: list[float] = []

    def watch(self) -> None:
        """Put every collective of torch.distributed, and rowtier's own, under this clock, once."""
        import torch.distributed as dist

        from rowtier.runtime.exchange import wire
        from rowtier.runtime.exchange.sockets import Sockets

        for name in _COLLECTIVES:
            setattr(dist, name, self._watched(getattr(dist, name)))
        wire.swap_bytes = self._watched(wire.swap_bytes)
        for name in ("swap", "swap_unknown"):
            setattr(Sockets, name, self._watched(getattr(Sockets, name)))

    def _watched(self, collective: Any) -> Any:
        import torch.distributed as dist

        def call(*args: Any, **options: Any) -> Any:
            if not self.on:
                return collective(*args, **options)
            later = options.pop("async_op", False)
            dist.barrier()
            began = time.perf_counter()
            result = collective(*args, **options)
            self.seconds.append(time.perf_counter() - began)
            dist.barrier()
            return _Done() if later else result

        return call


class _Done:
    """The handle of a collective that is over."""

    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class Ours:
    """A plan, trained."""

    def __init__(self, plan: rowtier.Plan):
        from rowtier.torch import SGD, ShardedEmbeddings

        self.module = ShardedEmbeddings(plan, SGD(lr=LR))

    def prepare(self, batch: Batch) -> Any:
        import torch

        ids, lengths = (torch.from_numpy(part) for part in batch)
        return {FEATURE: (ids, lengths)}

    def step(self, batch: Any, grad: Any) -> None:
        self.module(batch)[FEATURE].values.backward(grad)
        self.module.optimizer.step()


class TorchRec:
    """TorchRec's EmbeddingCollection, row-wise: equal blocks of rows, every id's row travels."""

    def __init__(self, rows: int, world: int, local_world: int):
        from torchrec.distributed.sharding_plan import row_wise

        table = {
            "name": TABLE, "num_embeddings": rows, "embedding_dim": DIM, "feature_names": [FEATURE],
        }  # fmt: skip
        ways = {TABLE: row_wise(compute_kernel="fused")}
        self.model = sharded(
            [table], ways, pooled=False, lr=LR, world=world, local_world=local_world
        )

    def prepare(self, batch: Batch) -> Any:
        import torch
        from torchrec import KeyedJaggedTensor

        ids, lengths = batch
        return KeyedJaggedTensor(
            keys=[FEATURE],
            values=torch.from_numpy(ids),
            lengths=torch.from_numpy(lengths.astype(np.int32)),
        )

    def step(self, batch: Any, grad: Any) -> None:
        self.model(batch)[FEATURE].values().backward(grad)


def build(
    _rank: int, world: int, data: Data, plans: dict[str, rowtier.Plan], local_world: int
) -> None:
    """Make all contenders; what was there before is dropped."""
    if "clock" not in _STATE:
        _STATE["clock"] = Clock()
        _STATE["clock"].watch()
    _STATE["contenders"].clear()
    gc.collect()
    rows = next(iter(plans.values())).profile.stats[0].table.num_embeddings
    contenders: dict[str, Any] = {TORCHREC: TorchRec(rows, world, local_world)}
    contenders |= {name: Ours(plan) for name, plan in plans.items()}
    _STATE.update(contenders=contenders, data=data, batch=(-1, None))


def step(rank: int, world: int, name: str, number: int, timed: bool) -> tuple[float, list[float]]:
    """Train one step; seconds in all, and in each collective if they are timed."""
    import torch
    import torch.distributed as dist

    if _STATE["batch"][0] != number:
        _STATE["batch"] = number, _STATE["data"].batch(rank, world, number)
    contender, clock = _STATE["contenders"][name], _STATE["clock"]
    ids, _ = batch = _STATE["batch"][1]
    prepared, grad = contender.prepare(batch), torch.full((len(ids), DIM), 1e-3)
    dist.barrier()
    clock.seconds, clock.on = [], timed
    began = time.perf_counter()
    contender.step(prepared, grad)
    clock.on = False
    dist.barrier()
    return time.perf_counter() - began, clock.seconds

"""Find out how much of keeping copies equal a pipeline hides beside the rest of a model.

A small model with dense layers is trained with all rows copied, in the plain loop and in the
pipeline. What the pipeline saves, over the time of the dense layers alone, is the share of that
time beside which copies can be kept equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from rowtier.calibrate.job import Job
from rowtier.calibrate.probes import Shape
from rowtier.cluster import Cluster
from rowtier.plan.plan import Plan

SHAPE = Shape(4, 20_000, 64, 10, 256)
WIDTH, LAYERS = 512, 3
WARM_UP, STEPS, QUICK_STEPS = 4, 16, 3


def time_hidden(job: Job, cluster: Cluster, *, quick: bool = False) -> float:
    """The share of the dense layers' time beside which a pipeline keeps copies equal."""
    steps = QUICK_STEPS if quick else STEPS
    plain_s = _loop_s(job, _HiddenModel(job, cluster), steps, pipelined=False)
    hidden_s = _loop_s(job, _HiddenModel(job, cluster), steps, pipelined=True)
    dense_s = _dense_s(_HiddenModel(job, cluster), steps)
    return float(min(1.0, max(0.0, (plain_s - hidden_s) / dense_s)))


@dataclass(eq=False)
class _HiddenModel:
    """Embeddings whose rows are all copied, and dense layers that are trained with them."""

    job: Job
    cluster: Cluster

    def __post_init__(self) -> None:
        import torch

        from rowtier.runtime.module import ShardedEmbeddings

        self.embeddings = ShardedEmbeddings(
            _copied(self.cluster), local_world_size=self.job.local_world
        )
        widths = [SHAPE.tables * SHAPE.dim, *[WIDTH] * LAYERS, 1]
        pairs = pairwise(widths)
        self.dense = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in pairs))
        self.optimizer = torch.optim.Adam(self.dense.parameters())
        random = np.random.default_rng((11, self.job.rank))
        self.batches = [
            {f"t{n}": torch.from_numpy(SHAPE.ids(n, random)) for n in range(SHAPE.tables)}
            for _ in range(4)
        ]

    def train(self, outputs: Any) -> None:
        """Everything but the embeddings' own lookup."""
        import torch

        found = torch.cat(list(outputs.values()), dim=1)
        self.dense(found).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def _copied(cluster: Cluster) -> Plan:
    from rowtier.band import Band

    profile, tier = SHAPE.profile, cluster.device.tiers[0].name
    band = Band(start=0, stop=SHAPE.rows, scope="device", tier=tier, coalesced=True, sync="sparse")
    bands = {stats.table.name: (band,) for stats in profile.stats}
    return Plan.build("copies", profile, cluster, bands)


def _loop_s(job: Job, model: _HiddenModel, steps: int, *, pipelined: bool) -> float:
    """Seconds of a step in one of the loops."""
    from rowtier.runtime.pipeline import Pipeline

    given = [model.batches[n % len(model.batches)] for n in range(WARM_UP + steps)]
    loop: Iterable[Any] = ((batch, model.embeddings(batch)) for batch in given)
    if pipelined:
        loop = Pipeline(model.embeddings, given)
    _together(job)
    times, before = [], perf_counter()
    for _, outputs in loop:
        model.train(outputs)
        model.embeddings.optimizer.step()
        times.append(perf_counter() - before)
        before = perf_counter()
    return median(times[WARM_UP:])


def _dense_s(model: _HiddenModel, steps: int) -> float:
    """Seconds of a step of the dense layers alone."""
    import torch

    outputs = {
        f"t{n}": torch.zeros((SHAPE.batch, SHAPE.dim), requires_grad=True)
        for n in range(SHAPE.tables)
    }
    times = []
    for _ in range(WARM_UP + steps):
        start = perf_counter()
        model.train(outputs)
        times.append(perf_counter() - start)
    return median(times[WARM_UP:])


def _together(job: Job) -> None:
    if job.world > 1:
        import torch.distributed as dist

        dist.barrier()

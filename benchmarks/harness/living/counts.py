"""What counting costs: time in it over all other time of a step, on one rank.

One module trains; what is counted in one step of 64 waits and is counted together, so steps differ
much, and it is the time of the counting itself that is measured, not that of single steps.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from fault_kinds.step_overhead import POOLED, SMALL, Shape, _ids, _seconds

from harness.form import Measured
from rowtier import Band, Cluster, FeatureStats, Plan, Profile, RowCounts, Table, TableStats
from rowtier.runtime.options import USUAL_HEAT_COUNTS
from rowtier.torch import SGD, ShardedEmbeddings

_BATCHES = 8


def measure(quick: bool) -> Measured:
    """Time of counting over that of all else, processor time, for two kinds of steps."""
    torch.set_num_threads(1)
    steps = {"small": (SMALL, 320 if quick else 3200), "pooled": (POOLED, 64 if quick else 640)}
    shares = {name: _measured(shape, count) for name, (shape, count) in steps.items()}
    rows = [{"steps": name, "counts_overhead": share} for name, share in shares.items()]
    return Measured(rows, {"counts_overhead": max(shares.values())})


def _measured(shape: Shape, steps: int) -> float:
    module = ShardedEmbeddings(_plan(shape), SGD(lr=0.1), heat_counts=True)
    assert module.heat is not None
    spent = _timed(module.heat)
    batches = [
        {
            f"f{n}": torch.from_numpy(_ids(shape, n, 1 + seed)).view(shape.batch, shape.length)
            for n in range(shape.tables)
        }
        for seed in range(_BATCHES)
    ]
    for batch in batches[:4] * (USUAL_HEAT_COUNTS // 4):
        _seconds(module, batch)
    module.profile(reset=True)  # compiles
    spent[0] = 0.0
    step_s = sum(_seconds(module, batches[step % _BATCHES])[1] for step in range(steps))
    inside_s = spent[0]
    module.heat._count()  # what waits
    return spent[0] / (step_s - inside_s)


def _timed(heat: Any) -> list[float]:
    """The processor time spent in counting from now on."""
    spent, note, count = [0.0], heat.note, heat._count

    def wrapped(call: Any) -> Any:
        def timed(*args: Any) -> None:
            began, before = time.thread_time(), spent[0]
            call(*args)
            spent[0] = before + time.thread_time() - began  # counting inside of noting is noted

        return timed

    heat.note, heat._count = wrapped(note), wrapped(count)
    return spent


def _plan(shape: Shape) -> Plan:
    """All rows in one band, on one rank."""
    import numpy as np

    cluster, stats, bands = Cluster.local(1), [], {}
    for number in range(shape.tables):
        table = Table(
            name=f"t{number}", num_embeddings=shape.rows, embedding_dim=shape.dim,
            features=(f"f{number}",), optimizer="sgd",
        )  # fmt: skip
        counts = RowCounts.from_dense(np.bincount(_ids(shape, number, 0), minlength=shape.rows))
        feature = FeatureStats(name=f"f{number}", present=100, lookups=int(counts.counts.sum()))
        stats.append(TableStats.counted(table, 1000, (feature,), counts))
        bands[table.name] = (
            Band(start=0, stop=shape.rows, scope=cluster.top, tier=cluster.tier_names[0]),
        )
    return Plan.build("by hand", Profile(shape.batch, tuple(stats)), cluster, bands)

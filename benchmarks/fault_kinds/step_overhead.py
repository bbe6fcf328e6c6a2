"""What it costs a step that ranks agree: steps with stamps and watchdog against steps without.

Two ranks train one module; stamps, and marks of where a rank is, are left out of every other step.
Two modules would not do: rows that lie elsewhere in memory make 3 % of a step by themselves. Four
steps are a turn, with, without, without, with, or the other way round, so that a drift of the
machine cancels; the figure is the median over turns, with an interval of 95 % from drawing turns
anew. `step_noise` is what the same reckoning finds between the two steps with agreement of each
turn, where there is nothing to find. Time on the processor is there, too.

Agreement takes the same time of any step, so the figure hangs on how long a step is: it is that of
a small one, where it weighs most; `pooled_…` is that of runtime_step.py's pooled step.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

import runtime_step
from harness.runtime_step.data import DIM, ROWS, zipf_ids

from rowtier import Band, Cluster, FeatureStats, Plan, Profile, RowCounts, Table, TableStats
from rowtier.torch import SGD, ShardedEmbeddings


class Shape(NamedTuple):
    """The model and the batch of a step."""

    tables: int
    rows: int
    dim: int
    batch: int
    length: int


POOLED = Shape(**runtime_step.POOLED, rows=ROWS, dim=DIM)
SMALL = Shape(tables=4, rows=20_000, dim=32, batch=512, length=4)
_FIRST = 20  # turns that compile, and fill caches
_SAMPLES = 1000  # of turns, to see how far the median is sure


def run(
    count: int, seed: int = 0, progress: Callable[[float], None] = lambda _: None
) -> dict[str, Any]:
    """Measure so many turns of the small step, and a quarter as many of the pooled one."""
    small = _measured(SMALL, count, seed, lambda share: progress(share / 2))
    pooled = _measured(POOLED, -(-count // 4), seed, lambda share: progress((1 + share) / 2))
    return small | {f"pooled_{name}": value for name, value in pooled.items()}


def _measured(
    shape: Shape, count: int, seed: int, progress: Callable[[float], None]
) -> dict[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    processes = [
        context.Process(target=_rank, args=(rank, port, shape, count, seed, theirs), daemon=True)
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    theirs.close()
    try:
        while isinstance(found := ours.recv(), float):
            progress(found)
    finally:
        for process in processes:
            process.join(30)
            process.kill()
    return _figures(found, seed)


def _figures(turns: Any, seed: int) -> dict[str, Any]:
    """From (wall, processor) seconds of turns × (with, with, without, without) × 2."""
    times = np.array(turns)
    with_s, without_s = times[:, :2].mean(axis=1), times[:, 2:].mean(axis=1)
    extra, noise = with_s - without_s, times[:, 0] - times[:, 1]
    wall_s, cpu_s = np.median(without_s, axis=0).tolist()
    low, high = (edge / wall_s for edge in _interval(extra[:, 0], seed))
    return {
        "agreement_step_overhead": float(np.median(extra[:, 0])) / wall_s,
        "agreement_step_overhead_interval": [low, high],
        "agreement_cpu_overhead": float(np.median(extra[:, 1])) / cpu_s,
        "agreement_cpu_us": 1e6 * float(np.median(extra[:, 1])),
        "step_noise": float(np.median(noise[:, 0])) / wall_s,
        "step_ms": 1e3 * wall_s,
        "step_cpu_ms": 1e3 * cpu_s,
        "turns": len(turns),
    }


def _interval(values: NDArray[np.float64], seed: int) -> list[float]:
    """Where the median lies, in 95 of 100 samples of this size."""
    random = np.random.default_rng(seed)
    medians = [np.median(random.choice(values, len(values))) for _ in range(_SAMPLES)]
    return [float(edge) for edge in np.quantile(medians, (0.025, 0.975))]


def _plan(shape: Shape) -> Plan:
    """The hottest rows on both ranks, the others spread over them."""
    cluster = Cluster.local(2)
    tier, hottest = cluster.tier_names[0], shape.rows // 100
    stats, bands = [], {}
    for number in range(shape.tables):
        name = f"t{number}"
        table = Table(
            name=name, num_embeddings=shape.rows, embedding_dim=shape.dim,
            features=(f"f{number}",), pooling="sum", optimizer="sgd",
        )  # fmt: skip
        counts = RowCounts.from_dense(np.bincount(_ids(shape, number, 0), minlength=shape.rows))
        feature = FeatureStats(name=f"f{number}", present=100, lookups=int(counts.counts.sum()))
        stats.append(TableStats.counted(table, 1000, (feature,), counts))
        bands[name] = (
            Band(start=0, stop=hottest, scope="device", tier=tier),
            Band(start=hottest, stop=shape.rows, scope=cluster.top, tier=tier, coalesced=True),
        )
    return Plan.build("by hand", Profile(shape.batch, tuple(stats)), cluster, bands)


def _ids(shape: Shape, table: int, seed: int) -> Any:
    random = np.random.default_rng((seed, table))
    size = shape.batch * shape.length
    return zipf_ids(random, runtime_step.ALPHAS[0], size, table, shape.rows)


def _rank(rank: int, port: int, shape: Shape, count: int, seed: int, pipe: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    module = ShardedEmbeddings(_plan(shape), SGD(lr=0.1))
    watch = module.engine.watch
    batch = {
        f"f{number}": torch.from_numpy(_ids(shape, number, 1 + 2 * seed + rank)).view(
            shape.batch, shape.length
        )
        for number in range(shape.tables)
    }
    turns = []
    for turn in range(-_FIRST, count):
        order = (True, False, False, True) if turn % 2 else (False, True, True, False)
        seconds: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for agreeing in order:
            module.engine.watch = watch if agreeing else None
            if not agreeing:
                module.engine.wire.stamps.leave_out()
            seconds[agreeing].append(_seconds(module, batch))
        if turn >= 0:
            turns.append((*seconds[True], *seconds[False]))
        if rank == 0 and turn % 50 == 49:
            pipe.send((turn + 1) / count)
    if rank == 0:
        pipe.send(turns)


def _seconds(module: ShardedEmbeddings, batch: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Of one step: on the clock, and on the processor."""
    began, cpu_began = time.perf_counter(), time.thread_time()
    torch.stack(list(module(batch).values())).sum().backward()
    module.optimizer.step()
    return time.perf_counter() - began, time.thread_time() - cpu_began


if __name__ == "__main__":
    print(run(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))

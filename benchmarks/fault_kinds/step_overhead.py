"""What it costs a step that ranks agree: steps with stamps and watchdog against steps without.

Two ranks make the same module twice. One is as it is for users; of the other, stamps and marks of
where a rank is are left out. Both train in turns, step by step, in one run; the figure compares
the medians. Time on the processor is there, too: it says more on a machine that does other things.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).parents[1]))

from rowtier import Band, Cluster, FeatureStats, Plan, Profile, RowCounts, Table, TableStats
from rowtier.torch import SGD, ShardedEmbeddings

TABLES, ROWS, DIM, SAMPLES, LENGTH = 4, 20_000, 32, 512, 4
_FIRST = 20  # turns that compile, and fill caches


def run(
    count: int, seed: int = 0, progress: Callable[[float], None] = lambda _: None
) -> dict[str, Any]:
    """Measure so many turns, a step of each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    processes = [
        context.Process(target=_rank, args=(rank, port, count, seed, theirs), daemon=True)
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
    return _figures(found)


def _figures(turns: Any) -> dict[str, Any]:
    """From seconds and processor seconds of steps, with agreement and without: turns × 2 × 2."""
    (wall_s, cpu_s), (plain_wall_s, plain_cpu_s) = np.median(np.array(turns), axis=0).tolist()
    return {
        "agreement_step_overhead": wall_s / plain_wall_s - 1,
        "agreement_cpu_overhead": cpu_s / plain_cpu_s - 1,
        "agreement_cpu_us": 1e6 * (cpu_s - plain_cpu_s),
        "step_ms": 1e3 * wall_s,
        "step_cpu_ms": 1e3 * cpu_s,
        "turns": len(turns),
    }


def _plan() -> Plan:
    cluster = Cluster.local(2)
    stats, bands = [], {}
    for number in range(TABLES):
        name = f"t{number}"
        table = Table(
            name=name, num_embeddings=ROWS, embedding_dim=DIM, features=(f"f{number}",),
            pooling="sum", optimizer="sgd",
        )  # fmt: skip
        counts = RowCounts.from_dense(1 + np.arange(ROWS)[::-1].copy())
        feature = FeatureStats(name=f"f{number}", present=100, lookups=int(counts.counts.sum()))
        stats.append(TableStats.counted(table, 1000, (feature,), counts))
        tier = cluster.tier_names[0]
        bands[name] = (
            Band(start=0, stop=200, scope="device", tier=tier),
            Band(start=200, stop=ROWS, scope=cluster.top, tier=tier),
        )
    return Plan.build("by hand", Profile(4, tuple(stats)), cluster, bands)


def _rank(rank: int, port: int, count: int, seed: int, pipe: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    plan = _plan()
    agreeing, plain = (ShardedEmbeddings(plan, SGD(lr=0.1)) for _ in range(2))
    plain.engine.watch = None
    plain.engine.wire.stamps.leave_out()
    random = torch.Generator().manual_seed(seed + rank)
    ids = [torch.randint(0, ROWS, (SAMPLES, LENGTH), generator=random) for _ in range(TABLES)]
    batch = {f"f{number}": part for number, part in enumerate(ids)}
    turns = []
    for turn in range(-_FIRST, count):
        pair = (agreeing, plain) if turn % 2 else (plain, agreeing)
        seconds = {id(module): _seconds(module, batch) for module in pair}
        if turn >= 0:
            turns.append((seconds[id(agreeing)], seconds[id(plain)]))
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

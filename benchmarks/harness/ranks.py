"""Real ranks for benchmarks: processes with gloo, one thread each, the same malloc for all."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

# One thread a rank, and a heap that keeps what it got: the same for everyone who is compared.
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "268435456",
    "NUMBA_NUM_THREADS": "1",
}


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def join(rank: int, size: int, port: int) -> None:
    """Make the process group of all ranks."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size,
        timeout=timedelta(minutes=10),
    )  # fmt: skip


def run_ranks(size: int, job: Callable[..., Any], *args: Any) -> list[Any]:
    """Call `job(rank, size, *args)` on so many ranks; what each returned."""
    import torch.multiprocessing as mp

    port = free_port()
    context, before = mp.get_context("spawn"), dict(os.environ)
    os.environ.update(SETTINGS)  # malloc reads its own when a process starts
    queue = context.Queue()
    ranks = [
        context.Process(target=_rank, args=(rank, size, port, queue, job, args))
        for rank in range(size)
    ]
    try:
        for process in ranks:
            process.start()
        found = dict(_next(queue, ranks) for _ in ranks)
    finally:
        os.environ.clear()
        os.environ.update(before)
        for process in ranks:
            process.join(20)
            process.kill()
    return [found[rank] for rank in range(size)]


def _next(queue: Any, ranks: list[Any]) -> tuple[int, Any]:
    import queue as queues

    while True:
        try:
            rank, good, result = queue.get(timeout=5)
        except queues.Empty:
            if any(process.exitcode not in (None, 0) for process in ranks):
                raise RuntimeError("a rank died") from None
            continue
        if not good:
            raise RuntimeError(f"rank {rank}: {result}")
        return rank, result


def _rank(
    rank: int, size: int, port: int, queue: Any, job: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    import traceback

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    join(rank, size, port)
    try:
        queue.put((rank, True, job(rank, size, *args)))
    except BaseException:
        queue.put((rank, False, traceback.format_exc()))
        raise
    dist.destroy_process_group()

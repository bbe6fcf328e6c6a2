"""Four gloo processes that live as long as the tests do, with a group for every world size."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch.multiprocessing as mp

SIZE = 4


def _serve(rank: int, size: int, port: int, pipe: Connection) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    sys.path.insert(0, str(Path(__file__).parent))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=timedelta(seconds=60))
    groups = {n: dist.new_group(list(range(n))) for n in range(1, size + 1)}
    while True:
        task = pipe.recv()
        if task is None:
            return
        count, job, args = task
        try:
            pipe.send((True, job(rank, groups[count], *args)))
        except BaseException as error:
            pipe.send(
                (False, f"rank {rank}: {type(error).__name__}: {error}\n{traceback.format_exc()}")
            )


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Workers:
    """Runs a function on the first ranks: `job(rank, group, *args)`; results by rank."""

    def __init__(self, size: int = SIZE):
        self.size, self.pipes, self.processes = size, [], []

    def _start(self) -> None:
        context, port = mp.get_context("spawn"), free_port()
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            args = (rank, self.size, port, theirs)
            process = context.Process(target=_serve, args=args, daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, count: int, job: Callable[..., Any], *args: Any) -> list[Any]:
        """Results of all ranks; the first failure is raised here, and ends the processes."""
        if not self.processes:
            self._start()
        for pipe in self.pipes[:count]:
            pipe.send((count, job, args))
        results: dict[int, Any] = {}
        while len(results) < count:
            waiting = [pipe for i, pipe in enumerate(self.pipes[:count]) if i not in results]
            for pipe in wait(waiting, timeout=120) or waiting:
                good, result = pipe.recv() if pipe.poll() else (False, "no answer")
                if not good:
                    self.kill()
                    raise AssertionError(result)
                results[self.pipes.index(pipe)] = result
        return [results[rank] for rank in range(count)]

    def kill(self) -> None:
        """End all processes at once."""
        for process in self.processes:
            process.kill()
            process.join()
        self.pipes, self.processes = [], []

    def stop(self) -> None:
        """End all processes."""
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(10)
        self.kill()

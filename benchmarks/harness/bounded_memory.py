"""Processes that may use only so much memory, page cache included, and work when told to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from harness.ranks import SETTINGS

_ROOT = Path("/sys/fs/cgroup")
# Imported once, by the process that all others are forked from: torch takes seconds.
_PRELOADED = ["torch", "torch.distributed", "numba", "rowtier.torch"]


class Worker:
    """`make(*args)` in a process of its own; the object's methods are called from here."""

    def __init__(self, make: Callable[..., Any], *args: Any):
        import torch.multiprocessing as mp

        context, before = mp.get_context("forkserver"), dict(os.environ)
        context.set_forkserver_preload(_PRELOADED)
        os.environ.update(SETTINGS)  # malloc reads its own when the first process starts
        self.pipe, theirs = context.Pipe()
        try:
            self.process = context.Process(target=_serve, args=(theirs, make, args), daemon=True)
            self.process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()

    def send(self, name: str, *args: Any) -> None:
        """Have a method called there; `receive` waits for it."""
        self.pipe.send((name, args))

    def receive(self) -> Any:
        """What the method returned."""
        try:
            good, result = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            raise RuntimeError("the process died; out of the memory allowed?") from None
        if not good:
            raise RuntimeError(result)
        return result

    def call(self, name: str, *args: Any) -> Any:
        """Call a method there; what it returned."""
        self.send(name, *args)
        return self.receive()

    def stop(self) -> None:
        self.pipe.close()
        self.process.join(20)
        self.process.kill()
        self.process.join()


class Team:
    """Workers that are called together: the ranks of one job, `make(rank, *args)` in each."""

    def __init__(self, size: int, make: Callable[..., Any], *args: Any):
        self.workers = [Worker(make, rank, *args) for rank in range(size)]

    def call(self, name: str, *args: Sequence[Any]) -> list[Any]:
        """Call a method on all ranks, each with its own of the arguments; what they returned.

        The first rank that fails ends it: the others may wait for that one forever.
        """
        for rank, worker in enumerate(self.workers):
            worker.send(name, *(each[rank] for each in args))
        found: dict[int, Any] = {}
        while len(found) < len(self.workers):
            open_ = {w.pipe: rank for rank, w in enumerate(self.workers) if rank not in found}
            for pipe in wait(list(open_)):
                rank = open_[pipe]
                found[rank] = self.workers[rank].receive()
        return [found[rank] for rank in range(len(self.workers))]

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [worker.process.pid for worker in self.workers]

    def stop(self) -> None:
        for worker in self.workers:
            worker.pipe.close()
        for worker in self.workers:
            worker.stop()


def _serve(pipe: Any, make: Callable[..., Any], args: tuple[Any, ...]) -> None:
    import traceback

    import torch

    torch.set_num_threads(1)
    made, failed = None, ""
    try:
        made = make(*args)
    except BaseException:
        failed = traceback.format_exc()
    while True:
        try:
            name, given = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((False, failed) if failed else (True, getattr(made, name)(*given)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


@contextlib.contextmanager
def bounded(pids: Sequence[int], limit_bytes: int) -> Iterator[str]:
    """Bound what processes use together from now on, inside the group they are in; says how."""
    group, limit = _new_group(f"rowtier-{pids[0]}")
    how = limit
    try:
        group.mkdir()
        (group / limit).write_text(str(limit_bytes))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        how = f"not bounded: {error.strerror}"
    try:
        yield how
    finally:
        # A group goes only when its last process has gone, which the caller sees to.
        with contextlib.suppress(OSError):
            group.rmdir()


def _new_group(name: str) -> tuple[Path, str]:
    """A group of cgroup v1 or v2 below this process's own, and the file of its limit."""
    own, mine = {}, Path("/proc/self/cgroup")
    for line in mine.read_text().splitlines() if mine.exists() else []:
        _, kinds, path = line.split(":", 2)
        own[kinds] = path.lstrip("/")
    if "memory" in own:
        group, limit = _ROOT / "memory" / own["memory"] / name, "memory.limit_in_bytes"
    else:
        group, limit = _ROOT / own.get("", "") / name, "memory.max"
    return group, limit

"""Ranks that stay: one process each inside its node, that calls what it is sent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, get_context, resource_tracker
from typing import Any

from harness.ranks import SETTINGS

from .namespaces import entered

_DEATH_S = 1.0  # after a failure: who lost touch says so at once, who died is seen a moment later
_STOP_S = 5.0


@dataclass(frozen=True)
class Place:
    """Where a rank runs: its node's namespace, and the environment that torchrun would give."""

    rank: int
    namespace: str
    environment: dict[str, str]


class RankError(RuntimeError):
    """A rank failed; `rank` says which."""

    def __init__(self, rank: int, message: str):
        super().__init__(f"rank {rank}: {message}")
        self.rank = rank


class Ranks:
    """The processes, joined by gloo when they are first called."""

    def __init__(self, places: list[Place]):
        # Started here: inside a node it would outlive the node.
        resource_tracker.ensure_running()
        self._processes: list[Any] = []
        self._pipes: list[connection.Connection] = []
        try:
            for place in places:
                self._start(place)
        except BaseException:
            self.stop()
            raise

    def _start(self, place: Place) -> None:
        context, before = get_context("spawn"), dict(os.environ)
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
        os.environ.update(SETTINGS | place.environment)  # malloc reads its own at the start
        try:
            with entered(place.namespace):
                process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()
        self._processes.append(process)
        self._pipes.append(ours)

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], timeout_s: float
    ) -> list[Any]:
        """What the function returned on every rank."""
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send((function, args))
            except OSError:
                raise RankError(rank, self._died(rank)) from None
        until, results = time.monotonic() + timeout_s, dict[int, Any]()
        while len(results) < len(self._pipes):
            waiting = {p: r for r, p in enumerate(self._pipes) if r not in results}
            ready = connection.wait(list(waiting), max(0.0, until - time.monotonic()))
            if not ready:
                late = ", ".join(map(str, waiting.values()))
                raise RankError(min(waiting.values()), f"no answer in {timeout_s:g} s from {late}")
            for rank in [rank for pipe, rank in waiting.items() if pipe in ready]:
                results[rank] = self._answer(rank)
        return [results[rank] for rank in range(len(self._pipes))]

    def _answer(self, rank: int) -> Any:
        try:
            good, result = self._pipes[rank].recv()
        except (EOFError, OSError):
            raise RankError(rank, self._died(rank)) from None
        if good:
            return result
        # Others often complain before the one that died is noticed: it is the one to name.
        dead = connection.wait([p.sentinel for p in self._processes], _DEATH_S)
        for other, process in enumerate(self._processes):
            if process.sentinel in dead:
                raise RankError(other, self._died(other))
        raise RankError(rank, result)

    def _died(self, rank: int) -> str:
        process = self._processes[rank]
        process.join(_STOP_S)
        code = process.exitcode
        how = f"killed by {signal.Signals(-code).name}" if code and code < 0 else f"exited {code}"
        return f"the process is gone, {how}"

    def stop(self) -> None:
        """End the processes; those that do not listen are killed."""
        for pipe in self._pipes:
            pipe.close()
        until = time.monotonic() + _STOP_S
        idle = all(process.exitcode is None for process in self._processes)
        for process in self._processes:
            if idle:
                process.join(min(1.0, max(0.0, until - time.monotonic())))
            process.kill()
            process.join()


def _serve(pipe: connection.Connection, parent: int) -> None:
    """Join the others, then call what comes, until the pipe ends."""
    import traceback

    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who started this one decides
    joined = False
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            break
        try:
            if not joined:
                _join()
                joined = True
            rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            answer = (True, function(rank, world, *args))
        except BaseException:
            answer = (False, traceback.format_exc())
        try:
            pipe.send(answer)
        except OSError:  # another rank failed, and nobody wants to know any more
            break
    sys.stdout.flush()
    os._exit(0)  # nobody listens any more: gloo would wait for the others


def _join() -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))


def end_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when the one that started it ends, however it does."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)

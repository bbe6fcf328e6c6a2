"""Processes that may use only so much memory, page cache included, and work when told to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _job import SETTINGS

_ROOT = Path("/sys/fs/cgroup")


class Worker:
    """`make(*args)` in a process of its own; the object's methods are called from here."""

    def __init__(self, make: Callable[..., Any], *args: Any):
        import torch.multiprocessing as mp

        context, before = mp.get_context("spawn"), dict(os.environ)
        os.environ.update(SETTINGS)
        self.pipe, theirs = context.Pipe()
        try:
            self.process = context.Process(target=_serve, args=(theirs, make, args), daemon=True)
            self.process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()

    def call(self, name: str, *args: Any) -> Any:
        """Call a method there; what it returned."""
        self.pipe.send((name, args))
        try:
            good, result = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            raise RuntimeError(f"{name}: the process died; out of the memory allowed?") from None
        if not good:
            raise RuntimeError(result)
        return result

    def stop(self) -> None:
        self.pipe.close()
        self.process.join(20)
        self.process.kill()
        self.process.join()


def _serve(pipe: Any, make: Callable[..., Any], args: tuple[Any, ...]) -> None:
    import traceback

    import torch

    torch.set_num_threads(1)
    made = make(*args)
    while True:
        try:
            name, given = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, getattr(made, name)(*given)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


@contextlib.contextmanager
def bounded(pid: int, limit_bytes: int) -> Iterator[str]:
    """Bound what a process uses from now on, inside the group it is in; says how."""
    try:
        group, limit = _new_group(f"rowtier-{pid}")
        (group / limit).write_text(str(limit_bytes))
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        yield f"not bounded: {error.strerror}"
        return
    try:
        yield limit
    finally:
        # A group goes only when its last process has gone, which the caller sees to.
        with contextlib.suppress(OSError):
            group.rmdir()


def _new_group(name: str) -> tuple[Path, str]:
    """A group of cgroup v1 or v2 below this process's own, and the file of its limit."""
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        own[kinds] = path.lstrip("/")
    if "memory" in own:
        group, limit = _ROOT / "memory" / own["memory"] / name, "memory.limit_in_bytes"
    else:
        group, limit = _ROOT / own.get("", "") / name, "memory.max"
    group.mkdir()
    return group, limit

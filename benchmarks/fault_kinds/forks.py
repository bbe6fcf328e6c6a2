"""Children of a process that has rowtier imported already: a write costs no start of Python."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Call = Callable[[], object]
HANG_S = 120.0
_FAILED = 70  # exit code of a child that raised what no user should see


def forked(call: Call) -> int:
    """Start a call in a child; its pid. The child prints nothing."""
    pid = os.fork()
    if pid:
        return pid
    code = _FAILED
    try:
        sink = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):
            os.dup2(sink, stream)
        call()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else _FAILED
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    """Wait for a child: its exit code, or minus the signal that ended it."""
    until = time.monotonic() + HANG_S
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -signal.SIGALRM


def group_members(group: int) -> list[int]:
    """The processes of a group that still run; not those that only nobody has waited for."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                found.append(int(entry.name))
    return found


def command(*arguments: str | Path) -> Call:
    """A call of the command line in the process that makes it, as `rowtier ARGUMENTS`."""

    def call() -> None:
        main = _prepared()
        before = sys.argv
        sys.argv = ["rowtier", *map(str, arguments)]
        try:
            main()
        finally:
            sys.argv = before

    return call


@functools.cache
def _prepared() -> Call:
    """The command line with its parser built, and with a leg for every file, as if all were large.

    A child that is forked after the first call here does not build it again.
    """
    import typer

    from rowtier.cli import main
    from rowtier.profile import make

    main.app = typer.main.get_command(main.app)  # type: ignore[assignment]
    make.LEG_BYTES = 1
    return main.main


def quietly(call: Call) -> None:
    """Do a call in this process; what it prints is not shown."""
    sink = Path(os.devnull).open("w")  # noqa: SIM115
    with (
        sink,
        contextlib.redirect_stdout(sink),
        contextlib.redirect_stderr(sink),
        contextlib.suppress(SystemExit),
    ):
        call()


def duration_s(call: Call) -> float:
    """How long a call takes in a child when nothing else slows it down: the least of three."""
    found = []
    for _ in range(3):
        start = time.perf_counter()
        code = ended(forked(call))
        assert code == 0, f"a write without any fault ended with {code}"
        found.append(time.perf_counter() - start)
    return min(found)


def small_dataset(folder: Path, seed: int, files: int = 5, samples: int = 200) -> Path:
    """Files of ids for two tables; their folder."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for number in range(files):
        ids = {name: rng.zipf(1.3, samples) % 400 for name in ("item", "user")}
        pq.write_table(pa.table(ids), folder / f"{number}.parquet")
    return folder


def small_tables(path: Path) -> Path:
    """The tables of such data."""
    line = "  - {{name: {0}, num_embeddings: 400, embedding_dim: 8, features: [{0}]}}\n"
    path.write_text("batch_size: 16\ntables:\n" + line.format("item") + line.format("user"))
    return path


@contextlib.contextmanager
def scratch(on_disk: bool = False) -> Iterator[Path]:
    """A folder to write to: in memory, where syncing is quick, or on a disk."""
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() and os.access(memory, os.W_OK) and not on_disk else None
    with tempfile.TemporaryDirectory(prefix="rowtier-faults-", dir=place) as name:
        yield Path(name)


def in_server(work: Callable[..., Any], *arguments: Any) -> Any:
    """Do work in a new process that has nothing open and no threads, so that it may fork."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def drawn(seed: int, *words: object) -> random.Random:
    """Random numbers of their own for each purpose."""
    return random.Random(f"{seed} {words}")

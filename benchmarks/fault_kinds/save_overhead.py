"""What checksums cost a save: the same save with and without them, in turns."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fault_kinds.small_model import fill, parts_of, plan_of
from rowtier.runtime.checkpoint import checksums
from rowtier.runtime.checkpoint.checksums import SummingStream
from rowtier.torch import ShardedEmbeddings, save_checkpoint

ROWS, DIM = 2**20, 64  # two tables of 256 MiB, and as much state


def run(
    count: int, seed: int = 0, progress: Callable[[float], None] = lambda _: None
) -> dict[str, Any]:
    """So many saves of each kind; the share of a save's time that checksums take."""
    embeddings = ShardedEmbeddings(plan_of(ROWS, DIM))
    fill(embeddings, seed + 1)
    with tempfile.TemporaryDirectory(prefix="rowtier-overhead-") as folder:
        _times(Path(folder), embeddings, summed=True)
        times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for turn in range(count):
            for summed in (True, False) if turn % 2 else (False, True):
                times[summed].append(_times(Path(folder), embeddings, summed))
            progress((turn + 1) / count)
    wall, cpu = (
        statistics.median(a[i] / b[i] for a, b in zip(times[True], times[False], strict=True)) - 1
        for i in (0, 1)
    )
    return {
        "checksum_save_overhead": wall,
        "checksum_save_cpu_overhead": cpu,  # the same of processor time, which others disturb less
        "save_s": statistics.median(wall_s for wall_s, _ in times[True]),
        "save_bytes": 4 * ROWS * DIM * 4,
    }


def _times(folder: Path, embeddings: ShardedEmbeddings, summed: bool) -> tuple[float, float]:
    """Seconds of a save by the clock, and of the processor."""
    began, cpu = time.perf_counter(), time.process_time()
    with nullcontext() if summed else _without_checksums():
        save_checkpoint(folder, **parts_of(embeddings, 1))
    return time.perf_counter() - began, time.process_time() - cpu


def _without_checksums() -> Any:
    """The same writer that hands bytes on, and looks at none.

    torch's own stream would not do: it writes in other portions, and takes twice as long.
    """
    return patch.object(SummingStream, "write", _write_alone)


def _write_alone(stream: Any, data: Any) -> int:
    view = memoryview(data).cast("B")
    checksums._write_all(stream._file, view)
    stream._at += len(view)
    return len(view)

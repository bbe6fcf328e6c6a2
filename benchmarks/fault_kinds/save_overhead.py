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

from torch.distributed.checkpoint.filesystem import FileSystem

from fault_kinds._tables import fill, parts_of, plan_of
from rowtier.runtime import shards
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
    """torch's own writer, which is what rowtier's adds checksums to."""
    return patch.object(shards._SummingFiles, "create_stream", FileSystem.create_stream)

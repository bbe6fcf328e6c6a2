"""Time rows in RAM: gathered and scattered in random order, by one thread as a rank has."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowtier.calibrate.tiers import MIB, ROW_BYTES, Tick, TierTimes
from rowtier.errors import UserError
from rowtier.jit import compiled
from rowtier.units import show_bytes

TABLE_BYTES = 256 * MIB  # far more than caches hold
MOVED_BYTES = 16 * MIB  # per repeat
BUFFER_BYTES = MIB // 8  # stays in the cache, so that only the table's side is timed
REPEATS = 15
# A cache line, or what is fetched with it; from 512 on the cost model sees a disk.
GRANULARITIES = (64, 128, 256)
STEPS = len(ROW_BYTES) + 1

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@compiled
def _gather(table: NDArray[Any], ids: NDArray[np.int64], buffer: NDArray[Any]) -> None:
    for at in range(len(ids)):
        slot = at % len(buffer)
        row = ids[at]
        for column in range(table.shape[1]):
            buffer[slot, column] = table[row, column]


@compiled
def _scatter(table: NDArray[Any], ids: NDArray[np.int64], buffer: NDArray[Any]) -> None:
    for at in range(len(ids)):
        slot = at % len(buffer)
        row = ids[at]
        for column in range(table.shape[1]):
            table[row, column] = buffer[slot, column]


def time_memory(local_world: int, memory_bytes: int | None, tick: Tick) -> TierTimes:
    """Time this machine's RAM; its processes share the capacity evenly."""
    total_bytes = machine_bytes() if memory_bytes is None else memory_bytes
    capacity = total_bytes // local_world // MIB * MIB
    if capacity < MIB:
        raise UserError(
            f"{show_bytes(total_bytes)} of memory in {local_world} equal parts is less than "
            "1 MiB each: give more with --memory"
        )
    flat = np.ones(min(TABLE_BYTES, machine_bytes() // local_world // 8) // 4, dtype=np.float32)
    read_s, write_s = [], []
    for row_bytes in ROW_BYTES:
        table = flat[: len(flat) - len(flat) % (row_bytes // 4)].reshape(-1, row_bytes // 4)
        ids = np.random.default_rng(0).integers(len(table), size=MOVED_BYTES // row_bytes)
        read_s.append(_row_s(_gather, table, ids))
        write_s.append(_row_s(_scatter, table, ids))
        tick()
    in_order = np.arange(MOVED_BYTES // row_bytes, dtype=np.int64) % len(table)
    read_rate = row_bytes / _row_s(_gather, table, in_order)
    write_rate = row_bytes / _row_s(_scatter, table, in_order)
    tick()
    return TierTimes(
        "ram", capacity, tuple(read_s), tuple(write_s), read_rate, write_rate, GRANULARITIES
    )


def compile_kernels() -> None:
    """Compile ahead, so that all ranks time at the same moment and no clock sees it."""
    table, ids = np.ones((1, 16), dtype=np.float32), np.zeros(1, dtype=np.int64)
    for kernel in (_gather, _scatter):
        kernel(table, ids, table.copy())


def _row_s(kernel: Any, table: NDArray[Any], ids: NDArray[np.int64]) -> float:
    buffer = np.ones((max(1, BUFFER_BYTES // table[0].nbytes), table.shape[1]), dtype=table.dtype)
    times = []
    for _ in range(REPEATS):
        start = perf_counter()
        kernel(table, ids, buffer)
        times.append(perf_counter() - start)
    return median(times) / len(ids)


def machine_bytes() -> int:
    """The machine's memory, or what its control group allows, if that is less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in map(Path, _LIMITS):
        try:
            text = limit.read_text().strip()
        except OSError:
            continue
        found += [int(text)] if text.isdecimal() else []
    return min(found)

"""Time rows on a disk: direct reads and writes by several threads, on a file that has no name.

The file is unlinked as soon as it is open, so it is gone whatever happens to the process.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from rowtier.calibrate.tiers import MIB, ROW_BYTES, Tick, TierTimes
from rowtier.errors import UserError
from rowtier.units import show_bytes
from rowtier.writing import writing

FILE_BYTES = 128 * MIB
LEAST_FILE_BYTES = 8 * MIB
BLOCK_BYTES = 4096  # direct access must be aligned to it
CHUNK_BYTES = MIB
SEQUENTIAL_S = 4.0  # a slow disk gets a smaller file
THREADS = 8  # a disk wants several accesses under way
REPEATS, REPEAT_S = 3, 0.1
GRANULARITIES = (512, 1024, 2048, 4096)
STEPS = len(ROW_BYTES) + 1


@dataclass(frozen=True)
class _File:
    handle: int
    direct: bool
    size_bytes: int = 0

    def forget(self) -> None:
        """Drop the file from the page cache, where reads cannot go past it."""
        if not self.direct:
            os.fdatasync(self.handle)
            os.posix_fadvise(self.handle, 0, 0, os.POSIX_FADV_DONTNEED)


_Access = Callable[[int, mmap.mmap, int], int]


def _read(handle: int, buffer: mmap.mmap, at: int) -> int:
    return os.preadv(handle, [buffer], at)


def _write(handle: int, buffer: mmap.mmap, at: int) -> int:
    return os.pwritev(handle, [buffer], at)


def time_disk(folder: Path, local_world: int, tick: Tick) -> TierTimes:
    """Time the disk under a folder; the processes of a machine share its free space evenly."""
    free_bytes = _free_bytes(folder, local_world)
    with writing(folder), _open(folder) as empty:
        file, write_rate = _fill(empty)
        read_rate = _sweep(file)
        tick()
        read_s, write_s = [], []
        for row_bytes in ROW_BYTES:
            read_s.append(_row_s(file, _read, row_bytes))
            write_s.append(_row_s(file, _write, row_bytes))
            tick()
    capacity = free_bytes // local_world // MIB * MIB
    return TierTimes(
        "ssd",
        capacity,
        tuple(read_s),
        tuple(write_s),
        read_rate,
        write_rate,
        GRANULARITIES,
        cached=not file.direct,
    )


def _free_bytes(folder: Path, local_world: int) -> int:
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; give --disk one on the disk to time")
    free_bytes = shutil.disk_usage(folder).free
    wanted = 2 * FILE_BYTES * local_world
    if free_bytes < wanted:
        raise UserError(
            f"{folder}: {show_bytes(free_bytes)} are free and timing the disk takes "
            f"{show_bytes(wanted)} for a moment; make room, or give --disk another folder"
        )
    return free_bytes


@contextmanager
def _open(folder: Path) -> Iterator[_File]:
    plain, name = tempfile.mkstemp(prefix=".rowtier-calibrate.", dir=folder)
    file = _File(plain, direct=False)
    try:
        with suppress(OSError):  # tmpfs and some network file systems have no direct access
            file = _File(os.open(name, os.O_RDWR | os.O_DIRECT), direct=True)
        Path(name).unlink()
        yield file
    finally:
        for handle in {plain, file.handle}:
            os.close(handle)


def _fill(file: _File) -> tuple[_File, float]:
    """Write the file in sequence, real bytes, so that reads cannot be answered without the disk."""
    chunk = _buffer(CHUNK_BYTES)
    start, size = perf_counter(), 0
    while size < FILE_BYTES:
        size += _write(file.handle, chunk, size)
        if size >= LEAST_FILE_BYTES and perf_counter() - start > SEQUENTIAL_S:
            break
    os.fdatasync(file.handle)
    rate = size / (perf_counter() - start)
    return _File(file.handle, file.direct, size), rate


def _sweep(file: _File) -> float:
    """Bytes per second of reading the file in sequence."""
    file.forget()
    chunk = _buffer(CHUNK_BYTES)
    start, at = perf_counter(), 0
    while at < file.size_bytes and perf_counter() - start < SEQUENTIAL_S:
        at += _read(file.handle, chunk, at)
    return at / (perf_counter() - start)


def _row_s(file: _File, access: _Access, row_bytes: int) -> float:
    """Seconds per row in random order; a row below a block moves the whole block."""
    size = max(row_bytes, BLOCK_BYTES)

    def worker(seed: int) -> int:
        draw, buffer, done = random.Random(seed), _buffer(size), 0
        stop = perf_counter() + REPEAT_S
        while perf_counter() < stop:
            access(file.handle, buffer, draw.randrange(file.size_bytes // size) * size)
            done += 1
        return done

    times = []
    with ThreadPoolExecutor(THREADS) as pool:
        for repeat in range(REPEATS):
            file.forget()
            start = perf_counter()
            rows = sum(pool.map(worker, range(repeat * THREADS, (repeat + 1) * THREADS)))
            if access is _write and not file.direct:
                os.fdatasync(file.handle)
            times.append((perf_counter() - start) / rows)
    return median(times)


def _buffer(size: int) -> mmap.mmap:
    """Aligned memory, as direct access wants it, filled with what no disk compresses."""
    buffer = mmap.mmap(-1, size)
    buffer.write(random.Random(0).randbytes(size))
    return buffer

"""Checksums of files: made while they are written, checked before their bytes are used.

XXH3 finds what disks, networks and copies do to bits by accident. It is no signature: whoever
can write a file can write its checksum.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import xxhash

from rowtier.errors import UserError

BLOCK_BYTES = 16 << 20  # has a checksum of its own, so that an error can say where it is
_WORTH_A_THREAD_BYTES = 1 << 20


class SummedRun(NamedTuple):
    """Bytes of a file one after the other, by the checksums of their blocks."""

    start: int
    stop: int
    sums: tuple[str, ...]  # of blocks of BLOCK_BYTES; the last may be shorter

    def blocks(self) -> Iterator[tuple[int, int, str]]:
        """Where each block begins and ends, and its checksum."""
        for number, made in enumerate(self.sums):
            start = self.start + number * BLOCK_BYTES
            yield start, min(start + BLOCK_BYTES, self.stop), made


def xxh3(data: Any) -> str:
    """The checksum of bytes."""
    return str(xxhash.xxh3_64_hexdigest(data))


def read_run(file: IO[bytes], start: int, stop: int) -> SummedRun:
    """The checksums of a part of a file, as far as the file goes."""
    file.seek(start)
    sums, room = [], memoryview(bytearray(min(BLOCK_BYTES, stop - start)))
    for at in range(start, stop, BLOCK_BYTES):
        sums.append(xxh3(_filled(file, room[: min(BLOCK_BYTES, stop - at)])))
    return SummedRun(start, stop, tuple(sums))


def first_change(file: IO[bytes], run: SummedRun) -> tuple[int, int] | None:
    """Where bytes of a file begin and end that are not those a run was made of, if any."""
    found = read_run(file, run.start, run.stop)
    for (start, stop, saved), made in zip(run.blocks(), found.sums, strict=True):
        if saved != made:
            return start, stop
    return None


def check_size(path: Path, saved_bytes: int) -> None:
    """Refuse a file that is gone, or shorter or longer than it was."""
    try:
        found_bytes = path.stat().st_size
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}) and belongs to the save; {WAY_OUT}"
        ) from None
    if found_bytes != saved_bytes:
        raise UserError(f"{path}: has {found_bytes} bytes, and {saved_bytes} were saved; {WAY_OUT}")


WAY_OUT = (
    "copy the file again from where it is whole, or load an earlier save (keep= of "
    "save_checkpoint says how many stay)"
)


class SummingStream(io.IOBase):
    """Writes a file and makes its checksums on the way: beside the write, in another thread.

    A run ends whenever the writer asks where it is: torch does that before and after each
    tensor, so that tensors have runs of their own.
    """

    def __init__(self, file: IO[bytes]):
        self._file, self._at = file, 0
        self._runs: list[SummedRun] = []
        self._start, self._sums = 0, list[str]()
        self._block, self._block_bytes = xxhash.xxh3_64(), 0
        self._pool = ThreadPoolExecutor(1)

    def write(self, data: Any) -> int:
        """Write bytes; they are not kept."""
        view = memoryview(data).cast("B")
        job = self._begin_to_add(view)
        try:
            _write_all(self._file, view)
        finally:
            if job is not None:
                job.result()
        self._at += len(view)
        return len(view)

    def _begin_to_add(self, view: memoryview) -> Future[None] | None:
        """Add bytes, in another thread if that is worth it; None: it is done."""
        if len(view) >= _WORTH_A_THREAD_BYTES:
            with suppress(RuntimeError):  # the interpreter ends: a save behind it goes on
                return self._pool.submit(self._add, view)
        self._add(view)
        return None

    def _add(self, view: memoryview) -> None:
        while len(view):
            some = view[: BLOCK_BYTES - self._block_bytes]
            self._block.update(some)
            self._block_bytes += len(some)
            if self._block_bytes == BLOCK_BYTES:
                self._end_block()
            view = view[len(some) :]

    def _end_block(self) -> None:
        self._sums.append(self._block.hexdigest())
        self._block.reset()
        self._block_bytes = 0

    def tell(self) -> int:
        """Where the next byte goes; the bytes before it are a run."""
        if self._block_bytes:
            self._end_block()
        if self._at > self._start:
            self._runs.append(SummedRun(self._start, self._at, tuple(self._sums)))
            self._start, self._sums = self._at, []
        return self._at

    def runs(self) -> tuple[SummedRun, ...]:
        """The runs of all that was written."""
        self.tell()
        self._pool.shutdown()
        return tuple(self._runs)

    def writable(self) -> bool:
        """It is."""
        return True

    def flush(self) -> None:
        """Hand everything to the system."""
        self._file.flush()

    def fileno(self) -> int:
        """For fsync."""
        return self._file.fileno()


def _write_all(file: IO[bytes], view: memoryview) -> None:
    while len(view):
        view = view[file.write(view) :]


def _filled(file: IO[bytes], room: memoryview) -> memoryview:
    """Bytes of a file, as many as there are."""
    at = 0
    while at < len(room):
        count = file.readinto(room[at:])  # type: ignore[attr-defined]
        if not count:
            break
        at += count
    return room[:at]

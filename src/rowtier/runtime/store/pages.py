"""A file of pages, and the few of them that a step needs in memory.

Every page has at most one *frame* in memory, so there is never a second, older version of a
row: a page that is read ahead while a step runs and a page that this step updates are the same
frame. Pages stay from the forward pass to the end of the step; changed ones are then written
behind the next step, whole and once. The file is scratch: it has no name, and is gone with the
process, however that ends.

Every page that is written has a checksum in memory, and what is read is held against it: a disk
that returns other bits is an error, not other weights.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.jit import compiled
from rowtier.runtime.store.async_disk import Access, File, access, punch_hole
from rowtier.runtime.store.page_sums import Sums, keys_for, sum_pages
from rowtier.units import show_bytes

Ints = NDArray[np.int64]
PAGE_BYTES = 4096
BUFFER_BYTES = 64 << 20  # of frames; resident only as far as a step needed them
LEAST_FRAMES = 8


class _ChangedError(Exception):
    """A page of the file is not what was written there."""

    def __init__(self, page: int):
        self.page = page
        super().__init__(page)


class _Summed(NamedTuple):
    """What checksums are made of."""

    words: Sums  # by frame
    keys: Sums

    def into(self, sums: Sums, frames: Ints) -> Callable[[Ints], None]:
        """Notes the checksums of some frames while others are on their way."""

        def note(which: Ints) -> None:
            found = np.empty(len(which), dtype=np.uint64)
            sum_pages(self.words, frames[which], self.keys, found)
            sums[which] = found

        return note


class Pages:
    """Pages of one size in a nameless file of a folder."""

    def __init__(
        self, folder: Path, page_bytes: int = PAGE_BYTES, buffer_bytes: int = BUFFER_BYTES
    ):
        self.folder, self.page_bytes, self.count = folder, page_bytes, 0
        self.frames = max(LEAST_FRAMES, buffer_bytes // page_bytes)
        # Shared, not private, memory: a fork during a direct read would tear private pages off.
        self.buffer = mmap.mmap(-1, self.frames * page_bytes)
        self._bytes = np.frombuffer(self.buffer, dtype=np.uint8).reshape(self.frames, page_bytes)
        words = np.frombuffer(self.buffer, dtype=np.uint64).reshape(self.frames, -1)
        self._summed = _Summed(words, keys_for(page_bytes))
        self._file = File(_nameless_file(folder))
        self._frame_of = np.empty(0, dtype=np.int32)  # per page; −1: not in memory
        self._written = np.empty(0, dtype=np.bool_)  # per page; others are zeros
        self._sums: Sums = np.empty(0, dtype=np.uint64)  # per page that was written
        self._names: list[tuple[int, int, str]] = []  # first and last page of each table
        self._spare: list[tuple[int, int]] = []  # first pages that nobody has, and how many
        self._page_of = np.full(self.frames, -1, dtype=np.int64)
        self._until = np.zeros(self.frames, dtype=np.int64)  # the step each is kept for
        self._dirty = np.zeros(self.frames, dtype=np.bool_)
        self._reading = np.zeros(self.frames, dtype=np.bool_)
        self._writing = np.zeros(self.frames, dtype=np.int32)  # how many writes are under way
        self._free = np.arange(self.frames, dtype=np.int64)[::-1].copy()
        self._free_count, self._step = self.frames, 0
        self._reader, self._ahead, self._writer = (self._access() for _ in range(3))
        self._threads = {way: ThreadPoolExecutor(1) for way in ("ahead", "behind")}
        self._reads: list[tuple[Future[None], Ints]] = []
        self._writes: list[tuple[Future[None], Ints]] = []
        self._lock = threading.RLock()
        self.pages_read = self.pages_written = self.pages_ahead = 0

    def _access(self) -> Access:
        return access(self._file, self.buffer, self.page_bytes)

    @property
    def at_once(self) -> int:
        """How many pages one call may hold."""
        return self.frames // 4

    def allot(self, pages: int) -> int:
        """Add pages of zeros to the file; the number of the first."""
        with self._lock:
            self._join_writes()  # they note checksums in the array that is replaced here
        for place, (first, spare) in enumerate(self._spare):
            if pages and spare >= pages:
                self._spare[place] = (first + pages, spare - pages)
                self._take(first, pages)
                return first
        first = self.count
        self._take(first, pages)
        self.count += pages
        self._frame_of = np.append(self._frame_of, np.full(pages, -1, dtype=np.int32))
        self._written = np.append(self._written, np.zeros(pages, dtype=np.bool_))
        self._sums = np.append(self._sums, np.zeros(pages, dtype=np.uint64))
        return first

    def _take(self, first: int, pages: int) -> None:
        size = self.page_bytes
        try:
            # Taken now, so that a full disk is an error here and not in the middle of training.
            os.posix_fallocate(self._file.handle, first * size, pages * size)
        except OSError as error:
            what = f"no room for {show_bytes((first + pages) * size)} of rows"
            raise self._in_words(error, what) from error

    def release(self, first: int, pages: int) -> None:
        """Forget pages, and give their room on the disk back; others may be allotted there."""
        if not pages:
            return
        last = first + pages
        with self._lock:
            self._join_reads()
            self._join_writes()
            frames = self._frame_of[first:last].astype(np.int64)
            frames = frames[frames >= 0]
            self._dirty[frames] = False
            self._let_go(frames)
            self._written[first:last] = False
            self._names = [entry for entry in self._names if not first <= entry[0] < last]
            self._spare = _merged([*self._spare, (first, pages)])
            punch_hole(self._file.handle, first * self.page_bytes, pages * self.page_bytes)

    def name(self, first: int, last: int, table: str) -> None:
        """Say whose rows are on pages, for errors."""
        if (first, last, table) not in self._names:
            self._names.append((first, last, table))

    def hold(self, pages: Ints) -> Ints:
        """Bring pages into memory; the frame of each, valid until the next call of this."""
        assert len(pages) <= self.at_once
        with self._lock:
            if self._free_count < len(pages):
                self._make_room(len(pages))
            frames, missing = self._claim(pages, self._step, 0)
            if self._reads and self._reading[frames].any():
                self._join_reads()
            try:
                pages, stored = self._cleared(missing)
                if len(stored):
                    _read(self._reader, self._summed, self._sums, pages, stored)
            except BaseException as error:
                self._let_go(missing)
                raise self._in_words(error, "rows cannot be read") from error
            return frames

    def change(self, frames: Ints) -> None:
        """Say that frames were written to."""
        self._dirty[frames] = True

    def prefetch(self, pages: Ints, steps: int = 1) -> None:
        """Start to read pages for the next step, or this one. Never needed, never wrong.

        What does not fit beside the pages of this step is left to be read when it is needed.
        """
        with self._lock:
            _, missing = self._claim(pages, self._step + steps, self.frames // 2)
            pages, stored = self._cleared(missing)
            if len(stored):
                self.pages_ahead += len(stored)
                self._reading[stored] = True
                job = self._threads["ahead"].submit(
                    _read, self._ahead, self._summed, self._sums, pages, stored
                )
                self._reads.append((job, stored))

    def settle(self) -> None:
        """End a step: write changed pages in the background, forget what is not kept."""
        with self._lock:
            self._write_behind()
            self._step += 1
            self._reap()

    def close(self) -> None:
        """Wait for what is under way."""
        with self._lock:
            self._join_reads()
            self._join_writes()

    def _claim(self, pages: Ints, until: int, spare: int) -> tuple[Ints, Ints]:
        """The frame of each page, and those of them that are new and have to be filled."""
        frames, missing = np.full(len(pages), -1), np.empty(len(pages), dtype=np.int64)
        found = _claim(
            pages, self._frame_of, self._page_of, self._until, until, self._free,
            self._free_count, spare, frames, missing,
        )  # fmt: skip
        self._free_count -= found
        return frames, missing[:found].copy()

    def _cleared(self, frames: Ints) -> tuple[Ints, Ints]:
        """The pages and frames to read; what was never written becomes zeros here."""
        known = self._written[self._page_of[frames]]
        self._bytes[frames[~known]] = 0
        stored = frames[known]
        self.pages_read += len(stored)
        return self._page_of[stored], stored

    def _write_behind(self) -> None:
        frames = np.flatnonzero(self._dirty)
        if not len(frames):
            return
        frames = frames[np.argsort(self._page_of[frames])]
        pages = self._page_of[frames]
        self._dirty[frames], self._written[pages] = False, True
        self._writing[frames] += 1
        self.pages_written += len(frames)
        # A frame that the next step changes while it is being written is dirty again, and
        # written again after this: one thread writes, in order.
        job = self._threads["behind"].submit(
            _write, self._writer, self._summed, self._sums, pages, frames
        )
        self._writes.append((job, frames))

    def _reap(self) -> None:
        """Take frames back that nobody needs any more."""
        while self._writes and self._writes[0][0].done():
            self._end_write()
        while self._reads and self._reads[0][0].done():
            self._end_read()
        self._let_go(np.flatnonzero((self._page_of >= 0) & (self._until < self._step)))

    def _make_room(self, wanted: int) -> None:
        """Wait for writes; then give up pages of this step, then those read ahead: read again."""
        self._join_writes()
        self._reap()
        if self._free_count < wanted:
            self._write_behind()
            self._join_writes()
            self._let_go(np.flatnonzero((self._page_of >= 0) & (self._until <= self._step)))
        if self._free_count < wanted:
            self._join_reads()
            self._let_go(np.flatnonzero(self._page_of >= 0))

    def _let_go(self, frames: Ints) -> None:
        busy = (self._writing[frames] > 0) | self._dirty[frames] | self._reading[frames]
        frames = frames[~busy]
        self._frame_of[self._page_of[frames]] = -1
        self._page_of[frames] = -1
        self._free[self._free_count : self._free_count + len(frames)] = frames[::-1]
        self._free_count += len(frames)

    def _join_reads(self) -> None:
        while self._reads:
            self._end_read()

    def _join_writes(self) -> None:
        while self._writes:
            self._end_write()

    def _end_read(self) -> None:
        job, frames = self._reads.pop(0)
        error = job.exception()
        self._reading[frames] = False
        if error is not None:
            self._let_go(frames)
            raise self._in_words(error, "rows cannot be read") from error

    def _end_write(self) -> None:
        job, frames = self._writes.pop(0)
        error = job.exception()
        self._writing[frames] -= 1
        if error is not None:
            raise self._in_words(error, "rows cannot be written") from error

    def _in_words(self, error: BaseException, what: str) -> BaseException:
        if isinstance(error, _ChangedError):
            return UserError(self._changed(error.page))
        if not isinstance(error, OSError):
            return error
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return UserError(
            f"{self.folder}: {what}: {error.strerror}; {'make room' if full else 'check the disk'}"
            ", or map the tier to another folder with `tiers`"
        )

    def _changed(self, page: int) -> str:
        names = _innermost([entry for entry in self._names if entry[0] <= page <= entry[1]])
        of = f" with rows of table {' and '.join(map(repr, names))}" if names else ""
        start, stop = page * self.page_bytes, (page + 1) * self.page_bytes
        return (
            f"{self.folder}: page {page}{of} (bytes {start}-{stop} of the scratch file) is not "
            "what was written there (checksum): check the disk, or map the tier to another folder "
            "with `tiers`, and go on from the last checkpoint"
        )


def _merged(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Runs of pages that touch as one, in order; empty ones are left out."""
    found: list[tuple[int, int]] = []
    for first, pages in sorted(run for run in runs if run[1]):
        if found and sum(found[-1]) == first:
            found[-1] = (found[-1][0], found[-1][1] + pages)
        else:
            found.append((first, pages))
    return found


def _innermost(named: list[tuple[int, int, str]]) -> list[str]:
    """The names of ranges that hold no other: tables, where several are stored as one."""

    def holds_another(first: int, last: int) -> bool:
        return any((f, n) != (first, last) and first <= f and n <= last for f, n, _ in named)

    return [name for first, last, name in named if not holds_another(first, last)]


# Not methods: what is under way keeps arrays alive, and not the pages that nobody wants any more.
def _read(access: Access, summed: _Summed, sums: Sums, pages: Ints, frames: Ints) -> None:
    """Fill frames with pages, and refuse those that changed on the disk."""
    found = np.empty(len(frames), dtype=np.uint64)
    access.read(pages, frames, summed.into(found, frames))
    changed = np.flatnonzero(found != sums[pages])
    if len(changed):
        raise _ChangedError(int(pages[changed[0]]))


def _write(access: Access, summed: _Summed, sums: Sums, pages: Ints, frames: Ints) -> None:
    """Write frames to pages. One that changes meanwhile is written again, and summed again."""
    found = np.empty(len(frames), dtype=np.uint64)
    access.write(pages, frames, summed.into(found, frames))
    sums[pages] = found


def _nameless_file(folder: Path) -> int:
    """A new file that has no name, opened past the page cache where the disk can do that."""
    direct = getattr(os, "O_DIRECT", 0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for flags in (direct, 0):
            with suppress(OSError, AttributeError):  # not every file system has one of the two
                return os.open(folder, os.O_TMPFILE | os.O_RDWR | flags, 0o600)
        handle, name = tempfile.mkstemp(prefix=".rowtier-rows.", dir=folder)
        try:
            with suppress(OSError):
                file = os.open(name, os.O_RDWR | direct)
                os.close(handle)
                return file
        finally:
            Path(name).unlink()
        return handle
    except OSError as error:
        raise UserError(
            f"{folder}: rows cannot be kept there: {error.strerror}; make the folder writable, "
            "or map the tier to another with `tiers`"
        ) from error


@compiled
def _claim(
    pages: Ints, frame_of: NDArray[np.int32], page_of: Ints, kept_until: Ints, until: int,
    free: Ints, count: int, spare: int, frames: Ints, missing: Ints,
) -> int:  # fmt: skip
    """Find or give each page a frame, as long as more than `spare` are free; how many are new."""
    found = 0
    for i in range(len(pages)):
        page = pages[i]
        frame = frame_of[page]
        if frame < 0:
            if count - found <= spare:
                continue
            frame = free[count - found - 1]
            frame_of[page] = frame
            page_of[frame] = page
            kept_until[frame] = until
            missing[found] = frame
            found += 1
        if kept_until[frame] < until:
            kept_until[frame] = until
        frames[i] = frame
    return found

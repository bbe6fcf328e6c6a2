"""Many pages of a file at once, past the page cache: kernel AIO, or threads where there is none.

Measured with 4 KiB pages in random places of a 1 GiB file on a virtual disk, two cores, others
at work on them (thousand pages a second; CPU microseconds a page):

    mapped file, MADV_RANDOM                  9
    one thread, pread                        10     38
    os.preadv, pool of 8 / 32 threads        38 / 26
    pread in compiled loops, 8 / 32 threads  56 / 77     14
    kernel AIO, 128 / 512 under way         164 / 178   4.3     writes 97 / 92   4.6

AIO needs one system call for many pages, and that is what counts where cores are few. io_uring
was not measured: it takes a further package, and a call for every page from Python.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
DEPTH = 256  # accesses under way
AT_ONCE = 64  # handed over, or waited for, in one call
THREADS = 16
# io_setup, io_destroy, io_submit, io_getevents: libc has no functions for these.
_CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
_READ, _WRITE = 0, 1
_PUNCH_HOLE = 3  # of fallocate: the file keeps its size
_REQUEST = np.dtype(
    [
        ("data", "u8"), ("key", "u4"), ("rw_flags", "u4"), ("opcode", "u2"), ("priority", "i2"),
        ("file", "u4"), ("buffer", "u8"), ("bytes", "u8"), ("offset", "i8"), ("reserved", "u8"),
        ("flags", "u4"), ("eventfd", "u4"),
    ]
)  # fmt: skip
_EVENT = np.dtype([("data", "u8"), ("request", "u8"), ("result", "i8"), ("result2", "i8")])


class File:
    """An open file that stays open as long as somebody may still write to it."""

    def __init__(self, handle: int):
        self.handle = handle
        weakref.finalize(self, os.close, handle)


Seen = Callable[[Ints], None]  # which of the pages; must not fail


def _nothing(_: Ints) -> None:
    """Nobody looks."""


class Access(Protocol):
    """Moves pages between a file and a buffer; one at a time may use it."""

    def read(self, pages: Ints, frames: Ints, arrived: Seen = _nothing) -> None:
        """Fill frames of the buffer with pages of the file; some arrive while others do not."""
        ...

    def write(self, pages: Ints, frames: Ints, sent: Seen = _nothing) -> None:
        """Write frames of the buffer to pages of the file; some are sent before others are."""
        ...


def access(file: File, buffer: mmap.mmap, page_bytes: int) -> Access:
    """The fastest way that the system has."""
    try:
        return KernelAio(file, buffer, page_bytes)
    except OSError:  # another system, a sandbox, or too many contexts on the machine
        return Threads(file, buffer, page_bytes)


class KernelAio:
    """Linux AIO by system calls."""

    def __init__(self, file: File, buffer: mmap.mmap, page_bytes: int):
        if sys.platform != "linux" or platform.machine() not in _CALLS:
            raise OSError(errno.ENOSYS, "no kernel AIO here")
        setup, destroy, self._submit, self._get_events = _CALLS[platform.machine()]
        self.file, self.page_bytes, self._buffer = file, page_bytes, buffer
        self._address = np.frombuffer(buffer, dtype=np.uint8).ctypes.data
        self._events = np.zeros(DEPTH, dtype=_EVENT)
        context = np.zeros(1, dtype=np.uint64)
        _call(setup, DEPTH, context.ctypes.data)
        self._context = int(context[0])
        weakref.finalize(self, _call, destroy, self._context).atexit = False

    def read(self, pages: Ints, frames: Ints, arrived: Seen = _nothing) -> None:
        """Fill frames of the buffer with pages of the file."""
        self._run(_READ, pages, frames, arrived)

    def write(self, pages: Ints, frames: Ints, sent: Seen = _nothing) -> None:
        """Write frames of the buffer to pages of the file."""
        self._run(_WRITE, pages, frames, sent)

    def _run(self, opcode: int, pages: Ints, frames: Ints, seen: Seen) -> None:
        count = len(pages)
        requests = np.zeros(count, dtype=_REQUEST)
        requests["data"] = np.arange(count)
        requests["opcode"], requests["file"] = opcode, self.file.handle
        requests["bytes"] = self.page_bytes
        requests["buffer"] = self._address + frames * self.page_bytes
        requests["offset"] = pages * self.page_bytes
        at = requests.ctypes.data + _REQUEST.itemsize * np.arange(count, dtype=np.int64)
        sent = done = 0
        failure: OSError | None = None
        # After a failure, what is under way still has to arrive before the buffer is used again.
        while done < (count if failure is None else sent):
            more = min(count - sent, DEPTH - (sent - done), AT_ONCE) if failure is None else 0
            if more:
                try:
                    new = _call(self._submit, self._context, more, at.ctypes.data + 8 * sent)
                    sent += new
                    if opcode == _WRITE:
                        seen(np.arange(sent - new, sent))
                except OSError as error:
                    failure = error
            if failure is not None or sent == count or sent - done >= DEPTH:
                arrived, bad = self._wait(min(AT_ONCE, sent - done))
                done, failure = done + len(arrived), failure or bad
                if opcode == _READ and failure is None:
                    seen(arrived)
        if failure is not None:
            raise failure

    def _wait(self, least: int) -> tuple[Ints, OSError | None]:
        events = self._events
        count = _call(self._get_events, self._context, least, DEPTH, events.ctypes.data, 0)
        results = events["result"][:count]
        bad = results[results != self.page_bytes]
        which = events["data"][:count].astype(np.int64)
        return which, _failure(int(bad[0])) if len(bad) else None


class Threads:
    """Plain reads and writes, several under way."""

    def __init__(self, file: File, buffer: mmap.mmap, page_bytes: int):
        self.file, self.page_bytes = file, page_bytes
        self._view = memoryview(buffer)
        self._pool = ThreadPoolExecutor(THREADS)

    def read(self, pages: Ints, frames: Ints, arrived: Seen = _nothing) -> None:
        """Fill frames of the buffer with pages of the file."""
        self._run(os.preadv, pages, frames)
        arrived(np.arange(len(pages)))

    def write(self, pages: Ints, frames: Ints, sent: Seen = _nothing) -> None:
        """Write frames of the buffer to pages of the file."""
        sent(np.arange(len(pages)))
        self._run(os.pwritev, pages, frames)

    def _run(self, move: Any, pages: Ints, frames: Ints) -> None:
        size = self.page_bytes

        def work(part: int) -> None:
            some = slice(part, None, THREADS)
            for page, frame in zip(pages[some].tolist(), frames[some].tolist(), strict=True):
                frame_bytes = self._view[frame * size : (frame + 1) * size]
                moved = move(self.file.handle, [frame_bytes], page * size)
                if moved != size:
                    raise _failure(moved)

        # A list, so that nothing is under way any more when the first failure is raised.
        jobs = [self._pool.submit(work, part) for part in range(min(THREADS, len(pages)))]
        failures = [job.exception() for job in jobs]
        for failure in failures:
            if failure is not None:
                raise failure


def _failure(result: int) -> OSError:
    """What is wrong with a page that did not move whole: −errno, or the bytes that did."""
    number = -result if result < 0 else errno.EIO
    return OSError(number, os.strerror(number))


def punch_hole(handle: int, start: int, size: int) -> None:
    """Give a part of a file back to the disk, where that can be done; it reads as zeros then."""
    if sys.platform == "linux":
        _libc.fallocate(handle, _PUNCH_HOLE, ctypes.c_int64(start), ctypes.c_int64(size))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _call(*numbers: int) -> int:
    """A system call; other threads of Python run meanwhile."""
    while True:
        found = int(_libc.syscall(*map(ctypes.c_long, numbers)))
        if found >= 0:
            return found
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))

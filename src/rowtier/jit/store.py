"""The folder where machine code is kept, one file for each kernel and its types of arguments.

A file's name says what it was made from, so that it is right or not looked at, never replaced by
another and never deleted here. It begins with a hash of its name and content: what was cut off,
damaged, or put under another name is compiled anew. So is what another user wrote, as machine code
is run. Files are written beside their place and renamed; a disk that is full or read-only keeps
nothing, and all works without. Who compiles a kernel claims it: a lock on one byte of one file,
which ends with the process whatever happens.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: everyone compiles for himself
    fcntl = None  # type: ignore[assignment]

LONGEST_S = 60.0  # that a claim of someone else is waited for
_LOOK_S = 0.01
_SUM_BYTES = 32


def folder() -> Path | None:
    """Where machine code is kept; None if there is no home."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        home = ""
    given = os.environ.get("NUMBA_CACHE_DIR") or home
    return Path(given) / "rowtier" if given else None


def has(name: str) -> bool:
    """Whether something was kept under a name."""
    where = folder()
    try:
        return where is not None and (where / name).exists()
    except OSError:  # a folder of someone else
        return False


def read(name: str) -> bytes | None:
    """What was kept under a name; None if nothing was, or not as it was written."""
    where = folder()
    try:
        kept = _own(where / name) if where else b""
    except OSError:
        return None
    data = kept[_SUM_BYTES:]
    return data if _sum_of(name, data) == kept[:_SUM_BYTES] else None


def write(name: str, data: bytes) -> None:
    """Keep something, if there is a folder to write to."""
    where = folder()
    if where is None:
        return
    with contextlib.suppress(OSError):
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=where, prefix=f"{name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_sum_of(name, data) + data)
            Path(beside).replace(where / name)
        except BaseException:
            Path(beside).unlink()
            raise


def _own(path: Path) -> bytes:
    """A file's content, if it is a file that this user or root wrote."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        ours = not hasattr(os, "geteuid") or found.st_uid in (os.geteuid(), 0)
        return file.read() if ours and stat.S_ISREG(found.st_mode) else b""


def _sum_of(name: str, data: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + data).digest()


@contextlib.contextmanager
def claimed(name: str) -> Iterator[None]:
    """Do something that no other process does meanwhile, or has not finished after a minute."""
    until = time.monotonic() + LONGEST_S
    while not claim(name) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    try:
        yield
    finally:
        release(name)


def claim(name: str) -> bool:
    """Claim a name until it is released; False if another process has it."""
    locks = _locks()
    if locks is not None:
        try:
            fcntl.lockf(locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte(name))
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
    return True


def release(name: str) -> None:
    """Give a claim back."""
    locks = _locks()
    if locks is not None:
        with contextlib.suppress(OSError):
            fcntl.lockf(locks, fcntl.LOCK_UN, 1, _byte(name))


def is_shared() -> bool:
    """Whether what one process keeps is found by others."""
    return _locks() is not None


def _locks() -> int | None:
    where = folder()
    return None if where is None else _opened(where)


@functools.cache
def _opened(where: Path) -> int | None:
    """The file of locks, open as long as the process: closing it would end all claims."""
    if fcntl is None:
        return None
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(where / "claims", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None


def _byte(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")

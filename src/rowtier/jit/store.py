"""The folder where machine code is kept, one file for each kernel and its types of arguments.

A file's name says what it was made from, so that it is right or not looked at, never replaced by
another and never deleted here. Files are written beside their place and renamed. Who compiles a
kernel claims it: a lock on one byte of one file, which ends with the process whatever happens.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
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
    return where is not None and (where / name).exists()


def read(name: str) -> bytes | None:
    """What was kept under a name; None if nothing was, or not all of it."""
    where = folder()
    try:
        kept = (where / name).read_bytes() if where else b""
    except OSError:
        return None
    checked = hashlib.sha256(kept[_SUM_BYTES:]).digest() == kept[:_SUM_BYTES]
    return kept[_SUM_BYTES:] if checked else None


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
                file.write(hashlib.sha256(data).digest() + data)
            Path(beside).replace(where / name)
        except OSError:
            Path(beside).unlink()


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

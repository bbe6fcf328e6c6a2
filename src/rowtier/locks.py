"""One writer for each output: a lock that ends with its process, whatever happens to it.

The lock is on a hidden file beside the output, which names its holder. The file is removed by the
holder, so a lock counts only if the file that was locked still is the one that has the name.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rowtier.errors import UserError

try:
    import fcntl
except ImportError:  # Windows: nobody is kept out
    fcntl = None  # type: ignore[assignment]

_COMMAND = 120  # characters of a command that are shown


def lock(handle: int) -> None:
    """Lock an open file as soon as nobody else has it; nothing where there are no locks."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)


def is_free(handle: int) -> bool:
    """Whether nobody has an open file locked; then it is, from now on."""
    return _try_lock(handle) is True


@contextlib.contextmanager
def locked(path: Path, target: Path) -> Iterator[bool]:
    """Hold the lock file `path` of an output; False where the file system has no locks.

    Raises an error that names the holder if another process has it.
    """
    handle, real = _acquire(path, target)
    try:
        yield real
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        if real:
            fcntl.flock(handle, fcntl.LOCK_UN)  # also for children that were forked meanwhile
        os.close(handle)


def _acquire(path: Path, target: Path) -> tuple[int, bool]:
    while True:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        handle = os.open(path, flags, 0o666)
        try:
            got = _try_lock(handle)
            if got is False:
                raise UserError(_busy(handle, target))
            if _is_at(handle, path):
                os.truncate(handle, 0)
                os.pwrite(handle, _holder(), 0)
                return handle, got is True
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its last holder removed it meanwhile


def _try_lock(handle: int) -> bool | None:
    """True: locked now. False: someone else has it. None: there are no locks here."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(handle: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    mine = os.fstat(handle)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def _holder() -> bytes:
    facts = {"pid": os.getpid(), "host": socket.gethostname(), "command": " ".join(sys.argv)}
    return json.dumps(facts).encode()


def _busy(handle: int, target: Path) -> str:
    return (
        f"{target}: {_named(handle)} is writing it; wait until that has ended, end it, or give "
        "another output"
    )


def _named(handle: int) -> str:
    """The holder in words, as far as it is known."""
    for _ in range(20):  # it has the lock a moment before its name is in the file
        try:
            found = json.loads(os.pread(handle, 2**16, 0))
            pid, host, command = int(found["pid"]), str(found["host"]), str(found["command"])
        except (ValueError, KeyError, TypeError):
            pid, host, command = 0, "", ""
        if pid and (host != socket.gethostname() or _lives(pid)):
            shown = "".join(c if c.isprintable() else "?" for c in command)
            shown = shown if len(shown) <= _COMMAND else shown[: _COMMAND - 1] + "…"
            where = "" if host == socket.gethostname() else f" on {host}"
            return f"process {pid}{where}" + (f" ({shown})" if shown else "")
        time.sleep(0.005)
    return "another process"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # someone else's
        return True
    return True

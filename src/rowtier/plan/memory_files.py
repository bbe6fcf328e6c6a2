"""Files of memory that the processes of a machine share; those of killed processes are removed."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path

from rowtier.errors import UserError
from rowtier.units import show_bytes

_PREFIX = "rowtier-remap-"
SHARED = "/dev/shm"


def aligned(size: int) -> int:
    """Bytes of an array with the gap to the next."""
    return -(-size // 64) * 64


def _folders() -> list[str]:
    """Where memory files may lie: in memory, or else on a disk."""
    shared = [SHARED] if os.access(SHARED, os.W_OK) else []
    return [*shared, tempfile.gettempdir()]


def memory_file(size_bytes: int, *, in_memory: bool = True) -> str:
    """A file that really has so much room: writing to mapped memory that has none is a crash."""
    said = []
    for folder in _folders() if in_memory else [tempfile.gettempdir()]:
        try:
            path = _allotted(folder, size_bytes)
        except OSError as error:
            said.append(f"{folder}: {error.strerror}")
            continue
        if said:
            warnings.warn(
                f"remap tables need {show_bytes(size_bytes)} ({'; '.join(said)}), so they are in "
                f"{folder}, which may be slower: enlarge {SHARED} (docker run --shm-size)",
                stacklevel=3,
            )
        return path
    raise UserError(
        f"the remap tables need {show_bytes(size_bytes)}, and there is no room for them "
        f"({'; '.join(said)}): enlarge {SHARED} (docker run --shm-size), or set TMPDIR to a folder "
        "that has the room"
    )


def _allotted(folder: str, size_bytes: int) -> str:
    handle, path = tempfile.mkstemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=folder)
    try:
        os.posix_fallocate(handle, 0, size_bytes)
    except BaseException:
        remove_file(path)
        raise
    finally:
        os.close(handle)
    return path


def remove_file(path: str) -> None:
    """Remove a file's name; who has it open goes on."""
    Path(path).unlink(missing_ok=True)


def sweep_files() -> None:
    """Remove files of processes that were killed."""
    for path in (path for folder in _folders() for path in Path(folder).glob(f"{_PREFIX}*")):
        pid = path.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not _alive(int(pid)):
            remove_file(str(path))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

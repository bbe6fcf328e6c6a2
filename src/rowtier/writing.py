"""Writing files: whole or not at all, and nothing that is not ours is touched.

A file is written beside its place, under a hidden name of ours, and renamed when it is on the
disk. Links are followed; devices, pipes and open files (`/dev/stdout`) are written to.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import xxhash

from rowtier.errors import UserError
from rowtier.locks import is_free, lock
from rowtier.reading import StrPath

_LONGEST = 200  # bytes of a name that leave room for ours around it; most systems take 255
_OPEN_FILES = re.compile(r"/(?:dev|proc/(?:self|thread-self|\d+(?:/task/\d+)?))/fd/(\d+)")


def write_atomic(path: StrPath, content: str | bytes) -> None:
    """Write a file beside its place and rename it, so that it is never half there."""
    raw = content.encode() if isinstance(content, str) else content
    with writing(Path(path)):
        handle = _open_special(path)
        if handle is not None:
            with os.fdopen(handle, "wb") as file:
                file.write(raw)
            return
    with new_file(path) as temporary:
        temporary.write_bytes(raw)


@contextlib.contextmanager
def new_file(path: StrPath) -> Iterator[Path]:
    """Where to write a file that takes the place of `path` when the block ends without error."""
    if is_special(path):
        yield Path(path)
        return
    with writing(Path(path)):
        target = real(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep_files(target)
        handle, temporary = _temporary(target)
        try:
            yield temporary
            temporary.chmod(_mode(target, 0o666))
            os.fsync(handle)
            temporary.replace(target)
            sync_folder(target.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)


def real(path: StrPath) -> Path:
    """The place that a path leads to, all links followed: the links stay what they are."""
    place = Path(os.path.realpath(path))
    if place.is_symlink():  # only links in a circle are left
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if not place.name:
        raise UserError(f"{path}: is the root of all folders, which nothing replaces; name a place")
    return place


def is_special(path: StrPath) -> bool:
    """Whether a path is a device, a pipe or an open file: written to, never replaced."""
    if _own_handle(path) is not None:
        return True
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - a str or a Path
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def hidden(target: Path, kind: str) -> Path:
    """The name of something of ours beside a target, such as its lock."""
    name = target.name
    if len(os.fsencode(name)) > _LONGEST:
        name = xxhash.xxh3_64(os.fsencode(name)).hexdigest()
    return target.with_name(f".{name}.rowtier-{kind}")


def leftovers(target: Path, kind: str) -> list[Path]:
    """Temporary files or folders of ours beside a target; nobody else's dotfiles."""
    ours = re.compile(re.escape(hidden(target, kind).name) + r"-[a-z0-9_]{8}")
    try:
        with os.scandir(target.parent) as entries:
            names = [entry.name for entry in entries if ours.fullmatch(entry.name)]
    except FileNotFoundError:
        return []
    return [target.with_name(name) for name in names]


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that does not sync folders
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the operating system says about a write into an error for people."""
    try:
        yield
    except OSError as error:
        if isinstance(error, (BlockingIOError, ChildProcessError, ConnectionError)):
            raise
        raise UserError(
            f"{path}: cannot be written ({error.strerror or error}); nothing is half-written. "
            "Check the path, its permissions and the free space"
        ) from error


def _temporary(target: Path) -> tuple[int, Path]:
    """A new file beside a target, locked as long as it is open, so that nobody sweeps it."""
    while True:
        prefix = f"{hidden(target, 'file').name}-"
        handle, name = tempfile.mkstemp(prefix=prefix, dir=target.parent)
        try:
            lock(handle)
            if os.fstat(handle).st_nlink:
                return handle, Path(name)
        except BaseException:
            os.close(handle)
            Path(name).unlink(missing_ok=True)
            raise
        os.close(handle)  # it was swept before it was locked


def _sweep_files(target: Path) -> None:
    """Remove what writers of this file left when they were killed."""
    for path in leftovers(target, "file"):
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                if is_free(handle):
                    path.unlink()
            finally:
                os.close(handle)


def _open_special(path: StrPath) -> int | None:
    """An open file for what is written to and not replaced; None for all other paths."""
    own = _own_handle(path)
    if own is not None:
        return os.dup(own)  # and not opened anew, which would begin at its start again
    return os.open(path, os.O_WRONLY) if is_special(path) else None


def _own_handle(path: StrPath) -> int | None:
    """The number of an open file of this process that a path names, such as `/dev/stdout`."""
    place = os.path.abspath(path)  # noqa: PTH100 - links are followed one by one
    for _ in range(40):
        found = _OPEN_FILES.fullmatch(place)
        if found:
            return int(found.group(1)) if _is_own(place) else None
        try:
            place = os.path.normpath(Path(place).parent / Path(place).readlink())
        except (OSError, ValueError):
            return None
    return None


def _is_own(place: str) -> bool:
    parts = place.split("/")
    return parts[1] == "dev" or parts[2] in ("self", "thread-self", str(os.getpid()))


def _mode(target: Path, usual: int) -> int:
    """The permissions of what is replaced, or those of something new."""
    try:
        return stat.S_IMODE(target.stat().st_mode)
    except OSError:
        return usual & ~_umask()


def folder_mode(target: Path) -> int:
    """The permissions that a folder has, or would have if it were made now."""
    return _mode(target, 0o777)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current

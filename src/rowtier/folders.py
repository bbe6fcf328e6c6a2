"""Writing folders: all of a result or the one before it, one writer at a time.

A result is filled into a hidden folder beside its place, described in `manifest.json`, brought to
the disk and exchanged with what was there, in one step. Where a file system has no exchange, there
are two renames, and the next run puts the old result back if a kill came between them.

Only files that the old manifest names are ever deleted. While an output is claimed, everything of
ours beside it that has a temporary name was left by a killed run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from rowtier.errors import InvalidError, UserError
from rowtier.locks import locked
from rowtier.manifest import MANIFEST, entries, read_manifest, write_manifest
from rowtier.reading import StrPath
from rowtier.renaming import exchange, move_to_free
from rowtier.writing import folder_mode, hidden, leftovers, real, sync_folder, writing

PARTS = "parts"  # of a profile that is not finished
_NEW, _OLD = "new", "old"
_SHOWN = 3  # names in an error
_PATIENCE = 100  # replacements while a folder is read
T = TypeVar("T")
_claims: ContextVar[frozenset[tuple[int, Path]]] = ContextVar("claims", default=frozenset())


@contextlib.contextmanager
def claimed(path: StrPath, marker: str, *, resume: bool = False) -> Iterator[Path]:
    """Be the only writer of an output folder; what killed runs left beside it is removed.

    Refused, before any work, are outputs that another process writes and folders that hold
    anything but an earlier result of the same kind, which has the file `marker`. `resume` keeps
    the parts of an interrupted profile.
    """
    with writing(Path(path)):
        target = real(path)
    mine = (os.getpid(), target)
    if mine in _claims.get():
        yield target
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(_place_for(target))
        with writing(target):
            if stack.enter_context(locked(hidden(target, "lock"), target)):
                _sweep(target, resume)
            check_replaceable(target, marker)
        token = _claims.set(_claims.get() | {mine})
        try:
            yield target
        finally:
            _claims.reset(token)


@contextlib.contextmanager
def replace_folder(path: StrPath, marker: str) -> Iterator[Path]:
    """Fill a temporary folder, then put it in the place of `path` in one step."""
    with claimed(path, marker) as target, writing(target):
        prefix = f"{hidden(target, _NEW).name}-"
        new = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        try:
            yield new
            write_manifest(new)
            _sync(new)
            new.chmod(folder_mode(target))
            _put(new, target)
        finally:
            shutil.rmtree(new, ignore_errors=True)


def read_steadily(folder: StrPath, read: Callable[[StrPath], T]) -> T:
    """Read a folder that someone may replace meanwhile: all of the old result or of the new."""
    for _ in range(_PATIENCE):
        before = _identity(folder)
        try:
            found = read(folder)
        except (OSError, UserError):
            if _identity(folder) == before:
                raise
        else:
            if _identity(folder) == before:
                return found
    raise UserError(
        f"{folder} was replaced {_PATIENCE} times while it was read: wait until its writer is done"
    )


def check_replaceable(target: Path, marker: str) -> None:
    """Refuse to overwrite a file, or a folder that holds anything but an earlier result."""
    here = _current_folder()
    if target in (here, *here.parents):
        raise UserError(
            f"{target}: is the current folder or holds it, and a result takes the place of a whole "
            f"folder; give one inside it, such as {here / 'result'}"
        )
    if not target.exists():
        return
    if not target.is_dir():
        raise UserError(f"{target}: is a file where a folder is to be written; give a new folder")
    if not any(target.iterdir()):
        return
    if not (target / MANIFEST).is_file():
        raise UserError(
            f"{target}: the folder is not empty and holds no {MANIFEST}, so this rowtier did not "
            "write it and it is left alone; give a new folder, or empty this one"
        )
    owned = _owned(target)
    if marker not in owned:
        raise UserError(
            f"{target}: the folder holds no {marker}, so it is a result of another kind and left "
            "alone; give a new folder, or empty this one"
        )
    foreign = [name for name in entries(target) if not _is_ours(target, name, owned)]
    if foreign:
        more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
        named = ", ".join(name if name.isprintable() else ascii(name) for name in foreign[:_SHOWN])
        raise UserError(
            f"{target}: holds {named}{more}, which rowtier did not write and "
            "would lose by replacing the folder; move that elsewhere, or give a new folder"
        )


@contextlib.contextmanager
def _place_for(target: Path) -> Iterator[None]:
    """The folder around an output, made if need be; not kept if nothing comes of it."""
    made = [target.parent, *target.parent.parents]
    made = [folder for folder in made if not folder.exists()]
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for folder in made:
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()
        raise


def _put(new: Path, target: Path) -> None:
    """Let a complete folder take its place; what was there is removed as far as it is ours."""
    if not target.exists():
        with contextlib.suppress(FileExistsError):
            move_to_free(new, target)
            sync_folder(target.parent)
            return
    # From here on the temporary name is that of the old folder, of which only some is ours.
    old = target.with_name(new.name.replace(f"rowtier-{_NEW}-", f"rowtier-{_OLD}-"))
    move_to_free(new, old)
    try:
        exchanged = exchange(old, target)
    except OSError:
        move_to_free(old, new)
        raise
    if not exchanged:
        move_to_free(old, new)
        move_to_free(target, old)
        move_to_free(new, target)
    sync_folder(target.parent)
    _dispose(old, target)


def _dispose(old: Path, target: Path) -> None:
    """Delete the files of an old result; anything else goes on in the new one.

    What cannot be removed stays under its temporary name, for the next run to try again.
    """
    with contextlib.suppress(OSError, InvalidError):
        owned = _owned(old) if (old / MANIFEST).is_file() else set()
        for name in entries(old):
            if not _is_ours(old, name, owned):
                _keep(old / name, target / name)
        for name in entries(old):
            if name != MANIFEST and _is_ours(old, name, owned) and (old / name).is_file():
                (old / name).unlink()
        for folder in [entry for entry in old.iterdir() if entry.name != MANIFEST]:
            _remove_empty(folder)
        (old / MANIFEST).unlink(missing_ok=True)  # last: without it nothing is known to be ours
        old.rmdir()


def _keep(found: Path, place: Path) -> None:
    """Move something that is not ours to its place in the new folder, or to one beside it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        with contextlib.suppress(FileExistsError):
            move_to_free(found, place.with_name(f"{place.name}.kept-{number}") if number else place)
            return
        number += 1


def _remove_empty(folder: Path) -> None:
    """Remove folders that hold nothing but folders that hold nothing."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for entry in list(folder.iterdir()):
        _remove_empty(entry)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _sweep(target: Path, resume: bool) -> None:
    """Remove what killed runs left beside a claimed output."""
    for old in leftovers(target, _OLD):
        if not target.exists() and _is_whole(old):  # killed between two renames
            move_to_free(old, target)
        else:
            _dispose(old, target)
    for new in leftovers(target, _NEW):
        shutil.rmtree(new, ignore_errors=True)
    if not resume:
        drop_parts(target)


def drop_parts(target: Path) -> None:
    """Remove the parts of a profile, under another name: none of them is there by half."""
    if not hidden(target, PARTS).exists():
        return
    gone = Path(tempfile.mkdtemp(prefix=f"{hidden(target, _NEW).name}-", dir=target.parent))
    with contextlib.suppress(FileNotFoundError):
        hidden(target, PARTS).rename(gone / PARTS)
    shutil.rmtree(gone, ignore_errors=True)


def _owned(folder: Path) -> set[str]:
    return {MANIFEST, *read_manifest(folder, "write it").files}


def _is_whole(folder: Path) -> bool:
    with contextlib.suppress(OSError, UserError):
        return _owned(folder) <= set(entries(folder))
    return False


def _identity(folder: StrPath) -> tuple[int, ...]:
    try:
        found = os.stat(folder)  # noqa: PTH116 - a str or a Path
    except (OSError, ValueError):
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was removed
        return Path("/nowhere")


def _is_ours(folder: Path, name: str, owned: set[str]) -> bool:
    """Whether an entry is a file that we wrote, or a folder that only such files were in."""
    path = folder / name
    if path.is_symlink():
        return False
    if path.is_dir():
        return any(file.startswith(f"{name}/") for file in owned)
    return name in owned and path.is_file()


def _sync(folder: Path) -> None:
    """Wait until a folder, and all in it, is on the disk."""
    for entry in list(folder.iterdir()):
        if entry.is_dir():
            _sync(entry)
            continue
        handle = os.open(entry, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        finally:
            os.close(handle)
    sync_folder(folder)

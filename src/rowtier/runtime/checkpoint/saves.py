"""The folder of a checkpoint: saves beside each other, and a file that says which are whole.

    checkpoint/
      current.json     the saves that are whole, oldest first; the last one is the checkpoint
      save-000012/     what torch.distributed.checkpoint wrote, and rowtier.json about it

`current.json` is replaced in one rename after a save is complete and on the disk; only then
are older saves removed. So at any moment it names saves that are whole. Without it, those are
whole whose own rowtier.json says so: it is written last.

A save may hold only the rows that changed since another one, which it names; that one stays as long
as the first does, whatever `keep` says.

A folder is ours if its name is that of a save and the rowtier.json in it has the same name;
nothing else is removed, and of a save only the files that rowtier and torch write there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rowtier.errors import RowtierError, UserError
from rowtier.locks import locked
from rowtier.runtime.checkpoint.about import (
    PREFIX,
    About,
    SaveIndex,
    number_of,
    read_sealed,
    sealed_text,
)
from rowtier.runtime.checkpoint.checksums import check_size
from rowtier.writing import writing

CURRENT, ABOUT = "current.json", "rowtier.json"
_LOCK = ".rowtier-lock"
_NEW = re.compile(rf"\.{PREFIX}\d+\.new")  # a save folder before it has its name
_OURS = re.compile(
    r"__\d+_\d+\.distcp|rows-\d+\.safetensors|\.metadata(\.tmp)?"
    rf"|\.?{re.escape(ABOUT)}(\.new)?"
)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keep other processes from saving into the folder meanwhile."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / _LOCK, folder):
        yield


def begin(folder: Path) -> Path:
    """A new save folder, with a number that none there has; what killed saves left is removed."""
    with writing(folder):
        if not (folder / CURRENT).exists():
            _check_ours(folder)
        kept, there = whole(folder), list(folder.iterdir())
        for path in there:
            if path.name not in kept and _is_ours(path):
                remove(path)
        # Above those that were just removed: a rank of theirs may still be writing.
        numbers = [number_of(path.name) or 0 for path in there]
        name = f"{PREFIX}{max(numbers, default=0) + 1:06d}"
        # It gets its name with the file that shows whose it is.
        new = folder / f".{name}.new"
        new.mkdir()
        (new / ABOUT).write_text(sealed_text(About(made_as=name)), encoding="utf-8")
        return new.rename(folder / name)


def finish(save: Path, about: About, keep: int) -> None:
    """Make a complete save the current one, then remove those that are not kept."""
    folder = save.parent
    with writing(folder):
        before = [name for name in whole(folder) if (folder / name).is_dir()]
        _write(save / ABOUT, sealed_text(about.model_copy(update={"made_as": save.name})))
        names = [*before, save.name]
        needed = {link.name for name in names[-keep:] for link in _links(folder / name)}
        kept = tuple(name for name in names if name in needed)
        _write(folder / CURRENT, sealed_text(SaveIndex(saves=kept)))
    for name in names:
        if name not in needed:
            remove(folder / name)


def chain(save: Path) -> list[tuple[Path, About]]:
    """The saves that are read one after the other for the rows of one, which is the last."""
    found = [(save, about(save))]
    while (before := found[0][1].follows) is not None:
        path, later = save.parent / before.save_name, found[0][0]
        if not (path / ABOUT).exists():
            raise UserError(
                f"{later}: holds the rows that changed since {before.save_name}, and there is no "
                f"such save beside it: put {path} back, or load a save that is whole by itself"
            )
        its = about(path)
        if its.weights != before.weights or its.chain >= found[0][1].chain:
            raise UserError(
                f"{later}: holds the rows that changed since {before.save_name}, and {path} is "
                "another one now: put the right one back, or load a save that is whole by "
                "itself"
            )
        found.insert(0, (path, its))
    return found


def _links(save: Path) -> Iterator[Path]:
    """A save and those that it needs, as far as they are there."""
    yield save
    found = _about_here(save)
    for _ in range(found.chain if found is not None else 0):
        if found is None or found.follows is None:
            return
        before = save.parent / found.follows.save_name
        yield before
        found = _about_here(before)


def whole(folder: Path) -> list[str]:
    """The names of the saves that are whole, oldest first."""
    if (folder / CURRENT).exists():
        return list(read_sealed(SaveIndex, folder / CURRENT).saves)
    numbered = [path for path in folder.iterdir() if number_of(path.name) is not None]
    found = {path.name: _about_here(path) for path in sorted(numbered, key=_number)}
    return [name for name, its in found.items() if its and its.made_as == name and its.is_whole]


def current(folder: Path) -> Path:
    """The save to load: the last whole one of a checkpoint, or a save folder itself."""
    if (folder / ABOUT).exists():
        return folder
    names = whole(folder) if folder.is_dir() else []
    if not names:
        what = "holds no whole save" if folder.is_dir() else "there is no such folder"
        raise UserError(f"{folder}: {what}; give the folder that save_checkpoint was called with")
    save = folder / names[-1]
    if not (save / ABOUT).exists():
        raise UserError(
            f"{save / ABOUT}: there is no such file, and {folder / CURRENT} names {save.name} as "
            f"the current save: put the save back, or load another one by its own folder"
        )
    return save


def about(save: Path) -> About:
    """What rowtier wrote about a save, whose files all have the size that they had."""
    found = read_sealed(About, save / ABOUT)
    if not found.is_whole:
        raise UserError(
            f"{save}: the save was never completed; load {save.parent}, which knows those that were"
        )
    for name, file in found.files.items():
        check_size(save / name, file.size_bytes)
    return found


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds saves, or is one."""
    return (folder / CURRENT).exists() or (folder / ABOUT).exists()


def check(folder: Path) -> dict[str, Any]:
    """Compare every byte of all saves with its checksum; what there is."""
    names = [""] if (folder / ABOUT).exists() else whole(folder)
    total_bytes = 0
    for name in names:
        save = folder / name
        *_, (_, found) = chain(save)
        if not found.files:
            raise UserError(f"{save}: was saved without checksums; save again to have them")
        for file, saved in found.files.items():
            found.check_file(save / file)
            total_bytes += saved.size_bytes
    return {"kind": "checkpoint", "saves": len(names), "bytes": total_bytes}


def remove(save: Path) -> None:
    """Remove a save of ours, except what others put into it; last the file that marks it."""
    with suppress(OSError):
        paths = [path for path in save.iterdir() if _OURS.fullmatch(path.name)]
        for path in sorted(paths, key=lambda path: path.name == ABOUT):
            path.unlink(missing_ok=True)
        save.rmdir()


def _is_ours(path: Path) -> bool:
    """Whether a folder was made by `begin`, and not by hand or as a copy of a save."""
    if path.is_symlink() or not path.is_dir():
        return False
    if _NEW.fullmatch(path.name):
        return True
    if number_of(path.name) is None:
        return False
    # An empty one is what is left if removing it was interrupted.
    found = _about_here(path)
    return not any(path.iterdir()) if found is None else found.made_as == path.name


def _about_here(path: Path) -> About | None:
    try:
        return read_sealed(About, path / ABOUT)
    except RowtierError:
        return None


def _number(path: Path) -> int:
    return number_of(path.name) or 0


def _check_ours(folder: Path) -> None:
    """Refuse a folder that was made for something else."""
    ours = (_LOCK, f".{CURRENT}.new")
    if any(path.name not in ours and not _is_ours(path) for path in folder.iterdir()):
        raise UserError(
            f"{folder}: the folder is not empty and holds no {CURRENT}, so it is left alone; "
            "give a new folder, or empty this one"
        )


def _write(path: Path, text: str) -> None:
    """Replace a file in one rename, with everything on the disk before and after it."""
    _sync(path.parent)
    beside = path.with_name(f".{path.name}.new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

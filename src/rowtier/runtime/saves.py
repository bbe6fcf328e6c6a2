"""The folder of a checkpoint: saves beside each other, and a file that says which are whole.

    checkpoint/
      current.json     the saves that are whole, oldest first; the last one is the checkpoint
      save-000012/     what torch.distributed.checkpoint wrote, and rowtier.json about it

`current.json` is replaced in one rename after a save is complete and on the disk; only then
are older saves removed. So at any moment it names saves that are whole.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from rowtier.errors import UserError
from rowtier.files import FORMAT_VERSION, check_version, dump_json, read_mapping, writing

CURRENT, ABOUT = "current.json", "rowtier.json"
_PREFIX = "save-"


def begin(folder: Path) -> Path:
    """A new save folder, with a number that none there has."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / CURRENT).exists() and any(
            not path.name.startswith((_PREFIX, f".{CURRENT}")) for path in folder.iterdir()
        ):
            raise UserError(
                f"{folder}: the folder is not empty and holds no {CURRENT}, so it is left alone; "
                "give a new folder, or empty this one"
            )
        numbers = [_number(path.name) for path in folder.glob(f"{_PREFIX}*")]
        made = folder / f"{_PREFIX}{max(numbers, default=0) + 1:06d}"
        made.mkdir()
        return made


def finish(save: Path, about: dict[str, Any], keep: int) -> None:
    """Make a complete save the current one, then remove those that are not kept."""
    folder = save.parent
    with writing(folder):
        _write(save / ABOUT, about)
        names = [name for name in whole(folder) if (folder / name).is_dir()]
        names = [*names, save.name][-keep:]
        _write(folder / CURRENT, {"saves": names})
    for path in folder.glob(f"{_PREFIX}*"):
        if path.name not in names:
            shutil.rmtree(path, ignore_errors=True)


def whole(folder: Path) -> list[str]:
    """The names of the saves that are whole, oldest first."""
    path = folder / CURRENT
    if not path.exists():
        return []
    data = read_mapping(path)
    check_version(path, data)
    return [str(name) for name in data["saves"]]


def current(folder: Path) -> Path:
    """The save to load: the last whole one of a checkpoint, or a save folder itself."""
    if (folder / ABOUT).exists():
        return folder
    names = whole(folder) if folder.is_dir() else []
    if not names:
        what = "holds no whole save" if folder.is_dir() else "there is no such folder"
        raise UserError(f"{folder}: {what}; give the folder that save_checkpoint was called with")
    return folder / names[-1]


def about(save: Path) -> dict[str, Any]:
    """What rowtier wrote about a save."""
    data = read_mapping(save / ABOUT)
    check_version(save / ABOUT, data)
    return data


def _number(name: str) -> int:
    digits = name.removeprefix(_PREFIX)
    return int(digits) if digits.isdecimal() else 0


def _write(path: Path, data: dict[str, Any]) -> None:
    """Replace a file in one rename, with everything on the disk before and after it."""
    _sync(path.parent)
    beside = path.with_name(f".{path.name}.new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(dump_json({"format_version": FORMAT_VERSION, **data}))
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

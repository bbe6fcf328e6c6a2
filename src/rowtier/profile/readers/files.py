"""Finding data files, and saying in plain words why one cannot be read."""

from __future__ import annotations

import contextlib
import glob
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from rowtier.errors import InvalidError, Mistake, RowtierError, UserError
from rowtier.reading import StrPath
from rowtier.special import refuse_special

# What decoders raise for a file that is not what it should be.
_DECODING = (
    pa.ArrowException,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,  # among them text that is not Unicode
    RuntimeError,  # among them zip files of a kind that Python does not read
)


def find_files(data: StrPath) -> tuple[list[Path], bool]:
    """The files a path stands for, in order; and whether each of them was asked for by name.

    Files that begin with "." or "_" are no data, as everywhere in the Parquet world.
    """
    text = os.fspath(data)
    path = Path(text)
    refuse_special(path)
    with reading(path):
        if path.is_dir():
            return _below(path), False
        if path.exists():
            return [path], True
    if not glob.has_magic(text):
        remote = "; copy or mount remote data first" if "://" in text else ""
        raise UserError(f"{text}: there is no such file or folder; check the path{remote}")
    matches = glob.glob(text, recursive=True)  # noqa: PTH207 - Path.glob wants a folder apart
    found = [Path(name) for name in matches if Path(name).name[0] not in "._"]
    files = {file for name in found for file in (_below(name) if name.is_dir() else [name])}
    if not files:
        raise UserError(f"{text}: no file matches; check the pattern, and quote it for the shell")
    return in_order(files), True


def in_order(files: Iterable[Path]) -> list[Path]:
    """Files in the order of the data: sorted, folder by folder."""
    return sorted(files, key=lambda file: file.parts)


def _below(folder: Path) -> list[Path]:
    def fail(error: OSError) -> None:
        raise error

    files: list[Path] = []
    with reading(folder):
        for here, folders, names in os.walk(folder, onerror=fail):
            folders[:] = [name for name in folders if name[0] not in "._"]
            files += [Path(here, name) for name in names if name[0] not in "._"]
    if not files:
        raise UserError(f"{folder}: the folder is empty; give one that holds data files")
    return in_order(files)


def stamp_of(path: StrPath) -> str:
    """Size and age of a file, to notice that it changed."""
    with reading(path):
        found = os.stat(path)  # noqa: PTH116 - called for every part, and Path is not cheap
    return f"{found.st_size}@{found.st_mtime_ns}"


def check_unchanged(path: StrPath, stamp: str) -> None:
    """Refuse a file that is no longer the one that the parts were made from."""
    if stamp_of(path) != stamp:
        raise changed(path)


def changed(path: StrPath) -> UserError:
    """The error for a file that is no longer the one that the parts were made from."""
    return UserError(
        f"{path}: the file changed while the data was being read; "
        "wait until it is complete and start again"
    )


def damaged(path: StrPath, why: object, place: str = "") -> InvalidError:
    """The error for a file whose content cannot be decoded."""
    text = " ".join(str(why).split())[:200] or type(why).__name__
    return InvalidError(
        path, [Mistake(place, None, f"the file is cut off or damaged ({text}); write it anew")]
    )


@contextlib.contextmanager
def reading(path: StrPath, place: str = "") -> Iterator[None]:
    """Turn what the system or a decoder says about a file into an error for people."""
    try:
        yield
    except RowtierError:
        raise
    except FileNotFoundError:
        raise UserError(
            f"{path}: the file vanished while the data was being read; put it back and run again"
        ) from None
    except PermissionError:
        raise UserError(
            f"{path}: no permission to read it; run as its owner, or change it with chmod +r"
        ) from None
    except MemoryError as error:  # Arrow's own is both this and an ArrowException
        raise UserError(
            f"{path}: not enough memory to read it ({error}); free some, use fewer workers, or "
            "write the file with smaller row groups"
        ) from None
    except _DECODING as error:
        raise damaged(path, error, place) from None
    except OSError as error:
        # Decoders raise a plain OSError without a number for what is wrong inside a file.
        if error.errno is None:
            raise damaged(path, error, place) from None
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None

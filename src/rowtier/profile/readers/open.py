"""Choosing the reader by what the path holds."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rowtier.errors import UserError
from rowtier.profile.readers.base import Source
from rowtier.profile.readers.files import find_files, in_order, reading
from rowtier.reading import StrPath

_ENDINGS = {
    ".parquet": "parquet",
    ".parq": "parquet",
    ".pq": "parquet",
    ".npz": "npz",
    ".pt": "embedding_bag",
    ".pt.gz": "embedding_bag",
    ".tsv": "criteo",
    ".tsv.gz": "criteo",
}
_ACCEPTED = (
    "accepted are Parquet, Criteo's TSV (40 fields, or 39 without label; plain or .gz), NumPy's "
    ".npz, and the .pt/.pt.gz of Meta's dlrm_datasets"
)
_HEAD_BYTES = 2**16


def open_source(
    data: StrPath | Iterable[Any], features: Sequence[str], *, samples: int | None = None
) -> Source:
    """Open data for reading: a file, folder or pattern, several of them, or batches from Python.

    Only metadata is read, and every feature is checked as far as it tells. `samples` is how
    many there are in the batches of an iterable, if that is known.
    """
    features = tuple(dict.fromkeys(features))
    if not features:
        raise UserError("no feature is asked for; name at least one")
    if isinstance(data, (str, os.PathLike)):
        return _open_files(*_found([data]), features)
    if isinstance(data, (list, tuple)) and data:
        paths = [entry for entry in data if isinstance(entry, (str, os.PathLike))]
        if len(paths) == len(data):
            return _open_files(*_found(paths), features)
    from rowtier.profile.readers.batches import open_batches

    return open_batches(data, features, samples)


def _found(paths: Sequence[StrPath]) -> tuple[list[Path], str]:
    """All files, and their format, on which they must agree."""
    kinds: dict[Path, str] = {}
    for path in paths:
        files, by_name = find_files(path)
        kinds.update(_kinds(files, by_name, path))
    first = in_order(kinds)[0]
    for file in in_order(kinds):
        if kinds[file] != kinds[first]:
            pattern = first.parent / f"*{first.suffix}"
            raise UserError(
                f"{paths[0]}: holds files of several formats, {first} ({kinds[first]}) and {file} "
                f"({kinds[file]}); say which to read with a pattern such as '{pattern}'"
            )
    return in_order(kinds), kinds[first]


def _kinds(files: list[Path], by_name: bool, data: StrPath) -> dict[Path, str]:
    """The format of every file; in a folder, what has none is passed over."""
    named = {file: kind for file in files if (kind := _kind_by_ending(file))}
    if not by_name and named:
        return named  # not the notes and schemas that lie beside the data
    kinds = dict(named)
    for file in files:
        if file in named:
            continue
        kind, found = _kind_by_content(file)
        if kind:
            kinds[file] = kind
        elif by_name:
            raise UserError(f"{file}: {found} is none of the known formats; {_ACCEPTED}")
    if not kinds:
        raise UserError(
            f"{data}: none of the {len(files)} files in the folder is data, "
            f"{files[0].name} for one; {_ACCEPTED}"
        )
    return kinds


def _kind_by_ending(path: Path) -> str | None:
    name = path.name.lower()
    return next((kind for end, kind in _ENDINGS.items() if name.endswith(end)), None)


def _kind_by_content(path: Path) -> tuple[str | None, str]:
    """The format, or what else was found."""
    with reading(path), path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(b"\x1f\x8b"):
        try:
            inner = zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
        except zlib.error:
            return None, "damaged gzip"
        kind, found = _kind_of(inner)
        return (kind, found) if kind in ("criteo", "embedding_bag") else (None, f"gzip of {found}")
    return _kind_of(head)


def _kind_of(head: bytes) -> tuple[str | None, str]:
    """The format of data that begins so, or what else it looks like."""
    if not head:
        return None, "an empty file"
    if head.startswith(b"PAR1"):
        return "parquet", ""
    if head.startswith(b"PK\x03\x04"):
        if b".npy" in head[:512]:
            return "npz", ""
        return ("embedding_bag", "") if b"data.pkl" in head[:512] else (None, "a zip file")
    if head.startswith(b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"):
        return "embedding_bag", ""  # PyTorch before 1.6
    line = head.split(b"\n", 1)[0]
    if b"\0" in line or not line.isascii():
        return None, f"binary data that begins with {head[:8].hex(' ')}"
    if line.count(b"\t") >= 2:
        return "criteo", ""
    return None, f"text that begins with {line[:40].decode()!r}"


def _open_files(files: list[Path], kind: str, features: Sequence[str]) -> Source:
    if kind == "parquet":
        from rowtier.profile.readers.parquet import open_parquet

        return open_parquet(files, features)
    if kind == "criteo":
        from rowtier.profile.readers.criteo import open_criteo

        return open_criteo(files, features)
    if kind == "npz":
        from rowtier.profile.readers.npz import open_npz

        return open_npz(files, features)
    from rowtier.profile.readers.embedding_bag import open_embedding_bag

    return open_embedding_bag(files, features)

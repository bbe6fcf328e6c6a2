"""What a folder that rowtier wrote holds: `manifest.json` names every file, its size and hash.

Files that it names are rowtier's to replace, all others are not. Binary files are compared with it
when they are read; JSON and YAML are for people to edit, and have fingerprints of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import xxhash

from rowtier.errors import InvalidError, Mistake, UserError
from rowtier.fields import Count
from rowtier.files import FORMAT_VERSION, Noun, check_version, dump_json, parse
from rowtier.reading import read_mapping

MANIFEST = "manifest.json"
_CHUNK_BYTES = 2**20


class Sealed(Noun):
    """A file as it was written."""

    bytes: Count
    xxh3: str


class Manifest(Noun):
    """All files of a folder, those in folders inside it too, by their path in it."""

    files: dict[str, Sealed]

    def check(self, folder: Path, name: str, of: str, again: str) -> None:
        """Raise `InvalidError` unless a file is what was written; `of` says whose it is."""
        told = self.difference(folder, name, of)
        if told:
            raise InvalidError(folder / name, [Mistake("", None, f"{told}; {again} again")])

    def difference(self, folder: Path, name: str, of: str = "") -> str:
        """In words, how a file differs from what was written; empty if it does not."""
        if name not in self.files:
            return f"{MANIFEST} does not name this file, {of}: it was not written with the folder"
        return _difference(folder / name, self.files[name], of)


def write_manifest(folder: Path) -> None:
    """Describe all files of a folder, in the order of their names."""
    names = sorted(name for name in entries(folder) if name != MANIFEST)
    files = {name: sealed(folder / name).to_data() for name in names}
    data = {"format_version": FORMAT_VERSION, "files": files}
    (folder / MANIFEST).write_text(dump_json(data), encoding="utf-8")


def read_manifest(folder: Path, again: str) -> Manifest:
    """What a folder should hold; `again` says how it is written anew if that is not known."""
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(
            f"{path}: is missing, so nobody can tell whether the folder is whole; write the folder "
            f"anew: {again} again"
        )
    data = read_mapping(path)
    check_version(path, data)
    return parse(Manifest, data, path)


def sealed(path: Path) -> Sealed:
    """Size and hash of a file, read a piece at a time."""
    digest, size = xxhash.xxh3_64(), 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
            size += len(piece)
    return Sealed(bytes=size, xxh3=digest.hexdigest())


def entries(folder: Path, inside: str = "") -> Iterator[str]:
    """Paths of all that lies in a folder and its folders; of those, only the empty ones."""
    with os.scandir(folder) as found:
        listed = sorted(found, key=lambda entry: entry.name)
    for entry in listed:
        name = inside + entry.name
        below: tuple[str, ...] = ()
        if entry.is_dir(follow_symlinks=False):
            below = tuple(entries(Path(entry.path), f"{name}/"))
        yield from below or (name,)


def _difference(path: Path, wanted: Sealed, of: str) -> str:
    """In words, how a file differs from what was written; empty if it does not."""
    try:
        size = path.stat().st_size
        if size < wanted.bytes:
            return f"the file, {of}, was cut off: it has {size} of {wanted.bytes} bytes"
        if size > wanted.bytes:
            return f"the file, {of}, grew after it was written, from {wanted.bytes} to {size} bytes"
        found = sealed(path)
    except FileNotFoundError:
        return f"the file, {of}, is missing"
    except OSError as error:
        return f"the file, {of}, cannot be read ({error.strerror})"
    if found == wanted:
        return ""
    return (
        f"the file, {of}, changed after it was written: its xxh3 is {found.xxh3}, that in "
        f"{MANIFEST} {wanted.xxh3}"
    )

"""What rowtier writes about the saves of a checkpoint: `current.json` and `rowtier.json`.

Both are sealed: they hold a fingerprint of their content, and are exactly the text that rowtier
writes for it, so that no bit of them can change unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, Field, StrictInt

from rowtier.errors import InvalidError, Mistake, UserError
from rowtier.files import (
    FORMAT_VERSION,
    Noun,
    check_version,
    dump_json,
    fingerprint_of,
    parse,
)
from rowtier.reading import read_mapping, read_text
from rowtier.runtime.checkpoint.checksums import BLOCK_BYTES, WAY_OUT, SummedRun, first_change

PREFIX = "save-"
N = TypeVar("N", bound="_Sealed")


def _file_name(name: str) -> str:
    if name in ("", ".", "..") or set(name) & set("/\\\0"):
        raise ValueError("must be the name of a file in the folder of the save")
    return name


def _save_name(name: str) -> str:
    if number_of(name) is None:
        raise ValueError(f"must be the name of a save beside this file, such as {PREFIX}000012")
    return name


def number_of(name: str) -> int | None:
    """The number in the name of a save; None: it is no such name."""
    digits = name.removeprefix(PREFIX)
    numbered = name.startswith(PREFIX) and digits.isascii() and digits.isdecimal()
    return int(digits) if numbered else None


_Size = Annotated[StrictInt, Field(ge=0)]
_FileName = Annotated[str, AfterValidator(_file_name)]
SaveName = Annotated[str, AfterValidator(_save_name)]


class SavedItem(Noun):
    """A tensor or a value in a file."""

    name: str
    size_bytes: _Size = Field(alias="bytes")
    xxh3: tuple[str, ...]  # of its blocks


class SavedFile(Noun):
    """A file of a save: its items one after the other, without gaps."""

    size_bytes: _Size = Field(alias="bytes")
    items: tuple[SavedItem, ...]


class SavedTable(Noun):
    """A table's weights among the tensors."""

    name: str
    table: str
    pooling: str
    vocabulary: str | None = None
    position: str | None = None  # the name of its weights, and how many deltas led there


class SavedRows(Noun):
    """A tensor whose rows are in the files of ranks: all of them, or those that changed."""

    shape: tuple[_Size, ...]
    dtype: str


class FollowedSave(Noun):
    """The save beside it that has the rows which a save does not have."""

    save_name: SaveName = Field(alias="save")
    weights: str  # their name there


class _Sealed(Noun):
    """What is written with a fingerprint."""

    way_out: ClassVar[str] = WAY_OUT

    def size_mistakes(self) -> list[Mistake]:
        """Numbers that do not go together."""
        return []


class About(_Sealed):
    """`rowtier.json`: what a save holds."""

    made_as: SaveName | None = Field(None, alias="save")  # a copy has another name
    parts: tuple[str, ...] = ()
    tables: dict[str, SavedTable] = Field(default_factory=dict)
    files: dict[_FileName, SavedFile] = Field(default_factory=dict)
    weights: str | None = None  # the name of what is in it
    rows: dict[str, SavedRows] = Field(default_factory=dict)
    follows: FollowedSave | None = None
    chain: _Size = 0  # how many saves are read before it

    @property
    def is_whole(self) -> bool:
        """Whether the save was completed."""
        return bool(self.parts)

    def check_file(self, path: Path, start: int = 0, stop: int | None = None) -> None:
        """Refuse a file if any byte from `start` to `stop` is not what was saved."""
        saved = self.files.get(path.name)
        if saved is None:
            raise UserError(f"{path}: is no file of this save; {WAY_OUT}")
        try:
            with path.open("rb") as file:
                at = 0
                for item in saved.items:
                    run = SummedRun(at, at + item.size_bytes, item.xxh3)
                    at = run.stop
                    if run.stop <= start or (stop is not None and run.start >= stop):
                        continue
                    changed = first_change(file, run)
                    if changed is not None:
                        raise UserError(self._changed(path, item.name, *changed))
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror}); {WAY_OUT}") from None

    def _changed(self, path: Path, item: str, start: int, stop: int) -> str:
        table = self.table_of(item)
        of = f" of table {table!r}" if table is not None else ""
        what = f" ({item})" if item else ""
        return (
            f"{path}: bytes {start}-{stop}{of}{what} differ from what was saved (checksum); "
            f"{WAY_OUT}"
        )

    def size_mistakes(self) -> list[Mistake]:
        """Files whose items are not all of them."""
        return [
            Mistake(f"files.{name}", None, "the bytes of its items must add up to its own")
            for name, file in self.files.items()
            if sum(item.size_bytes for item in file.items) != file.size_bytes
            or any(len(i.xxh3) != -(-i.size_bytes // BLOCK_BYTES) for i in file.items)
        ]

    def table_of(self, item: str) -> str | None:
        """The table whose weights or optimizer state an item is."""
        here = f".{item}."
        fits = [t for t in self.tables.values() if f".{t.name}." in here]
        return max(fits, key=lambda t: len(t.name)).table if fits else None


class SaveIndex(_Sealed):
    """`current.json`: the saves that are whole, oldest first."""

    way_out: ClassVar[str] = (
        "remove the file: saves that are whole are then found by the rowtier.json in them"
    )

    saves: tuple[SaveName, ...]


def file_of(size_bytes: int, name: str, sums: tuple[str, ...]) -> SavedFile:
    """A file that is one item."""
    items = (SavedItem(name=name, size_bytes=size_bytes, xxh3=sums),) if size_bytes else ()
    return SavedFile(size_bytes=size_bytes, items=items)


def sealed_text(noun: _Sealed) -> str:
    """The text of a file with a fingerprint of its content."""
    data = {"format_version": FORMAT_VERSION, **noun.to_data()}
    return dump_json({**data, "fingerprint": fingerprint_of(data)})


def read_sealed(kind: type[N], path: Path) -> N:
    """Read such a file, or list everything that is wrong with it."""
    text, data = read_text(path), read_mapping(path)
    check_version(path, data)
    body = {key: value for key, value in data.items() if key != "fingerprint"}
    mistakes = _seal_mistakes(data, fingerprint_of(body), text, kind.way_out)
    if mistakes:
        raise InvalidError(path, mistakes)
    found = parse(kind, body, path)
    mistakes = found.size_mistakes()
    if mistakes:
        raise InvalidError(path, mistakes)
    return found


def _seal_mistakes(data: Mapping[str, Any], made: str, text: str, way_out: str) -> list[Mistake]:
    sealed = data.get("fingerprint")
    if sealed is None:
        return []  # by hand, or by a rowtier that did not seal: unknown keys are refused, though
    if sealed != made:
        why = f"the content has {made}, so it changed after it was written; {way_out}"
        return [Mistake("fingerprint", sealed, why)]
    if dump_json(data) != text:
        return [Mistake("", None, f"the file changed after it was written; {way_out}")]
    return []

"""Parquet: a file, a folder or a pattern, one part per row group.

Folders may be partitioned the Hive way (`day=3/hour=1/…`): a feature that is no column of
the files is looked for among the keys of the path.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rowtier.errors import InvalidError, Mistake
from rowtier.profile.readers.arrays import ACCEPTED, from_arrow, id_kind
from rowtier.profile.readers.base import Chunk, Columns, DataPart, Ids, missing, numbered
from rowtier.profile.readers.files import changed, check_unchanged, damaged, reading, stamp_of
from rowtier.reading import StrPath

MOST_GROUP_ROWS = 2**27  # a column of a row group is read at once: 1 GiB of numbers
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class _Opened(threading.local):
    """The file that this thread read last: its footer is not decoded for every row group."""

    path = ""
    stamp = ""
    file: Any = None
    names: frozenset[str] = frozenset()  # of its columns

    def __reduce__(self) -> tuple[type[_Opened], tuple[()]]:
        return (_Opened, ())  # a pickled source opens its files anew


@dataclass(frozen=True, eq=False)
class ParquetSource:
    """Row groups of one or more Parquet files."""

    parts: tuple[DataPart, ...]
    features: tuple[str, ...]
    whole_keys: frozenset[str] = frozenset()  # keys of the path whose values are all integers
    _opened: _Opened = field(default_factory=_Opened, repr=False)

    kind = "parquet"
    ordered = True

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return sum(part.samples or 0 for part in self.parts)

    def read(self, part: DataPart, features: Sequence[str]) -> Iterator[Chunk]:
        """A row group as one chunk."""
        file = self._open(part)
        if part.piece >= file.num_row_groups:
            raise changed(part.path)
        assert part.samples is not None
        if file.metadata.row_group(part.piece).num_rows != part.samples:
            raise changed(part.path)
        _check_columns(file.schema_arrow, features, part.path)
        columns = Columns(features, lambda name: self._column(part, name))
        yield Chunk(part.samples, columns, part.first_sample)

    def count_samples(self) -> int:
        """How many samples there are; the footers say so."""
        return self.samples

    def times(self, part: DataPart, column: str) -> pa.Array:
        """The values of a column, or of a key of the path, for every sample of a row group."""
        file = self._open(part)
        found = file.schema_arrow.get_all_field_indices(column)
        if len(found) > 1:
            raise InvalidError(part.path, [_two_columns(column)])
        if found:
            with reading(part.path, f"{column} in row group {part.piece}"):
                table = file.read_row_group(part.piece, columns=[column], use_threads=False)
                return table.column(column).combine_chunks()
        keys = path_keys(part.path)
        if column not in keys:
            raise InvalidError(part.path, [missing(column, [*file.schema_arrow.names, *keys])])
        value = keys[column]
        kind = pa.int64() if column in self.whole_keys else pa.large_string()
        told = int(value) if value is not None and column in self.whole_keys else value
        return pa.repeat(pa.scalar(told, kind), part.samples or 0)

    def _column(self, part: DataPart, name: str) -> Ids:
        file = self._open(part)
        if name not in self._opened.names:
            return self._constant(part, name)
        with reading(part.path, f"{name} in row group {part.piece}"):
            table = file.read_row_group(part.piece, columns=[name], use_threads=False)
            ids = from_arrow(table.column(name), part.path, name)
        if ids.samples != part.samples:
            why = f"{ids.samples} samples where the footer says {part.samples}"
            raise damaged(part.path, why, f"{name} in row group {part.piece}")
        return ids

    def _constant(self, part: DataPart, key: str) -> Ids:
        value = path_keys(part.path)[key]
        samples = part.samples or 0
        if value is None:
            return Ids(np.empty(0, dtype=np.int64), np.zeros(samples, dtype=np.int64))
        if key in self.whole_keys:
            return Ids(np.full(samples, int(value)))
        return Ids(pa.repeat(pa.scalar(value, pa.large_string()), samples))

    def _open(self, part: DataPart) -> Any:
        opened = self._opened
        check_unchanged(part.path, part.stamp)
        if (opened.path, opened.stamp) != (part.path, part.stamp):
            # Not memory-mapped: a file that is cut short meanwhile would kill the process.
            # Not buffered ahead: one column is wanted at a time, and buffers would be kept.
            with reading(part.path):
                if opened.file is not None:
                    opened.file.close()
                    pa.default_memory_pool().release_unused()
                opened.file = pq.ParquetFile(part.path, pre_buffer=False)
            opened.path, opened.stamp = part.path, part.stamp
            opened.names = frozenset(opened.file.schema_arrow.names)  # asking takes a while
        return opened.file


def open_parquet(files: Sequence[Path], features: Sequence[str]) -> ParquetSource:
    """Read the footers of all files, check the columns, and list the row groups."""
    groups: list[DataPart] = []
    names: dict[str, None] = {}
    kinds: dict[str, tuple[str, Path]] = {}
    for path in files:
        stamp = stamp_of(path)
        with reading(path), pq.ParquetFile(path) as file:
            schema, metadata = file.schema_arrow, file.metadata
            _check_columns(schema, features, path)
            _check_same_kind(schema, features, path, kinds)
            groups += _row_groups(path, stamp, metadata)
        names.update(dict.fromkeys([*schema.names, *path_keys(path)]))
    parts = numbered(groups, [group.samples or 0 for group in groups])
    return ParquetSource(parts, tuple(names), whole_keys(files))


def _row_groups(path: Path, stamp: str, metadata: Any) -> Iterator[DataPart]:
    for piece in range(metadata.num_row_groups):
        group = metadata.row_group(piece)
        if not 0 <= group.num_rows <= MOST_GROUP_ROWS:
            why = f"rows in one row group, and {MOST_GROUP_ROWS} are the most: write smaller ones"
            raise InvalidError(path, [Mistake(f"row group {piece}", group.num_rows, why)])
        if group.num_rows:
            # Of all columns: pyarrow can abort the process on a damaged footer if asked for one.
            weight = group.total_byte_size
            yield DataPart(0, str(path), weight, piece, samples=group.num_rows, stamp=stamp)


def _check_columns(schema: pa.Schema, features: Sequence[str], path: StrPath) -> None:
    """List every feature that the file cannot give."""
    mistakes: list[Mistake] = []
    keys = path_keys(path)
    for name in features:
        found = schema.get_all_field_indices(name)
        if not found and name not in keys:
            mistakes.append(missing(name, [*schema.names, *keys]))
        elif len(found) > 1:
            mistakes.append(_two_columns(name))
        elif found and id_kind(schema.field(found[0]).type) is None:
            mistakes.append(Mistake(name, str(schema.field(found[0]).type), ACCEPTED))
    if mistakes:
        raise InvalidError(path, mistakes)


def _two_columns(name: str) -> Mistake:
    return Mistake(name, None, "stands for two columns; rename one of them")


def _check_same_kind(
    schema: pa.Schema, features: Iterable[str], path: Path, kinds: dict[str, tuple[str, Path]]
) -> None:
    """Refuse a feature that is a number in one file and a string in another."""
    for name in features:
        kind = id_kind(schema.field(name).type) if name in schema.names else None
        if kind in (None, "null"):
            continue
        assert kind is not None
        first, where = kinds.setdefault(name, (kind, path))
        if first != kind:
            text = f"is {first} in {where}; a feature must be of one kind in all files"
            raise InvalidError(path, [Mistake(name, str(schema.field(name).type), text)])


def path_keys(path: StrPath) -> Mapping[str, str | None]:
    """The Hive keys in a path: `day=3/part-0.parquet` has day 3."""
    pairs = [name.split("=", 1) for name in Path(path).parts[:-1] if "=" in name]
    return {unquote(k): None if v == _NO_VALUE else unquote(v) for k, v in pairs}


def whole_keys(files: Sequence[Path]) -> frozenset[str]:
    """The Hive keys whose values are integers in every file."""
    whole: dict[str, bool] = {}
    for path in files:
        for key, value in path_keys(path).items():
            fits = value is None or re.fullmatch(r"[+-]?\d{1,18}", value) is not None
            whole[key] = whole.get(key, True) and fits
    return frozenset(key for key, fits in whole.items() if fits)

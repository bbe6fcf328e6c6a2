"""Columns of data files that are no features, such as labels: numbers, sample after sample.

The readers of ids know whole numbers and strings; labels and dense inputs are floats, too.
"""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rowtier.errors import InvalidError, Mistake, UserError
from rowtier.profile.readers import DataPart, Source
from rowtier.profile.readers.base import missing
from rowtier.profile.readers.criteo import COLUMNS as CRITEO_COLUMNS
from rowtier.profile.readers.files import changed, check_unchanged, reading
from rowtier.profile.readers.npz import read_array
from rowtier.profile.readers.parquet import path_keys

Numbers = NDArray[Any]
ACCEPTED = (
    "columns are numbers, booleans, times, or lists of them of one fixed size; cast it, or make "
    "it a feature of a table"
)
_DENSE = CRITEO_COLUMNS[:14]  # the label and the whole numbers


class PartColumns(Protocol):
    """The columns of a part, from its first sample on."""

    def take(self, samples: int) -> dict[str, Numbers]:
        """The next samples."""
        ...


class FileColumns(Protocol):
    """Columns of some files."""

    def open(self, part: DataPart) -> PartColumns:
        """The columns of a part."""
        ...


def open_columns(source: Source, names: Sequence[str]) -> FileColumns:
    """Check that the files have these columns, as far as that is known without reading them."""
    names = tuple(dict.fromkeys(names))
    if not names:
        return _NoColumns()
    if source.kind == "parquet":
        return _ParquetColumns.checked(source, names)
    if source.kind == "npz":
        return _NpzColumns.checked(source, names)
    path = source.parts[0].path if source.parts else source.kind
    if source.kind == "criteo":
        unknown = [name for name in names if name not in _DENSE]
        text = "Criteo's files have the columns label and I1 to I13 beside the features C1 to C26"
        if unknown:
            raise InvalidError(path, [Mistake(name, None, text) for name in unknown])
        return _CriteoColumns(names)
    raise UserError(
        f"{path}: asked for the column{'s' if len(names) > 1 else ''} "
        f"{', '.join(map(repr, names))}, and this format holds ids only; leave columns away"
    )


@dataclass
class _Arrays:
    """Columns that are in memory."""

    arrays: Mapping[str, Numbers]
    at: int = 0

    def take(self, samples: int) -> dict[str, Numbers]:
        start, self.at = self.at, self.at + samples
        return {name: array[start : self.at] for name, array in self.arrays.items()}


@dataclass(frozen=True)
class _NoColumns:
    def open(self, part: DataPart) -> PartColumns:  # noqa: ARG002
        return _Arrays({})


@dataclass
class _ParquetColumns:
    """Columns of Parquet files, a row group at a time."""

    names: tuple[str, ...]
    _path: str = ""
    _file: Any = field(default=None, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _ParquetColumns, (self.names,)  # another process opens its files anew

    @classmethod
    def checked(cls, source: Source, names: tuple[str, ...]) -> _ParquetColumns:
        first: dict[str, tuple[Any, str]] = {}
        for path in dict.fromkeys(part.path for part in source.parts):
            with reading(path):
                schema = pq.read_schema(path)
            mistakes = [m for name in names for m in _parquet_mistakes(schema, path, name, first)]
            if mistakes:
                raise InvalidError(path, mistakes)
        return cls(names)

    def open(self, part: DataPart) -> PartColumns:
        check_unchanged(part.path, part.stamp)
        if part.path != self._path:
            with reading(part.path):
                self._file, self._path = pq.ParquetFile(part.path, pre_buffer=False), part.path
        known = self._file.schema_arrow.names
        if part.piece >= self._file.num_row_groups:
            raise changed(part.path)
        inside = [name for name in self.names if name in known]
        with reading(part.path, f"row group {part.piece}"):
            table = self._file.read_row_group(part.piece, columns=inside, use_threads=False)
            found = {name: _numbers(table.column(name), part, name) for name in inside}
        keys = path_keys(part.path)
        for name in self.names:
            if name not in found:
                found[name] = np.full(part.samples or 0, int(str(keys[name])), dtype=np.int64)
        return _Arrays(found)


def _parquet_mistakes(
    schema: pa.Schema, path: str, name: str, first: dict[str, tuple[Any, str]]
) -> Iterator[Mistake]:
    keys = path_keys(path)
    if name not in schema.names:
        if name not in keys:
            yield missing(name, [*schema.names, *keys])
        elif not (keys[name] or "").lstrip("-").isdigit():
            yield Mistake(name, keys[name], f"is a key of the path and no number; {ACCEPTED}")
        return
    kind = schema.field(name).type
    stored = _stored_type(kind)
    if stored is None:
        yield Mistake(name, str(kind), ACCEPTED)
        return
    known, where = first.setdefault(name, (stored, path))
    if known != stored:
        yield Mistake(name, str(kind), f"is {known} in {where}; cast it to one type in all files")


def _stored_type(kind: pa.DataType) -> pa.DataType | None:
    """The type in which a column is handed on; None if it cannot be."""
    types = pa.types
    if types.is_fixed_size_list(kind):
        inner = _stored_type(kind.value_type)
        nested = inner is None or types.is_fixed_size_list(inner)
        return None if nested else pa.list_(inner, kind.list_size)
    if types.is_dictionary(kind):
        return _stored_type(kind.value_type)
    if types.is_boolean(kind) or types.is_floating(kind) or types.is_signed_integer(kind):
        return kind
    if types.is_decimal(kind):
        return pa.float64()
    if types.is_temporal(kind) or types.is_unsigned_integer(kind):
        return pa.int64()
    return None


def _numbers(column: pa.ChunkedArray, part: DataPart, name: str) -> Numbers:
    stored = _stored_type(column.type)
    if stored is None:
        raise changed(part.path)
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    _refuse_nulls(array, stored, part, name)
    if not pa.types.is_fixed_size_list(stored):
        return _flat(array, stored)
    flat = array.flatten()
    _refuse_nulls(flat, stored.value_type, part, name)
    return _flat(flat, stored.value_type).reshape(len(array), stored.list_size)


def _flat(array: pa.Array, stored: pa.DataType) -> Numbers:
    kind = array.type
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        array = array.cast(pa.int32())
    found: Numbers = array.cast(stored).to_numpy(zero_copy_only=False)
    return found


def _refuse_nulls(array: pa.Array, stored: pa.DataType, part: DataPart, name: str) -> None:
    """A missing float is NaN; other types have nothing to say it with."""
    if array.null_count and not pa.types.is_floating(stored):
        place = f"{name} in row group {part.piece}"
        text = "has nulls; fill them, or cast the column to float, where a null becomes NaN"
        raise InvalidError(part.path, [Mistake(place, str(array.type), text)])


@dataclass(frozen=True)
class _NpzColumns:
    """Arrays of `.npz` files."""

    names: tuple[str, ...]

    @classmethod
    def checked(cls, source: Source, names: tuple[str, ...]) -> _NpzColumns:
        for part in source.parts:
            with reading(part.path), zipfile.ZipFile(part.path) as file:
                known = [name.removesuffix(".npy") for name in file.namelist()]
            absent = [missing(name, known, "array") for name in names if name not in known]
            if absent:
                raise InvalidError(part.path, absent)
        return cls(names)

    def open(self, part: DataPart) -> PartColumns:
        check_unchanged(part.path, part.stamp)
        with reading(part.path), zipfile.ZipFile(part.path) as file:
            found = {name: read_array(file, f"{name}.npy", part.path) for name in self.names}
        for name, array in found.items():
            if array.dtype.kind not in "biuf":
                raise InvalidError(part.path, [Mistake(name, str(array.dtype), ACCEPTED)])
            if len(array) != part.samples:
                text = f"entries, and the file has {part.samples} samples; they must agree"
                raise InvalidError(part.path, [Mistake(name, len(array), text)])
        return _Arrays({name: _signed(array) for name, array in found.items()})


def _signed(array: Numbers) -> Numbers:
    return array.astype(np.int64) if array.dtype.kind == "u" else array


@dataclass(frozen=True)
class _CriteoColumns:
    """Label and whole numbers of Criteo's files, as float64; NaN where a field is empty."""

    names: tuple[str, ...]

    def open(self, part: DataPart) -> PartColumns:
        check_unchanged(part.path, part.stamp)
        return _CriteoLines(self.names, part, _lines(part))


@dataclass
class _CriteoLines:
    names: tuple[str, ...]
    part: DataPart
    lines: Iterator[bytes]

    def take(self, samples: int) -> dict[str, Numbers]:
        places = [_DENSE.index(name) for name in self.names]
        found = np.empty((len(places), samples))
        with reading(self.part.path):
            for sample, line in enumerate(islice(self.lines, samples)):
                fields = line.split(b"\t", len(_DENSE))
                for column, place in enumerate(places):
                    found[column, sample] = self._number(fields, place)
        return dict(zip(self.names, found, strict=True))

    def _number(self, fields: list[bytes], place: int) -> float:
        tabs = len(fields) - 1 + fields[-1].count(b"\t")
        at = place - (len(CRITEO_COLUMNS) - 1 - tabs)  # test data begins with I1
        text = fields[at] if at >= 0 else b""
        if not text and place == 0:
            why = "a line has no label; leave the column away, or give data with labels"
            raise InvalidError(self.part.path, [Mistake("label", None, why)])
        return float(text or "nan")


def _lines(part: DataPart) -> Iterator[bytes]:
    """The lines that begin in a part and are not empty."""
    with reading(part.path), open(part.path, "rb") as plain:  # noqa: PTH123
        packed = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        lines = iter(gzip.GzipFile(fileobj=plain)) if packed else _plain_lines(plain, part)
        yield from (line for line in lines if line.strip(b"\r\n"))


def _plain_lines(file: IO[bytes], part: DataPart) -> Iterator[bytes]:
    at = part.start_byte
    if at:
        file.seek(at - 1)
        at += len(file.readline()) - 1
    while at < part.stop_byte and (line := file.readline()):
        at += len(line)
        yield line

"""Read back what `rowtier export` wrote, rows as fp32; needs neither torch nor a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.fields import Columns, PositiveRows
from rowtier.files import Noun, check_version, parse
from rowtier.manifest import Manifest, read_manifest
from rowtier.reading import StrPath, read_mapping
from rowtier.runtime.checkpoint.exported import WEIGHT, Entry, check_export, read_header, table_of
from rowtier.runtime.checkpoint.row_forms import Floats32, read_rows

MARKER = "export.json"  # of a folder of Parquet files
_AGAIN = "export the checkpoint"
_NUMBERS = {
    "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "i1", "U8": "u1", "I64": "<i8", "U64": "<u8",
}  # fmt: skip


class ListedTable(Noun):
    """A table of a folder of Parquet files."""

    table: str
    name: str
    pooling: str
    file: str
    rows: PositiveRows
    columns: Columns
    dtype: str


class ExportIndex(Noun):
    """`export.json`: the tables of a folder of Parquet files."""

    tables: tuple[ListedTable, ...]


@dataclass(frozen=True, eq=False)
class ServedRows:
    """A table as it was exported: rows in their stored form, which indexing gives as fp32."""

    table: str
    dtype: str  # of the stored numbers: F32, F16, BF16 or I8
    weights: NDArray[Any]  # rows × columns, as stored; bfloat16 as uint16
    scales: NDArray[Any] | None = None  # of int8 rows, one each
    ids: Sequence[Any] | None = None  # of a vocabulary: row r stands for ids[r]

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, rows: Any) -> Floats32:
        """Some rows, a slice or an array of their numbers, as fp32."""
        chosen = np.arange(len(self))[rows] if isinstance(rows, slice) else np.atleast_1d(rows)
        scales = None if self.scales is None else self.scales[chosen]
        return read_rows(self.weights[chosen], scales, self.dtype)


def read_export(path: StrPath) -> dict[str, ServedRows]:
    """The tables of an export by the names of their tensors; every byte is checked first.

    A safetensors file stays where it is: rows are read from the disk when they are asked for.
    """
    path = Path(path)
    if path.is_dir():
        return _read_folder(path)
    check_export(path)
    with path.open("rb") as file:
        entries, start = read_header(path, file)
    arrays: dict[str, NDArray[Any]] = {}
    types: dict[str, str] = {}
    for entry in entries:
        arrays[entry.name], types[entry.name] = _mapped(path, entry, start), entry.dtype
        start += entry.size_bytes
    return {
        name: ServedRows(
            table_of(name), types[name], array, arrays.get(_beside(name, "scale")),
            _ids(name, arrays),
        )
        for name, array in arrays.items()
        if name.endswith(WEIGHT)
    }  # fmt: skip


def _mapped(path: Path, entry: Entry, at: int) -> NDArray[Any]:
    if not entry.size_bytes:
        return np.zeros(entry.shape, _NUMBERS[entry.dtype])
    return np.memmap(path, _NUMBERS[entry.dtype], "r", at, entry.shape)


def _beside(name: str, what: str) -> str:
    return f"{name.removesuffix(WEIGHT)}.{what}"


def _ids(name: str, arrays: dict[str, NDArray[Any]]) -> Sequence[Any] | None:
    starts, text = (arrays.get(_beside(name, what)) for what in ("id_starts", "id_text"))
    if starts is None or text is None:
        found: Any = arrays.get(_beside(name, "ids"))
        return found  # type: ignore[no-any-return]
    raw = text.tobytes()
    edges = starts.tolist()
    return [raw[a:b].decode() for a, b in pairwise(edges)]


def is_export_folder(path: Path) -> bool:
    """Whether a folder holds Parquet files of an export."""
    return path.is_dir() and (path / MARKER).is_file()


def check_folder(folder: Path) -> dict[str, Any]:
    """Refuse a folder of an export in which any file changed since it was written."""
    index, written = _index(folder)
    total = sum(written.files[one.file].bytes for one in index.tables if one.file in written.files)
    for one in index.tables:
        written.check(folder, one.file, f"of table {one.table!r}", _AGAIN)
    return {"kind": "export", "tables": len(index.tables), "bytes": total}


def _index(folder: Path) -> tuple[ExportIndex, Manifest]:
    path = folder / MARKER
    if not path.is_file():
        raise UserError(f"{folder}: holds no {MARKER}, so it is no export; check the path")
    written = read_manifest(folder, _AGAIN)
    written.check(folder, MARKER, "which lists the tables", _AGAIN)
    data = read_mapping(path)
    check_version(path, data)
    return parse(ExportIndex, data, path), written


def _read_folder(folder: Path) -> dict[str, ServedRows]:
    import pyarrow.parquet as pq

    check_folder(folder)
    found = {}
    for one in _index(folder)[0].tables:
        columns = pq.read_table(folder / one.file)
        # Values of a fixed size list, all parts one after the other.
        numbers = columns["weights"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        weights = numbers.reshape(one.rows, one.columns)
        scales = ids = None
        if "scale" in columns.column_names:
            scales = columns["scale"].to_numpy()
        if "id" in columns.column_names:
            ids = columns["id"].drop_null().to_pylist()
        found[one.name] = ServedRows(one.table, one.dtype, weights, scales, ids)
    return found

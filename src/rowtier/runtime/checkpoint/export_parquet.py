"""A checkpoint's tables as Parquet: a folder with a file for each table, whole or not at all.

export.json     the tables, their files, and the type of their rows
TABLE.parquet   row, id (of a vocabulary; null for rows that ids share), scale (of int8), weights
manifest.json   size and checksum of every file
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rowtier.files import FORMAT_VERSION, dump_json
from rowtier.folders import replace_folder
from rowtier.profile.columns import file_name
from rowtier.runtime.checkpoint.export_tables import Exported
from rowtier.runtime.checkpoint.read_export import MARKER, ExportIndex, ListedTable
from rowtier.runtime.checkpoint.row_chain import RowChain
from rowtier.runtime.checkpoint.row_forms import StoredRows

# Parquet has no bfloat16; as fp32 its numbers are the same.
_TYPES = {
    "F32": ("F32", pa.float32()), "BF16": ("F32", pa.float32()), "F16": ("F16", pa.float16()),
    "I8": ("I8", pa.int8()),
}  # fmt: skip


def write_parquet(
    chain: RowChain, tables: list[Exported], target: Path, progress: Callable[[float], None]
) -> None:
    """Write a file for each table into a folder, which takes the place of an earlier export."""
    often = Counter(table.table for table in tables)
    total, done, listed = sum(table.size_bytes for table in tables), 0, []
    with replace_folder(target, MARKER) as folder:
        for table in tables:
            file = file_name(table.table if often[table.table] == 1 else table.name)
            _write(chain, table, folder / file)
            rows, columns = table.shape
            listed.append(
                ListedTable(
                    table=table.table, name=table.name, pooling=table.pooling, file=file,
                    rows=rows, columns=columns, dtype=_TYPES[table.stored][0],
                )
            )  # fmt: skip
            done += table.size_bytes
            progress(done / total)
        data = {"format_version": FORMAT_VERSION, **ExportIndex(tables=tuple(listed)).to_data()}
        (folder / MARKER).write_text(dump_json(data), encoding="utf-8")


def _write(chain: RowChain, table: Exported, path: Path) -> None:
    schema = _schema(table)
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for first, rows in table.parts(chain, path.parent):
            writer.write_batch(_batch(table, schema, first, rows))


def _schema(table: Exported) -> pa.Schema:
    fields = [pa.field("row", pa.int64(), nullable=False)]
    words = table.vocabulary
    if words is not None:
        kind = pa.from_numpy_dtype(words.ids.dtype) if not words.strings else pa.large_string()
        fields.append(pa.field("id", kind))
    if table.stored == "I8":
        fields.append(pa.field("scale", pa.float32(), nullable=False))
    number = pa.field("item", _TYPES[table.stored][1], nullable=False)
    fields.append(pa.field("weights", pa.list_(number, table.shape[1]), nullable=False))
    return pa.schema(fields)


def _batch(table: Exported, schema: pa.Schema, first: int, rows: StoredRows) -> pa.RecordBatch:
    count = len(rows.weights)
    columns: list[Any] = [pa.array(np.arange(first, first + count))]
    if table.vocabulary is not None:
        known = table.vocabulary.ids[first : first + count]
        ids = pa.array(known) if isinstance(known, np.ndarray) else _one(known)
        shared = pa.nulls(count - len(ids), schema.field("id").type)
        columns.append(pa.concat_arrays([ids.cast(schema.field("id").type), shared]))
    if rows.scales is not None:
        columns.append(pa.array(rows.scales))
    numbers = pa.array(np.ascontiguousarray(rows.weights).reshape(-1))
    kind = schema.field("weights").type
    columns.append(pa.FixedSizeListArray.from_arrays(numbers, type=kind))
    return pa.record_batch(columns, schema=schema)


def _one(values: Any) -> Any:
    """Strings of Arrow as one array, whichever way they are kept."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values

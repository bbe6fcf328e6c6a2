"""Parquet columns of numbers: the narrow form in which arrays are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rowtier.errors import InvalidError, Mistake, UserError

_ROW_GROUP = 2**20


def write_columns(
    path: Path,
    columns: Mapping[str, NDArray[np.integer[Any]]],
    plain: Sequence[str] = (),
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write arrays of whole numbers; neighbours are alike, except in `plain` columns."""
    path.parent.mkdir(exist_ok=True)
    encodings = {name: "PLAIN" if name in plain else "DELTA_BINARY_PACKED" for name in columns}
    schema = pa.schema(
        [
            pa.field(name, pa.from_numpy_dtype(column.dtype), nullable=False)
            for name, column in columns.items()
        ],
        metadata=dict(metadata or {}),
    )
    rows = len(next(iter(columns.values())))
    with pq.ParquetWriter(
        path,
        schema,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        column_encoding=encodings,
    ) as writer:
        for start in range(0, rows, _ROW_GROUP):
            part = [column[start : start + _ROW_GROUP] for column in columns.values()]
            writer.write_table(pa.table(part, schema=schema))


def read_columns(
    path: Path, kinds: dict[str, pa.DataType], optional: str = ""
) -> dict[str, pa.ChunkedArray]:
    """Read Parquet columns of the given types without nulls, or say what is wrong with them."""
    table = read_table(path)
    mistakes, found = [], {}
    for name, kind in kinds.items():
        if name not in table.column_names:
            if name == optional:
                continue
            mistakes.append(Mistake(name, None, f"this column is missing; it holds {kind}"))
            continue
        try:
            column = table[name].cast(kind)
        except pa.ArrowException:
            mistakes.append(Mistake(name, str(table[name].type), f"the column must hold {kind}"))
            continue
        if column.null_count:
            mistakes.append(Mistake(name, None, f"{column.null_count} values are null; fill in"))
        found[name] = column
    if mistakes:
        raise InvalidError(path, mistakes)
    return found


def read_table(path: Path) -> pa.Table:
    """Read a Parquet file, or say why that is impossible."""
    try:
        return pq.read_table(path)
    except FileNotFoundError:
        raise UserError(f"{path}: the file is missing; profile again") from None
    except (OSError, pa.ArrowException) as error:
        why = " ".join(str(error).split())
        mistake = Mistake("", None, f"the file is not readable Parquet ({why}); profile again")
        raise InvalidError(path, [mistake]) from None


def numpy_of(column: pa.ChunkedArray) -> NDArray[Any]:
    """A column as one array."""
    array: NDArray[Any] = np.ascontiguousarray(column.to_numpy())
    return array

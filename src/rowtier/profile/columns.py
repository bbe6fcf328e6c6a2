"""Parquet columns of numbers: the narrow form in which arrays are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from rowtier.errors import InvalidError, Mistake, RowtierError, UserError
from rowtier.fields import MOST_ROWS

_ROW_GROUP = 2**20
_SMALL, _ROWS_A_BYTE = 2**20, 64  # rows that a file may hold, whatever its size, and by its size
_LONGEST_NAME = 255  # bytes, of file systems
_KEPT = 180  # characters of a name that is cut


def file_name(name: str) -> str:
    """The file for a table: its name without letters that file systems treat in their own way.

    A letter of Japanese takes nine characters so, which is too long for some names. They are cut,
    and told apart by a hash behind a "+", which is in no name that was not cut.
    """
    quoted = f"{quote(name, safe=' ')}.parquet"
    if len(quoted) <= _LONGEST_NAME:
        return quoted
    return f"{quoted[:_KEPT]}+{xxhash.xxh3_128_hexdigest(name.encode())}.parquet"


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
    path: Path, kinds: dict[str, pa.DataType], optional: str = "", most_rows: int = MOST_ROWS
) -> dict[str, pa.ChunkedArray]:
    """Read Parquet columns of the given types without nulls, or say what is wrong with them."""
    table = read_table(path, most_rows)
    mistakes, found = [], {}
    for name, kind in kinds.items():
        if name not in table.column_names:
            if name == optional:
                continue
            mistakes.append(Mistake(name, None, f"this column is missing; it holds {kind}"))
            continue
        if table.column_names.count(name) > 1:
            mistakes.append(Mistake(name, None, "two columns have this name; drop one of them"))
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


def read_table(path: Path, most_rows: int = MOST_ROWS) -> pa.Table:
    """Read a Parquet file, or say why that is impossible."""
    with _opened(path) as file:
        rows, size = file.metadata.num_rows, path.stat().st_size
        # Pages of equal values are small, whatever they say they hold: look before reading them.
        most_rows = min(most_rows, max(_SMALL, _ROWS_A_BYTE * size))
        if not 0 <= rows <= most_rows:
            raise InvalidError(path, [Mistake("rows", rows, f"there can be at most {most_rows}")])
        return file.read()


def schema_of(path: Path) -> pa.Schema:
    """Names and types of the columns of a Parquet file, or why it is none."""
    with _opened(path) as file:
        return file.schema_arrow


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except RowtierError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: the file is missing; profile again") from None
    except (OSError, ValueError, pa.ArrowException) as error:  # names may be no Unicode
        why = " ".join(str(error).split())
        mistake = Mistake("", None, f"the file is not readable Parquet ({why}); profile again")
        raise InvalidError(path, [mistake]) from None


def numpy_of(column: pa.ChunkedArray) -> NDArray[Any]:
    """A column as one array."""
    array: NDArray[Any] = np.ascontiguousarray(column.to_numpy())
    return array

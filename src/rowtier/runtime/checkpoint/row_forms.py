"""Rows in the form in which they are served: fp32, fp16, or int8 with a scale for each row.

int8 is symmetric: scale = max|row| / 127, in fp32 and never below that quotient, and a number w is
kept as round(w / scale), so |w − w'| ≤ scale / 2 for w' = kept · scale. A row of zeros has scale 0.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import UserError

RowsAs = Literal["int8", "fp16", "fp32"]
ROWS_AS: tuple[str, ...] = get_args(RowsAs)
STORED = {"int8": "I8", "fp16": "F16", "fp32": "F32"}  # in the words of safetensors
MOST = 127  # of an int8; its least is −127, so that both signs are alike
_LARGEST = float(np.finfo(np.float32).max)

Floats32 = NDArray[np.float32]


class StoredRows(NamedTuple):
    """Rows as they are written, and the scale of each if they are int8."""

    weights: NDArray[Any]
    scales: Floats32 | None = None


def stored_rows(rows: Floats32, rows_as: str, table: str, first: int) -> StoredRows:
    """Rows of a table, `first` and those behind it, in the form asked for.

    Refused are numbers that the form does not have, by table and row.
    """
    if rows_as == "fp32":
        return StoredRows(rows)
    if rows_as == "int8":
        _refuse(~np.isfinite(rows), rows, "int8", table, first)
        return _as_int8(rows)
    with np.errstate(over="ignore"):
        half = rows.astype(np.float16)
    _refuse(~np.isfinite(half), rows, "fp16", table, first)
    return StoredRows(half)


def _refuse(wrong: NDArray[np.bool_], rows: Floats32, rows_as: str, table: str, first: int) -> None:
    """Say which row has a number that the form asked for does not have."""
    if not wrong.any():
        return
    row, column = (int(at[0]) for at in np.nonzero(wrong))
    value = float(rows[row, column])
    where = f"table {table!r}: row {first + row} has {value:g} in column {column}"
    if not np.isfinite(value):
        raise UserError(
            f"{where}, and rows as {rows_as} must be finite: export with --rows-as fp32, or an "
            "earlier save, from before training diverged"
        )
    raise UserError(
        f"{where}, and {rows_as} ends at 65504: export with --rows-as int8 or --rows-as fp32"
    )


def _as_int8(rows: Floats32) -> StoredRows:
    most = np.abs(rows).max(axis=1, initial=0.0).astype(np.float64)
    scales = (most / MOST).astype(np.float32)
    # Rounded down, the largest number of a row would not fit into an int8 any more.
    low = scales.astype(np.float64) * MOST < most
    scales[low] = np.nextafter(scales[low], np.float32(np.inf))
    divisors = np.where(scales > 0, scales, 1).astype(np.float64)
    kept = np.rint(rows / divisors[:, None])
    return StoredRows(kept.astype(np.int8), scales)


def read_rows(weights: NDArray[Any], scales: NDArray[Any] | None, dtype: str) -> Floats32:
    """Stored rows as fp32."""
    if dtype == "BF16":
        return (np.asarray(weights).astype(np.uint32) << 16).view(np.float32)
    if scales is None:
        return np.asarray(weights).astype(np.float32)
    found = np.asarray(weights).astype(np.float64) * np.asarray(scales, np.float64)[:, None]
    return np.clip(found, -_LARGEST, _LARGEST).astype(np.float32)

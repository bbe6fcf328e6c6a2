"""Times of samples as numbers that compare alike, whatever type their column has."""

from __future__ import annotations

import datetime as dt
import math

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.profile.readers.base import DataPart

Edge = float | str | dt.date  # a share such as 0.5 or "50%", or a time
Numbers = NDArray[np.int64] | NDArray[np.float64]
_WORDS = "numbers, timestamps, dates or strings such as 2016-01-31"


def check_kind(part: DataPart, column: str, kind: pa.DataType, before: pa.DataType) -> None:
    """Refuse times of a type that does not compare with those before."""
    if _rough(kind) != _rough(before):
        raise UserError(
            f"{part.path}: time column {column!r} holds {kind}, and {before} in the data before "
            "it; write it as one type in all files"
        )


def _rough(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_integer(kind):
        return "integer"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "date" if types.is_date(kind) else "timestamp"
    return "number" if types.is_floating(kind) else "string" if _is_text(kind) else str(kind)


def _is_text(kind: pa.DataType) -> bool:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(inner) or pa.types.is_large_string(inner))


def as_numbers(part: DataPart, column: str, array: pa.Array) -> Numbers:
    """Times as numbers that compare alike: microseconds where they are moments."""
    if array.null_count:
        at = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise UserError(
            f"{part.path}: time column {column!r} has no value in sample {part.first_sample + at}; "
            "fill it in or drop the sample, or leave --time out to take the order of the data"
        )
    kind = array.type
    if pa.types.is_integer(kind):
        return np.asarray(array.to_numpy(zero_copy_only=False)).astype(np.int64, copy=False)
    if pa.types.is_floating(kind):
        return _finite(part, column, array)
    try:
        return _microseconds(array)
    except (pa.ArrowException, ValueError) as error:
        why = " ".join(str(error).split())[:160]
        raise UserError(
            f"{part.path}: time column {column!r} of type {kind} holds no times ({why}); it must "
            f"hold {_WORDS}"
        ) from None


def _finite(part: DataPart, column: str, array: pa.Array) -> Numbers:
    numbers = array.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    odd = ~np.isfinite(numbers)
    if odd.any():
        at = int(np.argmax(odd))
        raise UserError(
            f"{part.path}: time column {column!r} is {numbers[at]} in sample "
            f"{part.first_sample + at}; fix it, or leave --time out to take the order of the data"
        )
    return np.asarray(numbers)


def _microseconds(array: pa.Array) -> Numbers:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if _is_text(array.type):
        try:
            array = array.cast(pa.timestamp("us"))
        except pa.ArrowException:  # perhaps they name their time zone
            array = array.cast(pa.timestamp("us", "UTC"))
    elif not (pa.types.is_timestamp(array.type) or pa.types.is_date(array.type)):
        raise ValueError(f"{array.type} is no type of times")
    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("s"))
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[array.type.unit]
    numbers = np.asarray(array.cast(pa.int64()).to_numpy(zero_copy_only=False))
    micro = 10**6
    return numbers * (micro // per_second) if per_second <= micro else numbers // 1000


def check_order(
    part: DataPart, column: str, array: pa.Array, numbers: Numbers, before: float
) -> None:
    """Refuse times that fall back, and name the first that does."""
    falls = np.flatnonzero(numbers[1:] < numbers[:-1]) + 1
    if numbers[0] < before:
        falls = np.concatenate(([0], falls))
    if len(falls):
        at = int(falls[0])
        raise UserError(
            f"{part.path}: time column {column!r} is not sorted: it falls back to "
            f"{plain(array[at])} in sample {part.first_sample + at}; sort the data by it, or "
            "leave --time out to take the order of the data"
        )


def plain(value: pa.Scalar) -> str:
    """A time as people write it."""
    if pa.types.is_timestamp(value.type):  # nanoseconds would need pandas
        value = value.cast(pa.timestamp("us", value.type.tz), safe=False)
    return str(value.as_py())


def edge_number(name: str, edge: Edge, column: str, kind: pa.DataType) -> float:
    """An edge in the numbers of the column."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        number = _number(edge)
        if number is None:
            raise UserError(
                f"{name} {edge}: column {column!r} holds numbers; give one of them, or a share "
                "such as 50%"
            )
        return number
    moment = _moment(name, edge, column)
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    return (moment - epoch) // dt.timedelta(microseconds=1)


def _number(edge: Edge) -> float | None:
    if isinstance(edge, dt.date):
        return None
    for kind in (int, float):  # a whole number stays exact
        try:
            number = kind(edge) if isinstance(edge, str) else edge
        except ValueError:
            continue
        return number if math.isfinite(number) else None
    return None


def _moment(name: str, edge: Edge, column: str) -> dt.datetime:
    try:
        if isinstance(edge, dt.datetime):
            moment = edge
        elif isinstance(edge, dt.date):
            moment = dt.datetime(edge.year, edge.month, edge.day)
        else:
            moment = dt.datetime.fromisoformat(str(edge).strip())
    except ValueError:
        raise UserError(
            f"{name} {edge}: column {column!r} holds times; give a date such as 2016-01-31 or "
            "2016-01-31T12:00, or a share such as 50%"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.timezone.utc)

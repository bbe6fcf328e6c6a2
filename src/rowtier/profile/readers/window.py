"""Which window of the data is asked for: by shares of its samples, or by a column of times.

Samples at the time of an edge come after it, so what lies before an edge and what lies after it
make up the whole.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.profile.readers.base import Part, Source
from rowtier.profile.readers.between import Between
from rowtier.units import parse_share

Edge = float | str | dt.date  # a share such as 0.5 or "50%", or a time
Numbers = NDArray[np.int64] | NDArray[np.float64]
_WORDS = "numbers, timestamps, dates or strings such as 2016-01-31"
_SHARES = "give a share such as 50%"


@dataclass(frozen=True)
class TimeWindow:
    """The samples before one edge and after another, of all data if neither is given.

    An edge is a share of the samples. With `time`, a column by which the data is sorted, it may
    be a value of that column too: a number, a date or a timestamp.
    """

    before: Edge | None = None
    after: Edge | None = None
    time: str | None = None

    def of(self, source: Source) -> Source:
        """The samples of a source that lie inside; the source itself if no window is asked for."""
        if self.before is None and self.after is None and self.time is None:
            return source
        found = None if self.time is None else _search(source, self.time, self._values())
        samples = _count(source) if found is None else found.samples
        begin = source.parts[0].first_sample if source.parts else 0
        first, stop = (
            fallback if edge is None else self._position(name, edge, samples, found)
            for name, edge, fallback in (("after", self.after, 0), ("before", self.before, samples))
        )
        if first >= stop:
            raise UserError(
                f"{self._words()}: no sample lies there, as it leaves samples {first:,} up to "
                f"{stop:,} of {samples:,}; choose edges that are farther apart"
            )
        return Between(source, begin + first, begin + stop)

    def _words(self) -> str:
        given = (("after", self.after), ("before", self.before))
        return " and ".join(f"{name} {_said(edge)}" for name, edge in given if edge is not None)

    def _values(self) -> dict[str, Edge]:
        """The edges that are times, by their name."""
        given = {"before": self.before, "after": self.after}
        return {
            name: edge
            for name, edge in given.items()
            if edge is not None and _share(name, edge, timed=True) is None
        }

    def _position(self, name: str, edge: Edge, samples: int, found: _Found | None) -> int:
        """How many samples lie before an edge."""
        share = _share(name, edge, timed=found is not None)
        if share is not None:
            return round(share * samples)
        assert found is not None
        return found.positions[name]


def _said(edge: Edge) -> str:
    return f"{edge:.6g}" if isinstance(edge, float) else str(edge)


def _share(name: str, edge: Edge, timed: bool) -> float | None:
    """An edge as a share of the samples; None if it is a time."""
    if isinstance(edge, str):
        return None if timed and not edge.rstrip().endswith("%") else parse_share(edge)
    if isinstance(edge, dt.date) or (timed and not (isinstance(edge, float) and 0 <= edge <= 1)):
        if timed:
            return None
        raise UserError(f"{name} {edge}: a time needs --time COLUMN to compare it with; {_SHARES}")
    if not 0 <= edge <= 1:
        raise UserError(f"{name} {edge:g}: is not between 0 and 1; {_SHARES}")
    return float(edge)


def _count(source: Source) -> int:
    samples = source.samples if source.samples is not None else source.count_samples()
    if samples is None:
        raise UserError(
            "before and after: only reading tells how long this data is, and it can be read only "
            "once; give files, or a list of batches"
        )
    return samples


@dataclass(eq=False)
class _Found:
    """What reading the column of times has shown so far."""

    column: str
    edges: dict[str, Edge]
    samples: int = 0
    positions: dict[str, int] = field(default_factory=dict)  # how many samples lie before an edge
    ends: tuple[pa.Scalar, pa.Scalar] | None = None
    last: float = -math.inf
    outside: list[str] = field(default_factory=list)  # edges that come before all samples
    beyond: dict[str, bool] = field(default_factory=dict)  # edges that come after all so far

    def add(self, part: Part, array: pa.Array) -> None:
        """Check the times of a part, and note where in it the edges are."""
        numbers = _as_numbers(part, self.column, array)
        if not len(numbers):
            return
        if self.ends is not None:
            _check_kind(part, self.column, array.type, self.ends[0].type)
        _check_order(part, self.column, array, numbers, self.last)
        self.last = numbers[-1]
        self.ends = (array[0] if self.ends is None else self.ends[0], array[-1])
        for name, edge in self.edges.items():
            value = _edge_number(name, edge, self.column, array.type)
            if not self.samples and value < numbers[0]:
                self.outside.append(name)
            found = int(np.searchsorted(numbers, value))
            self.positions[name] = self.positions.get(name, 0) + found
            self.beyond[name] = value > numbers[-1]
        self.samples += len(numbers)

    def check_edges(self) -> None:
        """Refuse edges that are not in the data."""
        for name, edge in self.edges.items():
            if name in self.outside or self.beyond.get(name):
                assert self.ends is not None
                first, last = map(_plain, self.ends)
                raise UserError(
                    f"{name} {_said(edge)}: is outside of the data, whose column {self.column!r} "
                    f"goes from {first} to {last}; give a value in that range"
                )


def _search(source: Source, column: str, edges: dict[str, Edge]) -> _Found:
    """Check that times are in order from end to end, and find where the edges are."""
    if source.samples is None and source.kind == "batches":
        _count(source)
    found = _Found(column, edges)
    for part in source.parts:
        found.add(part, source.times(part, column))
    found.check_edges()
    return found


def _check_kind(part: Part, column: str, kind: pa.DataType, before: pa.DataType) -> None:
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


def _as_numbers(part: Part, column: str, array: pa.Array) -> Numbers:
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


def _finite(part: Part, column: str, array: pa.Array) -> Numbers:
    numbers = array.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    odd = ~np.isfinite(numbers)
    if odd.any():
        at = int(np.argmax(odd))
        raise UserError(
            f"{part.path}: time column {column!r} is {numbers[at]} in sample "
            f"{part.first_sample + at}; mend it, or leave --time out to take the order of the data"
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


def _check_order(part: Part, column: str, array: pa.Array, numbers: Numbers, before: float) -> None:
    """Refuse times that fall back, and name the first that does."""
    falls = np.flatnonzero(numbers[1:] < numbers[:-1]) + 1
    if numbers[0] < before:
        falls = np.concatenate(([0], falls))
    if len(falls):
        at = int(falls[0])
        raise UserError(
            f"{part.path}: time column {column!r} is not sorted: it falls back to "
            f"{_plain(array[at])} in sample {part.first_sample + at}; sort the data by it, or "
            "leave --time out to take the order of the data"
        )


def _plain(value: pa.Scalar) -> str:
    told = value.as_py()
    return told.isoformat(" ") if isinstance(told, dt.datetime) else str(told)


def _edge_number(name: str, edge: Edge, column: str, kind: pa.DataType) -> float:
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

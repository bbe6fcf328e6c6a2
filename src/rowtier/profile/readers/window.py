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

from rowtier.errors import UserError
from rowtier.fields import check_text
from rowtier.profile.readers.base import DataPart, Source
from rowtier.profile.readers.between import Between
from rowtier.profile.readers.times import (
    Edge,
    as_numbers,
    check_kind,
    check_order,
    edge_number,
    plain,
)
from rowtier.units import parse_share

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
        if self.time is not None:
            check_text("time", self.time)
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

    def _position(self, name: str, edge: Edge, samples: int, found: _TimesFound | None) -> int:
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
        if timed and not edge.rstrip().endswith("%"):
            return None
        try:
            return parse_share(edge)
        except UserError as error:
            raise UserError(f"{name} {edge}: {error}; a time needs --time COLUMN") from None
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
class _TimesFound:
    """What reading the column of times has shown so far."""

    column: str
    edges: dict[str, Edge]
    samples: int = 0
    positions: dict[str, int] = field(default_factory=dict)  # how many samples lie before an edge
    ends: tuple[pa.Scalar, pa.Scalar] | None = None
    last: float = -math.inf
    outside: list[str] = field(default_factory=list)  # edges that come before all samples
    beyond: dict[str, bool] = field(default_factory=dict)  # edges that come after all so far

    def add(self, part: DataPart, array: pa.Array) -> None:
        """Check the times of a part, and note where in it the edges are."""
        if part.samples not in (None, len(array)):
            raise UserError(
                f"{part.path}: time column {self.column!r} has {len(array):,} values for "
                f"{part.samples:,} samples; give one for each sample"
            )
        numbers = as_numbers(part, self.column, array)
        if not len(numbers):
            return
        if self.ends is not None:
            check_kind(part, self.column, array.type, self.ends[0].type)
        check_order(part, self.column, array, numbers, self.last)
        self.last = numbers[-1]
        self.ends = (array[0] if self.ends is None else self.ends[0], array[-1])
        for name, edge in self.edges.items():
            value = edge_number(name, edge, self.column, array.type)
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
                first, last = map(plain, self.ends)
                raise UserError(
                    f"{name} {_said(edge)}: is outside of the data, whose column {self.column!r} "
                    f"goes from {first} to {last}; give a value in that range"
                )


def _search(source: Source, column: str, edges: dict[str, Edge]) -> _TimesFound:
    """Check that times are in order from end to end, and find where the edges are."""
    if source.samples is None and source.kind == "batches":
        _count(source)
    found = _TimesFound(column, edges)
    for part in source.parts:
        found.add(part, source.times(part, column))
    found.check_edges()
    return found

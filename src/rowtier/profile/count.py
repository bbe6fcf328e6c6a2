"""Counting: one byte per row and half of the data, then the touched rows by heat.

Counting is as fast as the counters are near: a byte each keeps far more of them in the
cache than a word. A counter that runs over starts again from zero, and its row is noted;
that is rare, as it takes 256 lookups. The touched rows are put in order by counting sort:
most rows have few lookups, and few have many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rowtier.jit import compiled
from rowtier.profile.distinct import DistinctCounter
from rowtier.profile.ids import (
    Ints,
    Where,
    as_int64,
    first_outside,
    id_hashes,
    lengths_of,
    rows_outside,
    unchecked_rows,
)
from rowtier.profile.legs import RowRange
from rowtier.profile.order import NarrowInts, narrow_dtype
from rowtier.profile.profile import FeatureStats, RowCounts, TableStats
from rowtier.profile.readers.base import Chunk, Ids
from rowtier.profile.vocabulary import Vocabulary
from rowtier.tables import Table

COUNTER_BYTES = 2  # one for each half of the data
_MANY = 2**16  # rows with more lookups than this are sorted by comparison
_BLOCK = 2**16  # ids counted at a time, so that noting what runs over takes little room
_NONE = np.empty(0, dtype=np.int64)


@dataclass
class FeatureCounter:
    """How many ids samples have, for one feature."""

    name: str
    lengths: Ints = field(default_factory=lambda: np.zeros(2, dtype=np.int64))

    def add(self, samples: int, lengths: Ints | None) -> None:
        """Note the lengths of a chunk; None means one id in every sample."""
        if lengths is None:
            self.lengths[1] += samples
            return
        seen = np.bincount(lengths, minlength=len(self.lengths))
        seen[: len(self.lengths)] += self.lengths
        self.lengths = seen

    def finish(self) -> FeatureStats:
        """The totals."""
        length = np.arange(len(self.lengths))
        found = [(int(n), int(self.lengths[n])) for n in length[1:] if self.lengths[n]]
        return FeatureStats(
            name=self.name,
            present=int(self.lengths[1:].sum()),
            lookups=int(length @ self.lengths),
            lengths=tuple(found),
        )


@dataclass(frozen=True)
class Place:
    """Where a chunk is, for messages."""

    path: str
    first_sample: int  # in all data


class TableCounter:
    """Everything that is counted for one table."""

    def __init__(self, table: Table, rows: RowRange, vocabulary: Vocabulary | None = None):
        self.table = table
        self._vocabulary = vocabulary
        self._first, stop = rows.of(table.num_embeddings)
        self._counters = (Counters(stop - self._first), Counters(stop - self._first))
        self._features = {name: FeatureCounter(name) for name in table.features}
        self._distinct = DistinctCounter() if table.ids != "as_is" else None

    def add(self, feature: str, chunk: Chunk, where: Place) -> None:
        """Count one feature's ids of a chunk; `where` is named in an error."""
        ids, lengths = chunk.features[feature], None
        named = Where(feature, where.path, where.first_sample, ids.lengths)
        rows = self._rows(ids, named)
        counters = self._counters[int(chunk.late)]
        counted = counters.add(rows, self._first)
        if counted < len(rows) and not self._all_rows_are_here(rows, counters):
            outside = (rows < 0) | (rows >= self.table.num_embeddings)
            settled = rows_outside(self.table, ids.values, outside, named)
            if settled is None:
                lengths = lengths_of(ids.lengths, ~outside)
            else:
                counters.add(settled, self._first)
        self._features[feature].add(chunk.samples, ids.lengths if lengths is None else lengths)

    def _all_rows_are_here(self, rows: Ints, counters: Counters) -> bool:
        """Whether what was not counted is in the table, but counted in another pass."""
        if len(counters.low) == self.table.num_embeddings:
            return False
        return int(first_outside(rows, self.table.num_embeddings)) < 0

    def finish(self, samples: int, with_features: bool = True) -> TableStats:
        """The statistics; the counters are given up.

        Of several passes over the same data only one knows the features and distinct ids.
        """
        early, late = self._counters
        del self._counters
        counts = touched_rows(early, late, self._first)
        if not with_features:
            self._features = {name: FeatureCounter(name) for name in self.table.features}
        features = tuple(counter.finish() for counter in self._features.values())
        distinct = None if self._distinct is None else self._distinct.finish()
        return TableStats.counted(self.table, samples, features, counts, distinct)

    def _rows(self, ids: Ids, where: Where) -> Ints:
        """The rows of ids; an id without a row has one outside of the table."""
        hashes = None
        if self._distinct is not None:
            hashes = id_hashes(self.table, ids.values)
            self._distinct.add(hashes)
        rows = unchecked_rows(self.table, ids.values, self._vocabulary, where, hashes)
        return as_int64(rows)


class Counters:
    """How often each row was seen: a byte per row, and the rows whose byte ran over."""

    def __init__(self, rows: int):
        self.low = np.zeros(rows, dtype=np.uint8)
        self._over: list[Ints] = []

    def add(self, rows: Ints, first_row: int) -> int:
        """Count rows from `first_row` on; how many: those before or far behind are passed over."""
        over, counted = np.empty(_BLOCK, dtype=np.int64), 0
        for start in range(0, len(rows), _BLOCK):
            found, here = _count(rows[start : start + _BLOCK], self.low, first_row, over)
            counted += int(here)
            if found:
                self._over.append(over[: int(found)].copy())
        return counted

    def runs_over(self) -> tuple[Ints, Ints]:
        """The rows whose byte ran over, sorted, and how often."""
        return np.unique(np.concatenate([_NONE, *self._over]), return_counts=True)


def touched_rows(early: Counters, late: Counters, first_row: int = 0) -> RowCounts:
    """The touched rows, hottest first, ties by row."""
    both = [counters.runs_over() for counters in (early, late)]
    over = np.union1d(both[0][0], both[1][0])
    more = np.zeros((2, len(over)), dtype=np.int64)
    for side, (rows, times) in enumerate(both):
        more[side, np.searchsorted(over, rows)] = 256 * times
    return _by_heat(early.low, late.low, over, more, first_row)


def _by_heat(
    early: NDArray[np.unsignedinteger],
    late: NDArray[np.unsignedinteger],
    over: Ints,
    more: Ints,
    first_row: int = 0,
) -> RowCounts:
    """Order rows by the sum of both halves; the rows `over` have `more` than their counters."""
    sizes = np.zeros(_MANY + 1, dtype=np.int64)
    most = _tally(early, late, over, more, sizes)
    touched = int(sizes[1:].sum())
    places = np.cumsum(sizes[::-1])[::-1] - sizes  # where the rows of each count begin
    rows = np.empty(touched, dtype=narrow_dtype(0, first_row + len(early) - 1))
    counts, lates = np.empty((2, touched), dtype=narrow_dtype(0, int(most)))
    _place(early, late, over, more, places, first_row, rows, counts, lates)
    many = int(sizes[_MANY])
    order = np.argsort(-counts[:many], kind="stable")
    for array in (rows, counts, lates):
        array[:many] = array[:many][order]
    return RowCounts(rows, counts, lates)


def merged_rows(parts: Sequence[RowCounts], num_embeddings: int) -> RowCounts:
    """The rows of several counts added up, in the order of the sum."""
    total = sum(len(part.rows) for part in parts)
    if num_embeddings <= 4 * total:
        dense = np.zeros((2, num_embeddings), dtype=np.uint64)
        for part in parts:
            dense[0, part.rows] += (part.counts - part.late).astype(np.uint64)
            dense[1, part.rows] += part.late.astype(np.uint64)
        return _by_heat(dense[0], dense[1], _NONE, np.empty((2, 0), dtype=np.int64))
    rows, place = np.unique(np.concatenate([part.rows for part in parts]), return_inverse=True)
    counts, late = np.zeros((2, len(rows)), dtype=np.int64)
    np.add.at(counts, place, np.concatenate([part.counts for part in parts]))
    np.add.at(late, place, np.concatenate([part.late for part in parts]))
    order = np.argsort(-counts, kind="stable")
    return RowCounts(rows[order], counts[order], late[order])


@compiled
def _count(rows: Ints, low: NDArray[np.uint8], first_row: int, over: Ints) -> tuple[int, int]:
    size, one = np.uint64(len(low)), np.uint8(1)
    filled, skipped = 0, 0
    for i in range(len(rows)):
        place = np.uint64(rows[i] - first_row)  # unsigned: a row before the first is far too large
        if place < size:
            seen = np.uint8(low[place] + one)
            low[place] = seen
            if seen == 0:
                over[filled] = place
                filled += 1
        else:
            skipped += 1
    return filled, len(rows) - skipped


@compiled
def _tally(
    early: NDArray[np.unsignedinteger],
    late: NDArray[np.unsignedinteger],
    over: Ints,
    more: Ints,
    sizes: Ints,
) -> int:
    next_over, most = 0, np.int64(0)
    for i in range(len(early)):
        total = np.int64(early[i]) + np.int64(late[i])
        if next_over < len(over) and over[next_over] == i:
            total += more[0, next_over] + more[1, next_over]
            next_over += 1
        sizes[min(int(total), _MANY)] += 1
        most = max(most, total)
    return int(most)


@compiled
def _place(
    early: NDArray[np.unsignedinteger],
    late: NDArray[np.unsignedinteger],
    over: Ints,
    more: Ints,
    places: Ints,
    first_row: int,
    rows: NarrowInts,
    counts: NarrowInts,
    lates: NarrowInts,
) -> None:
    next_over = 0
    for i in range(len(early)):
        second = np.int64(late[i])
        total = np.int64(early[i]) + second
        if next_over < len(over) and over[next_over] == i:
            second += more[1, next_over]
            total += more[0, next_over] + more[1, next_over]
            next_over += 1
        if total > 0:
            bin = min(int(total), _MANY)
            place = places[bin]
            places[bin] = place + 1
            rows[place] = first_row + i
            counts[place] = total
            lates[place] = second

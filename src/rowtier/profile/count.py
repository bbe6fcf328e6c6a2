"""Counting: ids of chunks in, the statistics of a table out.

The touched rows are put in order by counting sort: most rows have few lookups, and few have
many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rowtier.jit import compiled
from rowtier.profile.counters import ByteCounters, RowCounters, SampleLookups
from rowtier.profile.distinct import DistinctCounter
from rowtier.profile.ids import Ints, Where, as_int64, id_hashes, settled_rows, unchecked_rows
from rowtier.profile.legs import RowRange
from rowtier.profile.order import NarrowInts, narrow_dtype
from rowtier.profile.readers.base import Chunk, Ids
from rowtier.profile.table_stats import FeatureStats, RowCounts, TableStats
from rowtier.profile.vocabulary import Vocabulary
from rowtier.tables import Table

_MANY = 2**16  # rows with more lookups than this are sorted by comparison
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


class TableCounter:
    """Everything that is counted for one table."""

    def __init__(
        self, table: Table, rows: RowRange, bits: int = 0, vocabulary: Vocabulary | None = None
    ):
        self.table = table
        self._vocabulary = vocabulary
        self._first, stop = rows.of(table.num_embeddings)
        self._counters = RowCounters(self._first, stop, bits)
        self._features = {name: FeatureCounter(name) for name in table.features}
        self._distinct = DistinctCounter() if table.ids != "as_is" else None

    def add(self, chunk: Chunk, path: str) -> None:
        """Count a chunk; `path` is named in an error."""
        found = [self._lookups(name, chunk, path) for name in self.table.features]
        lookups = found[0] if len(found) == 1 else together(found)
        self._counters.add(lookups, chunk.first_sample, chunk.numbers)

    def finish(self, samples: int, with_features: bool = True) -> TableStats:
        """The statistics; the counters are given up.

        Of several passes over the same data only one knows the features and distinct ids.
        """
        counters = self._counters
        del self._counters
        slices, windows = counters.finish()
        counts = touched_rows(counters.lookups, counters.repeats, self._first)
        if not with_features:
            self._features = {name: FeatureCounter(name) for name in self.table.features}
        features = tuple(counter.finish() for counter in self._features.values())
        distinct = None if self._distinct is None else self._distinct.finish()
        stats = TableStats.counted(self.table, samples, features, counts, distinct)
        return replace(stats, slices=slices, windows=windows)

    def _lookups(self, feature: str, chunk: Chunk, path: str) -> SampleLookups:
        """The rows that a feature looks up in a chunk."""
        ids = chunk.features[feature]
        where = Where(feature, path, chunk.first_sample, ids.lengths)
        rows, lengths = self._rows(ids, where), ids.lengths
        if not all_inside(rows, self.table.num_embeddings):
            settled = settled_rows(self.table, rows, ids.values, where)
            rows, lengths = settled.rows, settled.lengths(ids.lengths)
        self._features[feature].add(chunk.samples, lengths)
        return SampleLookups(rows, lengths, chunk.samples)

    def _rows(self, ids: Ids, where: Where) -> Ints:
        """The rows of ids; an id without a row has one outside of the table."""
        hashes = None
        if self._distinct is not None:
            hashes = id_hashes(self.table, ids.values)
            self._distinct.add(hashes)
        rows = unchecked_rows(self.table, ids.values, self._vocabulary, where, hashes)
        return as_int64(rows)


def together(features: Sequence[SampleLookups]) -> SampleLookups:
    """The lookups of several features, sample by sample."""
    samples = features[0].samples
    lengths = [
        np.ones(samples, dtype=np.int64) if one.lengths is None else one.lengths for one in features
    ]
    total = np.sum(lengths, axis=0)
    rows = np.empty(int(total.sum()), dtype=np.int64)
    start = np.cumsum(total) - total  # where the next feature's rows of each sample go
    for one, count in zip(features, lengths, strict=True):
        inside = np.arange(len(one.rows)) - np.repeat(np.cumsum(count) - count, count)
        rows[np.repeat(start, count) + inside] = one.rows
        start = start + count
    return SampleLookups(rows, total, samples)


def touched_rows(
    lookups: ByteCounters, repeats: ByteCounters | None, first_row: int = 0
) -> RowCounts:
    """The touched rows, hottest first, ties by row."""
    over, times = lookups.over()
    rows, counts = _by_heat(lookups.low, over, 256 * times, first_row)
    rows += first_row
    if repeats is None:
        return RowCounts(rows, counts)
    return RowCounts(rows, counts, counts - repeats.total(rows - first_row))


def _by_heat(
    low: NDArray[np.unsignedinteger], over: Ints, more: Ints, first_row: int = 0
) -> tuple[NarrowInts, NarrowInts]:
    """Rows in order of their counters; the rows `over` have `more` than these say.

    Rows are counted from 0, and have room for numbers from `first_row` on.
    """
    sizes = np.zeros(_MANY + 1, dtype=np.int64)
    most = _tally(low, over, more, sizes)
    touched = int(sizes[1:].sum())
    places = np.cumsum(sizes[::-1])[::-1] - sizes  # where the rows of each count begin
    rows = np.empty(touched, dtype=narrow_dtype(0, first_row + len(low) - 1))
    many = int(sizes[_MANY])
    often = np.empty(many, dtype=np.int64)
    _place(low, over, more, places, rows, often)
    seen = np.arange(_MANY - 1, 0, -1, dtype=narrow_dtype(0, int(most)))
    seldom = np.repeat(seen, sizes[_MANY - 1 : 0 : -1])
    counts = np.concatenate((often.astype(seen.dtype), seldom)) if many else seldom
    order = np.argsort(-counts[:many], kind="stable")
    for array in (rows, counts):
        array[:many] = array[:many][order]
    return rows, counts


def merged_rows(parts: Sequence[RowCounts], num_embeddings: int) -> RowCounts:
    """The rows of several counts added up, in the order of the sum."""
    total = sum(len(part.rows) for part in parts)
    if num_embeddings <= 4 * total:
        lookups, holding = np.zeros((2, num_embeddings), dtype=np.uint64)
        for part in parts:
            lookups[part.rows] += part.counts.astype(np.uint64)
            holding[part.rows] += part.samples.astype(np.uint64)
        touched, heat = _by_heat(lookups, _NONE, _NONE)
        return RowCounts(touched, heat, holding[touched].astype(np.int64))
    rows, place = np.unique(np.concatenate([part.rows for part in parts]), return_inverse=True)
    counts, samples = np.zeros((2, len(rows)), dtype=np.int64)
    np.add.at(counts, place, np.concatenate([part.counts for part in parts]))
    np.add.at(samples, place, np.concatenate([part.samples for part in parts]))
    order = np.argsort(-counts, kind="stable")
    return RowCounts(rows[order], counts[order], samples[order])


@compiled
def all_inside(rows: Ints, num_embeddings: int) -> bool:
    """Whether a table has all of the rows; without a branch, so that it takes next to no time."""
    outside, size = 0, np.uint64(num_embeddings)
    for i in range(len(rows)):
        outside |= int(np.uint64(rows[i]) >= size)
    return outside == 0


@compiled
def _tally(low: NDArray[np.unsignedinteger], over: Ints, more: Ints, sizes: Ints) -> int:
    next_over, most = 0, np.int64(0)
    for i in range(len(low)):
        total = np.int64(low[i])
        if next_over < len(over) and over[next_over] == i:
            total += more[next_over]
            next_over += 1
        sizes[min(int(total), _MANY)] += 1
        most = max(most, total)
    return int(most)


@compiled
def _place(
    low: NDArray[np.unsignedinteger],
    over: Ints,
    more: Ints,
    places: Ints,
    rows: NarrowInts,
    often: Ints,
) -> None:
    next_over = 0
    for i in range(len(low)):
        total = np.int64(low[i])
        if next_over < len(over) and over[next_over] == i:
            total += more[next_over]
            next_over += 1
        if total > 0:
            bin = min(int(total), _MANY)
            place = places[bin]
            places[bin] = place + 1
            rows[place] = i
            if bin == _MANY:
                often[place] = total

"""Reading the samples of a batch out of data files: slices in file order, or shuffled windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rowtier.profile.readers import DataPart, Ids, Source
from rowtier.profile.readers.files import changed
from rowtier.runtime.batches.file_columns import FileColumns, Numbers, open_columns
from rowtier.runtime.batches.sample_order import EpochOrder, WindowSlice

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Samples:
    """Some samples: the ids of their features, and their other columns."""

    count: int
    features: dict[str, Ids]
    columns: dict[str, Numbers]

    @cached_property
    def _edges(self) -> dict[str, Ints]:
        """Per feature: where the ids of each sample begin, and where the last ones end."""
        return {
            name: np.concatenate(([0], np.cumsum(ids.lengths))).astype(np.int64)
            for name, ids in self.features.items()
            if ids.lengths is not None
        }

    def cut(self, start: int, stop: int) -> Samples:
        """Samples `start` to `stop`, without a copy."""
        features = {name: self._cut(name, start, stop) for name in self.features}
        columns = {name: array[start:stop] for name, array in self.columns.items()}
        return Samples(stop - start, features, columns)

    def take(self, index: Ints) -> Samples:
        """The samples at these places, in this order."""
        features = {name: self._taken(name, index) for name in self.features}
        columns = {name: array[index] for name, array in self.columns.items()}
        return Samples(len(index), features, columns)

    def _cut(self, name: str, start: int, stop: int) -> Ids:
        ids = self.features[name]
        if ids.lengths is None:
            return Ids(ids.values[start:stop])
        edges = self._edges[name]
        return Ids(ids.values[int(edges[start]) : int(edges[stop])], ids.lengths[start:stop])

    def _taken(self, name: str, index: Ints) -> Ids:
        ids = self.features[name]
        if ids.lengths is None:
            return Ids(_at(ids.values, index))
        lengths = ids.lengths[index]
        before = np.cumsum(lengths) - lengths
        shift = np.repeat(self._edges[name][index] - before, lengths)
        return Ids(_at(ids.values, np.arange(len(shift), dtype=np.int64) + shift), lengths)


def joined(pieces: Sequence[Samples]) -> Samples:
    """Several pieces, one after the other."""
    if len(pieces) == 1:
        return pieces[0]
    first = pieces[0]
    features = {name: _joined_ids([p.features[name] for p in pieces]) for name in first.features}
    columns = {name: np.concatenate([p.columns[name] for p in pieces]) for name in first.columns}
    return Samples(sum(piece.count for piece in pieces), features, columns)


def lengths_of(ids: Ids) -> Ints:
    """How many ids each sample has."""
    return np.ones(ids.samples, dtype=np.int64) if ids.lengths is None else ids.lengths


def _joined_ids(pieces: Sequence[Ids]) -> Ids:
    lengths = None
    if any(ids.lengths is not None for ids in pieces):
        lengths = np.concatenate([lengths_of(ids) for ids in pieces])
    # Where no sample has an id, a column of strings may come as an empty array of numbers.
    filled = [ids.values for ids in pieces if len(ids.values)] or [pieces[0].values]
    if not isinstance(filled[0], np.ndarray):
        return Ids(pa.concat_arrays(filled), lengths)
    if any(values.dtype == np.uint64 for values in filled):  # numpy would make them floats
        filled = [values.astype(np.uint64) for values in filled]
    return Ids(np.concatenate(filled), lengths)


def _at(values: Any, index: Ints) -> Any:
    return values[index] if isinstance(values, np.ndarray) else values.take(pa.array(index))


@dataclass(frozen=True, eq=False)
class SampleFiles:
    """Data files, and what is wanted of them; can be pickled."""

    source: Source
    features: tuple[str, ...]
    parts: tuple[DataPart, ...]
    part_samples: tuple[int, ...]
    columns: FileColumns

    @classmethod
    def open(cls, source: Source, features: Sequence[str], columns: Sequence[str]) -> SampleFiles:
        """Look at all files; samples are counted where only reading tells how many there are."""
        parts = tuple(source.parts)
        counts = tuple(_count(source, part) for part in parts)
        return cls(source, tuple(features), parts, counts, open_columns(source, columns))

    def chunks(self, part: int) -> Iterator[Samples]:
        """The samples of a part, piece by piece."""
        opened, seen = self.columns.open(self.parts[part]), 0
        for chunk in self.source.read(self.parts[part], self.features):
            features = {name: chunk.features[name] for name in self.features}
            yield Samples(chunk.samples, features, opened.take(chunk.samples))
            seen += chunk.samples
        if seen != self.part_samples[part]:
            raise changed(self.parts[part].path)


def _count(source: Source, part: DataPart) -> int:
    if part.samples is not None:
        return part.samples
    return sum(chunk.samples for chunk in source.read(part, ()))


class BatchReader:
    """Reads batches of an epoch; those of a lane are asked for in the order of their numbers."""

    def __init__(self, files: SampleFiles, order: EpochOrder, rank: int):
        self._files, self._order, self._rank = files, order, rank
        self._windows: dict[int, _Window] = {}  # by lane: the one that was read last
        self._stream = _Stream(files)

    def read(self, number: int) -> Samples:
        """The samples of a batch."""
        slices = self._order.slices(self._rank, number)
        if not slices:
            return self._nothing()
        if self._order.dealing.shuffle:
            lane = self._order.lane(number)
            return joined([self._window(lane, piece.window).cut(piece) for piece in slices])
        return joined([samples for piece in slices for samples in self._stream.cut(piece)])

    def _window(self, lane: int, number: int) -> _Window:
        held = self._windows.get(lane)
        if held is None or held.number != number:
            self._windows.pop(lane, None)  # before another is read, so that one is held at a time
            del held
            self._windows[lane] = _Window.read(self._files, self._order, number)
        return self._windows[lane]

    def _nothing(self) -> Samples:
        """A batch without samples, of the same types as others."""
        part = next(i for i, samples in enumerate(self._files.part_samples) if samples)
        return next(self._files.chunks(part)).cut(0, 0)


@dataclass(frozen=True, eq=False)
class _Window:
    """Some parts in memory, and the order in which their samples are dealt."""

    number: int
    samples: Samples
    permutation: Ints

    @classmethod
    def read(cls, files: SampleFiles, order: EpochOrder, number: int) -> _Window:
        permutation = order.permutation(number)
        assert permutation is not None
        pieces = [piece for part in order.windows[number] for piece in files.chunks(part)]
        return cls(number, joined(pieces), permutation)

    def cut(self, piece: WindowSlice) -> Samples:
        return self.samples.take(self.permutation[piece.start : piece.stop])


class _Stream:
    """Parts in their own order, of which one chunk is in memory."""

    def __init__(self, files: SampleFiles):
        self._files = files
        self._part = -1
        self._chunks: Iterator[Samples] = iter(())
        self._chunk = Samples(0, {}, {})
        self._start = 0  # of the chunk, in its part

    def cut(self, piece: WindowSlice) -> Iterator[Samples]:
        """The samples of a slice, which begins where earlier ones ended, or later."""
        if piece.window != self._part or piece.start < self._start:
            self._part, self._chunks = piece.window, self._files.chunks(piece.window)
            self._chunk, self._start = Samples(0, {}, {}), 0
        at = piece.start
        while at < piece.stop:
            while self._start + self._chunk.count <= at:
                self._start += self._chunk.count
                self._chunk = self._next()
            stop = min(piece.stop - self._start, self._chunk.count)
            yield self._chunk.cut(at - self._start, stop)
            at = self._start + stop

    def _next(self) -> Samples:
        found = next(self._chunks, None)
        if found is None:
            raise changed(self._files.parts[self._part].path)
        return found

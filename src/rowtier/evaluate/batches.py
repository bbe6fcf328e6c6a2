"""Real data as training steps: which samples of a chunk belong to which step.

A step takes `batch size × devices` samples; device d reads the d-th run of `batch size` of
them. Here they are consecutive samples of the data; `shuffled.py` draws them from anywhere.
Samples at the end that fill no step are left out.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rowtier.profile.ids import Where, checked_rows
from rowtier.profile.readers import Chunk, DataPart, Source
from rowtier.profile.readers.base import Ints
from rowtier.profile.vocabulary import Vocabulary
from rowtier.tables import Table

_NO_LENGTHS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class StepSamples:
    """Samples `start` to `stop` of a chunk are the step's samples from `first` on."""

    step: int
    start: int
    stop: int
    first: int


@dataclass(frozen=True, eq=False)
class StepWindow:
    """A chunk and the pieces of steps in it."""

    chunk: Chunk
    path: str
    first_sample: int  # in all data
    pieces: tuple[StepSamples, ...]
    done: float  # share of the data


@dataclass(frozen=True)
class Wanted:
    """Which steps of the data to take: all of them, or some that the seed draws."""

    step_samples: int
    steps: int | None = None
    seed: int = 0


def windows(source: Source, features: Sequence[str], wanted: Wanted) -> Iterator[StepWindow]:
    """The chunks of the data with the steps that are wanted."""
    chosen, last = _choose(source, wanted)
    at = 0
    for chunk, path, done in chunks_of(source, features):
        pieces = _pieces(at, chunk.samples, wanted.step_samples, chosen)
        if pieces:
            yield StepWindow(chunk, path, chunk.first_sample, pieces, done)
        at += chunk.samples
        if last is not None and at >= (last + 1) * wanted.step_samples:
            return


def _choose(source: Source, wanted: Wanted) -> tuple[Container[int], int | None]:
    """The numbers of the steps to take, and the last of them if known."""
    samples = source.samples
    if samples is None and wanted.steps is not None and source.kind != "batches":
        samples = source.count_samples()
    if samples is None:
        every = range(2**62 if wanted.steps is None else wanted.steps)
        return every, None if wanted.steps is None else wanted.steps - 1
    there = samples // wanted.step_samples
    if wanted.steps is None or wanted.steps >= there:
        return range(there), there - 1
    random = np.random.default_rng(wanted.seed)
    drawn = random.choice(there, wanted.steps, replace=False)
    return frozenset(drawn.tolist()), int(drawn.max())


def chunks_of(
    source: Source, features: Sequence[str], numbers: Ints | None = None
) -> Iterator[tuple[Chunk, str, float]]:
    """Chunks with their file, and the share of the data that is done with them.

    Given the `numbers` of some samples, ascending, parts that have none of them are not read.
    """
    weights = [max(1, part.weight_bytes) for part in source.parts]
    total, read = sum(weights), 0
    for part, weight in zip(source.parts, weights, strict=True):
        if numbers is None or _holds(part, numbers):
            for chunk in source.read(part, features):
                yield chunk, part.path, (read + weight * chunk.done) / total
        read += weight


def _holds(part: DataPart, numbers: Ints) -> bool:
    """Whether some of the samples may lie in a part."""
    if part.samples is None:
        return True
    edges = np.searchsorted(numbers, (part.first_sample, part.first_sample + part.samples))
    return bool(edges[1] > edges[0])


def _pieces(
    at: int, samples: int, step_samples: int, chosen: Container[int]
) -> tuple[StepSamples, ...]:
    """Cut samples `at` to `at + samples` at the steps' edges."""
    pieces, start = [], 0
    while start < samples:
        step, first = divmod(at + start, step_samples)
        stop = min(samples, start + step_samples - first)
        if step in chosen:
            pieces.append(StepSamples(step, start, stop, first))
        start = stop
    return tuple(pieces)


@dataclass(frozen=True, eq=False)
class RowBags:
    """A chunk's lookups of one feature as rows; every sample has `lengths` of them, or one."""

    rows: Ints
    lengths: Ints
    ragged: bool
    edges: Ints  # where each sample's rows begin, and where the last ones end

    def cut(self, start: int, stop: int) -> tuple[Ints, Ints, bool]:
        """The rows and lengths of samples `start` to `stop`."""
        if not self.ragged:
            return self.rows[start:stop], _NO_LENGTHS, False
        rows = self.rows[self.edges[start] : self.edges[stop]]
        return rows, self.lengths[start:stop], True


def bags_of(
    table: Table, feature: str, window: StepWindow, vocabulary: Vocabulary | None = None
) -> RowBags:
    """The rows that a feature's ids stand for."""
    ids = window.chunk.features[feature]
    where = Where(feature, window.path, window.first_sample, ids.lengths)
    found = checked_rows(table, ids.values, vocabulary, where)
    lengths = found.lengths(ids.lengths)
    if lengths is None:
        return RowBags(found.rows, _NO_LENGTHS, False, _NO_LENGTHS)
    return RowBags(found.rows, lengths, True, np.concatenate(([0], np.cumsum(lengths))))

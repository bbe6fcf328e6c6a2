"""Real data as training steps: which samples of a chunk belong to which step.

A step takes `batch size × devices` consecutive samples; device d reads the d-th run of
`batch size` of them. Samples at the end that fill no step are left out.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rowtier.errors import UserError
from rowtier.profile.ids import Where, checked_rows
from rowtier.profile.readers import Chunk, Source
from rowtier.profile.readers.base import Ints
from rowtier.profile.vocabulary import Vocabulary
from rowtier.tables import Table

_NO_LENGTHS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Piece:
    """Samples `start` to `stop` of a chunk are the step's samples from `first` on."""

    step: int
    start: int
    stop: int
    first: int


@dataclass(frozen=True, eq=False)
class Window:
    """A chunk and the pieces of steps in it."""

    chunk: Chunk
    path: str
    first_sample: int  # in all data
    pieces: tuple[Piece, ...]
    done: float  # share of the data


@dataclass(frozen=True)
class Wanted:
    """Which steps of the data to take."""

    step_samples: int
    after: float
    steps: int | None
    seed: int


def windows(source: Source, features: Sequence[str], wanted: Wanted) -> Iterator[Window]:
    """The chunks of the data with the steps that are wanted."""
    skip, chosen, last = _choose(source, wanted)
    at = -skip
    for chunk, path, first_sample, before, done in _chunks(source, features):
        if source.samples is None:
            at -= _left_out(chunk, wanted.after, before, done)
        pieces = _pieces(at, chunk.samples, wanted.step_samples, chosen)
        if pieces:
            yield Window(chunk, path, first_sample, pieces, done)
        at += chunk.samples
        if last is not None and at >= (last + 1) * wanted.step_samples:
            return


def _choose(source: Source, wanted: Wanted) -> tuple[int, Container[int], int | None]:
    """Samples to skip, the numbers of the steps to take, and the last of them if known."""
    if source.samples is None:
        if wanted.after and not source.ordered:
            raise UserError(
                f"after {wanted.after:.0%}: only reading tells how long this data is; give files, "
                "or a list of batches"
            )
        every = range(2**62 if wanted.steps is None else wanted.steps)
        return 0, every, None if wanted.steps is None else wanted.steps - 1
    skip = round(source.samples * wanted.after)
    there = (source.samples - skip) // wanted.step_samples
    if wanted.steps is None or wanted.steps >= there:
        return skip, range(there), there - 1
    random = np.random.default_rng(wanted.seed)
    drawn = random.choice(there, wanted.steps, replace=False)
    return skip, frozenset(drawn.tolist()), int(drawn.max())


def _chunks(
    source: Source, features: Sequence[str]
) -> Iterator[tuple[Chunk, str, int, float, float]]:
    """Chunks with their file, first sample, and the shares of the data before and after them."""
    weights = [max(1, part.weight_bytes) for part in source.parts]
    total, read, before, at = sum(weights), 0, 0.0, 0
    for part, weight in zip(source.parts, weights, strict=True):
        at = at if part.first_sample is None else part.first_sample
        for chunk in source.read(part, features):
            done = (read + weight * chunk.done) / total
            yield chunk, part.path, at, before, done
            at, before = at + chunk.samples, done
        read += weight


def _left_out(chunk: Chunk, after: float, before: float, done: float) -> int:
    """Samples of a chunk that lie in the first part of data whose length is not known."""
    if before >= after:
        return 0
    if done <= after:
        return chunk.samples
    return round(chunk.samples * (after - before) / (done - before))


def _pieces(at: int, samples: int, step_samples: int, chosen: Container[int]) -> tuple[Piece, ...]:
    """Cut samples `at` to `at + samples` at the steps' edges; what is before 0 is skipped."""
    pieces, start = [], max(0, -at)
    while start < samples:
        step, first = divmod(at + start, step_samples)
        stop = min(samples, start + step_samples - first)
        if step in chosen:
            pieces.append(Piece(step, start, stop, first))
        start = stop
    return tuple(pieces)


@dataclass(frozen=True, eq=False)
class Bags:
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
    table: Table, feature: str, window: Window, vocabulary: Vocabulary | None = None
) -> Bags:
    """The rows that a feature's ids stand for."""
    ids = window.chunk.features[feature]
    where = Where(feature, window.path, window.first_sample, ids.lengths)
    found = checked_rows(table, ids.values, vocabulary, where)
    lengths = found.lengths(ids.lengths)
    if lengths is None:
        return Bags(found.rows, _NO_LENGTHS, False, _NO_LENGTHS)
    return Bags(found.rows, lengths, True, np.concatenate(([0], np.cumsum(lengths))))

"""Time slices: how often rows were looked up in each stretch of the data.

A slice is 2^bits samples long and aligned to the samples' global numbers: slice i holds the
samples from i·2^bits on. There are at most 16; when there would be more, neighbours are added
up and `bits` grows, so there are at least 9 wherever there are 9 samples. What a slice holds
are whole numbers, and doubling its length adds two of them, so the slices of a whole are the
slices of its parts added up, in any order and grouping.

Which rows trade places over time is a question about the distribution, which a sample of rows
answers: where more than 2^17 rows are touched, only rows are kept whose hash begins with
`thinning` zero bits, the fewest that leave at most 2^17. That depends on the set of touched
rows alone, so it merges, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import Mistake
from rowtier.fields import MOST_COUNT
from rowtier.jit import compiled
from rowtier.profile.order import NarrowInts, narrow
from rowtier.splitmix import STEP, mix

Ints = NDArray[np.int64]

MOST_SLICES = 16
MOST_BITS = 53
LEAST_SLICES = 8  # fewer than this tell nothing of how the data changes
MOST_ROWS = 2**17


def bits_for(first: int, stop: int) -> int:
    """How long slices of samples `first` to `stop` are: the least 2^bits that makes few enough."""
    bits = 0
    while stop > first and ((stop - 1) >> bits) - (first >> bits) + 1 > MOST_SLICES:
        bits += 1
    return bits


@compiled
def _mixed(row: int) -> np.uint64:
    """A hash of a row."""
    return mix(np.uint64(row) + STEP)


@compiled
def _hashes(rows: NarrowInts, found: NDArray[np.uint64]) -> None:
    for i in range(len(rows)):
        found[i] = _mixed(rows[i])


def _hashed(rows: NarrowInts) -> NDArray[np.uint64]:
    found = np.empty(len(rows), dtype=np.uint64)
    _hashes(rows, found)
    return found


def thin(rows: NarrowInts, thinning: int) -> NDArray[np.bool_]:
    """Which rows are kept: those whose hash begins with `thinning` zero bits."""
    if not thinning:
        return np.ones(len(rows), dtype=np.bool_)
    return np.asarray(_hashed(rows) >> np.uint64(64 - thinning) == 0)


@dataclass(frozen=True, eq=False)
class Slices:
    """Lookups of the kept rows, slice by slice, and the samples of every slice."""

    bits: int
    thinning: int
    first: int  # number of the first slice
    samples: Ints  # in each slice; 0 where a part of the data is missing
    rows: NarrowInts  # that were looked up, rising
    counts: NDArray[np.integer[Any]]  # rows × slices

    def __post_init__(self) -> None:
        """Narrow the arrays, so that equal numbers are equal bytes."""
        object.__setattr__(self, "rows", narrow(self.rows))
        most = int(self.counts.max(initial=0))
        dtype = next(d for d in (np.uint16, np.uint32, np.uint64) if most <= np.iinfo(d).max)
        object.__setattr__(self, "counts", np.ascontiguousarray(self.counts, dtype=dtype))

    @property
    def stop(self) -> int:
        """Number of the slice after the last."""
        return self.first + len(self.samples)

    def coarsened(self, bits: int) -> Slices:
        """The same with slices of 2^bits samples."""
        by = bits - self.bits
        assert by >= 0
        if not by or not len(self.samples):
            return replace(self, bits=bits)
        place = (np.arange(self.first, self.stop) >> by) - (self.first >> by)
        starts = np.flatnonzero(np.diff(place, prepend=-1))
        samples = np.add.reduceat(self.samples, starts)
        counts = np.add.reduceat(self.counts, starts, axis=1, dtype=np.uint64)
        return Slices(bits, self.thinning, self.first >> by, samples, self.rows, counts)

    def thinned(self) -> Slices:
        """The same with as few rows as are enough."""
        thinning = thinning_of(self.rows, self.thinning)
        if thinning == self.thinning:
            return self
        kept = thin(self.rows, thinning)
        return replace(self, thinning=thinning, rows=self.rows[kept], counts=self.counts[kept])

    def arrays(self) -> Iterator[NDArray[np.integer]]:
        """What a fingerprint is made of."""
        yield np.array([self.bits, self.thinning, self.first])
        yield from (self.samples, self.rows, self.counts)

    def mistakes(self, num_embeddings: int) -> Iterator[Mistake]:
        """What is wrong with the slices of a table with this many rows."""
        rows = self.rows
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < num_embeddings:
            yield Mistake("slices.row", None, f"rows are 0 to {num_embeddings - 1}")
        if (np.diff(rows) <= 0).any():
            yield Mistake("slices.row", None, "must rise: every row is there once")
        if len(self.samples) > MOST_SLICES:
            yield Mistake("slices", len(self.samples), f"there are at most {MOST_SLICES}")
        if not 0 <= self.bits <= MOST_BITS or self.stop << min(self.bits, 64) > MOST_COUNT:
            yield Mistake("time.slice_bits", self.bits, f"samples are 0 to {MOST_COUNT}")
        if not 0 <= self.thinning < 64:
            yield Mistake("time.slice_thinning", self.thinning, "must be 0 to 63")
        if float(self.counts.sum(dtype=np.float64)) > MOST_COUNT:
            yield Mistake("slices", None, f"all lookups add up to {MOST_COUNT} at most")
        if sum(self.samples.tolist()) > MOST_COUNT:
            yield Mistake("time.slice_samples", None, f"must add up to {MOST_COUNT} at most")


def thinning_of(rows: NarrowInts, least: int) -> int:
    """The least thinning that leaves few enough rows."""
    if len(rows) <= MOST_ROWS:
        return least
    coldest = np.partition(_hashed(rows), MOST_ROWS)[MOST_ROWS]  # the first that is too many
    return max(least, 64 - int(coldest).bit_length() + 1)


def merge_slices(parts: Sequence[Slices], *, same_samples: bool = False) -> Slices:
    """Add up the slices of parts of the data, or with `same_samples` of parts of the rows."""
    held = [part for part in parts if len(part.samples)]
    if not held:
        return parts[0]
    bits = common_bits(held)
    held = [part.coarsened(bits) for part in held]
    first, stop = min(part.first for part in held), max(part.stop for part in held)
    thinning = max(part.thinning for part in held)
    kept = [thin(part.rows, thinning) for part in held]
    rows = np.unique(np.concatenate([p.rows[k] for p, k in zip(held, kept, strict=True)]))
    samples = np.zeros(stop - first, dtype=np.int64)
    counts = np.zeros((len(rows), stop - first), dtype=np.uint64)
    for part, keep in zip(held, kept, strict=True):
        columns = slice(part.first - first, part.stop - first)
        if not same_samples or part is held[0]:
            samples[columns] += part.samples
        counts[np.searchsorted(rows, part.rows[keep]), columns] += part.counts[keep]
    return Slices(bits, thinning, first, samples, rows, counts).thinned()


def common_bits(parts: Sequence[Slices]) -> int:
    """How long the slices of parts are when they are put together."""
    bits = max(part.bits for part in parts)
    while True:
        first = min(part.first >> (bits - part.bits) for part in parts)
        last = max((part.stop - 1) >> (bits - part.bits) for part in parts)
        if last - first < MOST_SLICES:
            return bits
        bits += 1

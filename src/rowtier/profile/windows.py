"""Windows: how many distinct rows neighbouring samples touch, for every power of two of them.

A window of size 2^j holds the samples whose numbers differ in their last j bits alone. A lookup
at sample s of a row that was last looked up at sample t is the row's first in its window of
size 2^j exactly if s and t differ above bit j. So one number per row, its last sample, counts
distinct rows of all sizes at once: the lookups by how many bits s XOR t has (0: once more in the
same sample; more than 20, or never before: its first in windows of every size).

Parts of the data know nothing of each other's rows. A part therefore keeps, of its first window
of the largest size, which row it saw first when (`head`), and of its last, which row it saw
last when (`tail`), unless that window begins or ends with it. Where parts meet, rows that are in
the tail of the one and in the head of the other were counted as seen first, and are moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import Mistake, UserError
from rowtier.fields import MOST_COUNT
from rowtier.profile.order import NarrowInts, narrow

Ints = NDArray[np.int64]

TOP_BITS = 20  # windows of up to 2^20 samples
BINS = TOP_BITS + 2  # of XOR: 0 to 20 bits, and more
_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Seen:
    """Rows, and one sample at which each of them was looked up; by row."""

    row: NarrowInts = field(default_factory=lambda: narrow(_NONE))
    sample: Ints = field(default_factory=lambda: _NONE)

    @classmethod
    def of(cls, row: Ints, sample: Ints) -> Seen:
        """From rows in any order."""
        order = np.argsort(row, kind="stable")
        return cls(narrow(row[order]), np.asarray(sample[order], dtype=np.int64))

    def where(self, kept: NDArray[np.bool_]) -> Seen:
        """Some of them."""
        return Seen(narrow(self.row[kept]), self.sample[kept])

    def without(self, other: Seen) -> Seen:
        """Those whose rows another does not have."""
        return self.where(~np.isin(self.row, other.row, assume_unique=True))

    def joined(self, other: Seen) -> Seen:
        """Both, of different rows."""
        row = np.concatenate([self.row, other.row])
        return Seen.of(row, np.concatenate([self.sample, other.sample]))


@dataclass(frozen=True, eq=False)
class Span:
    """Consecutive samples `first` to `stop`, and the rows of the windows that they leave open."""

    first: int
    stop: int
    head: Seen = field(default_factory=Seen)
    tail: Seen = field(default_factory=Seen)

    @property
    def head_stop(self) -> int:
        """Where the first window of the largest size ends, if it began before the span."""
        return -(-self.first >> TOP_BITS << TOP_BITS)

    @property
    def tail_start(self) -> int:
        """Where the last window of the largest size begins."""
        return self.stop >> TOP_BITS << TOP_BITS


@dataclass(frozen=True, eq=False)
class Windows:
    """Lookups by slice and by the bits of XOR with the row's last sample."""

    bits: int  # a slice has 2^bits samples
    numbers: Ints  # of slices, rising
    bins: Ints  # slices × BINS
    spans: tuple[Span, ...]  # in order, none next to another

    @classmethod
    def none(cls, bits: int) -> Windows:
        """Of no samples."""
        return cls(bits, _NONE, np.zeros((0, BINS), dtype=np.int64), ())

    def distinct(self, bits: int) -> tuple[float, int]:
        """Mean distinct rows of the whole windows of 2^bits samples, and how many there are."""
        assert bits <= TOP_BITS
        rows, count = int(self.bins[:, bits + 1 :].sum()), 0
        for span in self.spans:
            start = -(-span.first >> bits << bits)
            stop = max(start, span.stop >> bits << bits)
            count += (stop - start) >> bits
            if start > span.first:  # the first window began before
                rows -= int(np.count_nonzero(span.head.sample < start))
            if stop < span.stop:  # the last one is not over
                rows -= int(np.count_nonzero(span.tail.sample >= stop))
        return (rows / count if count else 0.0), count

    def coarsened(self, bits: int) -> Windows:
        """The same with slices of 2^bits samples."""
        numbers, bins = added(self.numbers >> (bits - self.bits), self.bins)
        return Windows(bits, numbers, bins, self.spans)

    def arrays(self) -> Iterator[NDArray[np.signedinteger]]:
        """What a fingerprint is made of."""
        yield from (self.numbers, self.bins.reshape(-1))
        for span in self.spans:
            yield np.array([span.first, span.stop])
            for seen in (span.head, span.tail):
                yield from (seen.row, seen.sample)

    def mistakes(self, num_embeddings: int) -> Iterator[Mistake]:
        """What is wrong with the windows of a table with this many rows."""
        if (self.bins < 0).any() or self.bins.shape != (len(self.numbers), BINS):
            yield Mistake("windows.bins", None, f"must be {BINS} counts for each slice")
        elif float(self.bins.sum(dtype=np.float64)) > MOST_COUNT:
            yield Mistake("windows.lookups", None, f"must add up to {MOST_COUNT} at most")
        for before, after in pairwise(self.spans):
            if before.stop >= after.first:
                yield Mistake("windows.spans", before.stop, "spans must rise and not touch")
        for span in self.spans:
            if span.first > span.stop:
                yield Mistake("windows.spans", span.first, f"must not end before, at {span.stop}")
            for seen in (span.head, span.tail):
                rows = seen.row
                if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < num_embeddings:
                    yield Mistake("windows.row", None, f"rows are 0 to {num_embeddings - 1}")
                samples = seen.sample
                if ((samples < span.first) | (samples >= span.stop)).any():
                    yield Mistake("windows.sample", None, "samples must lie in their span")


def added(numbers: Ints, bins: Ints) -> tuple[Ints, Ints]:
    """Rows of `bins` that belong to the same slice added up."""
    found, place = np.unique(numbers, return_inverse=True)
    total = np.zeros((len(found), BINS), dtype=np.int64)
    np.add.at(total, place, bins)
    return found, total


def merge_windows(parts: Sequence[Windows]) -> Windows:
    """Add up windows of parts of the data, whose slices are equally long already."""
    bits, numbers, bins = _all_bins(parts)
    spans: list[Span] = []
    for span in sorted((s for part in parts for s in part.spans), key=lambda s: s.first):
        if spans and spans[-1].stop > span.first:
            raise overlap(spans[-1], span)
        if spans and spans[-1].stop == span.first:
            _move(spans[-1], span, numbers << bits, bins)
            spans[-1] = _met(spans[-1], span)
        else:
            spans.append(span)
    return Windows(bits, numbers, bins, tuple(spans))


def _all_bins(parts: Sequence[Windows]) -> tuple[int, Ints, Ints]:
    bits = parts[0].bits
    assert all(part.bits == bits for part in parts)
    numbers = np.concatenate([part.numbers for part in parts])
    return bits, *added(numbers, np.concatenate([part.bins for part in parts]))


def overlap(first: Span, second: Span) -> UserError:
    """Two parts claim the same samples."""
    return UserError(
        f"samples {second.first:,} to {min(first.stop, second.stop) - 1:,} are in two of the "
        "profiles: every part of a whole is profiled once, and says where it begins with "
        f"--first-sample (the part after samples {first.first:,} to {first.stop - 1:,} with "
        f"--first-sample {first.stop})"
    )


def join_rows(parts: Sequence[Windows]) -> Windows:
    """Windows of different rows of the same samples."""
    bits, numbers, bins = _all_bins(parts)
    spans = tuple(
        Span(
            column[0].first,
            column[0].stop,
            _all(span.head for span in column),
            _all(span.tail for span in column),
        )
        for column in zip(*(part.spans for part in parts), strict=True)
    )
    return Windows(bits, numbers, bins, spans)


def _all(parts: Iterable[Seen]) -> Seen:
    seen = list(parts)
    row = np.concatenate([one.row for one in seen])
    return Seen.of(row, np.concatenate([one.sample for one in seen]))


def _move(before: Span, after: Span, starts: Ints, bins: Ints) -> None:
    """Rows of the window in which two spans meet were not new in the second."""
    _, mine, theirs = np.intersect1d(
        before.tail.row, after.head.row, assume_unique=True, return_indices=True
    )
    again = after.head.sample[theirs]
    bits = np.frexp((before.tail.sample[mine] ^ again).astype(np.float64))[1]
    row = np.searchsorted(starts, again, side="right") - 1
    moved = np.bincount(row * BINS + bits, minlength=bins.size).reshape(bins.shape)
    bins += moved
    bins[:, BINS - 1] -= moved.sum(axis=1)


def _met(before: Span, after: Span) -> Span:
    """One span of two that meet."""
    head, tail = before.head, after.tail
    if after.first < before.head_stop:  # the second goes on in the window that the first is in
        head = head.joined(after.head.where(after.head.sample < before.head_stop).without(head))
    if before.stop > after.tail_start:
        tail = tail.joined(before.tail.where(before.tail.sample >= after.tail_start).without(tail))
    return Span(before.first, after.stop, head, tail)

"""The counters of one table: how often each row was looked up, in how many samples, and when.

Counting is as fast as the counters are near. Lookups take one byte a row, which keeps far more
of them in the cache than a word; a counter that runs over starts again from zero and its row is
noted, which is rare, as it takes 256 lookups. The last sample of a row takes four: it says which
lookups repeat an id of the same sample, and how many distinct rows windows of samples have
(`windows.py`). When a time slice ends, only some rows are looked at again (`slices.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rowtier.jit import compiled
from rowtier.profile.bits import bit_length
from rowtier.profile.order import NarrowInts
from rowtier.profile.slices import (
    MOST_SLICES,
    Slices,
    candidates,
    least_thinning,
    thin,
    thinning_of,
)
from rowtier.profile.windows import BINS, TOP_BITS, Seen, Span, Windows, added

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

COUNTER_BYTES = 6  # lookups, repeats within a sample, last sample
_NONE = np.empty(0, dtype=np.int64)
_NO_BYTES = np.empty(0, dtype=np.uint8)
_FARTHEST = 2**32 - 2  # samples that fit into a row's last sample


class Counters:
    """How often each row was seen: a byte per row, and the rows whose byte ran over."""

    def __init__(self, rows: int):
        self.low = np.zeros(rows, dtype=np.uint8)
        self._over: list[Ints] = []

    def ran_over(self, places: Ints) -> None:
        """Note rows whose byte started again from zero."""
        if len(places):
            self._over.append(places.copy())

    def over(self, since: int = 0) -> tuple[Ints, Ints]:
        """The rows whose byte ran over, sorted, and how often; only the notes from `since` on."""
        return np.unique(np.concatenate([_NONE, *self._over[since:]]), return_counts=True)

    @property
    def notes(self) -> int:
        """How many notes there are."""
        return len(self._over)

    def total(self, places: NarrowInts) -> Ints:
        """How often some rows were seen."""
        rows, times = self.over()
        total = self.low[places].astype(np.int64)
        if len(rows):
            at = np.minimum(np.searchsorted(rows, places), len(rows) - 1)
            total += np.where(rows[at] == places, 256 * times[at], 0)
        return total


@dataclass(frozen=True, eq=False)
class Lookups:
    """The rows that consecutive samples look up; None: every sample looks up one."""

    rows: Ints
    lengths: Ints | None
    samples: int

    def cut(self, start: int, stop: int) -> Lookups:
        """Those of samples `start` to `stop`, asked for in rising order."""
        if self.lengths is None:
            return Lookups(self.rows[start:stop], None, stop - start)
        lengths = self.lengths[start:stop]
        first = int(self.lengths[:start].sum())
        return Lookups(self.rows[first : first + int(lengths.sum())], lengths, stop - start)


class RowCounters:
    """Counts rows `first_row` to `stop_row` of a table while samples come in, in their order."""

    def __init__(self, first_row: int, stop_row: int, num_embeddings: int, bits: int):
        self._first_row = first_row
        self.lookups = Counters(stop_row - first_row)
        self.repeats: Counters | None = None  # within a sample
        self._last = np.zeros(stop_row - first_row, dtype=np.uint32)
        self._slices = _SliceCounter(self.lookups, first_row, stop_row, num_embeddings, bits)
        self._bins: dict[int, Ints] = {}  # by the sample with which a slice begins
        self._head: list[Ints] = []  # rows that were new in the first window, and their samples
        self._span: Span | None = None
        self._base = 0  # the sample that a last sample of 1 stands for
        self._whole = True  # whether no sample in between is missing

    def add(self, lookups: Lookups, first_sample: int, numbers: Ints | None = None) -> None:
        """Count the lookups of samples from `first_sample` on, or with these numbers."""
        self._begin(first_sample, lookups.samples, numbers is None)
        start = 0
        while start < lookups.samples:
            number = first_sample + start if numbers is None else int(numbers[start])
            stop = self._slices.begin(number)
            end = start + stop - number if numbers is None else int(np.searchsorted(numbers, stop))
            end = min(end, lookups.samples)
            self._count(lookups.cut(start, end), first_sample + start)
            self._slices.add(end - start)
            start = end

    def finish(self) -> tuple[Slices, Windows | None]:
        """What is known over time; nothing can be added afterwards."""
        slices = self._slices.finish()
        if self._span is None or not self._whole:
            return slices, None if self._span is not None else Windows.none(slices.bits)
        starts = np.array(list(self._bins), dtype=np.int64)
        bins = np.array(list(self._bins.values())).reshape(-1, BINS)
        numbers, bins = added(starts >> slices.bits, bins)
        span = replace(self._span, head=self._seen_first(), tail=self._seen_last())
        return slices, Windows(slices.bits, numbers, bins, (span,))

    def _begin(self, first_sample: int, samples: int, consecutive: bool) -> None:
        """Note which samples there were, and make room for their numbers."""
        if self._span is None:
            self._span = Span(first_sample, first_sample)
            self._base = first_sample >> TOP_BITS << TOP_BITS
        self._whole &= consecutive and first_sample == self._span.stop
        if first_sample + samples - self._base > _FARTHEST:
            base = first_sample >> TOP_BITS << TOP_BITS
            by = np.uint32(min(base - self._base, _FARTHEST))
            self._last = np.where(self._last > by, self._last - by, 0).astype(np.uint32)
            self._base = base
        self._span = replace(self._span, stop=first_sample + samples)

    def _count(self, lookups: Lookups, first_sample: int) -> None:
        """Count lookups of samples that lie in one slice."""
        assert self._span is not None
        ragged = lookups.lengths is not None
        if ragged and self.repeats is None:
            self.repeats = Counters(len(self.lookups.low))
        over, again = np.empty((2, len(lookups.rows)), dtype=np.int64)
        new = self._whole and first_sample < self._span.head_stop
        head = np.empty((2, len(lookups.rows) if new else 0), dtype=np.int64)
        found = _count(
            lookups.rows,
            lookups.lengths if lookups.lengths is not None else _NONE,
            ragged,
            self._first_row,
            first_sample - self._base,
            self.lookups.low,
            _NO_BYTES if self.repeats is None else self.repeats.low,
            self._last,
            self._bins.setdefault(self._slices.start, np.zeros(BINS, dtype=np.int64)),
            self._span.head_stop - self._base if new else 0,
            over,
            again,
            head,
        )
        self.lookups.ran_over(over[: found[0]])
        if self.repeats is not None:
            self.repeats.ran_over(again[: found[1]])
        if found[2]:
            self._head.append(head[:, : found[2]].copy())

    def _seen_first(self) -> Seen:
        """Rows of the first window, if it began before the samples."""
        places, samples = np.concatenate([np.empty((2, 0), dtype=np.int64), *self._head], axis=1)
        return Seen.of(places + self._first_row, samples + self._base)

    def _seen_last(self) -> Seen:
        """Rows of the last window, if it is not over."""
        assert self._span is not None
        start = max(0, self._span.tail_start - self._base)
        places = np.flatnonzero(self._last > start)
        samples = self._last[places].astype(np.int64) - 1 + self._base
        return Seen.of(places + self._first_row, samples)


class _SliceCounter:
    """Looks, whenever a slice ends, how often the kept rows were seen in it."""

    def __init__(
        self, lookups: Counters, first_row: int, stop_row: int, num_embeddings: int, bits: int
    ):
        self._lookups, self._first_row, self.bits = lookups, first_row, bits
        self._thinning = least_thinning(num_embeddings)
        self._rows = candidates(first_row, stop_row, self._thinning)
        self._before = np.zeros(len(self._rows), dtype=np.uint8)
        self._notes = 0  # that were there when the slice began
        self._number: int | None = None
        self._samples: dict[int, int] = {}
        self._entries: dict[int, list[tuple[NarrowInts, Ints]]] = {}  # rows and counts, by slice

    @property
    def start(self) -> int:
        """The sample with which the slice begins."""
        assert self._number is not None
        return self._number << self.bits

    def begin(self, sample: int) -> int:
        """Be in the slice of a sample; the sample with which the next one begins."""
        number = sample >> self.bits
        if number != self._number:
            self._end()
            self._number = number
            while number - min(self._samples, default=number) >= MOST_SLICES:
                self._double()
                number = sample >> self.bits
            self._number = number
        return (number + 1) << self.bits

    def add(self, samples: int) -> None:
        """Note samples of the slice."""
        assert self._number is not None
        self._samples[self._number] = self._samples.get(self._number, 0) + samples

    def finish(self) -> Slices:
        """All slices."""
        self._end()
        touched = self._touched()
        first = min(self._samples, default=0)
        samples = np.zeros(max(self._samples, default=-1) + 1 - first, dtype=np.int64)
        counts = np.zeros((len(touched), len(samples)), dtype=np.int64)
        for number, held in self._samples.items():
            samples[number - first] = held
            for rows, seen in self._entries.get(number, ()):
                counts[np.searchsorted(touched, rows), number - first] += seen
        return Slices(self.bits, self._thinning, first, samples, touched, counts)

    def _end(self) -> None:
        """Note what was seen since the slice began."""
        if self._number is None:
            return
        now = self._lookups.low[self._rows - self._first_row]
        seen = now.astype(np.int64) - self._before
        places, times = self._lookups.over(self._notes)
        if len(places):
            at = np.searchsorted(self._rows, places + self._first_row)
            at = np.minimum(at, len(self._rows) - 1)
            mine = self._rows[at] == places + self._first_row
            seen[at[mine]] += 256 * times[mine]
        self._before, self._notes = now, self._lookups.notes
        there = np.flatnonzero(seen)
        self._entries.setdefault(self._number, []).append((self._rows[there], seen[there]))
        self._thin()

    def _touched(self) -> NarrowInts:
        lists = [rows for entries in self._entries.values() for rows, _ in entries]
        seen = np.zeros(len(self._rows), dtype=np.bool_)
        for rows in lists:
            seen[np.searchsorted(self._rows, rows)] = True
        return self._rows[seen]

    def _thin(self) -> None:
        """Keep fewer rows, if there are too many already."""
        thinning = thinning_of(self._touched(), self._thinning)
        if thinning == self._thinning:
            return
        kept = thin(self._rows, thinning)
        self._thinning, self._rows, self._before = thinning, self._rows[kept], self._before[kept]
        for number, entries in self._entries.items():
            masks = [thin(rows, thinning) for rows, _ in entries]
            self._entries[number] = [
                (rows[mask], seen[mask]) for (rows, seen), mask in zip(entries, masks, strict=True)
            ]

    def _double(self) -> None:
        """Make slices twice as long."""
        self.bits += 1
        samples: dict[int, int] = {}
        entries: dict[int, list[tuple[NarrowInts, Ints]]] = {}
        for number, held in self._samples.items():
            samples[number >> 1] = samples.get(number >> 1, 0) + held
            entries.setdefault(number >> 1, []).extend(self._entries.get(number, ()))
        self._samples, self._entries = samples, entries


@compiled
def _count(
    rows: Ints,
    lengths: Ints,
    ragged: bool,
    first_row: int,
    at: int,
    low: Bytes,
    again: Bytes,
    last: NDArray[np.uint32],
    bins: Ints,
    head_stop: int,
    over: Ints,
    over_again: Ints,
    head: Ints,
) -> tuple[int, int, int]:
    """Count rows; how many ran over, ran over as repeats, and were new before `head_stop`."""
    size, one, far = np.uint64(len(low)), np.uint8(1), BINS - 1
    overs, overs_again, heads = 0, 0, 0
    samples = len(lengths) if ragged else len(rows)
    i = 0
    for sample in range(samples):
        now = np.uint32(at + sample + 1)
        length = lengths[sample] if ragged else 1
        for _ in range(length):
            place = np.uint64(rows[i] - first_row)  # unsigned: a row before the first is too large
            i += 1
            if place >= size:
                continue
            seen = np.uint8(low[place] + one)
            low[place] = seen
            if seen == 0:
                over[overs] = place
                overs += 1
            before = last[place]
            if before == 0:
                bins[far] += 1
                if at + sample < head_stop:
                    head[0, heads] = place
                    head[1, heads] = at + sample
                    heads += 1
            elif before == now:
                bins[0] += 1
                repeated = np.uint8(again[place] + one)
                again[place] = repeated
                if repeated == 0:
                    over_again[overs_again] = place
                    overs_again += 1
                continue
            else:
                bins[min(bit_length((before - np.uint32(1)) ^ (now - np.uint32(1))), far)] += 1
            last[place] = now
    return overs, overs_again, heads

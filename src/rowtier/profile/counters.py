"""The counters of one table: how often each row was looked up, in how many samples, and when.

Counting is as fast as the counters are near, so a row has four bytes for all of it. One counts its
lookups; a counter that runs over starts again from zero and its row is noted, which is rare, as
it takes 256 lookups. The other three hold the row's last sample: it says which lookups repeat an
id of the same sample, and how many distinct rows windows of samples have (`windows.py`). They
count from a base that moves on with the samples. When a time slice ends, only some rows are
looked at again (`slices.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rowtier.profile.counting_loops import (
    _FARTHEST,
    Bytes,
    Ints,
    count_bags,
    count_single,
    gather,
    move_base,
    seen_since,
)
from rowtier.profile.order import NarrowInts, narrow
from rowtier.profile.slices import (
    MOST_ROWS,
    MOST_SLICES,
    Slices,
    thin,
    thinning_of,
)
from rowtier.profile.windows import BINS, TOP_BITS, Seen, Span, Windows, added

COUNTER_BYTES = 5  # lookups and last sample, repeats within a sample
_NONE = np.empty(0, dtype=np.int64)
_NO_BYTES = np.empty(0, dtype=np.uint8)
_MOST_SAMPLES = 2**22  # counted at once


class ByteCounters:
    """How often each row was seen: a byte per row, and the rows whose byte ran over."""

    def __init__(self, low: Bytes):
        self.low = low
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
class SampleLookups:
    """The rows that consecutive samples look up; None: every sample looks up one."""

    rows: Ints
    lengths: Ints | None
    samples: int

    def cut(self, start: int, stop: int) -> SampleLookups:
        """Those of samples `start` to `stop`, asked for in rising order."""
        if self.lengths is None:
            return SampleLookups(self.rows[start:stop], None, stop - start)
        lengths = self.lengths[start:stop]
        first = int(self.lengths[:start].sum())
        return SampleLookups(self.rows[first : first + int(lengths.sum())], lengths, stop - start)


class RowCounters:
    """Counts rows `first_row` to `stop_row` of a table while samples come in, in their order."""

    def __init__(self, first_row: int, stop_row: int, bits: int):
        self._first_row = first_row
        self._words = np.zeros(stop_row - first_row, dtype="<u4")  # last sample, lookups
        self.lookups = ByteCounters(self._words.view(np.uint8)[::4])
        self.repeats: ByteCounters | None = None  # within a sample
        self._slices = _SliceCounter(self.lookups, first_row, bits)
        self._bins: dict[int, Ints] = {}  # by the sample with which a slice begins
        self._head: list[Ints] = []  # rows that were new in the first window, and their samples
        self._span: Span | None = None
        self._base = 0  # the sample that a last sample of 1 stands for
        self._whole = True  # whether no sample in between is missing

    def add(self, lookups: SampleLookups, first_sample: int, numbers: Ints | None = None) -> None:
        """Count the lookups of samples from `first_sample` on, or with these numbers."""
        start = 0
        while start < lookups.samples:
            number = first_sample + start if numbers is None else int(numbers[start])
            stop = self._slices.begin(number)
            end = start + stop - number if numbers is None else int(np.searchsorted(numbers, stop))
            end = min(end, lookups.samples, start + _MOST_SAMPLES)
            self._begin(first_sample + start, end - start, numbers is None)
            part = lookups if end - start == lookups.samples else lookups.cut(start, end)
            self._slices.add(end - start, self._count(part, first_sample + start))
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
            move_base(self._words, min(base - self._base, _FARTHEST))
            self._base = base
        self._span = replace(self._span, stop=first_sample + samples)

    def _count(self, lookups: SampleLookups, first_sample: int) -> Ints:
        """Count lookups of samples that lie in one slice; the rows that nobody had looked up."""
        assert self._span is not None
        at = first_sample - self._base
        if self._whole and first_sample < self._span.head_stop:
            self._head.append(self._seen_now(lookups, at, self._span.head_stop - self._base))
        over, again, new = np.empty((3, len(lookups.rows)), dtype=np.int64)
        bins = self._bins.setdefault(self._slices.start, np.zeros(BINS, dtype=np.int64))
        counted = (lookups.rows, self._first_row, at, self._words)
        if lookups.lengths is not None:
            if self.repeats is None:
                self.repeats = ByteCounters(np.zeros(len(self._words), dtype=np.uint8))
            overs, news, repeated = count_bags(
                *counted, bins, over, new, lookups.lengths, self.repeats.low, again
            )
            self.repeats.ran_over(again[:repeated])
        else:
            overs, news = count_single(*counted, bins, over, new)
        self.lookups.ran_over(over[:overs])
        return np.asarray(new[:news] + self._first_row)

    def _seen_now(self, lookups: SampleLookups, at: int, stop: int) -> Ints:
        """Rows that are looked up for the first time before a sample, and in which."""
        sample = np.arange(lookups.samples)
        if lookups.lengths is not None:
            sample = np.repeat(sample, lookups.lengths)
        inside = int(np.searchsorted(sample, stop - at))
        places, first = np.unique(lookups.rows[:inside] - self._first_row, return_index=True)
        here = (places >= 0) & (places < len(self._words))
        places, first = places[here], first[here]
        never = self._words[places] < 256
        return np.stack((places[never], at + sample[first[never]]))

    def _seen_first(self) -> Seen:
        """Rows of the first window, if it began before the samples."""
        assert self._span is not None
        places, samples = np.concatenate([np.empty((2, 0), dtype=np.int64), *self._head], axis=1)
        base = self._span.first >> TOP_BITS << TOP_BITS  # which did not move before the head ended
        return Seen.of(places + self._first_row, samples + base)

    def _seen_last(self) -> Seen:
        """Rows of the last window, if it is not over."""
        assert self._span is not None
        start = max(0, self._span.tail_start - self._base)
        if self._span.stop == self._span.tail_start:
            return Seen()
        seen = np.empty((2, seen_since(self._words, start, np.empty((2, 0), np.int64))), np.int64)
        seen_since(self._words, start, seen)
        return Seen(narrow(seen[0] + self._first_row), seen[1] + self._base)


class _SliceCounter:
    """Looks, whenever a slice ends, how often the kept rows were seen in it."""

    def __init__(self, lookups: ByteCounters, first_row: int, bits: int):
        self._lookups, self._first_row, self.bits = lookups, first_row, bits
        self._thinning = 0
        self._rows = _NONE  # that are kept, in order
        self._before = np.empty(0, dtype=np.uint8)  # their counters when the slice began
        self._new: list[Ints] = []  # rows that were looked up for the first time since
        self._notes = 0  # of counters that ran over when the slice began
        self._number: int | None = None
        self._samples: dict[int, int] = {}
        self._entries: dict[int, list[tuple[Ints, Ints]]] = {}  # rows and counts, by slice

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
            while number - min(self._samples, default=number) >= MOST_SLICES:
                self._double()
                number = sample >> self.bits
            self._number = number
        return (number + 1) << self.bits

    def add(self, samples: int, new: Ints) -> None:
        """Note samples of the slice, and rows that were looked up for the first time in them."""
        assert self._number is not None
        self._samples[self._number] = self._samples.get(self._number, 0) + samples
        if len(new):
            self._new.append(new[thin(new, self._thinning)])
            if sum(map(len, self._new)) > MOST_ROWS:
                self._take_new()

    def finish(self) -> Slices:
        """All slices."""
        self._end()
        first = min(self._samples, default=0)
        samples = np.zeros(max(self._samples, default=-1) + 1 - first, dtype=np.int64)
        counts = np.zeros((len(self._rows), len(samples)), dtype=np.int64)
        for number, held in self._samples.items():
            samples[number - first] = held
            for rows, seen in self._entries.get(number, ()):
                counts[np.searchsorted(self._rows, rows), number - first] += seen
        return Slices(self.bits, self._thinning, first, samples, self._rows, counts)

    def _end(self) -> None:
        """Note what was seen since the slice began."""
        if self._number is None:
            return
        self._take_new()
        now = np.empty(len(self._rows), dtype=np.uint8)
        gather(self._lookups.low, self._rows, self._first_row, now)
        seen = now.astype(np.int64) - self._before
        places, times = self._lookups.over(self._notes)
        if len(places) and len(self._rows):
            at = np.searchsorted(self._rows, places + self._first_row)
            at = np.minimum(at, len(self._rows) - 1)
            mine = self._rows[at] == places + self._first_row
            seen[at[mine]] += 256 * times[mine]
        self._before, self._notes = now, self._lookups.notes
        there = np.flatnonzero(seen)
        self._entries.setdefault(self._number, []).append((self._rows[there], seen[there]))

    def _take_new(self) -> None:
        """Keep new rows too; fewer of all, if there are too many."""
        if not self._new:
            return
        found = np.sort(np.concatenate(self._new))
        found = found[np.diff(found, prepend=-1) > 0]
        self._new.clear()
        found = found[~np.isin(found, self._rows, assume_unique=True)]
        rows = np.concatenate((self._rows, found))
        before = np.concatenate((self._before, np.zeros(len(found), dtype=np.uint8)))
        self._thinning = thinning_of(rows, self._thinning)
        kept = np.flatnonzero(thin(rows, self._thinning))
        kept = kept[np.argsort(rows[kept], kind="stable")]
        fewer = len(kept) < len(rows)
        self._rows, self._before = rows[kept], before[kept]
        for number, entries in self._entries.items() if fewer else ():
            masks = [thin(rows, self._thinning) for rows, _ in entries]
            self._entries[number] = [
                (rows[mask], seen[mask]) for (rows, seen), mask in zip(entries, masks, strict=True)
            ]

    def _double(self) -> None:
        """Make slices twice as long."""
        self.bits += 1
        samples: dict[int, int] = {}
        entries: dict[int, list[tuple[Ints, Ints]]] = {}
        for number, held in self._samples.items():
            samples[number >> 1] = samples.get(number >> 1, 0) + held
            entries.setdefault(number >> 1, []).extend(self._entries.get(number, ()))
        self._samples, self._entries = samples, entries

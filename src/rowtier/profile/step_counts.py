"""Counting rows while a model trains: lookups of some steps in, the statistics of a table out.

A training step has no time for counting, so lookups wait as they came and are counted many steps
at once, in one loop over a hash table. What is counted is kept per row and *period*: a power of two
of counted steps, of which there are at most 16, as there are of time slices (`slices.py`), which
they become. Where more rows are touched than slices keep, only some know their periods.

A model knows rows by their addresses under its plan. These become rows when somebody asks, or
when the plan changes, since turning them back takes a look at the whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowtier.jit import compiled
from rowtier.profile.count import FeatureCounter
from rowtier.profile.profile import RowCounts, TableStats
from rowtier.profile.slices import Slices, thin, thinning_of
from rowtier.tables import Table

Ints = NDArray[np.int64]
NO_PERIOD = -1  # of rows that the slices do not keep
_PERIOD_BITS = 5  # 16 periods and none
_PLACES = (1 << _PERIOD_BITS) - 1
_KEY, _LOOKUPS, _HOLDING, _LAST = range(4)  # of a slot
_LEAST_SLOTS = 2**10
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MANY = 2**18  # entries by address that may wait for their rows, at least


@dataclass(frozen=True, eq=False)
class StepLookups:
    """What some steps look up in one table, feature by feature and step by step.

    `edges` say where the samples of an array begin, and where the last one ends.
    """

    addresses: Sequence[Sequence[NDArray[Any]]]  # features × steps
    edges: Sequence[Sequence[Ints]]
    periods: Ints  # of the steps
    samples: Ints  # of the steps: at least as many as any feature has


@dataclass(frozen=True, eq=False)
class HeatRun:
    """Lookups and samples per row and period, in that order, each pair once."""

    row: Ints
    period: Ints
    lookups: Ints
    samples: Ints

    def __len__(self) -> int:
        return len(self.row)

    @classmethod
    def empty(cls) -> HeatRun:
        """Of no lookups."""
        return cls(*np.empty((4, 0), dtype=np.int64))

    def coarsened(self, by: int) -> HeatRun:
        """With periods 2^by times as long; pairs may be there several times."""
        return replace(self, period=self.period >> by)  # none stays none: −1 >> 1 is −1

    def thinned(self, least: int) -> tuple[HeatRun, int]:
        """Fewer rows with periods, if there are too many, and how thin they are then."""
        held = self.period != NO_PERIOD
        if least:
            held &= thin(self.row, least)
        rows = np.unique(self.row[held])
        thinning = thinning_of(rows, least)
        if thinning > least:
            held[held] = thin(self.row[held], thinning)
        if (held == (self.period != NO_PERIOD)).all():
            return self, thinning
        return summed([replace(self, period=np.where(held, self.period, NO_PERIOD))]), thinning


def summed(runs: Sequence[HeatRun]) -> HeatRun:
    """Runs added up."""
    row, period, lookups, samples = (
        np.concatenate([getattr(run, name) for run in runs])
        for name in ("row", "period", "lookups", "samples")
    )
    if not len(row):
        return HeatRun.empty()
    known = period[period != NO_PERIOD]
    first = int(known.min()) if len(known) else 0
    place = np.where(period == NO_PERIOD, 0, period - first + 1)
    assert place.max() < 1 << _PERIOD_BITS
    key = row << _PERIOD_BITS | place
    order = np.argsort(key, kind="stable")
    starts = _starts(key[order])
    kept = order[starts]
    totals = (np.add.reduceat(values[order], starts) for values in (lookups, samples))
    return HeatRun(row[kept], period[kept], *totals)


def _starts(ordered: Ints) -> NDArray[np.intp]:
    """Where values that stand in order change."""
    return np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))


class HeatSlots:
    """Counts per address and period, in an open-addressing table that grows with them."""

    def __init__(self, first: int):
        self._first = first  # counted step, of all that come
        self._bits = self._used = self._samples = 0
        self._slots = _new_slots(_LEAST_SLOTS)

    def __len__(self) -> int:
        return self._used

    def add(self, lookups: StepLookups, bits: int) -> None:
        """Count lookups of steps whose periods are 2^bits steps long, and those before."""
        addresses = [np.concatenate(one) for one in lookups.addresses]
        total = sum(map(len, addresses))
        if bits != self._bits or self._is_full(total):
            self._fill(self._entries(bits), total, bits)
        places = np.repeat(lookups.periods - (self._first >> bits), lookups.samples)
        edges = np.stack(list(_joined_edges(lookups)))
        whole = addresses[0] if len(addresses) == 1 else np.concatenate(addresses)
        self._used += int(_tally(whole, edges, places, self._samples, self._slots))
        self._samples += len(places)

    def taken(self, bits: int) -> HeatRun:
        """All of it, in periods of 2^bits steps; nothing is left."""
        found = self._entries(bits)
        self._slots, self._used, self._bits = _new_slots(_LEAST_SLOTS), 0, bits
        return summed([found])

    def _entries(self, bits: int) -> HeatRun:
        """What the slots hold, in any order; pairs may be there twice if periods are longer."""
        key, lookups, samples, _ = self._slots[self._slots[:, _KEY] > 0].T
        period = ((key - 1) & _PLACES) + (self._first >> self._bits)
        run = HeatRun((key - 1) >> _PERIOD_BITS, period, lookups, samples)
        return run.coarsened(bits - self._bits)

    def _is_full(self, more: int) -> bool:
        """Whether so many entries more leave less than a quarter of the slots empty."""
        return 4 * (self._used + more) > 3 * len(self._slots)

    def _fill(self, run: HeatRun, more: int, bits: int) -> None:
        """Hold these entries instead, with room for more."""
        self._slots = _new_slots(2 * (len(run) + more))
        key = (run.row << _PERIOD_BITS | (run.period - (self._first >> bits))) + 1
        self._used = int(_insert(key, run.lookups, run.samples, self._slots))
        self._bits = bits


def _new_slots(least: int) -> Ints:
    """A power of two of them, each in one line of the cache: key, lookups, samples, last one."""
    size = 1 << (max(least, _LEAST_SLOTS) - 1).bit_length()
    return np.zeros((size, 4), dtype=np.int64)


def _joined_edges(lookups: StepLookups) -> Iterator[Ints]:
    """Of each feature where the samples of all steps begin among all addresses.

    A feature may have fewer samples than others in a step: the last ones look up nothing.
    """
    base = 0
    for edges in lookups.edges:
        found = []
        for one, samples in zip(edges, lookups.samples.tolist(), strict=True):
            found.append(one[:-1] + base)
            base += int(one[-1])
            found += [np.full(samples - len(one) + 1, base)] if len(one) <= samples else []
        yield np.concatenate([*found, [base]])


@compiled
def _place_of(key: int, slots: Ints) -> int:
    """The slot of a key, or an empty one for it."""
    mask, mixed = np.uint64(len(slots) - 1), np.uint64(key) * _GOLDEN
    place = (mixed ^ (mixed >> np.uint64(32))) & mask
    while slots[place, _KEY] != 0 and slots[place, _KEY] != key:
        place = (place + np.uint64(1)) & mask
    return int(place)


@compiled
def _tally(
    addresses: NDArray[Any], edges: Ints, periods: Ints, first_sample: int, slots: Ints
) -> int:
    """Count lookups sample by sample, those of all features together; how many keys are new."""
    new = 0
    for sample in range(len(periods)):
        now = first_sample + sample + 1
        for feature in range(len(edges)):
            for i in range(edges[feature, sample], edges[feature, sample + 1]):
                key = (np.int64(addresses[i]) << _PERIOD_BITS | periods[sample]) + 1
                place = _place_of(key, slots)
                if slots[place, _KEY] == 0:
                    slots[place, _KEY] = key
                    new += 1
                slots[place, _LOOKUPS] += 1
                if slots[place, _LAST] != now:
                    slots[place, _LAST] = now
                    slots[place, _HOLDING] += 1
    return new


@compiled
def _insert(keys: Ints, lookups: Ints, samples: Ints, slots: Ints) -> int:
    """Add counts of keys; how many are new."""
    new = 0
    for i in range(len(keys)):
        place = _place_of(keys[i], slots)
        new += int(slots[place, _KEY] == 0)
        slots[place, _KEY] = keys[i]
        slots[place, _LOOKUPS] += lookups[i]
        slots[place, _HOLDING] += samples[i]
    return new


class HeatPile:
    """Runs that wait to be added up: few large ones, so that each entry is added rarely."""

    def __init__(self) -> None:
        self._runs: list[tuple[HeatRun, int]] = []  # and how long their periods are

    def __len__(self) -> int:
        return sum(len(run) for run, _ in self._runs)

    def add(self, run: HeatRun, bits: int) -> None:
        """Add a run whose periods are 2^bits steps long."""
        self._runs.append((run, bits))
        while len(self._runs) > 1 and len(self._runs[-2][0]) < 2 * len(self._runs[-1][0]):
            self._join(self._runs[-2:], bits)

    def taken(self, bits: int) -> HeatRun:
        """All of it, in periods of 2^bits steps; nothing is left."""
        self._join(self._runs, bits)
        found = self._runs[0][0] if self._runs else HeatRun.empty()
        self._runs = []
        return found

    def _join(self, runs: list[tuple[HeatRun, int]], bits: int) -> None:
        joined = [run.coarsened(bits - before) for run, before in runs]
        self._runs = self._runs[: len(self._runs) - len(runs)]
        if joined:
            self._runs.append((summed(joined), bits))


class TableHeat:
    """What was counted of one table so far."""

    def __init__(self, table: Table, first: int = 0):
        self.table = table
        self._features = [FeatureCounter(name) for name in table.features]
        self._by_address, self._by_row = HeatSlots(first), HeatPile()
        self._thinning = 0

    def add(self, lookups: StepLookups, bits: int) -> None:
        """Count lookups, in periods of 2^bits steps."""
        for feature, edges in zip(self._features, lookups.edges, strict=True):
            lengths = np.concatenate([np.diff(one) for one in edges])
            feature.add(len(lengths), lengths)
        self._by_address.add(lookups, bits)

    @property
    def is_large(self) -> bool:
        """Whether so many entries wait for their rows that a look at the whole table pays."""
        least = max(_MANY, self.table.num_embeddings // 16, len(self._by_row))
        return len(self._by_address) > least

    def settle(self, rows: Callable[[], Ints], bits: int) -> None:
        """Turn addresses into rows; `rows` gives the row at each address."""
        if not len(self._by_address):
            return
        run = self._by_address.taken(bits)
        run = summed([replace(run, row=rows()[run.row])])
        run, self._thinning = run.thinned(self._thinning)
        self._by_row.add(run, bits)

    def finish(self, first: int, samples: Ints, bits: int, slice_bits: int) -> TableStats:
        """The statistics; `samples` are those of the periods from `first` on.

        Addresses must be settled. Slices have 2^slice_bits samples.
        """
        run, self._thinning = self._by_row.taken(bits).thinned(self._thinning)
        self._by_row.add(run, bits)
        features = tuple(feature.finish() for feature in self._features)
        slices = _slices_of(run, first, samples, slice_bits, self._thinning)
        stats = TableStats.counted(self.table, int(samples.sum()), features, _counts_of(run))
        return replace(stats, slices=slices)


def _counts_of(run: HeatRun) -> RowCounts:
    """Rows with the lookups and samples of all periods, hottest first."""
    if not len(run):
        return RowCounts(run.row, run.lookups, run.samples)
    starts = _starts(run.row)
    lookups, samples = (np.add.reduceat(each, starts) for each in (run.lookups, run.samples))
    order = np.argsort(-lookups, kind="stable")
    return RowCounts(run.row[starts][order], lookups[order], samples[order])


def _slices_of(run: HeatRun, first: int, samples: Ints, bits: int, thinning: int) -> Slices:
    """Lookups of rows in each period."""
    known = run.period != NO_PERIOD
    rows, place = np.unique(run.row[known], return_inverse=True)
    counts = np.zeros((len(rows), len(samples)), dtype=np.int64)
    counts[place, run.period[known] - first] = run.lookups[known]
    return Slices(bits, thinning, first, samples, rows, counts)

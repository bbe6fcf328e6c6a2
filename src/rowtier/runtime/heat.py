"""Counts of rows while training: which steps are counted, and one profile of all ranks.

One step in every n is counted, which one of them is drawn by the seed, so all ranks count the
same. Readers keep what their own batch looks up, before anything is coalesced, and count it when
enough has gathered (`profile/step_counts.py`). Samples have no place in a data set here, only
their step has: a slice of the profile is a power of two of counted steps, and what neighbouring
samples have in common is not known.

Rows of growing tables are counted as rows, whichever ids had them at the time: a row that changes
hands goes on to get what ids bring that come and go, and a plan places rows.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from rowtier.errors import MismatchError, UserError
from rowtier.plan.plan import Plan
from rowtier.plan.remap import Addressed, Remapper
from rowtier.profile.count_ids import Vocabularies, with_vocabularies
from rowtier.profile.merge import merge_tables
from rowtier.profile.profile import FeatureStats, Profile, RowCounts, TableStats
from rowtier.profile.slices import Slices, bits_for
from rowtier.profile.step_counts import StepLookups, TableHeat
from rowtier.tables import Table

if TYPE_CHECKING:
    from rowtier.runtime.exchange.wire import Wire

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
_WAITING = 2**18  # lookups that are counted at once


class HeatCounts:
    """What one rank counts of its own batches."""

    def __init__(self, plan: Plan, every: int, seed: int):
        self._plan, self._every, self._seed = plan, every, seed
        self._step = 0  # training lookups so far
        self._next = self._drawn(0)
        self._first = 0  # number of the first counted step since the last reset
        self._remapper: Remapper | None = None  # by which addresses are those of rows
        self._clear()

    def _clear(self) -> None:
        self._tables = [TableHeat(table, self._first) for table, _ in self._plan]
        self._samples: list[int] = []  # of each counted step
        self._waiting: list[list[tuple[NDArray[Any], Ints]]] = []  # steps × reads
        self._size = 0

    def _drawn(self, turn: int) -> int:
        """The step that is counted among the `every` steps of a turn."""
        drawn = xxhash.xxh3_64_intdigest(turn.to_bytes(8, "little"), self._seed % 2**64)
        return self._every * turn + drawn % self._every

    def note(self, batch: Addressed, remapper: Remapper) -> None:
        """Note a training lookup; count it if it is its turn."""
        step, self._step = self._step, self._step + 1
        if step != self._next:
            return
        self._next = self._drawn(step // self._every + 1)
        if remapper is not self._remapper:
            self._settle()
            self._remapper = remapper
        reads = [batch[read.key] for read in remapper.reads]
        self._waiting.append([(jagged.values, jagged.edges) for jagged in reads])
        self._samples.append(max(jagged.samples for jagged in reads))
        self._size += sum(len(jagged.values) for jagged in reads)
        if self._size > _WAITING:
            self._count()

    @property
    def counted_steps(self) -> int:
        """Steps that were counted since the last reset; the same on all ranks."""
        return len(self._samples)

    @property
    def _bits(self) -> int:
        """How many steps a period has, as a power of two."""
        return bits_for(self._first, self._first + len(self._samples))

    def _count(self) -> None:
        """Count what waits."""
        if not self._waiting:
            return
        steps, bits = len(self._waiting), self._bits
        last = self._first + len(self._samples)
        periods = np.arange(last - steps, last) >> bits
        samples = np.array(self._samples[-steps:], dtype=np.int64)
        at = 0
        for table in self._tables:
            columns = range(at, at := at + len(table.table.features))
            addresses, edges = (
                [[step[column][part] for step in self._waiting] for column in columns]
                for part in (0, 1)
            )
            table.add(StepLookups(addresses, edges, periods, samples), bits)
            if table.is_large:
                self._settle_table(table)
        self._waiting, self._size = [], 0

    def _settle_table(self, table: TableHeat) -> None:
        assert self._remapper is not None
        table.settle(self._remapper.tables[table.table.name].rows, self._bits)

    def _settle(self) -> None:
        """Count what waits, by row."""
        self._count()
        for table in self._tables if self._remapper is not None else ():
            self._settle_table(table)

    def gathered(self, wire: Wire, grown: Vocabularies, *, reset: bool) -> Profile:
        """The counts of all ranks as one profile, the same on each; all must call this.

        `grown`: what ids rows of growing tables have by now.
        """
        self._settle()
        own = np.array(self._samples, dtype=np.int64).view(np.uint8)
        everyones = [part.view(np.int64) for part in told_by_all(wire, own)]
        if len({len(samples) for samples in everyones}) > 1:
            raise MismatchError(
                f"ranks counted {', '.join(str(len(samples)) for samples in everyones)} steps: "
                "all ranks must make the same lookups while they train"
            )
        if not sum(int(samples.sum()) for samples in everyones):
            raise UserError(
                f"profile() after {self._step} training lookups, none of which was counted since "
                f"the last reset, as one in {self._every} is: train on, or lower heat_counts"
            )
        found = _merged(wire, self._plan, self._own(everyones))
        found = with_vocabularies(found, {**self._plan.vocabularies, **grown})
        if reset:
            self._first += len(self._samples)
            self._clear()
        return found

    def _own(self, everyones: Sequence[Ints]) -> list[TableStats]:
        """What this rank counted, table by table."""
        bits, first = self._bits, self._first
        largest = int(np.sum(everyones, axis=0).max())  # step, in samples of all ranks
        periods = np.arange(first, first + len(self._samples)) >> bits
        samples = np.bincount(periods - periods[0], self._samples).astype(np.int64)
        # Samples are numbered as if every step had room for as many as the largest.
        slice_bits = bits + (largest - 1).bit_length()
        return [table.finish(int(periods[0]), samples, bits, slice_bits) for table in self._tables]


def _merged(wire: Wire, plan: Plan, own: Sequence[TableStats]) -> Profile:
    """One profile of what all ranks counted: each adds up some tables, and tells the others."""
    size, me = wire.world.size, wire.world.rank
    came = _swapped(wire, [_packed(own[place::size]) for place in range(size)])
    tables = [stats.table for stats in own]
    columns = zip(*(_unpacked(part, tables[me::size]) for part in came), strict=True)
    everyones = told_by_all(wire, _packed([merge_tables(column) for column in columns]))
    found = list(own)
    for place, part in enumerate(everyones):
        found[place::size] = _unpacked(part, tables[place::size])
    return Profile(plan.profile.batch_size, tuple(found))


def told_by_all(wire: Wire, sent: Bytes) -> list[Bytes]:
    """Tell all ranks; what each of them tells."""
    return _swapped(wire, [sent] * wire.world.size)


def _swapped(wire: Wire, sent: Sequence[Bytes]) -> list[Bytes]:
    """Send every rank its part; what each sent to this one, which needs no way."""
    came = wire.swap_unknown([[part] for part in sent])
    came[wire.world.rank] = sent[wire.world.rank]
    return came


def _packed(some: Sequence[TableStats]) -> Bytes:
    """Statistics of tables as they travel."""
    file = io.BytesIO()
    for stats in some:
        counts, slices = stats.counts, stats.slices
        assert counts is not None
        assert slices is not None
        times = np.array([slices.bits, slices.thinning, slices.first])
        lengths = (np.array(f.lengths, dtype=np.int64).reshape(-1, 2) for f in stats.features)
        arrays = (counts.rows, counts.counts, counts.samples, times, slices.samples, slices.rows)
        for array in (*arrays, slices.counts, *lengths):
            np.save(file, array, allow_pickle=False)
    return np.frombuffer(file.getvalue(), dtype=np.uint8)


def _unpacked(data: Bytes, tables: Sequence[Table]) -> list[TableStats]:
    """The statistics of these tables."""
    file = io.BytesIO(data.tobytes())

    def read() -> NDArray[Any]:
        return np.asarray(np.load(file, allow_pickle=False))

    found = []
    for table in tables:
        counts = RowCounts(read(), read(), read())
        bits, thinning, first = read().tolist()
        slices = Slices(bits, thinning, first, read(), read(), read())
        features = tuple(_feature(name, read()) for name in table.features)
        stats = TableStats.counted(table, int(slices.samples.sum()), features, counts)
        found.append(replace(stats, slices=slices))
    return found


def _feature(name: str, lengths: Ints) -> FeatureStats:
    """A feature of which so many samples (second) have so many ids (first)."""
    pairs = [(length, samples) for length, samples in lengths.tolist()]
    present, lookups = sum(samples for _, samples in pairs), sum(n * m for n, m in pairs)
    return FeatureStats(name=name, present=present, lookups=lookups, lengths=tuple(pairs))

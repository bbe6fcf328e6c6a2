"""Which rows changed since the last delta and the last save: a byte a row, on one of its holders.

Copies of a row change together, so one marks it: the holder in the first group of the band's scope.
A row whose columns lie apart is marked beside each of them. Off unless a module has `deltas=True`;
then all rows are marked at first, as nobody can have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rowtier.plan.remap import TableMap
from rowtier.runtime.store.position import Position
from rowtier.runtime.store.storage import Shard

Ints = NDArray[np.int64]
Marks = NDArray[np.uint8]
# Since the last delta; the last save that is whole; the last one that began, which may fail.
DELTA, SAVED, BEGUN = 1, 2, 4
ALL = DELTA | SAVED | BEGUN


@dataclass(frozen=True)
class SavedAs:
    """A save that rows may be compared with."""

    save: Path
    name: str  # of the weights in it
    keys: frozenset[str]  # of all tensors by rows that it has


@dataclass
class Changes:
    """The rows of one rank that changed, and since when."""

    tables: Mapping[str, TableMap]
    run_shards: Mapping[int, Shard]  # of bundles, which are updated
    shards: Sequence[Shard]  # of the plan: windows on those
    sequence: int = 0  # of the last delta
    # Whatever was written since then: the next delta has all that changed after any of them.
    follows: list[str] = field(default_factory=list)
    saved: SavedAs | None = None
    marks: dict[int, Marks] = field(init=False)

    def __post_init__(self) -> None:
        self.marks = {
            number: np.full(shard.piece.rows_here, ALL, dtype=np.uint8)
            for number, shard in self.run_shards.items()
            if shard.piece.group == 0
        }

    def on(
        self, tables: Mapping[str, TableMap], run_shards: Mapping[int, Shard],
        shards: Sequence[Shard],
    ) -> Changes:  # fmt: skip
        """The same story of rows that another plan has elsewhere; none of them is marked yet."""
        found = replace(self, tables=tables, run_shards=run_shards, shards=shards)
        found.clear(ALL)
        return found

    def mark(self, shard: Shard, slots: Ints) -> None:
        """Say that rows of a shard of a bundle changed."""
        marks = self.marks.get(shard.piece.number)
        if marks is not None:
            marks[slots] = ALL

    def mark_all(self) -> None:
        """Say that everything changed."""
        for marks in self.marks.values():
            marks[:] = ALL

    def clear(self, bits: int) -> None:
        """From now on rows are compared with what they are now."""
        for marks in self.marks.values():
            marks &= np.uint8(~bits & 0xFF)

    def of(self, shard: Shard) -> Marks:
        """The marks of a shard of the plan, slot by slot; none where another rank keeps them."""
        whole = shard if shard.inside is None else shard.inside
        marks = self.marks.get(whole.piece.number)
        if marks is None:
            return np.zeros(shard.piece.rows_here, dtype=np.uint8)
        return marks[shard.base : shard.base + shard.piece.rows_here]

    def slots(self, shard: Shard, bit: int) -> Ints:
        """The slots of a shard of the plan whose rows changed."""
        return np.flatnonzero(self.of(shard) & np.uint8(bit))

    def marked_rows(self, table: str) -> tuple[Ints, Marks]:
        """Rows of a table that are marked here, rising, and their marks."""
        entry = self.tables[table]
        found, rows_at = np.zeros(entry.table.num_embeddings, dtype=np.uint8), entry.rows()
        for shard in self._of(table):
            address = entry.in_first_layer(shard.piece.layer, shard.piece.addresses_here())
            found[rows_at[address]] |= self.of(shard)
        rows = np.flatnonzero(found)
        return rows, found[rows]

    def mark_rows(self, table: str, rows: Ints, marks: Marks) -> None:
        """Add marks to rows of a table, to those that this rank marks."""
        entry = self.tables[table]
        for shard in self._of(table):
            piece = shard.piece
            address = entry.in_layer(piece.layer, entry.address[rows])
            inside = np.flatnonzero((address >= piece.band.start) & (address < piece.band.stop))
            position, slots = piece.places(address[inside])
            mine = position == piece.position
            self.of(shard)[slots[mine]] |= marks[inside[mine]]

    def _of(self, table: str) -> Iterator[Shard]:
        """The shards of a table whose rows this rank marks."""
        for shard in self.shards:
            piece = shard.piece
            if piece.table.name == table and piece.group == 0 and piece.rows_here:
                yield shard

    def save_begins(self, name: str) -> None:
        """Rows are in a save as they are now; the next delta will go onto it, too."""
        self.clear(BEGUN)
        self.follows.append(name)

    def save_is_whole(self, saved: SavedAs) -> None:
        """The save that began last can be read: what changed since is what the next one needs."""
        first = self.follows == [saved.name]  # then nobody has rows of before it
        bits = SAVED | DELTA if first else SAVED
        for marks in self.marks.values():
            begun = (marks & np.uint8(BEGUN)) != 0
            marks &= np.uint8(~bits & 0xFF)
            marks[begun] |= np.uint8(bits)
        self.saved = saved

    def delta_is_written(self, position: Position) -> None:
        """Everything up to now is in a delta."""
        self.sequence, self.follows = position.sequence, [position.name]
        self.clear(DELTA)

    def stands_at(self, position: Position, saved: SavedAs) -> None:
        """All rows are what they were in a save: they were just loaded from there."""
        self.sequence, self.follows, self.saved = position.sequence, [position.name], saved
        self.clear(ALL)

"""Which rows go from which rank to which when one plan takes the place of another.

Every rank knows both plans, so each works out the same lists, and only values travel. Who gives a
row to whom is decided where `rowtier diff` decides it (`evaluate/moves.py`), so that what travels
is what it says, to the byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.evaluate.classes import column_cuts
from rowtier.evaluate.moves import MoveHolders as Movers
from rowtier.plan.plan import Plan
from rowtier.runtime.blocks import is_by_row
from rowtier.runtime.engine import Engine
from rowtier.runtime.exchange.parcels import Grouped
from rowtier.runtime.store.address import Piece
from rowtier.runtime.store.memory import Rows
from rowtier.runtime.store.storage import Shard
from rowtier.tables import Table

Ints = NDArray[np.int64]
Columns = tuple[int, int]
Slots = list[tuple[Shard, Ints]]


class MovedField(NamedTuple):
    """Weights, or a kind of state: which columns of it move, in the old shard and in the new."""

    name: str
    old: slice
    new: slice

    @property
    def width(self) -> int:
        """How many numbers a row."""
        return int(self.new.stop - self.new.start)


@dataclass(frozen=True, eq=False)
class Transfer:
    """Rows of one band before and one after, for one of the copies: what this rank has to do.

    Slots that are sent and received are those of one rank after the other; of each in the order
    of the rows' ids, on both sides.
    """

    source: Shard
    target: Shard
    fields: tuple[MovedField, ...]
    sent: Grouped
    got: Grouped
    kept: tuple[Ints, Ints]  # slots before and after of rows that stay on this rank

    @property
    def changes_tier(self) -> bool:
        """Whether rows that stay go to another memory."""
        return self.source.piece.band.tier != self.target.piece.band.tier

    @property
    def row_bytes(self) -> int:
        """Bytes that move of a row."""
        return sum(entry.width * self.array(entry).itemsize for entry in self.fields)

    def array(self, entry: MovedField) -> NDArray[Any]:
        """Where a field lies before."""
        source = self.source
        return np.asarray(source.weights if entry.name == "weight" else source.state[entry.name])


class _Places(NamedTuple):
    """Where the rows of one side lie: the piece of each, the position of its member, its slot."""

    pieces: list[Piece]
    piece: NDArray[np.int32]  # which of the pieces
    position: Ints
    slot: Ints

    @classmethod
    def of(cls, engine: Engine, table: str, columns: Columns, rows: Ints) -> _Places:
        """The pieces of a plan that keep some columns of these rows."""
        entry = engine.remapper.tables[table]
        address = entry.address[rows]
        pieces = [
            piece
            for layer in engine.pieces[table]
            for piece in layer
            if piece.columns[0] <= columns[0] and columns[1] <= piece.columns[1]
        ]
        which = np.full(len(rows), -1, dtype=np.int32)
        position, slot = np.zeros((2, len(rows)), dtype=np.int64)
        for number, piece in enumerate(pieces):
            here = entry.in_layer(piece.layer, address)
            inside = np.flatnonzero((here >= piece.band.start) & (here < piece.band.stop))
            which[inside] = number
            position[inside], slot[inside] = piece.places(here[inside])
        return cls(pieces, which, position, slot)


@dataclass(frozen=True, eq=False)
class RowMoves:
    """The way from what one engine keeps to what another one does, on the same ranks."""

    before: Engine
    after: Engine
    movers: Movers = field(init=False)

    def __post_init__(self) -> None:
        movers = Movers.of(self.before.plan.cluster, self.after.plan.cluster)
        object.__setattr__(self, "movers", movers)

    def transfers(self, table: Table, rows: Ints) -> Iterator[Transfer]:
        """What moves of some rows of a table, ascending; on all ranks the same list."""
        for columns in column_cuts(self.before.plan, self.after.plan, table.name):
            sides = [
                _Places.of(engine, table.name, columns, rows)
                for engine in (self.before, self.after)
            ]
            old, new = sides
            pairs = old.piece.astype(np.int64) * len(new.pieces) + new.piece
            for pair in np.unique(pairs).tolist():
                i, j = divmod(pair, len(new.pieces))
                here = np.flatnonzero(pairs == pair)
                yield from self._copies(columns, old.pieces[i], new.pieces[j], old, new, here)

    def old_shards(self, table: Table) -> list[Shard]:
        """What this rank kept of a table."""
        pieces = [piece for layer in self.before.pieces[table.name] for piece in layer]
        return [self.before.shards[piece.number] for piece in pieces if piece.rows_here]

    def slots_here(self, table: Table, rows: Ints) -> tuple[Slots, Slots]:
        """The shards of this rank that have some of these rows, before and after, and where."""
        before, after = (
            [
                (engine.shards[piece.number], _slots_here(engine, piece, rows))
                for layer in engine.pieces[table.name]
                for piece in layer
                if piece.rows_here
            ]
            for engine in (self.before, self.after)
        )
        return before, after

    def _copies(
        self, columns: Columns, before: Piece, after: Piece, old: _Places, new: _Places, here: Ints
    ) -> Iterator[Transfer]:
        """One transfer for every copy that the new plan keeps."""
        source, target = self.before.shards[before.number], self.after.shards[after.number]
        fields = tuple(_fields(columns, source, target))
        was, now = old.position[here], new.position[here]
        slots, new_slots = old.slot[here], new.slot[here]
        have, want = (_holders(piece) for piece in (before, after))
        # Old positions × new positions: the same members give to the same.
        givers, _ = self.movers.nearest(
            np.broadcast_to(want[:, None], (len(want), have.shape[1], want.shape[1])),
            np.broadcast_to(have[:, :, None], (*have.shape, want.shape[1])),
        )
        me, size = self.after.world.rank, self.after.world.size
        for takers, giver in zip(want, givers, strict=True):
            to, by = takers[now], giver[was, now]
            sent = np.flatnonzero((by == me) & (to != me))
            got = np.flatnonzero((to == me) & (by != me))
            kept = np.flatnonzero((to == me) & (by == me))
            yield Transfer(
                source,
                target,
                fields,
                Grouped.by_rank(slots[sent], to[sent], size)[0],
                Grouped.by_rank(new_slots[got], by[got], size)[0],
                (slots[kept], new_slots[kept]),
            )


def kept_rows(before: Engine, after: Engine) -> dict[int, Rows]:
    """Rows that need not be copied: of bundles whose tables are all placed and ordered as before.

    By the numbers of the bundles' pieces after.
    """
    kept: dict[int, Rows] = {}
    known = {tuple(t.name for t in bundle.tables): bundle for bundle in before.bundles}
    for bundle in after.bundles:
        names = tuple(table.name for table in bundle.tables)
        same = known.get(names)
        if same is not None and all(is_placed_alike(before.plan, after.plan, n) for n in names):
            for was, now in zip(same.pieces, bundle.pieces, strict=True):
                kept[now.number] = before.run_shards[was.number].rows
    return kept


def is_placed_alike(old: Plan, new: Plan, table: str) -> bool:
    """Whether two plans for the same ranks keep every row of a table in the same slot."""
    assert old.order is not None
    assert new.order is not None
    levels = [[level.size for level in plan.cluster.levels] for plan in (old, new)]
    return (
        levels[0] == levels[1]
        and old.bands[table] == new.bands[table]
        and np.array_equal(old.order[table], new.order[table])
    )


def _holders(piece: Piece) -> Ints:
    """The ranks that keep a piece, groups × members."""
    return piece.world.tree.holders_of(piece.band)


def _slots_here(engine: Engine, piece: Piece, rows: Ints) -> Ints:
    """The slots of those rows that a rank keeps of a piece."""
    entry = engine.remapper.tables[piece.table.name]
    address = entry.in_layer(piece.layer, entry.address[rows])
    inside = address[(address >= piece.band.start) & (address < piece.band.stop)]
    position, slots = piece.places(inside)
    return np.asarray(slots[position == piece.position], dtype=np.int64)


def _fields(columns: Columns, source: Shard, target: Shard) -> Iterator[MovedField]:
    """Weights and state of some columns; state that a row has once goes with the first ones."""
    old, new = (
        slice(*(column - shard.piece.columns[0] for column in columns))
        for shard in (source, target)
    )
    yield MovedField("weight", old, new)
    for name in target.state:
        if not is_by_row(target.piece.table, name):
            yield MovedField(name, old, new)
        elif new.start == 0:
            yield MovedField(name, slice(0, 1), slice(0, 1))

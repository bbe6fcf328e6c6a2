"""Rows between where a plan puts them and blocks of logical rows, one block a rank.

Every rank knows from the remap tables which row lies where, so both ends of a message agree
on what is in it, and only values travel. One copy sends when a block is gathered; all copies
receive when it is spread, so that they are equal bit for bit afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.runtime.engine import Engine
from rowtier.runtime.exchange.parcels import Grouped, swap_entries
from rowtier.runtime.store.address import Piece
from rowtier.runtime.store.storage import Shard
from rowtier.tables import Table

Ints = NDArray[np.int64]
Array = NDArray[Any]
Blocks = Mapping[str, Array]  # "weight" or a kind of state → this rank's logical rows
Spans = list[tuple[int, int]]  # per rank: first row, and after the last
AT_ONCE_BYTES = 64 << 20  # what a rank sends or receives in one round, at most


def block_of(rows: int, rank: int, size: int) -> tuple[int, int]:
    """A rank's rows as torch.chunk cuts them: first, and after the last."""
    each = -(-rows // size)
    return min(rank * each, rows), min((rank + 1) * each, rows)


def is_by_row(table: Table, field: str) -> bool:
    """Whether a field is one number a row, whatever columns a band holds."""
    return field != "weight" and table.optimizer == "rowwise_adagrad"


class _Strip(NamedTuple):
    """A piece's part of a field: where it lies here, and in which columns of the block."""

    field: str
    shard: Shard
    dtype: np.dtype[Any]
    columns: slice

    @property
    def piece(self) -> Piece:
        return self.shard.piece

    @property
    def width(self) -> int:
        return int(self.columns.stop - self.columns.start)


class _Side(NamedTuple):
    """One end of a round's message: lines of an array, rank by rank."""

    lines: Ints
    counts: Ints  # per rank


def gather(engine: Engine, table: Table, blocks: Blocks) -> None:
    """Fill this rank's blocks of logical rows from the shards of all; all ranks must call this."""
    strips = [
        strip
        for strip in _strips(engine, table, blocks)
        # Row-wise state is the same beside all columns of a row: the first layer has every row.
        if strip.piece.layer == 0 or not is_by_row(table, strip.field)
    ]
    pieces = dict.fromkeys(strip.piece for strip in strips)
    for spans in _rounds(engine, table, blocks):
        for strip, side, values in _swapped(
            engine,
            strips,
            {p.number: _held(engine, p, spans, 0) for p in pieces},
            {p.number: _asked(engine, p, spans, range(1)) for p in pieces},
            lambda strip, lines: strip.shard.take(strip.field, lines),
        ):
            blocks[strip.field][side.lines, strip.columns] = values


def spread(engine: Engine, table: Table, blocks: Blocks) -> None:
    """Fill the shards of all ranks from their blocks of logical rows; all ranks must call this."""
    strips = _strips(engine, table, blocks)
    pieces = dict.fromkeys(strip.piece for strip in strips)
    for spans in _rounds(engine, table, blocks):
        for strip, side, values in _swapped(
            engine,
            strips,
            {p.number: _asked(engine, p, spans, range(p.copies)) for p in pieces},
            {p.number: _held(engine, p, spans, None) for p in pieces},
            lambda strip, lines: blocks[strip.field][lines, strip.columns],
        ):
            strip.shard.put(strip.field, side.lines, values)


def _strips(engine: Engine, table: Table, blocks: Blocks) -> list[_Strip]:
    found = []
    for field in blocks:
        for piece in (piece for layer in engine.pieces[table.name] for piece in layer):
            shard = engine.shards[piece.number]
            columns = (0, 1) if is_by_row(table, field) else piece.columns
            found.append(_Strip(field, shard, shard.stored_as(field), slice(*columns)))
    return found


def _rounds(engine: Engine, table: Table, blocks: Blocks) -> Iterator[Spans]:
    """A part of every rank's block at a time, so that buffers stay small."""
    size, rows = engine.world.size, table.num_embeddings
    row_bytes = sum(block.shape[1] * block.itemsize for block in blocks.values())
    lines = max(1, AT_ONCE_BYTES // (row_bytes * size))
    for start in range(0, -(-rows // size), lines):
        spans = []
        for rank in range(size):
            first, last = block_of(rows, rank, size)
            spans.append((min(first + start, last), min(first + start + lines, last)))
        yield spans


def _places(engine: Engine, piece: Piece, first: int, last: int) -> tuple[Ints, Ints, Ints]:
    """Which of some logical rows a piece has, the position of their holders, their slots."""
    entry, band = engine.remapper.tables[piece.table.name], piece.band
    address = entry.in_layer(piece.layer, entry.address[first:last])
    inside = np.flatnonzero((address >= band.start) & (address < band.stop))
    position, slots = piece.places(address[inside])
    return inside, np.asarray(position), np.asarray(slots)


def _held(engine: Engine, piece: Piece, spans: Spans, group: int | None) -> _Side:
    """Slots that this rank keeps of every rank's rows; of one group's copy, or of any."""
    counts, found = np.zeros(len(spans), dtype=np.int64), []
    if piece.rows_here and group in (None, piece.group):
        for rank, (first, last) in enumerate(spans):
            _, position, slots = _places(engine, piece, first, last)
            mine = slots[position == piece.position]
            counts[rank] = len(mine)
            found.append(mine)
    lines = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
    return _Side(lines.astype(np.int64), counts)


def _asked(engine: Engine, piece: Piece, spans: Spans, groups: range) -> _Side:
    """Lines of this rank's block, by the ranks that keep them in some groups of the scope."""
    me, size = engine.world.rank, engine.world.size
    inside, position, _ = _places(engine, piece, *spans[me])
    start = spans[me][0] - block_of(piece.table.num_embeddings, me, size)[0]
    holders = np.concatenate([piece.owners_in(group)[position] for group in groups])
    lines = np.tile(inside + start, len(groups))
    grouped, _ = Grouped.by_rank(lines, holders, size)
    return _Side(grouped.data, grouped.counts)


def _swapped(
    engine: Engine,
    strips: list[_Strip],
    sent: Mapping[int, _Side],
    got: Mapping[int, _Side],
    take: Callable[[_Strip, Ints], Array],
) -> Iterator[tuple[_Strip, _Side, Array]]:
    """Send lines of every strip, one message per type; what came, and where it belongs."""
    for dtype in dict.fromkeys(strip.dtype for strip in strips):
        lane = [strip for strip in strips if strip.dtype == dtype]
        outgoing = [
            Grouped(
                np.ascontiguousarray(take(strip, sent[strip.piece.number].lines)).reshape(-1),
                sent[strip.piece.number].counts * strip.width,
            )
            for strip in lane
        ]
        expected = np.stack([got[strip.piece.number].counts * strip.width for strip in lane])
        for strip, came in zip(lane, swap_entries(engine.wire, outgoing, expected), strict=True):
            yield strip, got[strip.piece.number], came.data.reshape(-1, strip.width)

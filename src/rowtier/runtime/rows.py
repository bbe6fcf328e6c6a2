"""Rows on their way: one band's requests of a step, handed from head to head, and the answers.

Hop by hop a request travels towards the holder; whoever passes it on asks once for all that
asked it. Answers take the way back, gradients the way out again, and are added up wherever
requests were merged, always in the order of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowtier.plan.remap import TableMap
from rowtier.runtime import kernels
from rowtier.runtime.address import Piece
from rowtier.runtime.parcels import Grouped, Layout
from rowtier.runtime.storage import NO_WEIGHTS, Part, Shard
from rowtier.tables import Table

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(eq=False)
class Lookups:
    """What one table is asked for in a batch; bags of all its features one after the other."""

    table: Table
    map: TableMap
    address: NDArray[Any]
    edges: Ints  # of bags
    weights: Floats  # empty: all 1

    @property
    def bags(self) -> int:
        """How many bags there are."""
        return len(self.edges) - 1

    @cached_property
    def _distinct(self) -> tuple[NDArray[Any], Ints]:
        return kernels.distinct(self.address, self.table.num_embeddings)

    @property
    def rows(self) -> NDArray[Any]:
        """The addresses of the distinct rows, rising."""
        return self._distinct[0]

    @property
    def row_of(self) -> Ints:
        """Which distinct row each lookup is of."""
        return self._distinct[1]

    @cached_property
    def bag_of(self) -> Ints:
        """Which bag each lookup is of."""
        return np.repeat(np.arange(self.bags, dtype=np.int64), np.diff(self.edges))

    def count_in(self, piece: Piece) -> int:
        """How many lookups are of a piece."""
        address = self.map.in_layer(piece.layer, self.address)
        return int(kernels.count_inside(address, piece.band.start, piece.band.stop))

    def in_piece(self, piece: Piece, distinct: bool) -> tuple[slice | Ints, NDArray[Any]]:
        """Which distinct rows, or lookups, lie in a piece, and their addresses in its layer."""
        band = piece.band
        if distinct and self.map.layers[piece.layer] is None:
            first, last = np.searchsorted(self.rows, [band.start, band.stop])
            return slice(int(first), int(last)), self.rows[first:last]
        found = self.map.in_layer(piece.layer, self.rows if distinct else self.address)
        which = np.flatnonzero((found >= band.start) & (found < band.stop))
        return which, found[which]


@dataclass(eq=False)
class _Hop:
    asked: Grouped
    order: Ints  # of the items, as they are asked for
    got: Grouped
    merged: Ints | None = None  # which item of the next hop each entry became
    at: Ints = field(init=False)  # per item
    given_at: Ints = field(init=False)  # per entry that was asked for here
    slots: Ints = field(init=False)  # of entries, where they are kept
    lane: Floats = field(init=False)


@dataclass(eq=False)
class RowsTrip:
    """The requests of one rank for one piece in one step, and what passes through here."""

    piece: Piece
    shard: Shard
    lookups: Lookups
    hops: list[_Hop] = field(default_factory=list)
    reads: int = 0  # rows that this rank read for others and itself

    def __post_init__(self) -> None:
        self.distinct = self.piece.once or self.piece.way.level == 0
        self.which, self._items = self.lookups.in_piece(self.piece, self.distinct)
        self._shuffled = self.lookups.map.layers[self.piece.layer] is not None

    @property
    def dtype(self) -> str:
        """How values travel."""
        return self.piece.table.dtype

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self.piece.width

    def ask(self, hop: int) -> Grouped:
        """The addresses to ask each rank for."""
        heads = self.piece.heads(self._items, hop)
        asked, order = Grouped.by_rank(self._items, heads, self.piece.world.size)
        self.hops.append(_Hop(asked, order, asked))
        return asked

    def deliver(self, hop: int, got: Grouped) -> None:
        """Take what the ranks ask this one for."""
        here = self.hops[hop - 1]
        got = Grouped(got.data.astype(self._items.dtype), got.counts)
        here.got = got
        self._count_reads(hop, got)
        if hop < self.piece.hops:
            rows = self.piece.table.num_embeddings
            self._items, here.merged = kernels.distinct(got.data, rows)

    def _count_reads(self, hop: int, got: Grouped) -> None:
        me, piece = self.piece.world.rank, self.piece
        if piece.hops == 1:
            self.reads += len(got.data)
            return
        mine = piece.holders(got.data) == me
        if hop > 1:  # what it asked itself for has been counted
            edges = got.edges
            mine[edges[me] : edges[me + 1]] = False
        self.reads += int(mine.sum())

    def asked_counts(self, hop: int) -> Ints:
        """Values that each rank answers with."""
        return self.hops[hop - 1].asked.counts

    def got_counts(self, hop: int) -> Ints:
        """Values that each rank gets from here."""
        return self.hops[hop - 1].got.counts

    def fill(self, hop: int, layout: Layout, channel: int, lane: Floats) -> None:
        """Write the answers, and note where those to this rank's own requests arrive."""
        here = self.hops[hop - 1]
        here.lane = lane
        here.given_at = kernels.spots(layout.got_at[channel], here.got.counts)
        here.at = np.empty(len(here.order), dtype=np.int64)
        here.at[here.order] = kernels.spots(layout.asked_at[channel], here.asked.counts)
        if here.merged is None:
            here.slots = self.piece.slots(here.got.data)
            self.shard.gather(here.slots, lane, here.given_at)
        else:
            above = self.hops[hop]
            come = kernels.take_spots(above.at, here.merged)
            kernels.copy_spots(above.lane, come, lane, here.given_at)

    def take_back(self, hop: int, lanes: list[Floats]) -> None:
        """Hand gradients on, or keep them for the update."""
        here, lane = self.hops[hop - 1], lanes[hop - 1]
        if here.merged is None:
            # Distinct rows were asked for in the order of their addresses.
            runs = here.got.edges if self.distinct and not self._shuffled else None
            self.shard.parts.append(Part(here.slots, here.given_at, NO_WEIGHTS, 0, lane, runs))
        else:
            to = kernels.take_spots(self.hops[hop].at, here.merged)
            kernels.add_spots(lane, here.given_at, lanes[hop], to)

    @property
    def at(self) -> Ints:
        """Where each item's row lies in the lane of the first hop."""
        return self.hops[0].at

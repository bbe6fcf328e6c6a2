"""Rows on their way: one band's requests of a step, handed from head to head, and the answers.

Hop by hop a request travels towards the holder; whoever passes it on asks once for all that
asked it. Answers take the way back, gradients the way out again, and are added up wherever
requests were merged, always in the order of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rowtier.runtime.exchange.bundles import Lookups, as_type
from rowtier.runtime.exchange.parcels import Grouped, Layout
from rowtier.runtime.kernels import indices
from rowtier.runtime.kernels.protocol import Array
from rowtier.runtime.store.address import Piece
from rowtier.runtime.store.storage import NO_WEIGHTS, Part, Shard

Ints = NDArray[np.int64]


@dataclass(eq=False)
class _Hop:
    asked: Grouped
    order: Ints  # of the items, as they are asked for
    got: Grouped
    merged: Ints | None = None  # which item of the next hop each entry became
    at: Ints = field(init=False)  # per item
    given_at: Ints = field(init=False)  # per entry that was asked for here
    slots: Ints = field(init=False)  # of entries, where they are kept
    lane: Array = field(init=False)


@dataclass(eq=False)
class RowsTrip:
    """The requests of one rank for one piece in one step, and what passes through here."""

    piece: Piece
    shard: Shard
    lookups: Lookups
    hops: list[_Hop] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spans = self.lookups.bundle.spans[self.piece.number]
        self.distinct = self.piece.way.once
        self.which, self._items = self.lookups.in_piece(self.piece, self.distinct)
        self._shuffled = self.lookups.bundle.map.layers[self.piece.layer] is not None

    @property
    def dtype(self) -> str:
        """How values travel."""
        return self.piece.table.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of a row that travels."""
        return self.width * self.piece.table.item_bytes

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
        here.got = Grouped(as_type(got.data, self._items.dtype), got.counts)
        if hop < self.piece.hops:
            rows = self.piece.table.num_embeddings
            self._items, here.merged = indices.distinct(here.got.data, rows)
        else:
            here.slots = self.piece.slots(here.got.data)

    def reads(self) -> tuple[Ints, Ints]:
        """The plan's bands, and how many rows of each this rank reads, whoever asks how often."""
        return self.spans.numbers, self.spans.count(np.unique(self.hops[-1].got.data))

    def counted(self, hop: int) -> tuple[Ints, Ints, Ints]:
        """The plan's bands, and for each what was asked of, and came from, every rank."""
        here = self.hops[hop - 1]
        return self.spans.numbers, self.spans.split(here.asked), self.spans.split(here.got)

    @property
    def on_disk(self) -> bool:
        """Whether the rows here may take long to read."""
        return self.shard.on_disk

    def asked_counts(self, hop: int) -> Ints:
        """Values that each rank answers with."""
        return self.hops[hop - 1].asked.counts

    def got_counts(self, hop: int) -> Ints:
        """Values that each rank gets from here."""
        return self.hops[hop - 1].got.counts

    def read_ahead(self, steps: int) -> None:
        """Begin to read what lies on a disk, for this step (0) or the next (1)."""
        if self.shard.on_disk:
            self.shard.prefetch(self.hops[-1].slots, steps)

    def fill(self, hop: int, layout: Layout, channel: int, lane: Array) -> None:
        """Write the answers, and note where those to this rank's own requests arrive."""
        here = self.hops[hop - 1]
        here.lane = lane
        here.given_at = indices.spots(layout.got_at[channel], here.got.counts)
        here.at = np.empty(len(here.order), dtype=np.int64)
        here.at[here.order] = indices.spots(layout.asked_at[channel], here.asked.counts)
        if here.merged is None:
            self.shard.gather(here.slots, lane, here.given_at)
        else:
            above, side = self.hops[hop], layout.side
            come = side.put(indices.take_spots(above.at, here.merged))
            side.kernels.gather(above.lane, come, lane, side.put(here.given_at), 0)

    def forget_rows(self) -> None:
        """Give the memory of rows back."""
        for hop in self.hops:
            del hop.lane

    def take_back(self, hop: int, lanes: list[Array]) -> None:
        """Hand gradients on, or keep them for the update."""
        here, lane = self.hops[hop - 1], lanes[hop - 1]
        if here.merged is None:
            # Distinct rows were asked for in the order of their addresses.
            runs = here.got.edges if self.distinct and not self._shuffled else None
            self.shard.parts.append(Part(here.slots, here.given_at, NO_WEIGHTS, 0, lane, runs))
        else:
            put = self.shard.side.put
            to = put(indices.take_spots(self.hops[hop].at, here.merged))
            args = (lane, put(here.given_at), put(NO_WEIGHTS), lanes[hop], to, 0)
            self.shard.side.kernels.add_rows(*args)

    @property
    def at(self) -> Ints:
        """Where each item's row lies in the lane of the first hop."""
        return self.hops[0].at

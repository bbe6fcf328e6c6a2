"""Sums of one view on their way back: owners add rows up, and keep the gradients that return."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rowtier.runtime.exchange.parcels import Layout
from rowtier.runtime.exchange.sums import SumsRequest, View
from rowtier.runtime.kernels import indices
from rowtier.runtime.kernels.protocol import Array
from rowtier.runtime.store.address import Piece
from rowtier.runtime.store.storage import NO_WEIGHTS, Part

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(eq=False)
class SumsTrip:
    """The partial sums of one view that owners send readers straight away."""

    request: SumsRequest
    view: View

    def __post_init__(self) -> None:
        self._asked, self.bags = self.request.sent.bags_in(self.view)
        self._number, self._got, _ = self.request.owned.in_view(self.view)

    def counted(self, _hop: int) -> tuple[Ints, Ints, Ints]:
        """Pieces of the plan, and for each the sums asked of, and given to, every rank."""
        request = self.request
        if len(request.bundle.tables) > 1:
            asked = request.bags_by_table(self._asked, self.bags)
            return request.numbers, asked, request.bags_by
        numbers = request.bundle.spans[self.view.pieces[0].number].numbers
        return numbers, self._asked[None], self._got[None]

    @property
    def dtype(self) -> str:
        """How values travel."""
        return self.request.lookups.table.dtype

    @property
    def width(self) -> int:
        """Columns of a sum."""
        return self.view.width

    @property
    def row_bytes(self) -> int:
        """Bytes of a sum that travels."""
        return self.width * self.request.lookups.table.item_bytes

    def asked_counts(self, _hop: int) -> Ints:
        """Sums that each rank answers with."""
        return self._asked

    def got_counts(self, _hop: int) -> Ints:
        """Sums that each rank gets from here."""
        return self._got

    @property
    def on_disk(self) -> bool:
        """Whether some of the rows here may take long to read."""
        return any(shard.on_disk for shard in self.request.held)

    def fill(self, _hop: int, layout: Layout, channel: int, lane: Array) -> None:
        """Write the partial sums that others need."""
        self.at = indices.spots(layout.asked_at[channel], self._asked)
        given = indices.spots(layout.got_at[channel], self._got)
        piece, owned = self.request.owned.only, self.request.owned
        if piece is not None and self.width == piece.width:
            shard = self.request.shards[piece.number]
            sums = shard.pooled(owned.slots, owned.starts, owned.weights)
            if sums is not None:
                side = layout.side
                side.kernels.gather(sums, side.every(len(sums)), lane, side.put(given), 0)
                self._parts = [(piece, owned.slots, given[self._number], owned.weights)]
                return
        for start, count in zip(layout.got_at[channel], self._got, strict=True):
            lane[start : start + count] = 0
        self._parts = add_up(self.request, self.view, self._number, given, lane)

    def take_back(self, hop: int, lanes: list[Array]) -> None:
        """Keep the gradients of the sums for the rows they were made of."""
        keep_parts(self.request, self.view, self._parts, lanes[hop - 1])


_Parts = list[tuple[Piece, Ints, Ints, Floats]]


def add_up(request: SumsRequest, view: View, number: Ints, at: Ints, lane: Array) -> _Parts:
    """Add the rows of a view's entries to the sums at their spots."""
    parts, owned = [], request.owned
    for piece in view.pieces:
        if not piece.rows_here:
            continue
        inside = number >= 0 if owned.piece is None else owned.piece == piece.number
        chosen = np.flatnonzero(inside & (number >= 0))
        slots, to = owned.slots[chosen], at[number[chosen]]
        weights = owned.weights[chosen] if len(owned.weights) else NO_WEIGHTS
        first = view.first - piece.columns[0]
        request.shards[piece.number].sum(slots, weights, lane, to, first)
        parts.append((piece, slots, to, weights))
    return parts


def keep_parts(request: SumsRequest, view: View, parts: _Parts, lane: Array) -> None:
    """Keep gradients of partial sums for the update of their rows."""
    for piece, slots, at, weights in parts:
        first = view.first - piece.columns[0]
        shard = request.shards[piece.number]
        shard.parts.append(Part(slots, at, weights, first, lane))

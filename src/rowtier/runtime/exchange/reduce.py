"""Gradients of a step, summed: over all uses of a row, all its copies, and scaled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.runtime.exchange.bundles import Bundle
from rowtier.runtime.exchange.counters import Counters
from rowtier.runtime.exchange.parcels import Grouped, swap_entries, swap_parcels
from rowtier.runtime.exchange.sync import Sums, Sync
from rowtier.runtime.exchange.wire import Wire
from rowtier.runtime.kernels.protocol import Array
from rowtier.runtime.kernels.side import ComputeSide
from rowtier.runtime.store.address import Piece
from rowtier.runtime.store.storage import Shard

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class Reducer:
    """Brings the gradients that wait beside the shards together."""

    def __init__(
        self,
        wire: Wire,
        shards: dict[int, Shard],
        bundles: Sequence[Bundle],
        counters: Counters,
        narrow: bool,
        side: ComputeSide,
    ):
        self.wire, self.shards, self.counters, self.side = wire, shards, counters, side
        self.sync = Sync(wire, shards, bundles, counters, narrow, side)
        self._apart = [
            bundle
            for bundle in bundles
            if len(bundle.layers) > 1 and bundle.table.optimizer == "rowwise_adagrad"
        ]
        self._numbers_apart = {p.number for bundle in self._apart for p in bundle.pieces}
        if self._apart and wire.world.tree.racks:
            raise UserError(
                f"table {self._apart[0].table.name!r}: row-wise Adagrad on column ranges that "
                "servers hold is not supported; use adagrad or sgd for the table, or keep its "
                "rows whole"
            )

    def is_simple(self, number: int) -> bool:
        """Whether a piece's rows are updated from this rank's gradients alone."""
        return self.shards[number].piece.copies == 1 and number not in self._numbers_apart

    def sums(self, copies: dict[int, Sums], every: bool) -> dict[int, Sums]:
        """Per piece the rows that have gradients, and their sums; simple ones if asked for."""
        found = dict(copies)
        for number, shard in self.shards.items():
            if number not in found and (every or not self.is_simple(number)):
                found[number] = shard.merged()
        return found

    def squares(self, sums: dict[int, Sums]) -> dict[int, Array]:
        """Per piece of row-wise Adagrad the mean of g² over every row, columns elsewhere too."""
        found: dict[int, Array] = {}
        for number, (_, grads) in sums.items():
            if self.shards[number].piece.table.optimizer == "rowwise_adagrad":
                found[number] = self.side.kernels.squares(grads)
        for bundle in self._apart:
            self._add_others(bundle, sums, found)
        for number, squares in found.items():
            found[number] = squares / float(self.shards[number].piece.table.embedding_dim)
        return found

    def _add_others(self, bundle: Bundle, sums: dict[int, Sums], found: dict[int, Array]) -> None:
        """Ask whoever has the other columns of a row for their part of the sum, on the host."""
        layers, every = bundle.layers, bundle.pieces
        sizes = np.cumsum([len(found[piece.number]) for piece in every])[:-1]
        parts = self.side.host(self.side.joined([found[piece.number] for piece in every]))
        own = {p.number: part for p, part in zip(every, np.split(parts, sizes), strict=True)}
        for piece in every:
            slots = sums[piece.number][0]
            row = bundle.map.in_first_layer(piece.layer, piece.addresses_here()[slots])
            of_layers = np.zeros((len(layers), len(slots)), dtype=np.float32)
            of_layers[piece.layer] = own[piece.number]
            for other in every:
                if other.layer != piece.layer:
                    of_layers[other.layer] += self._fetch(bundle, piece, other, row, sums, own)
            # Layer by layer, so that all columns of a row get the same sum.
            found[piece.number] = self.side.put(np.add.reduce(of_layers, axis=0))

    def _fetch(
        self,
        bundle: Bundle,
        piece: Piece,
        other: Piece,
        row: Ints,
        sums: dict[int, Sums],
        own: dict[int, Floats],
    ) -> Floats:
        """Squares of another piece's columns, for the rows that both have; 0 for others."""
        wire = self.wire
        address = np.asarray(bundle.map.in_layer(other.layer, row), dtype=np.int64)
        both = np.flatnonzero((address >= other.band.start) & (address < other.band.stop))
        asked, order = Grouped.by_rank(address[both], other.holders(address[both]), wire.world.size)
        (got,) = swap_parcels(wire, [asked]).received
        slots, _ = sums[other.number]
        at = np.searchsorted(slots, other.slots(got.data))
        answers = Grouped(own[other.number][at], got.counts)
        (came,) = swap_entries(wire, [answers], asked.counts[None])
        out, back = asked.counts * 8 + got.counts * 4, got.counts * 8 + asked.counts * 4
        self.counters.add("norms", out, back)
        if self.counters.bands is not None:
            numbers = bundle.spans[piece.number].numbers
            self.counters.bands.add_bytes("norms", numbers, out[None], back[None])
        squares = np.zeros(len(row), dtype=np.float32)
        squares[both[order]] = came.data
        return squares

    def norm_squared(self, sums: dict[int, Sums]) -> float:
        """Sum of g² over all rows of all tables, each counted once."""
        own = self.side.norm_squared(
            [grads for number, (_, grads) in sums.items() if not self.shards[number].piece.group]
        )
        return float(self.wire.sum(np.array([own]))[0])

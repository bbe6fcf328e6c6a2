"""Copies kept equal: gradients of all copies of a row are added up, and every copy gets the sum.

Copies meet level by level. Row q of a holder is added up, in each group of a level, by the
copy in the group's child number digit(q), a different one for neighbouring rows, so that all
do the same share; sums are always added in the order of ranks. `sparse` names the rows and
sends those that were touched; `dense` sends all rows and no names, untouched ones as −0.0:
adding that changes nothing, and a sum that is still −0.0 tells that nobody touched the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rowtier.runtime.exchange.bundles import Bundle, Spans
from rowtier.runtime.exchange.counters import Counters
from rowtier.runtime.exchange.parcels import Grouped, swap_parcels
from rowtier.runtime.exchange.wire import Wire
from rowtier.runtime.kernels import indices
from rowtier.runtime.kernels.protocol import Array
from rowtier.runtime.kernels.side import ComputeSide
from rowtier.runtime.store.address import Piece
from rowtier.runtime.store.memory import TORCH_DTYPES
from rowtier.runtime.store.storage import NO_WEIGHTS, Shard, from_bits, to_bits

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Sums = tuple[Ints, Array]  # slots, rising, and the gradient of each
Flags = NDArray[np.bool_]
_UNTOUCHED = 0x80000000  # the bits of −0.0


@dataclass(eq=False)
class _Copy:
    """One piece while its copies meet: the rows this rank adds up so far."""

    piece: Piece
    spans: Spans
    slots: Ints
    sums: Array  # rows × width
    touched: Flags | None = None  # which rows, of dense copies on a device; the host sees −0.0

    @property
    def dense(self) -> bool:
        return self.piece.way.sync == "dense"

    def digit(self, slots: Ints, level: int) -> Ints:
        """Which child of a level's group adds a row up."""
        tree, below = self.piece.world.tree, self.piece.way.level
        per = tree.sizes[level - 1] // tree.sizes[below]
        return self.spans.places(slots) // per % tree.fan_out(level)

    def child(self, level: int) -> int:
        """Which child of its level's group this rank is in."""
        tree = self.piece.world.tree
        per = tree.sizes[level - 1] // tree.sizes[self.piece.way.level]
        return self.piece.group // per % tree.fan_out(level)

    def rank_in(self, child: int, level: int) -> int:
        """The rank in another child that has the same rows to hand on."""
        tree = self.piece.world.tree
        per = tree.sizes[level - 1] // tree.sizes[self.piece.way.level]
        group = self.piece.group + (child - self.child(level)) * per
        return int(self.piece.owners_in(group)[self.piece.position])

    def children(self, level: int) -> list[int]:
        """The rank in each child of the group."""
        return [self.rank_in(child, level) for child in range(self.piece.world.tree.fan_out(level))]


class _Lane(NamedTuple):
    """What one copy (by its place) has to send: names of rows, or their values."""

    at: int
    flow: str
    data: NDArray[Any]
    size: int  # bytes of each row


class Sync:
    """Adds up the gradients of pieces that have several copies."""

    def __init__(
        self,
        wire: Wire,
        shards: Mapping[int, Shard],
        bundles: Sequence[Bundle],
        counters: Counters,
        narrow: bool,
        side: ComputeSide,
    ):
        self.wire, self.counters, self.narrow, self.side = wire, counters, narrow, side
        self.shards = [shard for shard in shards.values() if shard.piece.copies > 1]
        self._spans = {n: spans for bundle in bundles for n, spans in bundle.spans.items()}

    def run(self) -> dict[int, Sums]:
        """Gradient sums over all copies, per piece; the gradients that waited are used up."""
        copies = [self._start(shard) for shard in self.shards]
        levels = range(1, self.wire.world.tree.levels + 1)
        for level in levels:
            self._up([copy for copy in copies if copy.piece.way.level < level], level)
        for level in reversed(levels):
            self._down([copy for copy in copies if copy.piece.way.level < level], level)
        return self._touched(copies)

    def _start(self, shard: Shard) -> _Copy:
        slots, sums = shard.merged()
        copy = _Copy(shard.piece, self._spans[shard.piece.number], slots, sums)
        if copy.dense:
            every = copy.spans.every_slot
            full = self.side.full(len(every), shard.piece.width, -0.0)
            # −0.0 becomes 0.0, as it was touched.
            at = np.searchsorted(every, slots)
            full[self.side.put(at)] = sums + 0.0
            copy.slots, copy.sums = every, full
            if not self.side.on_host:
                copy.touched = np.zeros(len(every), dtype=np.bool_)
                copy.touched[at] = True
        return copy

    def _up(self, copies: list[_Copy], level: int) -> None:
        """Hand every row to the child that adds it up."""
        sent = [self._for_adders(copy, level) for copy in copies]
        for copy, slots, sums in self._swap(copies, sent, level, up=True):
            came = copy.touched
            copy.slots, copy.sums, index = self._added(slots, sums)
            if came is not None:
                copy.touched = np.bincount(index[came], minlength=len(copy.slots)) > 0

    def _for_adders(self, copy: _Copy, level: int) -> tuple[Ints, Ints, Ints]:
        """Order, slots and counts of what goes to each rank."""
        size = self.wire.world.size
        if copy.piece.position < 0:
            return _nothing(size)
        ranks = np.array(copy.children(level), dtype=np.int64)
        order, counts = indices.group(ranks[copy.digit(copy.slots, level)], size)
        return order, copy.slots[order], counts

    def _down(self, copies: list[_Copy], level: int) -> None:
        """Hand the sums to the other children."""
        sent = [self._for_others(copy, level) for copy in copies]
        for copy, slots, sums in self._swap(copies, sent, level, up=False):
            order = np.argsort(slots, kind="stable")
            copy.slots, copy.sums = slots[order], sums[self.side.put(order)]
            if copy.touched is not None:
                copy.touched = copy.touched[order]

    def _for_others(self, copy: _Copy, level: int) -> tuple[Ints, Ints, Ints]:
        size = self.wire.world.size
        if copy.piece.position < 0:
            return _nothing(size)
        children = copy.children(level)
        every = np.arange(len(copy.slots), dtype=np.int64)
        counts = np.zeros(size, dtype=np.int64)
        counts[children] = len(every)
        order = np.tile(every, len(children))
        return order, copy.slots[order], counts

    def _swap(
        self,
        copies: list[_Copy],
        sent: list[tuple[Ints, Ints, Ints]],
        level: int,
        up: bool,
    ) -> list[tuple[_Copy, Ints, Array]]:
        """Slots and values of all copies in one message; what came, in the order of ranks."""
        if not copies:
            return []
        if not self.side.on_host:
            return self._swap_beside(copies, sent, level, up)
        counts = [entry[2] for entry in sent]
        lanes = [
            self._names(at, copy, sent[at][1]) for at, copy in enumerate(copies) if not copy.dense
        ]
        lanes += [_values(at, copy, sent[at][0]) for at, copy in enumerate(copies)]
        grouped = [Grouped(lane.data.view(np.uint8), counts[lane.at] * lane.size) for lane in lanes]
        parcels = swap_parcels(self.wire, grouped)
        self.counters.add("headers", parcels.header_bytes, parcels.header_bytes)
        slots: dict[int, Ints] = {}
        values: dict[int, Floats] = {}
        for lane, parcel in zip(lanes, parcels.received, strict=True):
            copy, data = copies[lane.at], parcel.data.view(lane.data.dtype)
            if copy.dense:
                slots[lane.at] = _implied(copy, level, parcel.counts, up)
            if lane.flow == "sync_ids":
                slots[lane.at] = data.astype(np.int64)
            else:
                dtype = copy.piece.table.dtype
                rows = data if dtype == "fp32" else from_bits(data, dtype)
                values[lane.at] = rows.reshape(-1, copy.piece.width)
        for lane, own, parcel in zip(lanes, grouped, parcels.received, strict=True):
            sent_slots = Grouped(sent[lane.at][1], own.counts // lane.size)
            got_slots = Grouped(slots[lane.at], parcel.counts // lane.size)
            self._count(copies[lane.at], lane.flow, lane.size, sent_slots, got_slots)
        return [(copy, slots[at], values[at]) for at, copy in enumerate(copies)]

    def _swap_beside(
        self, copies: list[_Copy], sent: list[tuple[Ints, Ints, Ints]], level: int, up: bool
    ) -> list[tuple[_Copy, Ints, Array]]:
        """The same where values lie on a device: the host says which rows they are of.

        Of dense copies it says which were touched, a byte a row, so that it need not look.
        """
        lanes = [self._said(at, copy, *sent[at][:2]) for at, copy in enumerate(copies)]
        parcels = swap_parcels(self.wire, [Grouped(lane.data, sent[lane.at][2]) for lane in lanes])
        self.counters.add("headers", parcels.header_bytes, parcels.header_bytes)
        found = []
        for lane, parcel in zip(lanes, parcels.received, strict=True):
            copy, (order, here, counts) = copies[lane.at], sent[lane.at]
            if copy.dense:
                slots = _implied(copy, level, parcel.counts, up)
                copy.touched = parcel.data.view(np.bool_)
            else:
                slots = parcel.data.astype(np.int64)
            went, came = Grouped(here, counts), Grouped(slots, parcel.counts)
            if copy.dense:
                self.counters.add(lane.flow, counts, parcel.counts)
            else:
                self._count(copy, lane.flow, lane.size, went, came)
            self._count(copy, "sync", copy.piece.width * copy.piece.table.item_bytes, went, came)
            found.append((copy, slots, self._values_beside(copy, order, counts, parcel.counts)))
        return found

    def _said(self, at: int, copy: _Copy, order: Ints, slots: Ints) -> _Lane:
        """What the host tells of a copy's rows: their names, or whether they were touched."""
        if not copy.dense:
            return self._names(at, copy, slots)
        assert copy.touched is not None
        return _Lane(at, "headers", copy.touched[order].view(np.uint8), 1)

    def _values_beside(self, copy: _Copy, order: Ints, counts: Ints, got_counts: Ints) -> Array:
        """The rows of one copy that came, in the order of ranks."""
        dtype, width = TORCH_DTYPES[copy.piece.table.dtype], copy.piece.width
        sent = copy.sums[self.side.put(order)].to(dtype)
        got, each = sent.new_empty(int(got_counts.sum()), width), width * dtype.itemsize
        if self.wire.world.group is None:
            return sent.to(torch.float32)
        self.wire.swap_beside(sent, counts * each, got, got_counts * each)
        return got.to(torch.float32)

    def _count(self, copy: _Copy, flow: str, size: int, sent: Grouped, got: Grouped) -> None:
        """Count rows of so many bytes that went out and came."""
        self.counters.add(flow, sent.counts * size, got.counts * size)
        if self.counters.bands is not None:
            spans = copy.spans
            self.counters.bands.add_bytes(
                flow, spans.slot_numbers, size * _by_span(spans, sent), size * _by_span(spans, got)
            )

    def _added(self, slots: Ints, sums: Array) -> tuple[Ints, Array, Ints]:
        """Add up what several children have for the same row, in the order it came.

        Slots, sums, and which of them each one that came is in.
        """
        found, index = indices.distinct(slots)
        side = self.side
        added = side.full(len(found), sums.shape[1], -0.0)
        args = (side.every(len(slots)), side.put(NO_WEIGHTS), added, side.put(index), 0)
        side.kernels.add_rows(sums, *args)
        return found, added, index

    def _touched(self, copies: list[_Copy]) -> dict[int, Sums]:
        """The rows that somebody touched, of all copies."""
        found = {}
        for copy in copies:
            slots, sums = copy.slots, copy.sums
            if copy.dense:
                rows = np.flatnonzero(_flags(copy))
                slots, sums = slots[rows], sums[self.side.put(rows)]
            found[copy.piece.number] = (slots, sums)
        return found

    def _names(self, at: int, copy: _Copy, slots: Ints) -> _Lane:
        dtype = np.uint32 if self.narrow and copy.piece.is_narrow else np.uint64
        return _Lane(at, "sync_ids", slots.astype(dtype), dtype().itemsize)


def _by_span(spans: Spans, slots: Grouped) -> Ints:
    """The plan's pieces × ranks: how many slots are of which."""
    found = np.zeros((len(spans.slot_numbers), len(slots.counts)), dtype=np.int64)
    ranks = np.repeat(np.arange(len(slots.counts)), slots.counts)
    np.add.at(found, (spans.slot_span(slots.data), ranks), 1)
    return found


def _nothing(size: int) -> tuple[Ints, Ints, Ints]:
    none = np.empty(0, dtype=np.int64)
    return none, none, np.zeros(size, dtype=np.int64)


def _values(at: int, copy: _Copy, order: Ints) -> _Lane:
    data = _as_sent(copy.sums[order], copy.piece.table.dtype)
    return _Lane(at, "sync", data, copy.piece.width * data.itemsize)


def _as_sent(rows: Floats, dtype: str) -> NDArray[np.float32] | NDArray[np.uint16]:
    flat = np.ascontiguousarray(rows).reshape(-1)
    if dtype == "fp32":
        return flat
    bits = to_bits(flat, dtype)
    # What was touched must not round to the −0.0 that says it was not.
    bits[(bits == 0x8000) & (flat.view(np.uint32) != _UNTOUCHED)] = 0
    return bits


def _implied(copy: _Copy, level: int, got: Ints, up: bool) -> Ints:
    """The rows that came without names: on the way up a part of what this rank sent from."""
    if copy.piece.position < 0:
        return np.empty(0, dtype=np.int64)
    digits = copy.digit(copy.slots, level)
    if up:
        own = copy.slots[digits == copy.child(level)]
        return np.tile(own, int(np.count_nonzero(got))) if len(own) else own
    # On the way down each child hands out the rows it added up: see `_dense_rows`.
    children = range(copy.piece.world.tree.fan_out(level))
    ranks = copy.children(level)
    order = sorted(children, key=lambda child: ranks[child])
    return np.concatenate([_dense_rows(copy, level, child) for child in order])


def _dense_rows(copy: _Copy, level: int, child: int) -> Ints:
    """All rows that the delegate in a child of this rank's group adds up at a level."""
    slots = copy.spans.every_slot
    for below in range(copy.piece.way.level + 1, level):
        slots = slots[copy.digit(slots, below) == copy.child(below)]
    return np.asarray(slots[copy.digit(slots, level) == child])


def _flags(copy: _Copy) -> Flags:
    """Which rows of a dense copy were touched."""
    if copy.touched is not None:
        return copy.touched
    bits = np.ascontiguousarray(copy.sums[:, 0]).view(np.uint32)
    return np.asarray(bits != _UNTOUCHED)

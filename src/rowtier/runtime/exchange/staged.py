"""Partial sums that are added up inside the sending group first.

At stage l every rank hands on the sums it has for readers further than level l − 1: to the
reader, if level l joins them, else to the rank of its own level-l group that has the reader's
place there, which adds up what the group has for that reader. Which bags the sums are of is
told beside them, a bit per bag.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rowtier.runtime.exchange.parcels import Grouped, Layout, swap_entries, swap_lanes
from rowtier.runtime.exchange.sums import SumsRequest, View
from rowtier.runtime.exchange.sums_trip import add_up, keep_parts
from rowtier.runtime.exchange.wire import Wire
from rowtier.runtime.kernels import indices
from rowtier.runtime.kernels.protocol import Array
from rowtier.runtime.kernels.side import ComputeSide
from rowtier.runtime.store.storage import NO_WEIGHTS
from rowtier.runtime.store.world import World

Ints = NDArray[np.int64]
_SHIFT = 40  # reader and bag in one number


def route(world: World, sender: int, stage: int) -> Ints:
    """Whom a rank hands the sums for each reader at a stage; −1: nobody."""
    tree, size = world.tree, world.tree.sizes[stage]
    readers = np.arange(tree.devices, dtype=np.int64)
    if tree.attached[sender] > stage:
        return np.full(tree.devices, -1, dtype=np.int64)
    anchor = int(world.anchors[sender])
    there = readers // size == anchor // size
    below = tree.sizes[stage - 1]
    arrived = (readers // below == anchor // below) & (tree.attached[sender] < stage)
    relay = anchor // size * size + readers % size
    return np.where(arrived, -1, np.where(there, readers, relay))


def bits_of_bags(request: SumsRequest) -> Grouped:
    """For every owner a bit per bag: whether it is asked for lookups of it."""
    sent, bags = request.sent, request.lookups.bags
    edges = np.concatenate(([0], np.cumsum(sent.counts)))
    bits = []
    for rank, count in enumerate(sent.counts):
        flags = np.zeros(bags if count else 0, dtype=np.uint8)
        flags[sent.bag[edges[rank] : edges[rank + 1]]] = 1
        bits.append(np.packbits(flags))
    sizes = np.array([len(packed) for packed in bits], dtype=np.int64)
    return Grouped(np.concatenate(bits), sizes)


def bags_of_bits(got: Grouped) -> list[Ints]:
    """Per rank, which bags it has lookups here of."""
    at = got.edges
    return [
        np.flatnonzero(np.unpackbits(got.data[at[p] : at[p + 1]])) for p in range(len(got.counts))
    ]


@dataclass(eq=False)
class _Held:
    """Sums that a rank has, and for which reader's bag each is."""

    keys: Ints  # reader << _SHIFT | bag
    lane: Array

    @property
    def readers(self) -> Ints:
        return self.keys >> _SHIFT

    @property
    def bags(self) -> Ints:
        return self.keys & ((1 << _SHIFT) - 1)


@dataclass(eq=False)
class _Stage:
    layout: Layout
    moved: Ints  # which of the sums that were held, in the order they were sent
    sent_at: Ints
    merged: Ints  # which of the new sums each one that came was added to
    came_at: Ints
    held: _Held
    mine: Ints  # those of the new sums that are for this rank
    sent_counts: Ints
    came_counts: Ints

    def bytes_moved(self, flow: str, each: int) -> tuple[Ints, Ints]:
        """Bytes sent to, and received from, every rank."""
        sent, came = self.sent_counts * each, self.came_counts * each
        return (sent, came) if flow == "forward" else (came, sent)


@dataclass(eq=False)
class StagedTrip:
    """The partial sums of one staged view in one step."""

    request: SumsRequest
    view: View
    side: ComputeSide
    stages: list[_Stage] = field(default_factory=list)

    @property
    def width(self) -> int:
        """Columns of a sum."""
        return self.view.width

    @property
    def row_bytes(self) -> int:
        """Bytes of a sum that travels."""
        return self.width * self.request.lookups.table.item_bytes

    @property
    def numbers(self) -> Ints:
        """The plan's piece that the bytes count for."""
        return self.request.bundle.spans[self.view.pieces[0].number].numbers

    def run(self, wire: Wire) -> None:
        """Add up, and hand on stage by stage."""
        self._bags, self._wire = self.request.everyones_bags, wire
        held = self._add_up(self.request.told_bags)
        self.first = held
        for stage in range(1, wire.world.tree.levels + 1):
            held = self._hand_on(held, stage)

    def _add_up(self, told: list[Ints]) -> _Held:
        number, counts, sequence = self.request.owned.in_view(self.view)
        lane = self.side.full(len(sequence), self.width, 0.0)
        every = np.arange(len(sequence), dtype=np.int64)
        self._parts = add_up(self.request, self.view, number, every, lane)
        readers = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        # Bags were numbered through over all ranks; each rank told which of its own they are.
        everyones = np.concatenate([*told, np.empty(0, dtype=np.int64)])
        return _Held((readers << _SHIFT) | everyones[sequence], lane)

    def _hand_on(self, held: _Held, stage: int) -> _Held:
        wire, world = self._wire, self._wire.world
        targets = route(world, world.rank, stage)
        to = targets[held.readers]
        moving = np.flatnonzero(to >= 0)
        order, sent_counts = indices.group(to[moving], world.size)
        moved = moving[order]
        came = self._tell(held.keys[moved], sent_counts, stage)
        came_counts = np.array([len(keys) for keys in came], dtype=np.int64)
        counts = (came_counts[None], sent_counts[None])
        layout = Layout(self.side, world.rank, *counts, self.width, self.dtype)
        lane = layout.empty()
        sent_at = indices.spots(layout.got_at[0], sent_counts)
        came_at = indices.spots(layout.asked_at[0], came_counts)
        self._copy(held.lane, moved, lane, sent_at)
        swap_lanes(wire, [layout.answer(lane)])
        new, merged = self._merged(np.concatenate(came), lane, came_at)
        mine = np.flatnonzero(new.readers == world.rank)
        entry = _Stage(layout, moved, sent_at, merged, came_at, new, mine, sent_counts, came_counts)
        self.stages.append(entry)
        # A server waits for its level, and nobody hands it anything.
        return held if world.tree.attached[world.rank] > stage else new

    def _tell(self, keys: Ints, counts: Ints, stage: int) -> list[Ints]:
        """Tell the ranks which bags sums are of; which the ones that come are of."""
        world, wire = self._wire.world, self._wire
        own = route(world, world.rank, stage)
        edges = np.concatenate(([0], np.cumsum(counts)))
        bits, sizes = [], np.zeros(world.size, dtype=np.int64)
        for target in range(world.size):
            packed = self._packed(keys[edges[target] : edges[target + 1]], own == target)
            bits.append(packed)
            sizes[target] = len(packed)
        came_sizes = np.array(
            [self._bytes(route(world, p, stage) == world.rank) for p in range(world.size)],
            dtype=np.int64,
        )
        (got,) = swap_entries(wire, [Grouped(np.concatenate(bits), sizes)], came_sizes[None])
        at = got.edges
        return [
            self._unpacked(got.data[at[p] : at[p + 1]], route(world, p, stage) == world.rank)
            for p in range(world.size)
        ]

    def _bytes(self, served: NDArray[np.bool_]) -> int:
        return int((-(-self._bags[: len(served)][served] // 8)).sum())

    def _packed(self, keys: Ints, served: NDArray[np.bool_]) -> NDArray[np.uint8]:
        parts = [np.empty(0, dtype=np.uint8)]
        for reader in np.flatnonzero(served):
            flags = np.zeros(self._bags[reader], dtype=np.uint8)
            own = keys[keys >> _SHIFT == reader]
            flags[own & ((1 << _SHIFT) - 1)] = 1
            parts.append(np.packbits(flags))
        return np.concatenate(parts)

    def _unpacked(self, data: NDArray[np.uint8], served: NDArray[np.bool_]) -> Ints:
        parts, at = [np.empty(0, dtype=np.int64)], 0
        for reader in np.flatnonzero(served):
            size = -(-int(self._bags[reader]) // 8)
            bags = np.flatnonzero(np.unpackbits(data[at : at + size]))
            parts.append((reader << _SHIFT) | bags)
            at += size
        return np.concatenate(parts)

    @property
    def dtype(self) -> str:
        """How values travel."""
        return self.request.lookups.table.dtype

    def add_to(self, out: Array) -> None:
        """Add all sums that arrived to their bags."""
        put, first = self.side.put, self.view.first
        for held, mine in self._arrived():
            args = (held.lane, put(mine), put(NO_WEIGHTS), out, put(held.bags[mine]), first)
            self.side.kernels.add_rows(*args)

    def _arrived(self) -> list[tuple[_Held, Ints]]:
        world, first = self._wire.world, self.first
        own = np.flatnonzero(first.readers == world.rank)
        return [(first, own), *((stage.held, stage.mine) for stage in self.stages)]

    def back(self, grad: Array) -> None:
        """Send the gradients of the bags to all that added to them."""
        every = [self.first, *(stage.held for stage in self.stages)]
        lanes = [self.side.full(len(held.keys), self.width, 0.0) for held in every]
        for lane, (held, mine) in zip(lanes, self._arrived(), strict=True):
            self._copy(grad, held.bags[mine], lane, mine, self.view.first)
        server = self._wire.world.tree.attached[self._wire.world.rank]
        for number in range(len(self.stages), 0, -1):
            stage = self.stages[number - 1]
            grads = stage.layout.empty()
            self._copy(lanes[number], stage.merged, grads, stage.came_at)
            swap_lanes(self._wire, [stage.layout.give_back(grads)])
            before = 0 if server >= number else number - 1
            self._copy(grads, stage.sent_at, lanes[before], stage.moved)
        keep_parts(self.request, self.view, self._parts, lanes[0])

    def _copy(self, source: Array, come: Ints, lane: Array, at: Ints, first: int = 0) -> None:
        """Copy rows from spots to spots."""
        put = self.side.put
        self.side.kernels.gather(source, put(come), lane, put(at), first)

    def _merged(self, keys: Ints, lane: Array, at: Ints) -> tuple[_Held, Ints]:
        """Sums of the same bag, added up in the order they came."""
        found, merged = indices.distinct(keys)
        sums, put = self.side.full(len(found), self.width, 0.0), self.side.put
        self.side.kernels.add_rows(lane, put(at), put(NO_WEIGHTS), sums, put(merged), 0)
        return _Held(found, sums), merged

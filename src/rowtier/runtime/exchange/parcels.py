"""What travels at once: ids of all tables in one message per pair of ranks, values in another.

A message of ids begins with how many there are for each of its channels; that of values needs no
such header, as both sides know from the ids what follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.runtime.exchange.wire import Swap, Wire
from rowtier.runtime.kernels import indices
from rowtier.runtime.kernels.protocol import Array
from rowtier.runtime.kernels.side import ComputeSide
from rowtier.runtime.store.memory import TORCH_DTYPES
from rowtier.runtime.store.storage import from_bits, to_bits

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Grouped:
    """Entries for, or from, every rank: rank by rank, one after the other."""

    data: NDArray[Any]
    counts: Ints

    @classmethod
    def by_rank(cls, data: NDArray[Any], ranks: Ints, size: int) -> tuple[Grouped, Ints]:
        """Entries for the ranks given, and the order they now stand in."""
        order, counts = indices.group(ranks, size)
        return cls(data[order], counts), order

    @property
    def itemsize(self) -> int:
        """Bytes of an entry."""
        return self.data.itemsize

    @property
    def edges(self) -> Ints:
        """Where each rank's entries begin, and where the last ones end."""
        edges = np.zeros(len(self.counts) + 1, dtype=np.int64)
        np.cumsum(self.counts, out=edges[1:])
        return edges


class Parcels(NamedTuple):
    """What came, channel by channel, and how much was sent and came."""

    received: list[Grouped]
    sent: Ints  # ranks × channels: entries for each
    got: Ints
    notes: Ints  # ranks × notes: what each told

    @property
    def header_bytes(self) -> int:
        """What a message has beside entries: its length, counts and notes."""
        return int(8 * (1 + self.sent.shape[1] + self.notes.shape[1]))


def swap_parcels(wire: Wire, sent: Sequence[Grouped], notes: Sequence[int] = ()) -> Parcels:
    """Send entries, channel by channel, that tell in the same message how many they are.

    All ranks have as many channels. `notes` are numbers for everyone.
    """
    me, size, channels = wire.world.rank, wire.world.size, len(sent)
    edges = [grouped.edges.tolist() for grouped in sent]
    heads = np.empty((size, channels + len(notes)), dtype=np.int64)
    for channel, grouped in enumerate(sent):
        heads[:, channel] = grouped.counts
    heads[:, channels:] = notes
    if size == 1:
        return Parcels(list(sent), heads[:, :channels], heads[:, :channels], heads[:, channels:])
    messages: list[list[NDArray[np.uint8]]] = [[] for _ in range(size)]
    for rank in range(size):
        if rank != me:
            messages[rank].append(heads[rank].view(np.uint8))
            for grouped, edge in zip(sent, edges, strict=True):
                part = grouped.data[edge[rank] : edge[rank + 1]]
                messages[rank].append(part.view(np.uint8))
    came = wire.swap_unknown(messages)
    got = heads.copy()
    for rank, message in enumerate(came):
        if rank != me:
            got[rank] = message[: 8 * got.shape[1]].view(np.int64)
    received = _unpacked(me, sent, edges, came, got)
    return Parcels(received, heads[:, :channels], got[:, :channels], got[:, channels:])


def _unpacked(
    me: int, sent: Sequence[Grouped], edges: Sequence[list[int]], came: list[NDArray[np.uint8]],
    got: Ints,
) -> list[Grouped]:  # fmt: skip
    """Entries of every channel, rank by rank; what a rank has for itself stayed."""
    at, received = [8 * got.shape[1]] * len(came), []
    for channel, (grouped, edge) in enumerate(zip(sent, edges, strict=True)):
        parts, each = [], grouped.itemsize
        for rank, count in enumerate(got[:, channel].tolist()):
            if rank == me:
                parts.append(grouped.data[edge[me] : edge[me + 1]])
            elif count:
                stop = at[rank] + each * count
                parts.append(came[rank][at[rank] : stop].view(grouped.data.dtype))
                at[rank] = stop
        received.append(Grouped(np.concatenate(parts), got[:, channel].copy()))
    return received


def swap_entries(wire: Wire, sent: Sequence[Grouped], got_counts: Ints) -> list[Grouped]:
    """Send entries of one type, channel by channel; what a rank has for itself stays."""
    if not sent:
        return []
    me, dtype = wire.world.rank, sent[0].data.dtype
    counts = np.stack([grouped.counts for grouped in sent])
    counts[:, me] = 0
    edges = [grouped.edges for grouped in sent]
    ranks = range(wire.world.size)
    lane = np.concatenate(
        [
            g.data[e[p] : e[p + 1]]
            for p in ranks
            if p != me
            for g, e in zip(sent, edges, strict=True)
        ]
        or [np.empty(0, dtype=dtype)]
    )
    remote = got_counts.copy()
    remote[:, me] = 0
    got = np.empty(int(remote.sum()), dtype=dtype)
    wire.swap(lane, counts.sum(axis=0), got, remote.sum(axis=0))
    starts = np.cumsum(remote.T.reshape(-1)).reshape(remote.T.shape).T - remote
    received = []
    for channel, (grouped, edge) in enumerate(zip(sent, edges, strict=True)):
        pieces = [
            grouped.data[edge[me] : edge[me + 1]]
            if p == me
            else got[starts[channel, p] : starts[channel, p] + remote[channel, p]]
            for p in ranks
        ]
        received.append(Grouped(np.concatenate(pieces), got_counts[channel]))
    return received


class Layout:
    """Where the rows of every channel and rank lie in the lane of a hop.

    First what this rank asked others for, then what it asked itself for, then what others
    asked it for: answers are written into the third part and arrive in the first, gradients
    take the same way back.
    """

    def __init__(self, side: ComputeSide, me: int, asked: Ints, got: Ints, width: int, dtype: str):
        every, asked, got = asked, asked.copy(), got.copy()
        local = asked[:, me].copy()
        assert (local == got[:, me]).all()
        asked[:, me] = 0
        got[:, me] = 0
        self.side, self.width, self.dtype, self._counts = side, width, dtype, every
        self._asked, self._got = asked.sum(axis=0) * width, got.sum(axis=0) * width
        self._local = int(asked.sum())
        self._given = self._local + int(local.sum())
        self.rows = self._given + int(got.sum())
        self.asked_at = _starts(asked, 0)
        self.got_at = _starts(got, self._given)
        self.asked_at[:, me] = self.got_at[:, me] = self._local + np.cumsum(local) - local

    def empty(self) -> Array:
        """A new lane."""
        return self.side.empty(self.rows, self.width)

    def zeros(self, added: Sequence[bool]) -> Array:
        """A new lane for gradients: zeros where a channel's are added up, not only written."""
        lane = self.empty()
        if all(added):
            lane[: self._given] = 0
            return lane
        for channel in np.flatnonzero(added):
            for start, count in zip(self.asked_at[channel], self._counts[channel], strict=True):
                lane[start : start + count] = 0
        return lane

    @property
    def asked_bytes(self) -> Ints:
        """Bytes of what was asked of every other rank."""
        return np.asarray(self._asked * self._item_bytes)

    @property
    def got_bytes(self) -> Ints:
        """Bytes of what every other rank asked for."""
        return np.asarray(self._got * self._item_bytes)

    @property
    def _item_bytes(self) -> int:
        return 4 if self.dtype == "fp32" else 2

    def answer(self, lane: Array) -> _Way:
        """Send what others asked for, receive what was asked of them."""
        return _Way(self, lane[self._given :], self._got, lane[: self._local], self._asked)

    def give_back(self, lane: Array) -> _Way:
        """Send gradients of what was asked of others, receive those of what they asked for."""
        return _Way(self, lane[: self._local], self._asked, lane[self._given :], self._got)


class _Way(NamedTuple):
    """One direction of a lane: what is sent and received, and how many numbers per rank."""

    layout: Layout
    sent: Array
    counts: Ints
    got: Array
    got_counts: Ints

    def as_sent(self) -> Swap:
        """The same as it travels."""
        sent, got = self.sent.reshape(-1), self.got.reshape(-1)
        if self.layout.dtype == "fp32":
            return Swap(sent, self.counts, got, self.got_counts)
        bits = np.empty(len(got), dtype=np.uint16)
        return Swap(to_bits(sent, self.layout.dtype), self.counts, bits, self.got_counts)

    def take(self, swapped: Swap) -> None:
        """Have what arrived as numbers to compute with."""
        if self.layout.dtype != "fp32":
            self.got.reshape(-1)[:] = from_bits(swapped.got, self.layout.dtype)

    def swap_beside(self, wire: Wire) -> None:
        """Send and receive where the rows are, as bytes: nccl has no bf16 of its own on all cards.

        What is rounded is rounded there.
        """
        dtype = TORCH_DTYPES[self.layout.dtype]
        got = self.got
        if dtype != got.dtype:
            got = got.new_empty(got.shape, dtype=dtype)
        wire.swap_beside(
            self.sent.to(dtype), self.counts * dtype.itemsize, got, self.got_counts * dtype.itemsize
        )
        if got is not self.got:
            self.got.copy_(got)


def swap_lanes(wire: Wire, ways: Sequence[_Way]) -> None:
    """Send lanes of several types and widths, all in one message per pair of ranks."""
    if not ways:  # of no rank: what travels in which lanes is said by the plan
        return
    if not ways[0].layout.side.on_host:
        for way in ways:
            way.swap_beside(wire)
        return
    swaps = [way.as_sent() for way in ways]
    wire.swap_all(swaps)
    for way, swapped in zip(ways, swaps, strict=True):
        way.take(swapped)


def _starts(counts: Ints, first: int) -> Ints:
    """Where each channel's part of each rank's part begins; ranks follow one another."""
    flat = counts.T.reshape(-1)
    return np.ascontiguousarray((first + np.cumsum(flat) - flat).reshape(counts.T.shape).T)

"""What travels at once: ids of all tables in one message per pair of ranks, values in another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowtier.runtime import indices
from rowtier.runtime.storage import from_bits, to_bits
from rowtier.runtime.wire import Wire

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
        return np.concatenate(([0], np.cumsum(self.counts)))


def swap_counts(wire: Wire, counts: Ints) -> Ints:
    """Channels × ranks: how many entries each rank sends this one, for how many it sends them."""
    got = wire.swap_fixed(np.ascontiguousarray(counts.T.astype(np.int32)))
    return np.ascontiguousarray(got.T).astype(np.int64)


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

    def __init__(self, me: int, asked: Ints, got: Ints, width: int, dtype: str):
        every, asked, got = asked, asked.copy(), got.copy()
        local = asked[:, me].copy()
        assert (local == got[:, me]).all()
        asked[:, me] = 0
        got[:, me] = 0
        self.width, self.dtype, self._counts = width, dtype, every
        self._asked, self._got = asked.sum(axis=0) * width, got.sum(axis=0) * width
        self._local = int(asked.sum())
        self._given = self._local + int(local.sum())
        self.rows = self._given + int(got.sum())
        self.asked_at = _starts(asked, 0)
        self.got_at = _starts(got, self._given)
        self.asked_at[:, me] = self.got_at[:, me] = self._local + np.cumsum(local) - local

    def empty(self) -> Floats:
        """A new lane."""
        return np.empty((self.rows, self.width), dtype=np.float32)

    def zeros(self, added: Sequence[bool]) -> Floats:
        """A new lane for gradients: zeros where a channel's are added up, not only written."""
        lane = self.empty()
        if all(added):
            lane[: self._given] = 0
            return lane
        for channel in np.flatnonzero(added):
            for start, count in zip(self.asked_at[channel], self._counts[channel], strict=True):
                lane[start : start + count] = 0
        return lane

    def answer(self, wire: Wire, lane: Floats) -> None:
        """Send what others asked for, receive what was asked of them."""
        self._swap(wire, lane[self._given :], self._got, lane[: self._local], self._asked)

    def give_back(self, wire: Wire, lane: Floats) -> None:
        """Send gradients of what was asked of others, receive those of what they asked for."""
        self._swap(wire, lane[: self._local], self._asked, lane[self._given :], self._got)

    def _swap(self, wire: Wire, sent: Floats, counts: Ints, got: Floats, got_counts: Ints) -> None:
        sent, got = sent.reshape(-1), got.reshape(-1)
        if self.dtype == "fp32":
            wire.swap(sent, counts, got, got_counts)
            return
        bits = np.empty(len(got), dtype=np.uint16)
        wire.swap(to_bits(sent, self.dtype), counts, bits, got_counts)
        got[:] = from_bits(bits, self.dtype)


def _starts(counts: Ints, first: int) -> Ints:
    """Where each channel's part of each rank's part begins; ranks follow one another."""
    flat = counts.T.reshape(-1)
    return np.ascontiguousarray((first + np.cumsum(flat) - flat).reshape(counts.T.shape).T)

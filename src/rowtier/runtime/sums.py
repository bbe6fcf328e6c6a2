"""Partial sums on their way: owners add up what a bag looks up with them, readers add the sums.

Ids travel lookup by lookup, bag by bag; the top bit of an id says that a new bag begins. A
*view* is a run of columns that some bands share: for it an owner sends one partial sum per
bag that has any lookup there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowtier.runtime import kernels
from rowtier.runtime.address import Piece
from rowtier.runtime.parcels import Grouped, Layout
from rowtier.runtime.rows import Lookups
from rowtier.runtime.storage import NO_WEIGHTS, Part, Shard

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class View:
    """A run of columns and the pieces that hold them, all staged or none."""

    first: int
    last: int
    pieces: tuple[Piece, ...]

    @property
    def width(self) -> int:
        """How many columns."""
        return self.last - self.first


def views_of(layers: list[list[Piece]], staged: bool) -> list[View]:
    """The views of a table's pooled pieces."""
    pooled = [piece for layer in layers for piece in layer if piece.pooled]
    views = []
    for first, last in pairwise(sorted({edge for piece in pooled for edge in piece.columns})):
        inside = tuple(
            piece
            for piece in pooled
            if piece.way.staged == staged and piece.columns[0] <= first and last <= piece.columns[1]
        )
        if inside:
            views.append(View(first, last, inside))
    return views


@dataclass(eq=False)
class Entries:
    """Lookups of pooled pieces, rank by rank: at their reader, or at their owner."""

    counts: Ints  # per rank
    piece: Ints | None  # number of each entry's piece; None: there is only one
    bag: Ints  # rises inside a rank's entries
    slots: Ints  # at the owner
    weights: Floats
    starts: Ints | None = None  # where bags begin, if there is only one piece

    def in_view(self, view: View) -> tuple[Ints, Ints, Ints]:
        """Number the bags of a view: of each entry (−1: none), how many per rank, which."""
        if self.piece is None:
            inside = np.ones(len(self.bag), dtype=np.bool_)
        else:
            inside = np.isin(self.piece, [piece.number for piece in view.pieces])
        return kernels.number_bags(self.counts, self.bag, inside)


@dataclass(frozen=True, eq=False)
class Pooled:
    """The pooled pieces of a table, staged or not, and the views they are seen in."""

    pieces: tuple[Piece, ...]
    views: tuple[View, ...]
    staged: bool

    @classmethod
    def of(cls, layers: list[list[Piece]], staged: bool) -> Pooled | None:
        """None if there are none."""
        pieces = [p for layer in layers for p in layer if p.pooled and p.way.staged == staged]
        return cls(tuple(pieces), tuple(views_of(layers, staged)), staged) if pieces else None


@dataclass(eq=False)
class SumsRequest:
    """The lookups of one table's pooled pieces, as they are sent to owners."""

    pooled: Pooled
    shards: dict[int, Shard]
    lookups: Lookups
    sent: Entries = field(init=False)
    owned: Entries = field(init=False)

    def __post_init__(self) -> None:
        self.pieces, self.staged = self.pooled.pieces, self.pooled.staged
        self.world = self.pieces[0].world
        self.single = (
            len(self.pieces) == 1 and self.lookups.map.layers[self.pieces[0].layer] is None
        )

    @property
    def number(self) -> int:
        """The piece that shared bytes count for."""
        return self.pieces[0].number

    def ask(self, narrow: bool) -> Grouped:
        """Addresses for every owner, the first of a bag marked."""
        counts, lookup, bags, new, numbers = self._single() if self.single else self._several()
        weights = self.lookups.weights
        weights = weights[lookup] if len(weights) else NO_WEIGHTS
        self.sent = Entries(counts, numbers, bags, np.empty(0, dtype=np.int64), weights)
        address = self.lookups.address[lookup]
        marked: NDArray[Any] = address.astype(
            np.uint32 if narrow and address.itemsize == 4 else np.uint64
        )
        marked |= new.astype(marked.dtype) << marked.dtype.type(31 if narrow else 63)
        return Grouped(marked.astype(np.uint32) if narrow else marked, counts)

    def _single(self) -> tuple[Ints, Ints, Ints, NDArray[np.bool_], None]:
        piece, lookups = self.pieces[0], self.lookups
        found = kernels.ask_bags(
            lookups.address, lookups.edges, piece.numbers, piece.owners, self.world.size
        )
        return (*found, None)

    def _several(self) -> tuple[Ints, Ints, Ints, NDArray[np.bool_], Ints]:
        """Lookup by lookup, and for each its layers in turn, as owners expect them."""
        which, owner, piece = [], [], []
        for here in self.pieces:
            found, address = self.lookups.in_piece(here, distinct=False)
            assert not isinstance(found, slice)
            which.append(found)
            owner.append(here.holders(address))
            piece.append(np.full(len(found), here.number, dtype=np.int64))
        lookup, owners, numbers = map(np.concatenate, (which, owner, piece))
        turn = np.argsort(lookup, kind="stable")
        order, counts = kernels.group(owners[turn], self.world.size)
        lookup, numbers = lookup[turn][order], numbers[turn][order]
        bags = self.lookups.bag_of[lookup]
        new = np.ones(len(bags), dtype=np.bool_)
        new[1:] = bags[1:] != bags[:-1]
        starts = np.cumsum(counts)[:-1]
        new[starts[starts < len(new)]] = True
        return counts, lookup, bags, new, numbers

    def deliver(self, got: Grouped, weights: Floats) -> None:
        """Find the rows that the ranks look up here."""
        kind = got.data.dtype.type
        bit = kind(8 * got.data.itemsize - 1)
        new = got.data >> bit
        bags = np.cumsum(new, dtype=np.int64) - 1
        address = (got.data & kind((1 << int(bit)) - 1)).astype(np.int64)
        if self.single:
            slots, starts = self.pieces[0].slots(address), np.flatnonzero(new)
            self.owned = Entries(got.counts, None, bags, slots, weights, starts)
            return
        readers = np.repeat(np.arange(self.world.size), got.counts)
        piece, slots = self._own(address, readers)
        self.owned = Entries(got.counts, piece, bags, slots, weights)

    def slots_of(self, piece: Piece) -> Ints:
        """Rows of a piece that are looked up here, one by one."""
        owned = self.owned
        return owned.slots if owned.piece is None else owned.slots[owned.piece == piece.number]

    def reads(self, piece: Piece) -> int:
        """How many they are."""
        return len(self.slots_of(piece))

    def _own(self, address: Ints, readers: Ints) -> tuple[Ints, Ints]:
        """Piece and slot of each entry; one of several layers stands once for each, in turn."""
        piece = np.full(len(address), -1, dtype=np.int64)
        slots = np.zeros(len(address), dtype=np.int64)
        held = np.zeros(len(address), dtype=np.int64)  # layers that this rank has of the row
        found = []
        for here in self.pieces:
            layered = np.asarray(self.lookups.map.in_layer(here.layer, address), dtype=np.int64)
            inside = (layered >= here.band.start) & (layered < here.band.stop)
            # A reader of another group has its own copy to ask.
            inside &= readers // self.world.tree.sizes[here.way.level] == here.group
            mine = np.zeros(len(address), dtype=np.bool_)
            if here.position >= 0:
                mine[inside] = here.holders(layered[inside]) == self.world.rank
            found.append((here, layered, mine, held.copy()))
            held += mine
        turn = _turns(held)
        for here, layered, mine, before in found:
            chosen = mine & (before == turn)
            piece[chosen] = here.number
            slots[chosen] = here.slots(layered[chosen])
        assert (piece >= 0).all()
        return piece, slots


def _turns(held: Ints) -> Ints:
    """For runs of `held[i]` entries of the same lookup: which of the run each one is."""
    turn = np.zeros(len(held), dtype=np.int64)
    if len(held) and held.max() > 1:
        i = 0
        while i < len(held):
            count = int(held[i])
            turn[i : i + count] = np.arange(count)
            i += count
    return turn


@dataclass(eq=False)
class SumsTrip:
    """The partial sums of one view that owners send readers straight away."""

    request: SumsRequest
    view: View

    def __post_init__(self) -> None:
        _, self._asked, self.bags = self.request.sent.in_view(self.view)
        self._number, self._got, _ = self.request.owned.in_view(self.view)

    @property
    def number(self) -> int:
        """The piece that the bytes count for."""
        return self.view.pieces[0].number

    @property
    def dtype(self) -> str:
        """How values travel."""
        return self.request.lookups.table.dtype

    @property
    def width(self) -> int:
        """Columns of a sum."""
        return self.view.width

    def asked_counts(self, _hop: int) -> Ints:
        """Sums that each rank answers with."""
        return self._asked

    def got_counts(self, _hop: int) -> Ints:
        """Sums that each rank gets from here."""
        return self._got

    def fill(self, _hop: int, layout: Layout, channel: int, lane: Floats) -> None:
        """Write the partial sums that others need."""
        self.at = kernels.spots(layout.asked_at[channel], self._asked)
        given = kernels.spots(layout.got_at[channel], self._got)
        piece, owned = self.view.pieces[0], self.request.owned
        sums = None
        if owned.starts is not None and self.width == piece.width:
            shard = self.request.shards[piece.number]
            sums = shard.pooled(owned.slots, owned.starts, owned.weights)
        if sums is not None:
            kernels.gather(sums, np.arange(len(sums)), lane, given)
            self._parts = [(piece, owned.slots, given[self._number], owned.weights)]
            return
        for start, count in zip(layout.got_at[channel], self._got, strict=True):
            lane[start : start + count] = 0
        self._parts = add_up(self.request, self.view, self._number, given, lane)

    def take_back(self, hop: int, lanes: list[Floats]) -> None:
        """Keep the gradients of the sums for the rows they were made of."""
        keep_parts(self.request, self.view, self._parts, lanes[hop - 1])


_Parts = list[tuple[Piece, Ints, Ints, Floats]]


def add_up(request: SumsRequest, view: View, number: Ints, at: Ints, lane: Floats) -> _Parts:
    """Add the rows of a view's entries to the sums at their spots."""
    parts, owned = [], request.owned
    for piece in view.pieces:
        inside = number >= 0 if owned.piece is None else owned.piece == piece.number
        chosen = np.flatnonzero(inside & (number >= 0))
        slots, to = owned.slots[chosen], at[number[chosen]]
        weights = owned.weights[chosen] if len(owned.weights) else NO_WEIGHTS
        first = view.first - piece.columns[0]
        request.shards[piece.number].sum(slots, weights, lane, to, first)
        parts.append((piece, slots, to, weights))
    return parts


def keep_parts(request: SumsRequest, view: View, parts: _Parts, lane: Floats) -> None:
    """Keep gradients of partial sums for the update of their rows."""
    for piece, slots, at, weights in parts:
        first = view.first - piece.columns[0]
        shard = request.shards[piece.number]
        shard.parts.append(Part(slots, at, weights, first, lane))

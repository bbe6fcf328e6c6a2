"""Partial sums on their way: owners add up what a bag looks up with them, readers add the sums.

Ids travel lookup by lookup, bag by bag; the top bit of an id says that a new bag begins. A
*view* is a run of columns that some bands share: for it an owner sends one partial sum per
bag that has any lookup there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.runtime.exchange.bundles import Lookups
from rowtier.runtime.exchange.parcels import Grouped
from rowtier.runtime.kernels import indices
from rowtier.runtime.store.address import Piece
from rowtier.runtime.store.storage import NO_WEIGHTS, Shard

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
    starts: Ints  # where bags begin
    only: Piece | None = None  # at the owner: the piece of all entries, if it is one

    def bags_in(self, view: View) -> tuple[Ints, Ints]:
        """How many bags of a view every rank has, and which."""
        if self.piece is not None:
            return self._numbered(view)[1:]
        edges = np.concatenate(([0], np.cumsum(self.counts)))
        return np.diff(np.searchsorted(self.starts, edges)), self.bag[self.starts]

    def in_view(self, view: View) -> tuple[Ints, Ints, Ints]:
        """At the owner: bags of a view, numbered, of each entry (−1: none), and `bags_in`."""
        return self._numbered(view) if self.piece is not None else (self.bag, *self.bags_in(view))

    def _numbered(self, view: View) -> tuple[Ints, Ints, Ints]:
        assert self.piece is not None
        inside = np.isin(self.piece, [piece.number for piece in view.pieces])
        return indices.number_bags(self.counts, self.bag, inside)


class _Asking(NamedTuple):
    """What is sent to owners: marked addresses, and of each lookup and bag whose it is."""

    marked: NDArray[Any]
    counts: Ints
    lookup: Ints
    bags: Ints
    starts: Ints
    numbers: Ints | None


@dataclass(frozen=True, eq=False)
class Pooled:
    """The pooled pieces of a table, staged or not, and the views they are seen in."""

    pieces: tuple[Piece, ...]
    views: tuple[View, ...]
    staged: bool

    @cached_property
    def by_start(self) -> list[Piece]:
        """The pieces in the order of their rows."""
        return sorted(self.pieces, key=lambda piece: piece.band.start)

    @cached_property
    def numbers(self) -> Ints:
        """The numbers of those."""
        return np.array([piece.number for piece in self.by_start], dtype=np.int64)

    @cached_property
    def bands(self) -> Ints:
        """What kernels need to find owners and slots."""
        return np.array([(*p.numbers, len(p.owners)) for p in self.by_start], dtype=np.int64)

    @cached_property
    def owners(self) -> Ints:
        """Pieces × positions: who holds what."""
        found = np.full((len(self.pieces), int(self.bands[:, 4].max())), -1, dtype=np.int64)
        for line, piece in zip(found, self.by_start, strict=True):
            line[: len(piece.owners)] = piece.owners
        return found

    @cached_property
    def held(self) -> list[Piece]:
        """The pieces that this rank has rows of."""
        return [piece for piece in self.pieces if piece.rows_here]

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
    # Of sums that are staged: how many bags each rank has, and which of them it asks this one for.
    everyones_bags: Ints = field(init=False)
    told_bags: list[Ints] = field(init=False)

    def __post_init__(self) -> None:
        self.pieces, self.staged = self.pooled.pieces, self.pooled.staged
        self.world, self.bundle = self.pieces[0].world, self.lookups.bundle
        layer = self.pieces[0].layer
        # Then the address of a lookup tells its only piece.
        self.simple = self.bundle.map.layers[layer] is None and all(
            piece.layer == layer for piece in self.pieces
        )

    @property
    def numbers(self) -> Ints:
        """Per table the plan's piece that shared bytes count for."""
        if len(self.bundle.tables) == 1:
            return self.bundle.spans[self.pieces[0].number].numbers
        return self.bundle.pooled_numbers

    def ask(self, narrow: bool) -> Grouped:
        """Addresses for every owner, the first of a bag marked."""
        kind = np.uint32 if narrow else np.uint64
        ask = self._simple if self.simple else self._several
        marked, counts, lookup, bags, starts, numbers = ask(kind)
        weights = self.lookups.weights
        weights = weights[lookup] if len(weights) else NO_WEIGHTS
        self.sent = Entries(counts, numbers, bags, np.empty(0, dtype=np.int64), weights, starts)
        return Grouped(marked, counts)

    @property
    def sent_by(self) -> Ints:
        """Tables × ranks: how many lookups were sent."""
        return self.bags_by_table(self.sent.counts, self.sent.bag)

    def bags_by_table(self, counts: Ints, bags: Ints) -> Ints:
        """Tables × ranks: how many of this rank's bags, rank by rank, are of which table."""
        if len(self.bundle.tables) == 1:
            return counts[None]
        return indices.count_rising(bags, counts, self.lookups.bag_starts)

    @property
    def sent_weights(self) -> Grouped:
        """Weights of the lookups of tables that have them."""
        weighted, counts = self.lookups.weighted, self.sent.counts
        if not weighted.any():
            return Grouped(NO_WEIGHTS, np.zeros_like(counts))
        if weighted.all():
            return Grouped(self.sent.weights, counts)
        table = np.searchsorted(self.lookups.bag_starts, self.sent.bag, side="right") - 1
        return Grouped(self.sent.weights[weighted[table]], self.sent_by[weighted].sum(axis=0))

    def _simple(self, kind: type[np.unsignedinteger[Any]]) -> _Asking:
        pooled, lookups, ranks = self.pooled, self.lookups, self.world.size
        asked = lookups.asked
        if asked is None:
            asked = indices.owners_of(lookups.address, pooled.bands, pooled.owners, ranks)
        marked = np.empty(len(asked), dtype=kind)
        counts, lookup, bags, starts = indices.ask_bags(
            lookups.address, asked, lookups.edges, ranks, marked
        )
        numbers = None
        if len(pooled.views) > 1:
            address = lookups.address[lookup]
            which = np.searchsorted(pooled.bands[:, 0], address, side="right") - 1
            numbers = pooled.numbers[which]
        return _Asking(marked[: len(lookup)], counts, lookup, bags, starts, numbers)

    def _several(self, kind: type[np.unsignedinteger[Any]]) -> _Asking:
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
        order, counts = indices.group(owners[turn], self.world.size)
        lookup, numbers = lookup[turn][order], numbers[turn][order]
        bags = self.lookups.bag_of[lookup]
        new = np.ones(len(bags), dtype=np.bool_)
        new[1:] = bags[1:] != bags[:-1]
        edges = np.cumsum(counts)[:-1]
        new[edges[edges < len(new)]] = True
        marked = self.lookups.address[lookup].astype(kind)
        marked |= new.astype(kind) << kind(8 * marked.itemsize - 1)
        return _Asking(marked, counts, lookup, bags, np.flatnonzero(new), numbers)

    def deliver(self, got: Grouped) -> None:
        """Find the rows that the ranks look up here."""
        address, bags, which, slots, starts = indices.own_bags(
            got.data, got.counts, self.pooled.bands
        )
        self._address = address
        piece, only = None, None
        if not self.simple:
            readers = np.repeat(np.arange(self.world.size), got.counts)
            piece, slots = self._own(address, readers)
        elif len(self.pooled.views) == 1 and len(self.pooled.held) <= 1:
            only = (self.pooled.held or self.pieces)[0]
        else:
            piece = self.pooled.numbers[which]
        self.owned = Entries(got.counts, piece, bags, slots, NO_WEIGHTS, starts, only)

    def deliver_weights(self, got: Grouped, weighted: NDArray[np.bool_]) -> None:
        """Take the weights of tables × ranks that have some; all others are 1."""
        weights = np.ones(len(self.owned.bag), dtype=np.float32)
        table, reader = self._tables_and_readers()
        weights[weighted[table, reader]] = got.data
        self.owned.weights = weights

    def _tables_and_readers(self) -> tuple[Ints, Ints]:
        """Of what is looked up here: which table, and who looks it up."""
        readers = np.repeat(np.arange(self.world.size), self.owned.counts)
        if len(self.bundle.tables) == 1:
            return np.zeros_like(readers), readers
        starts, table_of, _ = self.bundle.pooled_bands
        return table_of[np.searchsorted(starts, self._address, side="right") - 1], readers

    @property
    def got_by(self) -> Ints:
        """Tables × ranks: how many lookups came."""
        return self._by_table(np.arange(len(self.owned.bag)))

    @property
    def bags_by(self) -> Ints:
        """Tables × ranks: how many bags came."""
        return self._by_table(self.owned.starts)

    def _by_table(self, entries: Ints) -> Ints:
        table, reader = self._tables_and_readers()
        found = np.zeros((len(self.bundle.tables), self.world.size), dtype=np.int64)
        np.add.at(found, (table[entries], reader[entries]), 1)
        return found

    @property
    def held(self) -> list[Shard]:
        """What this rank has rows of."""
        return [self.shards[piece.number] for piece in self.pooled.held]

    def read_ahead(self, steps: int) -> None:
        """Begin to read what lies on a disk, for this step (0) or the next (1)."""
        for shard in self.held:
            if shard.on_disk:
                shard.prefetch(self.slots_of(shard.piece), steps)

    def slots_of(self, piece: Piece) -> Ints:
        """Rows of a piece that are looked up here, one by one."""
        owned = self.owned
        if owned.piece is None:
            return owned.slots if owned.only is piece else np.empty(0, dtype=np.int64)
        return np.asarray(owned.slots[owned.piece == piece.number])

    def reads(self) -> tuple[Ints, Ints]:
        """Pieces of the plan, and how many of their rows are read here, whoever asks how often."""
        if len(self.bundle.tables) > 1:
            starts, _, numbers = self.bundle.pooled_bands
            span = np.searchsorted(starts, np.unique(self._address), side="right") - 1
            return numbers, np.bincount(span, minlength=len(numbers))
        alone = [self.bundle.spans[piece.number].numbers[0] for piece in self.pieces]
        counts = [len(np.unique(self.slots_of(piece))) for piece in self.pieces]
        return np.array(alone, dtype=np.int64), np.array(counts, dtype=np.int64)

    def _own(self, address: Ints, readers: Ints) -> tuple[Ints, Ints]:
        """Piece and slot of each entry; one of several layers stands once for each, in turn."""
        piece = np.full(len(address), -1, dtype=np.int64)
        slots = np.zeros(len(address), dtype=np.int64)
        held = np.zeros(len(address), dtype=np.int64)  # layers that this rank has of the row
        found = []
        for here in self.pieces:
            layered = np.asarray(self.bundle.map.in_layer(here.layer, address), dtype=np.int64)
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

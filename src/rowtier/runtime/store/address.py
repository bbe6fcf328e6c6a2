"""Who holds a row, and where: arithmetic on its address, band by band.

A *piece* is a band as one rank sees it. Rows travel along *heads*: the head of a group is the
holder of the row if it is in the group, else the row's gateway there. A device is its own
head; staged rows pass the head of its node, then of the next level, up to the scope, whose
head is the holder. What is not staged goes there at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowtier.band import Band, layers_of
from rowtier.cost.rates import Way
from rowtier.plan.plan import Plan
from rowtier.runtime.store.world import World
from rowtier.tables import Table

Ints = NDArray[np.int64]
Addresses = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Piece:
    """A band of a table, seen from one rank."""

    number: int  # among all pieces of the plan
    table: Table
    band: Band
    layer: int
    way: Way
    world: World

    @property
    def columns(self) -> tuple[int, int]:
        """First column, and after the last."""
        return self.band.columns or (0, self.table.embedding_dim)

    @property
    def width(self) -> int:
        """How many columns."""
        return self.columns[1] - self.columns[0]

    @property
    def hops(self) -> int:
        """How many times a request is handed on."""
        return self.way.level if self.way.by_gateways else 1

    @property
    def pooled(self) -> bool:
        """Whether owners return partial sums; a copy on every device has nobody to ask."""
        return not self.way.adds_up

    @property
    def is_narrow(self) -> bool:
        """Whether 4 bytes can tell any row of the table."""
        return self.table.num_embeddings <= 2**31

    @property
    def copies(self) -> int:
        """How many copies are kept."""
        return self.world.tree.devices // self.world.tree.sizes[self.way.level]

    @cached_property
    def owners(self) -> Ints:
        """The members in this rank's group of the scope, by position in the band's list."""
        return self.owners_in(self.group)

    def owners_in(self, group: int) -> Ints:
        """The members in a group of the scope."""
        tree, level = self.world.tree, self.way.level
        return np.asarray(tree.members[level][group, tree.positions(self.band, level)])

    @property
    def group(self) -> int:
        """Which group of the scope this rank is in; a server hangs in its anchor's."""
        size = self.world.tree.sizes[self.way.level]
        return int(self.world.anchors[self.world.rank]) // size

    @cached_property
    def position(self) -> int:
        """This rank's place in the list of members, or −1."""
        found = np.flatnonzero(self.owners == self.world.rank)
        return int(found[0]) if len(found) else -1

    @cached_property
    def rows_here(self) -> int:
        """How many rows this rank keeps."""
        if self.position < 0:
            return 0
        return int(self.band.rows_per_member(len(self.owners))[self.position])

    @property
    def block(self) -> int:
        """Rows of a member, if they lie in blocks."""
        return -(-self.band.rows // len(self.owners))

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """What kernels need to find owners: start, stop, offset, rows of a block (0: spread)."""
        band = self.band
        block = self.block if band.order == "blocks" else 0
        return band.start, band.stop, band.offset, block

    def places(self, address: Addresses) -> tuple[Addresses, Addresses]:
        """Position of the member that holds each row, and the row's slot there."""
        band, members = self.band, len(self.owners)
        place = address - band.start
        if band.order == "blocks":
            return place // self.block, place % self.block
        if members == 1:
            return np.zeros_like(place), place
        return (place + band.offset) % members, place // members

    def slots(self, address: Addresses) -> Ints:
        """Where rows lie on the member that holds them."""
        return np.asarray(self.places(address)[1], dtype=np.int64)

    def addresses_here(self) -> Ints:
        """The addresses of the rows that this rank keeps, slot by slot."""
        slots = np.arange(self.rows_here, dtype=np.int64)
        if self.band.order == "blocks":
            return self.band.start + self.position * self.block + slots
        members = len(self.owners)
        first = (self.position - self.band.offset) % members
        return self.band.start + first + slots * members

    def holders(self, address: Addresses) -> Ints:
        """The rank that holds each row."""
        return np.asarray(self.owners[self.places(address)[0]])

    def heads(self, address: Addresses, hop: int) -> Ints:
        """The rank that this rank hands requests to at a hop."""
        holders = self.holders(address)
        if hop >= self.hops:
            return holders
        tree, world = self.world.tree, self.world
        size = tree.sizes[hop]
        first = int(world.anchors[world.rank]) // size * size
        inside = (tree.attached <= hop) & world.in_group(hop)
        place = address - self.band.start + self.band.offset
        gateway = first + place % tree.sizes[self.way.level - 1] % size
        return np.where(inside[holders], holders, gateway)


def pieces_of(plan: Plan, world: World) -> dict[str, list[list[Piece]]]:
    """Per table the pieces of every layer, numbered through."""
    pieces: dict[str, list[list[Piece]]] = {}
    number = 0
    for table, bands in plan:
        layers = []
        for index, layer in enumerate(layers_of(bands)):
            found = []
            for band in layer:
                way = Way.of(band, world.tree)
                found.append(Piece(number, table, band, index, way, world))
                number += 1
            layers.append(found)
        pieces[table.name] = layers
    return pieces

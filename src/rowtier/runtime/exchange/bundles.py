"""A bundle: tables that run as one, what each of its pieces holds, and what a batch asks of it.

Which tables those are, and where each lies, is said by `bundle_layout.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.plan.bags import Jagged
from rowtier.plan.remap import TableMap
from rowtier.runtime.exchange.parcels import Grouped
from rowtier.runtime.kernels import indices
from rowtier.runtime.store.address import Piece
from rowtier.runtime.store.storage import NO_WEIGHTS
from rowtier.tables import Table

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Layers = list[list[Piece]]
_NO_MAP = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Spans:
    """The plan's bands inside one band of a bundle, in the order of their addresses.

    One that is kept in blocks has a span on every member.
    """

    numbers: Ints  # of the plan's pieces
    starts: Ints  # where each span begins, and where the last one ends
    slot_numbers: Ints  # of the plan's pieces on this rank
    slots: Ints  # where each begins here, and where the last one ends
    rows: Ints  # how many rows each has here

    def split(self, grouped: Grouped) -> Ints:
        """Spans × ranks: how many of the entries for, or from, each rank are of which span."""
        if len(self.numbers) == 1:
            return grouped.counts[None]
        return indices.count_spans(grouped.data, grouped.counts, self.starts)

    def count(self, address: NDArray[Any]) -> Ints:
        """How many of some addresses of the band are of which span."""
        span = np.searchsorted(self.starts, address, side="right") - 1
        return np.bincount(span, minlength=len(self.numbers))

    def split_slots(self, slots: Ints) -> tuple[Ints, Ints]:
        """The plan's pieces, and how many of some slots, rising, are of which."""
        if len(self.slot_numbers) == 1:
            return self.slot_numbers, np.array([len(slots)])
        return self.slot_numbers, np.diff(np.searchsorted(slots, self.slots))

    def slot_span(self, slots: Ints) -> Ints:
        """Which of `slot_numbers` each slot is of."""
        return np.searchsorted(self.slots[1:-1], slots, side="right")

    def places(self, slots: Ints) -> Ints:
        """Slots counted from the first one of the plan's piece they are of."""
        if len(self.slot_numbers) == 1:
            return slots
        return np.asarray(slots - self.slots[self.slot_span(slots)])

    @cached_property
    def every_slot(self) -> Ints:
        """All slots that hold a row."""
        pairs = zip(self.slots.tolist(), self.rows.tolist(), strict=False)
        return np.concatenate([np.arange(start, start + rows) for start, rows in pairs])


class Window(NamedTuple):
    """Where a piece of the plan lies: the bundle's piece, and the slot there of its first row."""

    number: int
    base: int


class BundleMoves(NamedTuple):
    """From addresses of tables to those of their bundle, as `indices.move_addresses` wants it."""

    edges: Ints  # where the lines of each table begin, and where the last one's end
    lines: Ints  # one per band, table by table
    owners: Ints  # lines × positions: who is asked for a sum; if nobody, the number of ranks
    numbers: Ints  # of the plan's pieces


@dataclass(eq=False)
class Lookups:
    """What a bundle is asked for in a batch; bags of all its features one after the other."""

    bundle: Bundle
    address: NDArray[Any]
    edges: Ints  # of bags
    weights: Floats  # empty: all 1
    bag_starts: Ints  # per table, and where the last one's end
    weighted: NDArray[np.bool_]  # per table, whether its lookups have weights of their own
    # Per lookup who is asked for its sum (the number of ranks: its row comes here), if known.
    asked: NDArray[np.int32] | None = None

    @property
    def table(self) -> Table:
        """What all tables of the bundle are like."""
        return self.bundle.table

    @property
    def bags(self) -> int:
        """How many bags there are."""
        return len(self.edges) - 1

    @cached_property
    def fetched(self) -> Ints | None:
        """The lookups whose rows come here, not their sums; None: all."""
        bands = self.bundle.fetched_bands
        if bands is None:
            return None
        if self.asked is not None:
            return np.flatnonzero(self.asked == self.bundle.ranks)
        return indices.inside(self.address, bands)

    @cached_property
    def _distinct(self) -> tuple[NDArray[Any], Ints]:
        chosen, bands = self.fetched, self.bundle.fetched_bands
        if chosen is None or bands is None:
            return indices.distinct(self.address, self.table.num_embeddings)
        return indices.distinct(self.address[chosen], int(bands[:, 1].max(initial=1)))

    @property
    def rows(self) -> NDArray[Any]:
        """The addresses of the distinct rows that come here, rising."""
        return self._distinct[0]

    @property
    def row_of(self) -> Ints:
        """Which distinct row each of the lookups `fetched` is of."""
        return self._distinct[1]

    @cached_property
    def bag_of(self) -> Ints:
        """Which bag each lookup is of."""
        return np.repeat(np.arange(self.bags, dtype=np.int64), np.diff(self.edges))

    @cached_property
    def lengths(self) -> Floats:
        """What the sum of every bag is divided by for a mean."""
        return np.maximum(np.diff(self.edges), 1).astype(np.float32)[:, None]

    def in_piece(self, piece: Piece, distinct: bool) -> tuple[slice | Ints, NDArray[Any]]:
        """Which distinct rows, or lookups, lie in a piece, and their addresses in its layer."""
        band = piece.band
        if distinct and self.bundle.map.layers[piece.layer] is None:
            first, last = np.searchsorted(self.rows, [band.start, band.stop])
            return slice(int(first), int(last)), self.rows[first:last]
        found = self.bundle.map.in_layer(piece.layer, self.rows if distinct else self.address)
        which = np.flatnonzero((found >= band.start) & (found < band.stop))
        return which, found[which]


@dataclass(eq=False)
class Bundle:
    """One table of the plan, or several that are run as one."""

    table: Table
    tables: tuple[Table, ...]
    map: TableMap
    layers: Layers
    spans: dict[int, Spans]  # per piece of the bundle
    moves: BundleMoves | None = None  # None: addresses stay
    reads: list[int] = field(default_factory=list)  # of the remapper, table by table
    table_of: list[int] = field(default_factory=list)  # per read

    @cached_property
    def numbers(self) -> Ints:
        """The plan's pieces, those of one piece of the bundle after the other."""
        return np.concatenate([self.spans[piece.number].numbers for piece in self.pieces])

    @property
    def pieces(self) -> list[Piece]:
        """All pieces."""
        return [piece for layer in self.layers for piece in layer]

    @property
    def ranks(self) -> int:
        """How many run the plan."""
        return self.layers[0][0].world.size

    @cached_property
    def fetched_bands(self) -> Ints | None:
        """Start and stop of the bands whose rows come to the reader; None: all do."""
        if len(self.layers) > 1 or not any(piece.pooled for piece in self.pieces):
            return None
        bands = [(p.band.start, p.band.stop) for p in self.pieces if not p.pooled]
        return np.array(bands, dtype=np.int64).reshape(-1, 2)

    @cached_property
    def read_tables(self) -> Ints:
        """Per read the table."""
        return np.array(self.table_of, dtype=np.int64)

    def lookups(self, parts: Sequence[Jagged]) -> Lookups:
        """What is asked for in a batch, one part per read."""
        samples = [part.samples for part in parts]
        starts = np.zeros(len(self.tables) + 1, dtype=np.int64)
        for table, size in zip(self.table_of, samples, strict=True):
            starts[table + 1] += size
        np.cumsum(starts, out=starts)
        weighted = np.zeros(len(self.tables), dtype=np.bool_)
        for table, part in zip(self.table_of, parts, strict=True):
            if part.weights is not None:
                weighted[table] = True
        ends = np.cumsum([len(part.values) for part in parts])
        edges = _joined_edges(parts, ends, samples)
        weights = _joined_weights(parts)
        address, asked = _joined_values(parts), None
        if self.moves is not None:
            address, asked = indices.move_addresses(
                address, ends, self.read_tables, *self.moves[:3]
            )
        return Lookups(self, address, edges, weights, starts, weighted, asked)

    def count(self, lookups: Lookups) -> Ints:
        """Lookups per span, as in `numbers`."""
        return np.concatenate([self.count_in(piece, lookups.address) for piece in self.pieces])

    def count_in(self, piece: Piece, address: NDArray[Any]) -> Ints:
        """Lookups per span of one piece."""
        found = self.map.in_layer(piece.layer, address)
        inside = (found >= piece.band.start) & (found < piece.band.stop)
        return self.spans[piece.number].count(found[inside])

    @cached_property
    def pooled_numbers(self) -> Ints:
        """Per table the first of the plan's pieces that exchange sums: their bytes count there."""
        found = np.full(len(self.tables), -1, dtype=np.int64)
        for _, table, number in self._pooled_bands():
            if found[table] < 0 or number < found[table]:
                found[table] = number
        return found

    @cached_property
    def pooled_bands(self) -> tuple[Ints, Ints, Ints]:
        """Of bands that exchange sums, by address: where they begin, their tables, their pieces."""
        found = sorted(self._pooled_bands())
        return tuple(np.array(column, dtype=np.int64) for column in zip(*found, strict=True))  # type: ignore[return-value]

    def _pooled_bands(self) -> Iterator[tuple[int, int, int]]:
        assert self.moves is not None
        sizes = np.diff(self.moves.edges)
        tables = np.repeat(np.arange(len(self.tables)), sizes).tolist()
        table_of = dict(zip(self.moves.numbers.tolist(), tables, strict=True))
        for piece in self.pieces:
            if piece.pooled:
                spans = self.spans[piece.number]
                for start, number in zip(spans.starts, spans.numbers.tolist(), strict=False):
                    yield int(start), table_of[number], number


def _joined_values(parts: Sequence[Jagged]) -> NDArray[Any]:
    return parts[0].values if len(parts) == 1 else np.concatenate([part.values for part in parts])


def _joined_edges(parts: Sequence[Jagged], ends: Ints, samples: list[int]) -> Ints:
    if len(parts) == 1:
        return parts[0].edges
    edges = np.zeros(sum(samples) + 1, dtype=np.int64)
    np.concatenate([part.edges[1:] for part in parts], out=edges[1:])
    before = np.append(0, ends[:-1])
    edges[1:] += np.repeat(before, samples)
    return edges


def _joined_weights(parts: Sequence[Jagged]) -> Floats:
    if all(part.weights is None for part in parts):
        return NO_WEIGHTS
    if len(parts) == 1:
        assert parts[0].weights is not None
        return parts[0].weights
    return np.concatenate(
        [
            np.ones(len(part.values), dtype=np.float32) if part.weights is None else part.weights
            for part in parts
        ]
    )


def as_type(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Addresses as whole numbers of another type; not copied if they are as long in it."""
    return values.view(dtype) if values.itemsize == dtype.itemsize else values.astype(dtype)

"""Tables that are alike are run as one, so that forty cost a step no more Python than one.

A *bundle* lays pooled tables of one width, type and optimizer one after the other, and bands
that are placed alike become one band of it; `cost/bundling.py` has the rule, and what it does not
know, tables whose optimizers differ in their numbers, is kept apart here. Every row keeps its
holder. A band that is spread begins at the first place whose remainder its offset wants, which
leaves a few places between two of them empty; of bands in blocks every member's blocks lie one
after the other. A table that is not pooled is a bundle of its own: its gradients would have to be
copied together, which costs more.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.band import Band
from rowtier.cost import bundling
from rowtier.plan.bags import Jagged
from rowtier.plan.remap import Read, TableMap
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


class _Moves(NamedTuple):
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
    moves: _Moves | None = None  # None: addresses stay
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


def bundles_of(
    pieces: dict[str, Layers],
    maps: dict[str, TableMap],
    reads: Sequence[Read],
    group_of: Mapping[str, int],
) -> tuple[list[Bundle], dict[int, Window]]:
    """What is run, and where every piece of the plan lies in it.

    Tables of different groups are updated with other numbers, and are never run as one.
    """
    bundles: list[Bundle] = []
    windows: dict[int, Window] = {}
    number = 0
    for names in _alike(pieces, group_of):
        mine = [pieces[name] for name in names]
        if len(mine) > 1:
            bundle, found = _joined(mine, number)
        else:
            bundle, found = _alone(mine[0], maps[names[0]], number)
        for table, name in enumerate(names):
            here = [i for i, read in enumerate(reads) if read.table.name == name]
            bundle.reads += here
            bundle.table_of += [table] * len(here)
        number += len(bundle.pieces)
        bundles.append(bundle)
        windows |= found
    return bundles, windows


def _alike(pieces: dict[str, Layers], group_of: Mapping[str, int]) -> list[list[str]]:
    """Names of tables that are run together, in the order of the plan."""
    groups: dict[int, list[tuple[Table, list[Band]]]] = {}
    for name, layers in pieces.items():
        bands = [piece.band for layer in layers for piece in layer]
        groups.setdefault(group_of[name], []).append((layers[0][0].table, bands))
    tree, order = next(iter(pieces.values()))[0][0].world.tree, list(pieces)
    found = [names for tables in groups.values() for names in bundling.bundled(tables, tree)]
    return sorted(found, key=lambda names: order.index(names[0]))


def _alone(found: Layers, table_map: TableMap, number: int) -> tuple[Bundle, dict[int, Window]]:
    """One table as it is, its pieces numbered anew."""
    layers, windows, spans = [], {}, {}
    for layer in found:
        here = []
        for piece in layer:
            renumbered = replace(piece, number=number)
            here.append(renumbered)
            windows[piece.number] = Window(number, 0)
            edges, here_rows = [piece.band.start, piece.band.stop], piece.rows_here
            numbers = np.array([piece.number])
            spans[number] = Spans(
                numbers, np.array(edges), numbers, np.array([0, here_rows]), np.array([here_rows])
            )
            number += 1
        layers.append(here)
    table = layers[0][0].table
    return Bundle(table, (table,), table_map, layers, spans), windows


class _Laid(NamedTuple):
    """Where a band lies in its bundle."""

    added: int  # to its addresses
    apart: int  # added once more for every block before


def _joined(found: list[Layers], number: int) -> tuple[Bundle, dict[int, Window]]:
    """One band for all bands that are placed alike, tables one after the other."""
    kinds: dict[Hashable, list[Piece]] = {}
    for layers in found:
        for piece in layers[0]:
            kinds.setdefault(bundling.piece_key(piece.band, piece.world.tree), []).append(piece)
    tables = tuple(layers[0][0].table for layers in found)
    name = f"{tables[0].name} and {len(tables) - 1} more"
    table, rows = tables[0].model_copy(update={"name": name}), 0
    made: list[Piece] = []
    spans: dict[int, Spans] = {}
    windows: dict[int, Window] = {}
    laid: dict[int, _Laid] = {}  # per piece of the plan
    # Rows that are fetched first: then the bits that tell distinct ones are few.
    for alike in sorted(kinds.values(), key=lambda alike: alike[0].pooled):
        lay = _lay_blocks if _in_blocks(alike[0]) else _lay_spread
        piece, spans[number], places = lay(alike, rows, number)
        made.append(piece)
        for one, place, base in zip(alike, places, spans[number].slots.tolist(), strict=False):
            laid[one.number] = place
            windows[one.number] = Window(number, base)
        rows, number = piece.band.stop, number + 1
    table = table.model_copy(update={"num_embeddings": rows})
    made = [replace(piece, table=table) for piece in made]
    moves = _moves([layers[0] for layers in found], laid)
    bundle_map = TableMap(table, _NO_MAP, (None,))
    return Bundle(table, tables, bundle_map, [made], spans, moves), windows


def _in_blocks(piece: Piece) -> bool:
    return piece.band.order == "blocks" and len(piece.owners) > 1


def _lay_spread(alike: list[Piece], rows: int, number: int) -> tuple[Piece, Spans, list[_Laid]]:
    """One band after the other, each from the first place whose remainder its offset wants."""
    firsts, at = [], 0
    for piece in alike:
        members = len(piece.owners)
        at += (piece.band.offset - at) % members if piece.band.order == "spread" else 0
        firsts.append(at)
        at += piece.band.rows
    made = _made(alike[0], number, rows, rows + at, "spread")
    bases = [_base(one, first) for one, first in zip(alike, firsts, strict=True)]
    numbers = np.array([one.number for one in alike])
    spans = Spans(
        numbers,
        np.array([rows + first for first in firsts] + [rows + at]),
        numbers,
        np.array([*bases, made.rows_here]),
        np.array([one.rows_here for one in alike]),
    )
    laid = [
        _Laid(rows + first - one.band.start, 0) for one, first in zip(alike, firsts, strict=True)
    ]
    return made, spans, laid


def _lay_blocks(alike: list[Piece], rows: int, number: int) -> tuple[Piece, Spans, list[_Laid]]:
    """The blocks of a member one after the other, member by member."""
    members, blocks = len(alike[0].owners), np.array([piece.block for piece in alike])
    bases = np.cumsum(blocks) - blocks
    block = int(blocks.sum())
    made = _made(alike[0], number, rows, rows + block * members, "blocks")
    numbers = np.array([one.number for one in alike])
    starts = rows + (np.arange(members)[:, None] * block + bases).reshape(-1)
    spans = Spans(
        np.tile(numbers, members),
        np.append(starts, made.band.stop),
        numbers,
        np.append(bases, made.rows_here) if made.rows_here else np.zeros(len(bases) + 1, np.int64),
        np.array([one.rows_here for one in alike]),
    )
    laid = [
        _Laid(rows + int(base) - one.band.start, block - int(each))
        for one, base, each in zip(alike, bases, blocks, strict=True)
    ]
    return made, spans, laid


def _made(like: Piece, number: int, start: int, stop: int, order: str) -> Piece:
    update = {"start": start, "stop": stop, "offset": 0, "order": order}
    return replace(like, number=number, band=like.band.model_copy(update=update), layer=0)


def _base(piece: Piece, first: int) -> int:
    """The slot of the first row of a band that this rank keeps."""
    if piece.position < 0:
        return 0
    members = len(piece.owners)
    skipped = (piece.position - piece.band.offset) % members
    return (first + skipped) // members


def _moves(tables: list[list[Piece]], laid: dict[int, _Laid]) -> _Moves:
    tables = [sorted(layer, key=lambda piece: piece.band.start) for layer in tables]
    every = [piece for layer in tables for piece in layer]
    asked = [list(piece.owners) if piece.pooled else [piece.world.size] for piece in every]
    owners = np.full((len(every), max(map(len, asked))), -1, dtype=np.int64)
    lines = []
    for line, piece, here in zip(owners, every, asked, strict=True):
        line[: len(here)] = here
        block = piece.block if _in_blocks(piece) else 0
        first = piece.band.start - (0 if block else piece.band.offset)
        lines.append((piece.band.stop, *laid[piece.number], first, len(here), block))
    edges = np.cumsum([0, *map(len, tables)])
    numbers = np.array([piece.number for piece in every])
    return _Moves(edges, np.array(lines, dtype=np.int64), owners, numbers)


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

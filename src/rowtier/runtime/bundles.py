"""Tables that are alike are run as one, so that forty cost a step no more Python than one.

A *bundle* lays pooled tables of one width, type and optimizer one after the other, and bands
that are placed alike become one band of it. Every row keeps its holder: a band begins at the
first place whose remainder its offset wants, which leaves a few places between two of them
empty. A table with copies, gateways, column ranges or blocks of ids is a bundle of its own. So is
one that is not pooled: its gradients would have to be copied together, which costs more.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.plan.bags import Jagged
from rowtier.plan.remap import Read, TableMap
from rowtier.runtime import indices
from rowtier.runtime.address import Piece
from rowtier.runtime.parcels import Grouped
from rowtier.runtime.storage import NO_WEIGHTS
from rowtier.tables import Table

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Layers = list[list[Piece]]
_MOST_ROWS = 2**31 - 1  # addresses of 4 bytes
_NO_MAP = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Spans:
    """The plan's bands inside one band of a bundle, in the order of their addresses."""

    numbers: Ints  # of the plan's pieces
    starts: Ints  # where each begins, and where the last one ends
    slots: Ints  # the same on this rank

    def split(self, grouped: Grouped) -> Ints:
        """Bands × ranks: how many of the entries for, or from, each rank are of which band."""
        if len(self.numbers) == 1:
            return grouped.counts[None]
        return indices.count_spans(grouped.data, grouped.counts, self.starts)

    def split_slots(self, slots: Ints) -> Ints:
        """How many of some slots, rising, are of which band."""
        if len(self.numbers) == 1:
            return np.array([len(slots)])
        return np.diff(np.searchsorted(slots, self.slots))


class Window(NamedTuple):
    """Where a piece of the plan lies: the bundle's piece, and the slot there of its first row."""

    number: int
    base: int


class _Move(NamedTuple):
    """From a table's addresses to its bundle's: band by band one number is added."""

    bands: Ints  # as `indices.move_addresses` wants them
    owners: Ints  # bands × positions: who is asked for a sum; if nobody, the number of ranks

    @property
    def counted(self) -> Ints:
        """Where in `Bundle.numbers` each band is."""
        return self.bands[:, 2]


@dataclass(eq=False)
class Lookups:
    """What a bundle is asked for in a batch; bags of all its features one after the other."""

    bundle: Bundle
    address: NDArray[Any]
    edges: Ints  # of bags
    weights: Floats  # empty: all 1
    bag_starts: Ints  # per table, and where the last one's end
    weighted: NDArray[np.bool_]  # per table, whether its lookups have weights of their own
    counts: Ints  # lookups per band of the plan, as in `Bundle.numbers`
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
    moves: list[_Move] = field(default_factory=list)  # per table; empty: addresses stay
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

    def counts_of(self, piece: Piece, counts: Ints) -> Ints:
        """The part of counts, as in `numbers`, that is of one piece."""
        at = 0
        for here in self.pieces:
            size = len(self.spans[here.number].numbers)
            if here is piece:
                return counts[at : at + size]
            at += size
        raise AssertionError(piece)

    def lookups(self, parts: Sequence[Jagged]) -> Lookups:
        """What is asked for in a batch, one part per read."""
        tables = self.table_of
        samples = np.array([part.samples for part in parts], dtype=np.int64)
        bags = np.bincount(tables, samples, len(self.tables)).astype(np.int64)
        weighted = np.zeros(len(self.tables), dtype=np.bool_)
        for table, part in zip(tables, parts, strict=True):
            weighted[table] |= part.weights is not None
        starts = np.concatenate(([0], np.cumsum(bags)))
        edges = _joined_edges(parts, int(samples.sum()))
        weights = _joined_weights(parts)
        if self.moves:
            address, asked, counts = self._moved(parts)
            return Lookups(self, address, edges, weights, starts, weighted, counts, asked)
        address = _joined_values(parts)
        return Lookups(self, address, edges, weights, starts, weighted, self._count(address))

    def _count(self, address: NDArray[Any]) -> Ints:
        found = [
            indices.count_inside(
                self.map.in_layer(piece.layer, address), piece.band.start, piece.band.stop
            )
            for piece in self.pieces
        ]
        return np.array(found, dtype=np.int64)

    def _moved(self, parts: Sequence[Jagged]) -> tuple[NDArray[np.int32], NDArray[np.int32], Ints]:
        address, asked = np.empty((2, sum(len(part.values) for part in parts)), dtype=np.int32)
        counts, at = np.zeros(len(self.numbers), dtype=np.int64), 0
        for table, part in zip(self.table_of, parts, strict=True):
            here = slice(at, at + len(part.values))
            move = self.moves[table]
            indices.move_addresses(part.values, *move, address[here], asked[here], counts)
            at = here.stop
        return address, asked, counts

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
        table_of: dict[int, int] = {}
        for table, move in enumerate(self.moves):
            table_of |= dict.fromkeys(self.numbers[move.counted].tolist(), table)
        for piece in self.pieces:
            if piece.pooled:
                spans = self.spans[piece.number]
                for start, number in zip(spans.starts, spans.numbers.tolist(), strict=False):
                    yield int(start), table_of[number], number


def bundles_of(
    pieces: dict[str, Layers], maps: dict[str, TableMap], reads: Sequence[Read]
) -> tuple[list[Bundle], dict[int, Window]]:
    """What is run, and where every piece of the plan lies in it."""
    bundles: list[Bundle] = []
    windows: dict[int, Window] = {}
    number = 0
    for names in _alike(pieces):
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


def _alike(pieces: dict[str, Layers]) -> list[list[str]]:
    """Names of tables that are run together, in the order of the plan."""
    groups: dict[Hashable, list[str]] = {}
    for name, layers in pieces.items():
        table = layers[0][0].table
        kind: Hashable = name
        if _can_join(layers):
            kind = (table.embedding_dim, table.dtype, table.pooling, table.optimizer)
            # 4 bytes an address, as each has alone.
            while sum(_rows(pieces[n]) for n in (*groups.get(kind, ()), name)) > _MOST_ROWS:
                kind = (kind, "more")
        groups.setdefault(kind, []).append(name)
    return list(groups.values())


def _rows(layers: Layers) -> int:
    """Places that a table takes in a bundle, with what stays empty, at most."""
    return sum(piece.band.rows + len(piece.owners) for piece in layers[0])


def _can_join(layers: Layers) -> bool:
    table = layers[0][0].table
    return (
        table.pooling != "none"
        and len(layers) == 1
        and _rows(layers) <= _MOST_ROWS
        and all(
            piece.copies == 1
            and piece.hops == 1
            and not piece.way.staged
            and (piece.band.order == "spread" or len(piece.owners) == 1)
            for piece in layers[0]
        )
    )


def _alone(found: Layers, table_map: TableMap, number: int) -> tuple[Bundle, dict[int, Window]]:
    """One table as it is, its pieces numbered anew."""
    layers, windows, spans = [], {}, {}
    for layer in found:
        here = []
        for piece in layer:
            renumbered = replace(piece, number=number)
            here.append(renumbered)
            windows[piece.number] = Window(number, 0)
            edges = np.array([piece.band.start, piece.band.stop])
            slots = np.array([0, piece.rows_here])
            spans[number] = Spans(np.array([piece.number]), edges, slots)
            number += 1
        layers.append(here)
    table = layers[0][0].table
    return Bundle(table, (table,), table_map, layers, spans), windows


def _joined(found: list[Layers], number: int) -> tuple[Bundle, dict[int, Window]]:
    """One band for all bands that are placed alike, tables one after the other."""
    kinds: dict[Hashable, list[Piece]] = {}
    for layers in found:
        for piece in layers[0]:
            kinds.setdefault(_kind(piece), []).append(piece)
    tables = tuple(layers[0][0].table for layers in found)
    name = f"{tables[0].name} and {len(tables) - 1} more"
    rows = 0
    table = tables[0].model_copy(update={"name": name})
    made: list[Piece] = []
    spans: dict[int, Spans] = {}
    windows: dict[int, Window] = {}
    added: dict[int, tuple[int, int]] = {}  # per piece of the plan: what is added, which band
    # Rows that are fetched first: then the bits that tell distinct ones are few.
    for alike in sorted(kinds.values(), key=lambda alike: alike[0].pooled):
        firsts, stop = _laid(alike)
        band = alike[0].band.model_copy(
            update={"start": rows, "stop": rows + stop, "offset": 0, "order": "spread"}
        )
        piece = replace(alike[0], number=number, band=band, layer=0)
        made.append(piece)
        bases = [_base(one, first) for one, first in zip(alike, firsts, strict=True)]
        for one, first, base in zip(alike, firsts, bases, strict=True):
            added[one.number] = (rows + first - one.band.start, len(added))
            windows[one.number] = Window(number, base)
        spans[number] = Spans(
            np.array([one.number for one in alike]),
            np.array([rows + first for first in firsts] + [rows + stop]),
            np.array([*bases, piece.rows_here]),
        )
        rows, number = rows + stop, number + 1
    table = table.model_copy(update={"num_embeddings": rows})
    made = [replace(piece, table=table) for piece in made]
    moves = [_move(layers[0], added) for layers in found]
    bundle_map = TableMap(table, _NO_MAP, (None,))
    return Bundle(table, tables, bundle_map, [made], spans, moves), windows


def _kind(piece: Piece) -> Hashable:
    return (piece.band.scope, piece.band.members, piece.band.tier, piece.way)


def _laid(alike: Iterable[Piece]) -> tuple[list[int], int]:
    """The first place of every band, and the place after the last of them."""
    firsts, at = [], 0
    for piece in alike:
        members = len(piece.owners)
        at += (piece.band.offset - at) % members if piece.band.order == "spread" else 0
        firsts.append(at)
        at += piece.band.rows
    return firsts, at


def _base(piece: Piece, first: int) -> int:
    """The slot of the first row of a band that this rank keeps."""
    if piece.position < 0:
        return 0
    members = len(piece.owners)
    skipped = (piece.position - piece.band.offset) % members
    return (first + skipped) // members


def _move(layer: list[Piece], added: dict[int, tuple[int, int]]) -> _Move:
    layer = sorted(layer, key=lambda piece: piece.band.start)
    asked = [list(piece.owners) if piece.pooled else [piece.world.size] for piece in layer]
    owners = np.full((len(layer), max(map(len, asked))), -1, dtype=np.int64)
    bands = []
    for line, piece, here in zip(owners, layer, asked, strict=True):
        line[: len(here)] = here
        first = piece.band.start - piece.band.offset
        bands.append((piece.band.stop, *added[piece.number], first, len(here)))
    return _Move(np.array(bands, dtype=np.int64), owners)


def _joined_values(parts: Sequence[Jagged]) -> NDArray[Any]:
    return parts[0].values if len(parts) == 1 else np.concatenate([part.values for part in parts])


def _joined_edges(parts: Sequence[Jagged], bags: int) -> Ints:
    if len(parts) == 1:
        return parts[0].edges
    edges, bag, at = np.zeros(bags + 1, dtype=np.int64), 1, 0
    for part in parts:
        np.add(part.edges[1:], at, out=edges[bag : bag + part.samples])
        bag += part.samples
        at += len(part.values)
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

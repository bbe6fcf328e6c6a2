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

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.band import Band
from rowtier.cost import bundling
from rowtier.plan.remap import Read, TableMap
from rowtier.runtime.exchange.bundles import Bundle, BundleMoves, Spans, Window
from rowtier.runtime.store.address import Piece
from rowtier.tables import Table

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Layers = list[list[Piece]]
_NO_MAP = np.empty(0, dtype=np.int32)


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


def _moves(tables: list[list[Piece]], laid: dict[int, _Laid]) -> BundleMoves:
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
    return BundleMoves(edges, np.array(lines, dtype=np.int64), owners, numbers)

"""From divisions and owners to bands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from rowtier.band import Band
from rowtier.plan.joint.place.pieces import Divided, PieceCut, owned_runs
from rowtier.plan.joint.place.rows import PlacedRows
from rowtier.plan.joint.place.spread import Spread
from rowtier.plan.joint.place.vectors import Packed
from rowtier.plan.joint.place.ways import LEAST_COLUMNS, Division
from rowtier.profile.curve import Ints


def bands_of(
    tables: Sequence[PlacedRows],
    divisions: Sequence[Division],
    divided: Divided,
    packed: Packed,
    spread: Spread,
) -> dict[str, list[Band]]:
    """The bands of every table; what one owner has lies in its slowest memory, to be filled."""
    cuts: dict[int, list[PieceCut]] = defaultdict(list)
    for cut in divided.cuts:
        cuts[cut.table].append(cut)
    found = {}
    for place, (rows, division) in enumerate(zip(tables, divisions, strict=True)):
        mine = _even_bands(place, rows, division.buckets, spread)
        columns = _columns(rows, cuts[place], packed, division)
        if division.members > 1:
            mine += _node_bands(rows, cuts[place], packed, division, columns)
        else:
            for cut in cuts[place]:
                mine += _own_bands(rows, cut, packed, division, columns)
        found[rows.name] = mine
    return found


def _even_bands(place: int, rows: PlacedRows, buckets: int, spread: Spread) -> list[Band]:
    """Rows without owners: one band for every run of the same home and members."""
    menu, free = rows.menu, np.ones(len(rows.order), dtype=bool)
    free[rows.order[:buckets]] = False
    part = spread.parts(place, rows, free)
    label = np.where(free, rows.even_home * (int(part.max()) + 1) + part, -1)
    edges = np.flatnonzero(np.diff(label)) + 1
    found = []
    for first, last in pairwise([0, *edges.tolist(), len(label)]):
        if free[first]:
            home = menu.homes[int(rows.even_home[first])]
            start, stop = _ranks(menu.stops, first, last)
            band = home.placed(start, stop, rows.index)
            members = spread.members(place, rows, int(rows.even_home[first]), int(part[first]))
            found.append(band if members is None else _with(band, members=members))
    return found


def _own_bands(
    rows: PlacedRows,
    cut: PieceCut,
    packed: Packed,
    division: Division,
    columns: dict[tuple[int, int], tuple[int, int] | None],
) -> list[Band]:
    found = []
    for first, last, home in owned_runs(rows, division.buckets):
        low, high = max(first, cut.first), min(last, cut.last)
        if low < high:
            start, stop = _ranks(rows.menu.stops, low, high)
            band = rows.menu.homes[home].placed(start, stop, rows.index)
            tier = rows.pinned.tier or rows.setting.cluster.device.tiers[-1].name
            members = (int(packed.owner[cut.piece]),)
            at = columns[cut.run, cut.column]
            found.append(_with(band, members=members, columns=at, tier=tier))
    return found


def _node_bands(
    rows: PlacedRows,
    cuts: list[PieceCut],
    packed: Packed,
    division: Division,
    columns: dict[tuple[int, int], tuple[int, int] | None],
) -> list[Band]:
    """Rows that several devices of a node have together lie in the memory that they chose."""
    found = []
    for column in range(division.columns):
        mine = sorted(cut for cut in cuts if cut.column == column)
        members = tuple(
            int(owner) for cut in mine for owner in packed.owner[cut.piece : cut.piece + cut.size]
        )
        changes = {"members": members, "columns": columns[0, column], "staged": True}
        for first, last, home in owned_runs(rows, division.buckets):
            start, stop = _ranks(rows.menu.stops, first, last)
            band = rows.menu.homes[home].placed(start, stop, rows.index % len(members))
            found.append(_with(band, **changes))
    return found


def _columns(
    rows: PlacedRows, cuts: list[PieceCut], packed: Packed, division: Division
) -> dict[tuple[int, int], tuple[int, int] | None]:
    """The columns of every run and cut, by how wide they came to be."""
    dim = rows.menu.stats.table.embedding_dim
    units, found = max(1, dim // LEAST_COLUMNS), {}
    for run in {cut.run for cut in cuts}:
        mine = sorted((cut for cut in cuts if cut.run == run), key=lambda cut: cut.column)
        if division.members > 1 or division.columns == 1:
            stops = [units * (at + 1) // division.columns for at in range(division.columns)]
        else:
            stops = np.cumsum([packed.width[cut.piece] for cut in mine]).tolist()
        edges = [0, *(LEAST_COLUMNS * stop for stop in stops[:-1]), dim]
        for column, pair in enumerate(pairwise(edges)):
            found[run, column] = None if division.columns == 1 else pair
    return found


def _ranks(stops: Ints, first: int, last: int) -> tuple[int, int]:
    return (int(stops[first - 1]) if first else 0), int(stops[last - 1])


def _with(band: Band, **changes: object) -> Band:
    return band.model_copy(update=changes)

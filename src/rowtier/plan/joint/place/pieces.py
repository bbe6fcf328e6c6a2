"""Divisions of tables as pieces: what each of them asks of the device that owns it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rowtier.band import Band
from rowtier.cost.deal import deal
from rowtier.plan.joint.place.rows import MULTIPLES, PlacedRows
from rowtier.plan.joint.place.vectors import Groups, Pieces
from rowtier.plan.joint.place.ways import LEAST_COLUMNS, Division, Means
from rowtier.profile.curve import Floats, Ints


class PieceCut(NamedTuple):
    """A run of buckets of a table, in some columns, for one device or some of a node."""

    table: int  # place in the list of tables
    run: int
    column: int
    first: int  # bucket
    last: int
    piece: int  # the first one
    size: int


class TableParts(NamedTuple):
    """The pieces of one table; pieces and groups are counted from its first."""

    load: Floats  # as in `Pieces`
    held: Floats  # bytes
    unit: Floats
    unit_held: Floats
    width: Ints
    next: Ints
    size: Ints  # of every group
    key: Ints
    node: Floats
    cuts: tuple[PieceCut, ...]


class Divided(NamedTuple):
    """All pieces, and where they come from."""

    pieces: Pieces
    groups: Groups
    cuts: tuple[PieceCut, ...]
    group_table: Ints  # one table of each group


def divided(
    tables: Sequence[PlacedRows], parts: Sequence[TableParts], tiers: Sequence[str]
) -> Divided:
    """The pieces of all tables together; `tiers` are those that pins name.

    Tables that are kept together are one piece.
    """
    counts = np.array([len(one.load) for one in parts])
    start = np.cumsum(counts) - counts
    needs = [_needs(rows, one.held, tiers) for rows, one in zip(tables, parts, strict=True)]
    units = [_needs(rows, one.unit_held, tiers) for rows, one in zip(tables, parts, strict=True)]
    fixed = [-1 if rows.pinned.device is None else rows.pinned.device for rows in tables]
    pieces = Pieces(
        np.concatenate([one.load for one in parts]),
        np.concatenate(needs),
        np.concatenate([one.unit for one in parts]),
        np.concatenate(units),
        np.concatenate([one.width for one in parts]),
        np.concatenate(
            [np.where(p.next < 0, -1, p.next + s) for p, s in zip(parts, start, strict=True)]
        ),
        np.repeat(np.array(fixed, dtype=np.int64), counts),
    )
    numbers = np.array([len(one.size) for one in parts])
    before, size = np.cumsum(numbers) - numbers, np.concatenate([one.size for one in parts])
    groups = Groups(
        np.cumsum(size) - size,
        size,
        np.concatenate([one.node for one in parts]),
        np.concatenate([one.key + at for one, at in zip(parts, before, strict=True)]),
    )
    cuts = [
        cut._replace(table=place, piece=cut.piece + int(start[place]))
        for place, one in enumerate(parts)
        for cut in one.cuts
    ]
    table = np.repeat(np.arange(len(parts)), numbers)
    return _merged(Divided(pieces, groups, tuple(cuts), table), tables)


def _needs(rows: PlacedRows, held: Floats, tiers: Sequence[str]) -> Floats:
    return np.stack([held, *(held * (rows.pinned.tier == tier) for tier in tiers)], axis=1)


def _merged(found: Divided, tables: Sequence[PlacedRows]) -> Divided:
    """The same with one piece for tables that are kept together."""
    first: dict[int, int] = {}
    kept = np.arange(len(found.pieces.load))
    load, need = found.pieces.load.copy(), found.pieces.need.copy()
    for piece, table in zip(found.groups.first.tolist(), found.group_table.tolist(), strict=True):
        together = tables[table].pinned.together
        if together is not None and first.setdefault(together, piece) != piece:
            load[first[together]] += load[piece]
            need[first[together]] += need[piece]
            kept[piece] = first[together]
    if not first:
        return found
    here = kept == np.arange(len(kept))
    place = (np.cumsum(here) - 1)[kept]
    pieces = Pieces._make(field[here] for field in found.pieces._replace(load=load, need=need))
    pieces = pieces._replace(next=np.where(pieces.next < 0, -1, place[pieces.next]))
    groups, mine = found.groups, here[found.groups.first]
    number = np.cumsum(mine) - 1
    groups = Groups(
        place[groups.first[mine]], groups.size[mine], groups.node[mine], number[groups.key[mine]]
    )
    cuts = tuple(cut._replace(piece=int(place[cut.piece])) for cut in found.cuts)
    return Divided(pieces, groups, cuts, found.group_table[mine])


def parts_of(rows: PlacedRows, division: Division, means: Means) -> TableParts:
    """The pieces of one table."""
    if division.members > 1:
        return _to_nodes(rows, division)
    if division.buckets:
        return _to_devices(rows, division, means)
    ways, none = _ways(rows), np.zeros(0, dtype=np.int64)
    empty = np.zeros((0, ways))
    return TableParts(empty, np.zeros(0), empty, np.zeros(0), none, none, none, none, empty, ())


def _ways(rows: PlacedRows) -> int:
    return 2 * rows.setting.levels + len(MULTIPLES)


def _to_devices(rows: PlacedRows, division: Division, means: Means) -> TableParts:
    """Every run and columns of a table to a device of its own."""
    setting, owned = rows.setting, np.argsort(rows.order[: division.buckets])
    parts, buckets = rows.owned_parts[:, owned], rows.order[owned]
    edges = np.array(_edges(parts, division.runs, rows, means))
    asked = np.add.reduceat(parts, edges[:-1], axis=1).T  # run, kind
    sums = rows.bags.sums(np.clip(asked[:, 1], 0.0, 1.0))
    sums_s = np.multiply.outer(sums * rows.sum_bytes, setting.link_s)
    held = asked[:, 2] * rows.menu.stats.table.stored_row_bytes
    units, columns = _units(rows), division.columns
    width = np.diff([units * at // columns for at in range(columns + 1)])
    kept = np.array([_kept_share(rows, one, units) for one in width.tolist()])
    runs, one_more = len(asked), _unit_share(rows) * (columns > 1)
    run, column = np.divmod(np.arange(runs * columns), columns)
    load = np.hstack(
        [
            np.multiply.outer(asked[run, 0], setting.shares),
            sums_s[run] * (width[column] / units)[:, None],
            asked[run, 5:] * kept[column][:, None],
        ]
    )
    sums_of_one = sums_s[run] * ((columns > 1) / units)
    unit = np.hstack([np.zeros((len(run), setting.levels)), sums_of_one, asked[run, 5:] * one_more])
    ring = run * columns + (column + 1) % columns if columns > 1 else np.full(len(run), -1)
    cuts = [
        PieceCut(0, r, c, int(buckets[edges[r]]), int(buckets[edges[r + 1] - 1]) + 1, piece, 1)
        for piece, (r, c) in enumerate(zip(run.tolist(), column.tolist(), strict=True))
    ]
    groups = np.ones(len(run), dtype=np.int64)
    return TableParts(
        load,
        held[run] * kept[column],
        unit,
        held[run] * one_more,
        width[column],
        ring,
        groups,
        np.arange(len(run)),
        np.zeros_like(load),
        tuple(cuts),
    )


def _edges(parts: Floats, runs: int, rows: PlacedRows, means: Means) -> list[int]:
    """Where to cut buckets into runs of about the same weight."""
    if runs == 1:
        return [0, parts.shape[1]]
    mass = parts[1] / max(float(parts[1].sum()), 1e-300)
    sums = float(rows.bags.sums(np.clip(parts[1].sum(keepdims=True), 0.0, 1.0))[0])
    sums_s = rows.setting.widest_s * rows.sum_bytes * sums
    ids_s = float(parts[0].sum()) * rows.setting.widest_share
    links = max(ids_s / max(means.ids_s, 1e-300), sums_s / max(means.sums_s, 1e-300))
    weight = np.cumsum(mass * links + parts[5] / max(float(means.priced_s[0]), 1e-300))
    inner = np.searchsorted(weight, weight[-1] * np.arange(1, runs) / runs) + 1
    return sorted({0, *np.clip(inner, 1, parts.shape[1]).tolist(), parts.shape[1]})


def _to_nodes(rows: PlacedRows, division: Division) -> TableParts:
    """Every run and columns of a table to some devices of a node, dealt out by rank."""
    buckets, runs, columns, members = division
    setting, levels, units = rows.setting, rows.setting.levels, _units(rows)
    ids_s, mass, number, kept_s, paid_s = rows.owned_parts[:5, :buckets].sum(axis=1)
    dealt = dealt_mass(rows, buckets, runs * members)
    share, staged_s = dealt / max(float(mass), 1e-300), setting.staged_s * rows.sum_bytes
    width = np.diff([units * at // columns for at in range(columns + 1)])
    kept = np.array([_kept_share(rows, one, units) for one in width.tolist()])
    column = np.repeat(np.arange(columns), runs * members)
    each, wide = kept[column] / (runs * members), (width / units)[column]
    share = np.tile(share, columns)
    load = np.zeros((len(column), _ways(rows)))
    load[:, :levels] = np.multiply.outer(ids_s * share, setting.shares)
    own_sums = rows.bags.sums(np.clip(dealt, 0.0, 1.0))
    load[:, levels] = staged_s[0] * np.tile(own_sums, columns) * wide
    load[:, 2 * levels :] = np.multiply.outer(paid_s * each, MULTIPLES)
    load[:, 2 * levels :] += (kept_s * kept[column] * share)[:, None]
    run_sums = rows.bags.sums(np.clip(dealt.reshape(runs, members).sum(axis=1), 0.0, 1.0))
    node = np.zeros((columns * runs, _ways(rows)))
    passed = np.multiply.outer(width / units, run_sums).ravel()
    node[:, levels + 1 : 2 * levels] = np.multiply.outer(passed, staged_s[1:])
    stay, count = np.full(len(column), -1), len(rows.order)
    cuts = [
        PieceCut(0, group % runs, group // runs, 0, count, group * members, members)
        for group in range(columns * runs)
    ]
    return TableParts(
        load,
        number * rows.menu.stats.table.stored_row_bytes * each,
        np.zeros_like(load),
        np.zeros(len(column)),
        np.ones(len(column), dtype=np.int64),
        stay,
        np.full(columns * runs, members),
        np.repeat(np.arange(columns) * runs, runs),
        node,
        tuple(cuts),
    )


def _units(rows: PlacedRows) -> int:
    return max(1, rows.menu.stats.table.embedding_dim // LEAST_COLUMNS)


def _kept_share(rows: PlacedRows, width: int, units: int) -> float:
    """Of a row's bytes, what so many units of columns keep; state may come with every cut."""
    table = rows.menu.stats.table
    columns = table.embedding_dim if width == units else width * LEAST_COLUMNS
    return (columns * table.item_bytes + table.state_bytes(columns)) / table.stored_row_bytes


def _unit_share(rows: PlacedRows) -> float:
    """What one unit of columns more keeps."""
    table, more = rows.menu.stats.table, LEAST_COLUMNS
    state = table.state_bytes(2 * more) - table.state_bytes(more)
    return (more * table.item_bytes + state) / table.stored_row_bytes


def owned_runs(rows: PlacedRows, buckets: int) -> Iterator[tuple[int, int, int]]:
    """Runs of neighbouring buckets with owners that chose the same home: first, last, home."""
    owned = np.sort(rows.order[:buckets])
    homes = rows.own_home[owned]
    edges = np.flatnonzero((np.diff(owned) > 1) | (np.diff(homes) != 0)) + 1
    for low, high in pairwise([0, *edges.tolist(), len(owned)]):
        yield int(owned[low]), int(owned[high - 1]) + 1, int(homes[low])


def dealt_mass(rows: PlacedRows, buckets: int, members: int) -> Floats:
    """The lookups that each member gets of rows with owners that are dealt out by rank."""
    curve, stops, mass = rows.menu.stats.curve, rows.menu.stops, np.zeros(members)
    for first, last, home in owned_runs(rows, buckets):
        start = int(stops[first - 1]) if first else 0
        if start < curve.positions:  # rows after that are never looked up
            band = Band(
                start=start,
                stop=int(stops[last - 1]),
                scope=rows.menu.homes[home].band.scope,
                tier=rows.menu.homes[home].band.tier,
                members=tuple(range(members)),
                offset=rows.index % members,
            )
            mass += deal(band, curve, curve.probabilities[None], members).by_member(members)[0]
    return mass

"""Where each row of a table lies, in a form that counting kernels read: one number a row.

Rows that share a band, a member, a gateway and a turn do the same in a step, so they are
one *class*. A row's turn says which of its copies adds up gradients: see `_sync` in
`replay_kernels.py`. Bands that cover other columns of the same rows stand in other
*layers*; almost every table has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import lcm

import numpy as np
from numpy.typing import NDArray

from rowtier.band import Band, layers_of
from rowtier.cost.amounts import RowSizes, whole_bytes
from rowtier.cost.options import CostOptions
from rowtier.cost.rates import Way
from rowtier.cost.tree import Tree
from rowtier.profile.order import NarrowInts, rows_by_position
from rowtier.tables import Table

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
State = NDArray[np.int32]

SEEN = np.int32(2**30)  # added to the class of rows that the profile saw

# What a class knows, in this order: one column of `Layer.facts` each.
FACTS = (
    "level",  # of the scope
    "position",  # of the holder in its group
    "gateway",
    "turn",  # which copy adds up gradients, one digit a level
    "once",  # a reader asks once per step, not once per lookup
    "staged",  # rows pass gateways
    "rows",  # rows travel, not partial sums
    "dense",  # all rows are synced, touched or not
    "copies",  # there are several
    "weight_bytes",
    "asked_bytes",
    "id_bytes",
    "first_tier",
    "first_bytes",  # that reading the row in the holder's first tier moves
    "tier",
    "update_bytes",  # that an update reads, and writes
    "fetch_bytes",  # that bringing it to the first tier moves, if nothing is updated
)

# Seconds of work that a class's rows take, one column of `Layer.work` each.
WORK = (
    "lookup",  # of a reader, for each lookup
    "ask",  # of a reader, for each row that it asks for
    "serve",  # of whoever is asked for a row, the holder or a gateway
    "update",
    "copy",  # for each row that copies exchange: to pack or to unpack it
)


@dataclass(frozen=True, eq=False)
class Deal:
    """How a band's rows are dealt out: member, gateway and turn of each class."""

    member: Ints
    gateway: Ints
    turn: Ints
    found: Ints  # the class of each row


@dataclass(frozen=True, eq=False)
class Layer:
    """Bands that share no row, and what the classes of their rows know."""

    facts: Ints  # classes × FACTS
    work: Floats  # classes × WORK
    rows: Ints  # how many each class has
    bands: tuple[Band, ...]
    first_class: tuple[int, ...]  # of each band, and where the last one ends


@dataclass(frozen=True, eq=False)
class SumsView:
    """Classes whose partial sums are added up together: same columns, staged or not."""

    staged: bool
    sum_bytes: int
    sum_s: float  # work of packing a sum and its gradient, or of unpacking them
    inside: NDArray[np.bool_]  # layers × classes


@dataclass(frozen=True, eq=False)
class Homes:
    """A table's placement: per row its last reader (none yet) and its class in each layer."""

    table: Table
    layers: tuple[Layer, ...]
    views: tuple[SumsView, ...]
    state: State  # rows × (1 + layers)

    @property
    def classes(self) -> int:
        """The most that a layer has."""
        return max(len(layer.facts) for layer in self.layers)


def homes_of(
    table: Table, bands: Sequence[Band], touched: NarrowInts, tree: Tree, options: CostOptions,
    again_s: float = 0.0,
) -> Homes:  # fmt: skip
    """Unfold a table's bands; `again_s` is the work of lookups that are gone through twice."""
    by_rank = rows_by_position(touched, table.num_embeddings)
    stacks = layers_of(bands)
    state = np.full((table.num_embeddings, 1 + len(stacks)), -1, dtype=np.int32)
    layers = []
    for index, stack in enumerate(stacks):
        column = state[:, 1 + index]
        layer = _layer(table, stack, by_rank, column, tree, options)
        layer.work[:, WORK.index("lookup")] += again_s
        layers.append(layer)
        column[touched] += SEEN * (column[touched] >= 0)
    return Homes(table, tuple(layers), tuple(_views(table, layers, tree, options)), state)


def _layer(
    table: Table, bands: list[Band], by_rank: Ints, column: State, tree: Tree, options: CostOptions
) -> Layer:
    facts, work, counts, firsts = [], [], [], [0]
    for band in bands:
        way = Way.of(band, tree)
        positions = tree.positions(band, way.level)
        gateways = tree.sizes[way.level - 1] if way.by_gateways else 1
        turns = tree.devices // tree.sizes[way.level] if options.training else 1
        rows = by_rank[band.start : band.stop]
        deal = _dealt(band, rows, len(positions), gateways, turns)
        column[rows] = firsts[-1] + deal.found
        facts.append(_facts(table, band, way, positions, deal, tree, options))
        work.append(np.tile(_work(table, band, way, tree, options), (len(deal.member), 1)))
        counts.append(np.bincount(deal.found, minlength=len(deal.member)))
        firsts.append(firsts[-1] + len(deal.member))
    return Layer(
        np.concatenate(facts),
        np.concatenate(work),
        np.concatenate(counts),
        tuple(bands),
        tuple(firsts),
    )


def _dealt(band: Band, rows: Ints, members: int, gateways: int, turns: int) -> Deal:
    """Put rows that are alike into one class; every class has a row.

    Members, gateways and turns come round in the order of positions, or of row ids inside a
    member's block. So the rows of the first round stand for all, as far as there are any.
    """
    if band.order == "spread":
        every = min(lcm(members * turns, gateways), band.rows)
        first = np.arange(every, dtype=np.int64)
        turn, place = first // members % turns, first + band.offset
        found = np.arange(band.rows, dtype=np.int64) % every
        return Deal(place % members, place % gateways, turn, found)
    places = np.empty(len(rows), dtype=np.int64)
    places[np.argsort(rows, kind="stable")] = np.arange(len(rows))
    block = -(-band.rows // members)
    every = min(lcm(turns, gateways), block)
    last, rest = divmod(band.rows - 1, block)
    member, slot = np.divmod(np.arange(last * every + min(rest + 1, every), dtype=np.int64), every)
    gateway = (member * block + slot + band.offset) % gateways
    found = places // block * every + places % block % every
    return Deal(member, gateway, slot % turns, found)


def _facts(
    table: Table,
    band: Band,
    way: Way,
    members: Ints,
    deal: Deal,
    tree: Tree,
    options: CostOptions,
) -> Ints:
    positions = members[deal.member]
    sizes = RowSizes.of(table, band, options)
    copies = tree.sizes[way.level] < tree.devices
    facts = np.zeros((len(positions), len(FACTS)), dtype=np.int64)
    fact = {name: facts[:, index] for index, name in enumerate(FACTS)}
    rows = way.exchange == "rows"
    fact["level"][:], fact["position"][:] = way.level, positions
    fact["gateway"][:], fact["turn"][:] = deal.gateway, deal.turn
    fact["once"][:] = way.once
    fact["staged"][:], fact["rows"][:] = way.by_gateways, rows
    fact["copies"][:], fact["dense"][:] = copies, copies and way.sync == "dense"
    fact["weight_bytes"][:], fact["asked_bytes"][:] = sizes.weight_bytes, sizes.asked_bytes
    fact["id_bytes"][:] = sizes.id_bytes
    for kind, at in tree.by_kind(way.level, positions):
        first, here = next(iter(tree.tiers[kind].values())), tree.tiers[kind][band.tier]
        fact["first_tier"][at] = tree.columns[first.name]
        fact["first_bytes"][at] = whole_bytes(sizes.weight_bytes, first)
        fact["tier"][at] = tree.columns[band.tier]
        if options.training:
            stored = whole_bytes(sizes.weight_bytes + sizes.state_bytes, here)
            fact["update_bytes"][at] = stored
        elif here is not first:
            fact["fetch_bytes"][at] = whole_bytes(sizes.weight_bytes, here)
    return facts


def _work(table: Table, band: Band, way: Way, tree: Tree, options: CostOptions) -> Floats:
    """Seconds of each of `WORK`, as `cost/amounts.py` counts them."""
    work, passes = tree.cluster.work, 2 if options.training else 1
    sizes, rows = RowSizes.of(table, band, options), way.adds_up
    copy_s = work.copy_s(sizes.weight_bytes)
    found = {
        "lookup": work.lookup_s + rows * passes * sizes.weight_bytes * work.byte_s,
        "ask": rows * (passes * work.row_s + work.asked_s(way.once)),
        "serve": passes * copy_s,
        "update": work.update_s(sizes.optimizer) * options.training,
        "copy": copy_s,
    }
    return np.array([found[name] for name in WORK], dtype=np.float64)


def _views(table: Table, layers: list[Layer], tree: Tree, options: CostOptions) -> list[SumsView]:
    """Which classes send partial sums together, for every run of columns that they share."""
    pooled = [
        (band, layer, slice(*edges))
        for layer, found in enumerate(layers)
        for band, edges in zip(found.bands, pairwise(found.first_class), strict=True)
        if band.exchange == "sums" and tree.scopes[band.scope]
    ]
    spans = {id(band): band.columns or (0, table.embedding_dim) for band, *_ in pooled}
    most, views = max(len(layer.facts) for layer in layers), []
    for first, last in pairwise(sorted({edge for span in spans.values() for edge in span})):
        for staged in (False, True):
            inside = np.zeros((len(layers), most), dtype=np.bool_)
            for band, layer, classes in pooled:
                low, high = spans[id(band)]
                inside[layer, classes] |= band.staged == staged and low <= first and last <= high
            if inside.any():
                sum_bytes = (last - first) * table.item_bytes
                sum_s = (2 if options.training else 1) * tree.cluster.work.sum_copy_s(sum_bytes)
                views.append(SumsView(staged, sum_bytes, sum_s, inside))
    return views

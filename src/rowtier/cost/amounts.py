"""Bytes that one row of one copy takes and moves: all of them, as one matrix on the basis.

Memory: a row that any reader needs is read once a step in the holder's first tier; after that it is
in a cache, and to serve it again is work. Rows of another tier are brought there first, and
written back after the update; so a row never looks cheaper for lying in slower memory. A row's
optimizer state lies beside its weights, an update reads and writes the two together, and an access
moves whole units of the tier's granularity. What buffers are read and written is work, which is
counted in seconds: `serving` is the holder's, `reading` that of every reader of the copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from rowtier.band import Band
from rowtier.cluster import Tier
from rowtier.cost.options import CostOptions
from rowtier.cost.rates import Rates, Way, rates_of
from rowtier.cost.touch import LOOKUPS
from rowtier.cost.tree import Tree
from rowtier.profile.curve import Floats, Ints
from rowtier.tables import Table


class RowSizes(NamedTuple):
    """What a row of a band weighs."""

    weight_bytes: int
    state_bytes: int
    id_bytes: int
    asked_bytes: int  # of an id that a reader sends
    optimizer: str

    @classmethod
    def of(cls, table: Table, band: Band, options: CostOptions) -> RowSizes:
        """The sizes of a table's row in a band."""
        width, id_bytes = band.width(table.embedding_dim), options.id_bytes(table)
        asked_bytes = id_bytes if band.exchange == "rows" else options.bag_id_bytes(table)
        weight_bytes, state_bytes = width * table.item_bytes, table.state_bytes(width)
        return cls(weight_bytes, state_bytes, id_bytes, asked_bytes, table.optimizer)


@dataclass(frozen=True, eq=False)
class Parts:
    """An array of amounts by name."""

    weights: Floats  # kept, per tier
    state: Floats
    read: Floats  # per tier and step
    written: Floats
    sync: Floats  # per level, sent and received alike
    sync_ids: Floats
    waiting: Floats  # gradients beside the row that wait for sync
    forward: Floats  # per level, all transfers of the copy; 0 for `sums`
    ids: Floats
    reply: Floats  # to each reader; 0 where rows pass gateways, and for `sums`
    ask: Floats  # ids from each reader
    serving: Floats  # seconds of work of the holder; without partial sums
    reading: Floats  # seconds of work of each reader of the copy
    relaying: Floats  # the same as a gateway, on average

    @classmethod
    def of(cls, tree: Tree, amounts: Floats) -> Parts:
        """Split an array whose first axis counts amounts."""
        tiers, levels = len(tree.columns), tree.levels
        lengths = (tiers, tiers, tiers, tiers, levels, levels, 1, levels, levels, 1, 1, 1, 1, 1)
        return cls(*(amounts[a:b] for a, b in pairwise(accumulate(lengths, initial=0))))


def all_amounts(tree: Tree) -> int:
    """How many amounts there are."""
    return 4 * len(tree.columns) + 4 * tree.levels + 6


@dataclass(frozen=True, eq=False)
class Amounts:
    """Amounts per row, amounts × those rows of the basis that matter; the ones are always last."""

    basis_rows: Ints
    matrix: Floats

    def at(self, basis_row: int) -> int:
        """Where `matrix` has a row of the basis."""
        return int(np.searchsorted(self.basis_rows, basis_row))


@lru_cache(maxsize=4096)
def amounts_of(
    tree: Tree, way: Way, kind: int, tier: str, sizes: RowSizes, training: bool
) -> Amounts:
    """What a row takes that a holder of this kind keeps in this tier."""
    attached = 0 if kind == 0 else tree.racks[kind - 1].level
    rates = rates_of(tree, way, attached, training)
    matrix = np.zeros((all_amounts(tree), tree.levels + 3))
    parts = Parts.of(tree, matrix)
    first, here = next(iter(tree.tiers[kind].values())), tree.tiers[kind][tier]
    parts.weights[tree.columns[tier], -1] = sizes.weight_bytes
    parts.state[tree.columns[tier], -1] = sizes.state_bytes
    parts.read[tree.columns[first.name]] += rates.needed * whole_bytes(sizes.weight_bytes, first)
    parts.read[tree.columns[tier]] += _reads(rates, sizes, here, is_first=here is first)
    stored_bytes = whole_bytes(sizes.weight_bytes + sizes.state_bytes, here)
    parts.written[tree.columns[tier]] += rates.updates * stored_bytes
    parts.sync[:] = rates.sync * sizes.weight_bytes
    parts.sync_ids[:] = rates.sync_ids * sizes.id_bytes
    named_bytes = sizes.id_bytes if way.sync == "sparse" else 0
    parts.waiting[:] = rates.waiting * (sizes.weight_bytes + named_bytes)
    parts.forward[:] = rates.forward * sizes.weight_bytes
    parts.ids[:] = rates.ids * sizes.asked_bytes
    if not way.by_gateways and way.level:
        parts.ask[0, way.asked] = sizes.asked_bytes
        parts.reply[0, way.asked] = sizes.weight_bytes * (way.exchange == "rows")
    _add_work(parts, tree, way, rates, sizes, training)
    rows = _basis_rows(tree, way, training)
    return Amounts(rows, matrix[:, rows])


def _add_work(
    parts: Parts, tree: Tree, way: Way, rates: Rates, sizes: RowSizes, training: bool
) -> None:
    """Seconds of the holder, of each reader and of gateways.

    A row is packed for whoever asks and its gradient unpacked, an update takes its time, and what
    copies exchange is packed and unpacked. A reader finds out what each lookup needs; of rows it
    unpacks what it asked for, adds it up lookup by lookup, and does the same with gradients.
    Whoever has a copy of its own of rows that go by sums asks nobody, and does so, too.
    """
    work, passes = tree.cluster.work, 2 if training else 1
    copy_s = work.copy_s(sizes.weight_bytes)
    parts.serving[0] = passes * copy_s * rates.packed
    parts.serving[0] += work.update_s(sizes.optimizer) * rates.updates
    parts.serving[0] += 2 * copy_s * rates.sync.sum(axis=0)
    parts.reading[0, LOOKUPS] += work.lookup_s
    if way.adds_up:
        parts.reading[0, LOOKUPS] += passes * sizes.weight_bytes * work.byte_s
        parts.reading[0, way.asked] += passes * work.row_s + work.asked_s(way.once)
    parts.relaying[0] = passes * copy_s * rates.handed_on / tree.sizes[way.level]


def _reads(rates: Rates, sizes: RowSizes, tier: Tier, is_first: bool) -> Floats:
    """Bytes read where the row lies: by the update, or to be brought closer."""
    if is_first or rates.updates.any():
        return rates.updates * whole_bytes(sizes.weight_bytes + sizes.state_bytes, tier)
    return rates.needed * whole_bytes(sizes.weight_bytes, tier)


def _basis_rows(tree: Tree, way: Way, training: bool) -> Ints:
    """The rows that any kind of holder needs, among them those the exchange is made of."""
    used = np.zeros(tree.levels + 3, dtype=bool)
    used[[way.asked, LOOKUPS, -1]] = True
    for attached in {0, *(rack.level for rack in tree.racks)}:
        rates = rates_of(tree, way, attached, training)
        for weights in vars(rates).values():
            used |= np.atleast_2d(weights).any(axis=0)
    if way.by_gateways:
        used[1 : 1 + way.level] = True
    return np.flatnonzero(used)


def whole_bytes(size_bytes: int, tier: Tier) -> int:
    """Bytes that an access moves: rounded up to the tier's granularity."""
    unit = max(1, tier.granularity_bytes)
    return -(-size_bytes // unit) * unit

"""All tables as flat arrays: what every row may choose from, and what that costs beside memory.

Homes of a table that lie in the same memory, at the same scope, and take part in the same rounds
differ in seconds only; the best of them is all that prices need to know of. Such homes are a
*shelf*: a place in memory with the least time that a row there can take.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.cluster import Cluster
from rowtier.cost.memory import memory_sizes
from rowtier.cost.options import CostOptions
from rowtier.cost.touch import BagLengths, table_basis
from rowtier.cost.tree import Tree, tree_of
from rowtier.plan.joint.columns import narrow_share, ungrained, with_cut_columns
from rowtier.plan.joint.homes import (
    NO_SUMS,
    Home,
    HomeCosts,
    Phase,
    home_costs,
    homes_of,
    open_homes,
    phase_of,
    sum_costs,
    sums_class,
)
from rowtier.plan.options import PlanOptions
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile, TableStats
from rowtier.tables import Table


class Shelf(NamedTuple):
    """Homes that differ in seconds only."""

    memory: int
    level: int
    sums: int  # class of its sums, or `NO_SUMS`
    phase: Phase


@dataclass(frozen=True, eq=False)
class Sums:
    """What partial sums cost, which is not a sum over rows (`dual.py`).

    A class is a level and a kind of owners. Distances at which the same classes send anything
    are taken together, as one of the dimensions.
    """

    sends: Ints  # classes × dimensions: 1 if owners of the class send there
    flat_s: Floats  # tables × dimensions: for a sum of every sample, whoever sends it
    more_s: Floats  # tables × classes × dimensions: on top, by class
    needed: Floats  # tables × masses: sums that a reader needs for that share of lookups
    again_s: Floats  # tables: work of a reader for going through all lookups once more

    def alone_s(self, table: int) -> Floats:
        """By class: seconds for a sum of every sample, if no other class sends anything."""
        return np.asarray((self.sends * (self.flat_s[table] + self.more_s[table])).sum(axis=1))


@dataclass(frozen=True, eq=False)
class FlatTables:
    """Buckets of all tables one after the other; those of table t begin at `first[t]`."""

    shelves: tuple[Shelf, ...]
    memory: Ints  # of each shelf
    sums_of: Ints  # of each shelf: class of sums, or `NO_SUMS`
    first: Ints
    widths: Floats
    mass: Floats  # of one row in each bucket
    cost_s: Floats  # buckets × shelves, of one row
    kept_bytes: Floats  # shelves × tables, of one row, for each device
    sums: Sums
    classes: tuple[tuple[int, int], ...]  # levels and kinds of owners of sums
    weights: Floats  # of kinds of holders, together 1
    capacity: Floats  # bytes of each memory, for each device

    @property
    def count(self) -> int:
        """How many tables there are."""
        return len(self.first) - 1

    @cached_property
    def reached(self) -> NDArray[np.bool_]:
        """Which shelves rows that are looked up may be on: every combination that there is."""
        looked_up = (self.mass > 0) & (self.widths > 0)
        finite = np.isfinite(self.cost_s)[looked_up]
        changes = np.flatnonzero((finite[1:] != finite[:-1]).any(axis=1)) + 1
        return np.unique(finite[[0, *changes.tolist()]] if len(finite) else finite, axis=0)

    def hints(self, fine: bool) -> Ints:
        """Per table the box that was best last: where a search begins, not what it finds."""
        return self._fine_hints if fine else self._coarse_hints

    @cached_property
    def _fine_hints(self) -> Ints:
        return np.zeros((self.count, self.sums.sends.shape[1]), dtype=np.int64)

    @cached_property
    def _coarse_hints(self) -> Ints:
        return np.zeros((self.count, self.sums.sends.shape[1]), dtype=np.int64)


class TableHomes(NamedTuple):
    """What rows of tables that weigh the same may choose from."""

    costs: HomeCosts
    fine: HomeCosts  # what they would cost without granularity
    shelf: Ints  # of each home
    share: float  # of a row, that pays for a home (`narrow_share`)


@dataclass(frozen=True, eq=False)
class Pricing:
    """Prices homes of one problem; tables whose rows weigh the same share what is computed."""

    profile: Profile
    cluster: Cluster
    options: PlanOptions
    cost: CostOptions
    sync_weight: float
    known: dict[Hashable, TableHomes]

    @classmethod
    def of(
        cls, profile: Profile, cluster: Cluster, options: PlanOptions, cost: CostOptions,
        sync_weight: float = 1.0,
    ) -> Pricing:  # fmt: skip
        """Of a problem."""
        return cls(profile, cluster, options, cost, sync_weight, {})

    @cached_property
    def classes(self) -> list[tuple[int, int]]:
        """Levels and kinds of owners of sums."""
        homes = homes_of(self.cluster, True)
        return sorted({(h.level, h.kind) for h in homes if h.band.exchange == "sums"})

    @cached_property
    def shelves(self) -> dict[Shelf, int]:
        """All shelves, and their numbers."""
        found = sorted({self._shelf(home) for home in homes_of(self.cluster, True)})
        return {shelf: row for row, shelf in enumerate(found)}

    def _shelf(self, home: Home) -> Shelf:
        phase = phase_of(home.band, home.kind, tree_of(self.cluster), self.cost.training)
        return Shelf(home.memory, home.level, sums_class(home, self.classes), phase)

    def homes(self, table: Table) -> TableHomes:
        """The homes of a table's rows, priced on the basis."""
        dim, pooled = table.embedding_dim, table.pooling != "none"
        asked_bytes = (self.cost.id_bytes(table), self.cost.bag_id_bytes(table) if pooled else 0)
        weighs = (dim, table.item_bytes, table.state_bytes(dim), table.optimizer, *asked_bytes)
        key = (weighs, pooled)
        if key not in self.known:
            costs = home_costs(table, self.cluster, self.cost, self.sync_weight)
            self.known[key] = TableHomes(
                costs,
                home_costs(table, ungrained(self.cluster), self.cost, self.sync_weight),
                np.array([self.shelves[self._shelf(home)] for home in costs.homes]),
                narrow_share(table, self.cluster),
            )
        return self.known[key]

    @cached_property
    def cuts_columns(self) -> bool:
        """Whether columns that lie apart may save something in some table."""
        return any(self.homes(s.table).share < 1 for s in self.profile.stats)

    def seconds(
        self, stats: TableStats, weights: Floats, *, cut: bool = True
    ) -> tuple[TableHomes, Floats, float]:
        """Homes × buckets of a table, rows that are never looked up last; and `narrow_share`.

        Homes that are not open take for ever. Without `cut`, all columns of a row lie together.
        """
        homes = self.homes(stats.table)
        basis = table_basis(stats, self.profile, tree_of(self.cluster).sizes, rest=True)
        seconds = homes.costs.weighted(weights) @ basis
        share = homes.share if cut else 1.0
        if share < 1:
            lookup_s = self.cluster.work.lookup_s
            seconds = with_cut_columns(seconds, homes.fine, share, basis, weights, lookup_s)
        constraints = self.options.constraints
        allowed = open_homes(homes.costs.homes, stats.table, constraints, self.cluster)
        if not allowed.all():
            seconds[~allowed] = np.inf
        return homes, seconds, share

    def tables(self, weights: Floats, masses: Floats, *, cut: bool = True) -> FlatTables:
        """All tables, if kinds of holders count so much, with sums for some masses."""
        tree, stats, shelves = tree_of(self.cluster), self.profile.stats, list(self.shelves)
        classes = self.classes
        sizes = [len(s.curve.stops) + 1 for s in stats]
        first = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        cost_s = np.full((int(first[-1]), len(shelves)), np.inf)
        kept = np.zeros((len(shelves), len(stats)))
        unit_s = np.zeros((len(stats), len(classes), tree.levels + 1))
        for index, one in enumerate(stats):
            homes, seconds, share = self.seconds(one, weights, cut=cut)
            order = np.argsort(homes.shelf, kind="stable")
            starts = np.flatnonzero(np.diff(homes.shelf[order], prepend=-1))
            rows = homes.shelf[order[starts]]
            best_s = np.minimum.reduceat(seconds[order], starts, axis=0)
            cost_s[first[index] : first[index + 1], rows] = best_s.T
            kept[rows, index] = share * homes.costs.kept_bytes[order[starts]]
            unit_s[index] = share * sum_costs(
                one.table, tuple(classes), self.cluster, self.cost, weights
            )
        lookups = np.array([self.profile.lookups_per_step(s) for s in stats])
        again_s = weights[0] * self.cluster.work.lookup_s * lookups
        sums = _sums(self.profile, unit_s, _senders(classes, tree), masses, again_s)
        return FlatTables(
            tuple(shelves),
            np.array([shelf.memory for shelf in shelves], dtype=np.int64),
            np.array([shelf.sums for shelf in shelves], dtype=np.int64),
            first,
            np.concatenate([_widths(one) for one in stats]),
            np.concatenate([np.append(one.curve.probabilities, 0.0) for one in stats]),
            cost_s,
            kept,
            sums,
            tuple(classes),
            weights,
            np.array([size for _, size in memory_sizes(self.cluster, self.options.reserved)]),
        )


def sums_of_devices(tables: FlatTables) -> tuple[Floats, Floats]:
    """1 for shelves whose rows go by sums of devices: in the whole cluster, and inside groups."""
    top = max((level for level, _ in tables.classes), default=0)
    mine = [s.sums != NO_SUMS and tables.classes[s.sums][1] == 0 for s in tables.shelves]
    wide = np.array([shelf.level == top for shelf in tables.shelves])
    return np.asarray(mine & wide, np.float64), np.asarray(mine & ~wide, np.float64)


def _widths(stats: TableStats) -> Floats:
    rest = stats.table.num_embeddings - stats.curve.positions
    return np.append(stats.curve.widths, rest).astype(np.float64)


def _senders(classes: list[tuple[int, int]], tree: Tree) -> Ints:
    """Classes × distances: 1 if some reader is so far from its owner."""
    sends = np.zeros((len(classes), tree.levels + 1), dtype=np.int64)
    for row, (level, kind) in enumerate(classes):
        attached = tree.racks[kind - 1].level if kind else 0
        sends[row, 1:] = tree.readers(level, attached) > 0
        sends[row, 0] = kind == 0
    return sends


def _sums(profile: Profile, unit_s: Floats, senders: Ints, masses: Floats, again_s: Floats) -> Sums:
    patterns = sorted({tuple(c) for c in senders.T.tolist() if any(c)}, reverse=True)
    sends = np.array(patterns, dtype=np.int64).reshape(len(patterns), len(senders)).T
    flat_s = np.zeros((len(unit_s), len(patterns)))
    more_s = np.zeros((len(unit_s), len(senders), len(patterns)))
    for distance, column in enumerate(senders.T.tolist()):
        if any(column):
            among, at = np.flatnonzero(column), patterns.index(tuple(column))
            flat = unit_s[:, among, distance].min(axis=1)
            flat_s[:, at] += flat
            more_s[:, among, at] += unit_s[:, among, distance] - flat[:, None]
    needed = np.zeros((len(unit_s), len(masses)))
    for index, stats in enumerate(profile.stats):
        if stats.lookups and stats.table.pooling != "none":
            needed[index] = BagLengths.of(stats).sums(masses) * profile.batch_size
    return Sums(np.ascontiguousarray(sends), flat_s, more_s, needed, again_s)

"""Walks over the bands of a plan and adds up what each of them asks of every holder.

All groups of a level keep the same copy of a band, and all devices read alike, so amounts
are added up per position in a group and unfolded to holders at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.cost.amounts import Parts, RowSizes, all_amounts, amounts_of
from rowtier.cost.bundling import PiecesRun, pieces_run
from rowtier.cost.deal import Dealt, deal, known_rows
from rowtier.cost.gather import Gather
from rowtier.cost.links import Sending, add_staged_sums, add_sums
from rowtier.cost.memory import table_output_bytes
from rowtier.cost.options import CostOptions
from rowtier.cost.rates import Way
from rowtier.cost.touch import LOOKUPS, BagLengths, table_basis, touched
from rowtier.cost.tree import Tree
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile, TableStats
from rowtier.tables import Table


@dataclass(frozen=True, eq=False)
class Subject:
    """One table as the walk sees it."""

    index: int
    stats: TableStats
    batch_size: int
    lookups: float  # per device and step (L)
    basis: Floats
    rows: Ints | None  # touched rows, hottest first, if known


@dataclass(frozen=True, eq=False)
class SumsBand:
    """A `sums` band: which share of the lookups falls on which position of a scope group."""

    columns: tuple[int, int]
    staged: bool
    level: int
    positions: Ints
    masses: Floats


class Tally:
    """Amounts by holder and by table while bands are added; of several plans, if `more`."""

    def __init__(self, tree: Tree, options: CostOptions, tables: int, *more: int):
        self.tree, self.options = tree, options
        self.forward, self.ids = Sending(tree, *more), Sending(tree, *more)
        self.sums_bytes = np.zeros((tables, tree.levels, *more))  # partial sums of each table
        # Levels that gateways pass rows on at.
        self.relayed = np.zeros((tree.levels, *more), dtype=np.bool_)
        self._gathers = [
            Gather(all_amounts(tree), members.shape[1], tables, *more) for members in tree.members
        ]
        self._staged = {
            level: Gather(3 * level, members.shape[1] * tree.sizes[level - 1], 1, *more)
            for level, members in enumerate(tree.members)
            if level
        }
        self._tables, self._plan, self._more = 0, 0, more
        self._placed: list[tuple[Table, tuple[Band, ...]]] = []
        self._outputs_s = np.zeros((tables, *more))  # work of a device for what lookups give
        self._packed = Sending(tree, *more)  # seconds of packing partial sums, in place of bytes
        self._relayed = Sending(tree, *more)  # the same of rows that go by gateways
        self._own_sums_s = np.zeros((tree.holders, *more))
        self._sums_s = np.zeros((tables, *more))  # the same by table
        self._lookups = np.zeros((tables, *more))  # of a device, in each band

    @classmethod
    def of_plans(
        cls, tree: Tree, options: CostOptions, stats: TableStats,
        plans: Sequence[tuple[Band, ...]], profile: Profile,
    ) -> Tally:  # fmt: skip
        """Several placements of one table, side by side along a last axis."""
        found = cls(tree, options, 1, len(plans))
        each = [found._of_plan(at) for at in range(len(plans))]
        for one, bands in zip(each, plans, strict=True):
            one.add(stats, bands, profile, known_rows(stats, None))
        found._tables = 1
        found.pieces_s = np.array([one.pieces_s for one in each])
        found._readers_s = np.array([one._readers_s for one in each])
        return found

    def _of_plan(self, plan: int) -> Tally:
        """The part of one plan: what is added to it is added here."""
        found = Tally.__new__(Tally)
        vars(found).update(vars(self))
        for name in ("sums_bytes", "relayed", "_outputs_s", "_own_sums_s", "_sums_s", "_lookups"):
            setattr(found, name, getattr(self, name)[..., plan])
        for name in ("forward", "ids", "_packed", "_relayed"):
            setattr(found, name, getattr(self, name).of_plan(plan))
        found._plan, found._placed = plan, []
        return found

    def add(
        self, stats: TableStats, bands: Iterable[Band], profile: Profile, rows: Ints | None
    ) -> None:
        """Add the bands of the next table."""
        basis = table_basis(stats, profile, self.tree.sizes)
        lookups = profile.lookups_per_step(stats)
        subject = Subject(self._tables, stats, profile.batch_size, lookups, basis, rows)
        self._placed.append((stats.table, tuple(bands)))
        pooled = [self._add_band(subject, band) for band in self._placed[-1][1]]
        sums = [band for band in pooled if band is not None]
        if sums:
            self._send_sums(subject, sums)
        self._outputs_s[self._tables] = outputs_work_s(
            stats, profile, self.tree.cluster, self.options
        )
        self._tables += 1

    def by_table(self) -> Parts:
        """Amounts of each table (last axis), all holders together; without partial sums."""
        groups = [len(members) for members in self.tree.members]
        parts = (g.by_owner * count for g, count in zip(self._gathers, groups, strict=True))
        return Parts.of(self.tree, sum(parts, np.zeros(1)))

    def by_holder(self) -> Parts:
        """Amounts of each holder (last axis); what it sends is left to `forward` and `ids`."""
        amounts = np.zeros((all_amounts(self.tree), self.tree.holders, *self._more))
        for level, gather in enumerate(self._gathers):
            if not gather.is_used:
                continue
            members = self.tree.members[level]
            amounts[:, members] += gather.by_place[:, None]
            each = Parts.of(self.tree, gather.by_place)
            self.forward.add_flat(level, members, each.reply[0])
            self.ids.add_flat(level, members, each.ask[0])
        for level, gather in self._staged.items():
            if not gather.is_used:
                continue  # nothing goes by gateways
            members, size = self.tree.members[level], self.tree.sizes[level - 1]
            ids, rows, copies_s = gather.by_place.reshape(3, level, -1, size, *self._more)
            self.ids.add_staged(level, members, ids)
            self.forward.add_staged(level, members, rows)
            if copies_s.any():
                self._relayed.add_staged(level, members, copies_s)
        return Parts.of(self.tree, amounts)

    def work_s(self, own: Parts) -> Floats:
        """Seconds of every holder's own work, but for what a step and its rounds take."""
        packed = self._packed.flow()
        work_s = own.serving[0] + self._own_sums_s + (packed.sent + packed.received).sum(axis=1)
        used = [gather.by_place for gather in self._gathers if gather.is_used]
        reading_s = sum(Parts.of(self.tree, each).reading[0].sum(axis=0) for each in used)
        work_s[: self.tree.devices] += reading_s + self._readers_s + self._relayed.handed_on
        fixed_s = self.tree.cluster.work.table_s * self._tables
        return np.asarray(work_s + fixed_s + self.pieces_s)

    @cached_property
    def pieces(self) -> PiecesRun:
        """What the runtime runs: bands of tables that are alike are one."""
        return pieces_run(self._placed, self.tree)

    @cached_property
    def pieces_s(self) -> float | Floats:
        """Work of every holder for what the runtime runs."""
        return self.pieces.work_s(self.tree.cluster.work, self.options.training)

    @cached_property
    def _readers_s(self) -> float | Floats:
        """Work of a device for what lookups give the model, and to go through them once more."""
        return float(self._again_s.sum() + self._outputs_s.sum())

    @property
    def _again_s(self) -> Floats:
        """Work of a device, by table, for lookups that it goes through once more."""
        work = self.tree.cluster.work
        more_s = [self.pieces.again_s(table.name, work) for table, _ in self._placed]
        return np.asarray(self._lookups * more_s)

    def table_work_s(self) -> Floats:
        """The same of each table, all holders together, but for what every band takes."""
        own = [Parts.of(self.tree, gather.by_owner) for gather in self._gathers]
        beside_s = self._outputs_s + self._again_s
        reading_s = sum((each.reading[0] + each.relaying[0] for each in own), beside_s)
        serving_s = self.by_table().serving[0] + self._sums_s
        return np.asarray(serving_s + reading_s * self.tree.devices)

    def _add_band(self, subject: Subject, band: Band) -> SumsBand | None:
        """Add a band, except for partial sums, which bands of a table send together."""
        tree, way = self.tree, Way.of(band, self.tree)
        positions = tree.positions(band, way.level)
        count, gateways = len(positions), tree.sizes[way.level - 1] if way.by_gateways else 1
        sizes = RowSizes.of(subject.stats.table, band, self.options)
        by_kind = [
            (amounts_of(tree, way, kind, band.tier, sizes, self.options.training), at)
            for kind, at in tree.by_kind(way.level, positions)
        ]
        amounts = by_kind[0][0]
        values = subject.basis[amounts.basis_rows[:-1]]
        dealt = deal(band, subject.stats.curve, values, count, gateways, subject.rows)
        sums = np.empty((len(values) + 1, count))
        sums[:-1] = dealt.by_member(count)
        sums[-1] = band.rows if count == 1 else band.rows_per_member(count)
        self._lookups[subject.index] += sums[amounts.at(LOOKUPS)].sum()
        for kind_amounts, at in by_kind:
            moved = kind_amounts.matrix @ sums[:, at]
            self._gathers[way.level].add(moved, positions[at], subject.index, self._plan)
        if way.by_gateways:
            self.relayed[: way.level] = True
            first = amounts.at(touched(0))
            self._add_staged(way, positions, dealt, first, sizes)
        if way.exchange == "rows" or not way.level or not subject.lookups:
            return None
        masses = sums[amounts.at(way.asked)] / subject.lookups
        columns = band.columns or (0, subject.stats.table.embedding_dim)
        return SumsBand(columns, way.staged, way.level, positions, masses)

    def _add_staged(
        self, way: Way, positions: Ints, dealt: Dealt, first: int, sizes: RowSizes
    ) -> None:
        """Rows by owner and gateway, whose touch probabilities begin at row `first` of `dealt`."""
        rows = dealt.sums[first : first + way.level]
        where = positions[dealt.member] * self.tree.sizes[way.level - 1] + dealt.gateway
        passes, work = 2 if self.options.training else 1, self.tree.cluster.work
        factors = (sizes.asked_bytes, sizes.weight_bytes, passes * work.copy_s(sizes.weight_bytes))
        columns = np.concatenate([rows * factor for factor in factors])
        self._staged[way.level].add(columns, where, 0, self._plan)

    def _send_sums(self, subject: Subject, pooled: list[SumsBand]) -> None:
        """One sum per sample and owner, over all of a table's bands that share columns."""
        bags, item_bytes = BagLengths.of(subject.stats), subject.stats.table.item_bytes
        for width, staged, masses in summed_masses(self.tree, pooled):
            amount_bytes = width * item_bytes * subject.batch_size
            sent = SENDING[staged](self.forward, self.tree, masses, bags, amount_bytes)
            self.sums_bytes[subject.index] += sent
            self._pack_sums(subject, masses, staged, width, bags)

    def _pack_sums(
        self,
        subject: Subject,
        masses: dict[int, Floats],
        staged: bool,
        width: int,
        bags: BagLengths,
    ) -> None:
        """Whoever sends a sum packs it, whoever gets it unpacks it; sums for oneself are both."""
        passes, tree = 2 if self.options.training else 1, self.tree
        sum_s = passes * tree.cluster.work.sum_copy_s(width * subject.stats.table.item_bytes)
        if not sum_s:
            return
        batch_s = sum_s * subject.batch_size
        sent_s = SENDING[staged](self._packed, tree, masses, bags, batch_s)
        own_mass = np.add.reduce(list(masses.values()))[: tree.devices]
        own_s = 2 * batch_s * bags.sums(own_mass)
        self._own_sums_s[: tree.devices] += own_s
        self._sums_s[subject.index] += 2 * sent_s.sum() + own_s.sum()


def outputs_work_s(
    stats: TableStats, profile: Profile, cluster: Cluster, options: CostOptions
) -> float:
    """Work of a device for what a table's lookups give the model: to write it, and its gradient."""
    passes = 2 if options.training else 1
    return passes * table_output_bytes(stats, profile) * cluster.work.output_byte_s


def summed_masses(
    tree: Tree, pooled: list[SumsBand]
) -> Iterator[tuple[int, bool, dict[int, Floats]]]:
    """Columns whose partial sums are sent together: how many, whether staged, masses by scope."""
    edges = sorted({edge for band in pooled for edge in band.columns})
    for first, last in pairwise(edges):
        masses: dict[bool, dict[int, Floats]] = {False: {}, True: {}}
        for band in pooled:
            if band.columns[0] <= first and last <= band.columns[1]:
                mass = masses[band.staged].setdefault(band.level, np.zeros(tree.holders))
                mass[tree.members[band.level][:, band.positions]] += band.masses
        for staged, found in masses.items():
            if found:
                yield last - first, staged, found


SENDING = {False: add_sums, True: add_staged_sums}

"""Counting the steps of a replay: windows of samples in, the facts of whole steps out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rowtier.cost.bundling import pieces_run
from rowtier.cost.links import Flow
from rowtier.cost.options import CostOptions
from rowtier.cost.rates import Way
from rowtier.cost.time import Phases, step_time
from rowtier.cost.tree import Tree, tree_of
from rowtier.evaluate.batches import RowBags, StepSamples, StepWindow, bags_of
from rowtier.evaluate.figures import StepFacts
from rowtier.evaluate.growth import StepGrowth
from rowtier.evaluate.homes import Homes, homes_of
from rowtier.evaluate.replay_kernels import (
    FORWARD,
    IDS,
    SYNC,
    SYNC_IDS,
    add_counted,
    add_dense,
    count_lookups,
    count_sums,
    seen_slots,
)
from rowtier.evaluate.replay_tree import TreeArrays
from rowtier.plan.plan import Plan
from rowtier.profile.curve import Floats, Ints
from rowtier.tables import OutOfRange, Table


@dataclass(eq=False)
class HolderCounts:
    """Lookups and bytes per holder, while they are counted."""

    served: Floats  # holders × tiers
    read: Floats
    written: Floats
    flows: Floats  # ids, forward, sync, sync_ids × sent, received × holders × levels
    work_s: Floats  # of every holder, but for what a step, its rounds, tables and bands take

    @classmethod
    def none(cls, tree: Tree) -> HolderCounts:
        """Nothing yet."""
        served, read, written = np.zeros((3, tree.holders, len(tree.columns)))
        flows = np.zeros((4, 2, tree.holders, tree.levels))
        return cls(served, read, written, flows, np.zeros(tree.holders))

    def add(self, other: HolderCounts) -> None:
        """Add what another part of the step came to."""
        for name, amounts in vars(self).items():
            amounts += getattr(other, name)

    def totals(self, lookups: float, rows: float) -> Floats:
        """All holders together, in the order of `table_labels`."""
        sent = self.flows[:, 0].sum(axis=1)
        links = [sent[FORWARD], sent[IDS], sent[SYNC], sent[SYNC_IDS]]
        return np.concatenate(
            [[lookups, rows], self.read.sum(axis=0), self.written.sum(axis=0), *links]
        )


@dataclass(eq=False)
class OpenStep:
    """A step that is not complete yet."""

    amounts: HolderCounts
    distinct: Ints  # devices × how many levels of groups it was the first lookup of
    extra: NDArray[np.bool_]  # levels that add up partial sums for readers beyond
    tables: Floats
    away: NDArray[np.bool_]  # samples that look up what is not on their device
    samples: int = 0
    unseen: int = 0
    unseen_lookups: int = 0


@dataclass(eq=False)
class Counter:
    """Counts the steps of a plan."""

    plan: Plan
    batch_size: int
    options: CostOptions
    on_out_of_range: OutOfRange | None = None  # None: what each table says
    lookups: int = 0
    unseen: int = 0  # rows, step by step, that the profile never saw
    unseen_lookups: int = 0  # on those rows
    outside: int = 0  # ids that a table has no row for
    _open: dict[int, OpenStep] = field(default_factory=dict)
    _numbers: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tree = tree_of(self.plan.cluster)
        self.shape = TreeArrays.of(self.tree)
        order, work = self.plan.order, self.plan.cluster.work
        assert order is not None
        self._pieces = pieces_run(self.plan, self.tree)
        self.homes = [
            homes_of(
                table, bands, order[table.name], self.tree, self.options,
                self._pieces.again_s(table.name, work),
            )
            for table, bands in self.plan
        ]  # fmt: skip
        self._facts = [_padded(homes) for homes in self.homes]
        self._dense = [self._dense_amounts(homes) for homes in self.homes]
        ways = (Way.of(band, self.tree) for _, bands in self.plan for band in bands)
        relayed = max((way.level for way in ways if way.by_gateways), default=0)
        self._relayed = np.arange(self.tree.levels) < relayed
        self._growth = StepGrowth(self.plan)
        self._bag = 1
        self._seen = np.zeros(seen_slots(self.tree), dtype=np.int64)

    @property
    def _fixed_s(self) -> float:
        """Work that tables and bands take, whatever they are asked for."""
        work, training = self.plan.cluster.work, self.options.training
        return work.table_s * len(self.plan.bands) + self._pieces.work_s(work, training)

    @property
    def _pooled_s(self) -> Floats:
        """Work of every holder for the sums that it gives the model."""
        pooled = [homes.table for homes in self.homes if homes.table.pooling != "none"]
        each_s = sum(self._line_s(table) * len(table.features) for table in pooled)
        return np.where(np.arange(self.tree.holders) < self.tree.devices, each_s, 0.0) * (
            self.batch_size
        )

    def _line_s(self, table: Table) -> float:
        """Seconds of writing one row or sum that the model gets, and of reading its gradient."""
        passes = 2 if self.options.training else 1
        return passes * 4 * table.embedding_dim * self.plan.cluster.work.output_byte_s

    @property
    def step_samples(self) -> int:
        """Samples of a step, all devices together."""
        return self.batch_size * self.tree.devices

    def check(self, window: StepWindow) -> None:
        """Refuse ids that a table has no row for, where that is a mistake."""
        for homes in self.homes:
            table = homes.table.with_policy(self.on_out_of_range)
            if table.on_out_of_range != "error" or table.ids not in ("as_is", "vocabulary"):
                continue
            for name in table.features:
                if name in window.chunk.features:
                    bags_of(table, name, window, self.plan.vocabularies.get(table.name))

    def add(self, window: StepWindow) -> list[tuple[int, StepFacts]]:
        """Count a window; the steps that it completed, with their numbers."""
        self._growth.hold(window)
        for index, homes in enumerate(self.homes):
            if homes.table.grows:
                continue  # when the step is complete: its ids get rows together
            table = homes.table.with_policy(self.on_out_of_range)
            vocabulary = self.plan.vocabularies.get(table.name)
            read = self._noting_outside(window, table)
            bags = [bags_of(table, name, read, vocabulary) for name in table.features]
            for piece in window.pieces:
                self._count(index, bags, piece)
        done = []
        for piece in window.pieces:
            step = self._step(piece.step)
            step.samples += piece.stop - piece.start
            if step.samples == self.step_samples:
                self._grow(piece.step)
                done.append((piece.step, self._finish(self._open.pop(piece.step))))
        return done

    def _grow(self, number: int) -> None:
        """Count the lookups of growing tables in a step that is complete."""
        found = self._growth.finish(number)
        whole = StepSamples(number, 0, self.step_samples, 0)
        for index, homes in enumerate(self.homes):
            if homes.table.grows:
                self._count(index, found[homes.table.name], whole)

    def _noting_outside(self, window: StepWindow, table: Table) -> StepWindow:
        """The window, once the ids are counted that the table has no row for."""
        if table.on_out_of_range == "error" or table.ids != "as_is":
            return window
        features = {name: window.chunk.features[name] for name in table.features}
        for ids in features.values():
            if isinstance(ids.values, np.ndarray):
                outside = (ids.values < 0) | (ids.values >= table.num_embeddings)
                self.outside += int(np.count_nonzero(outside))
        return replace(window, chunk=replace(window.chunk, features=features))

    def _step(self, number: int) -> OpenStep:
        if number not in self._open:
            tree = self.tree
            self._numbers.setdefault(number, len(self._numbers))
            columns = 2 + 2 * len(tree.columns) + 4 * tree.levels
            self._open[number] = OpenStep(
                HolderCounts.none(tree),
                np.zeros((tree.devices, tree.levels + 2), dtype=np.int64),
                np.zeros(tree.levels, dtype=np.bool_),
                np.zeros((len(self.homes), columns)),
                np.zeros(self.step_samples, dtype=np.bool_),
            )
        return self._open[number]

    def _count(self, index: int, features: list[RowBags], piece: StepSamples) -> None:
        """Count a table's lookups in a piece of a step."""
        step, homes, facts = self._step(piece.step), self.homes[index], self._facts[index]
        shape = (len(homes.layers), homes.classes, self.tree.devices, self.tree.levels + 2)
        counts, amounts = np.zeros(shape, dtype=np.int64), HolderCounts.none(self.tree)
        distinct = np.zeros_like(step.distinct)
        tree = self.tree
        sums = np.zeros((len(homes.views), 2, tree.holders, tree.levels + 1), dtype=np.int64)
        for start, stop, first in self._turns(piece, len(features)):
            for bags in features:
                cut = (*bags.cut(start, stop), first, stop - start, self.batch_size)
                here = step.away[first : first + stop - start]
                rows, lookups = count_lookups(
                    *cut, self._first_reader(piece), self.shape, homes.state, facts, counts,
                    distinct, here,
                )  # fmt: skip
                step.unseen += rows
                step.unseen_lookups += lookups
                for view, found in zip(homes.views, sums, strict=True):
                    count_sums(
                        *cut, self._bag, self.shape, homes.state, facts, view.inside,
                        view.staged, self._seen, found, step.extra,
                    )  # fmt: skip
                    self._bag += stop - start
        self._settle(index, step, counts, distinct, amounts, sums)

    def _settle(
        self,
        index: int,
        step: OpenStep,
        counts: Ints,
        distinct: Ints,
        amounts: HolderCounts,
        sums: Ints,
    ) -> None:
        """Turn counts into bytes and add them to the step."""
        homes = self.homes[index]
        for layer, found in zip(homes.layers, counts, strict=True):
            add_counted(
                self.shape, found[: len(layer.facts)], layer.facts, layer.work,
                self.options.training, amounts.served, amounts.read, amounts.written,
                amounts.flows, amounts.work_s,
            )  # fmt: skip
        for view, found in zip(homes.views, sums, strict=True):
            amounts.flows[FORWARD] += view.sum_bytes * found[:, :, :-1]
            amounts.work_s += view.sum_s * _sums_handled(found)
        if homes.table.pooling == "none":
            devices = slice(0, self.tree.devices)
            amounts.work_s[devices] += self._line_s(homes.table) * distinct.sum(axis=1)
        step.distinct += distinct
        step.amounts.add(amounts)
        lookups = int(distinct.sum())
        step.tables[index] += amounts.totals(lookups, distinct[:, -1].sum())

    def _first_reader(self, piece: StepSamples) -> int:
        return self._numbers[piece.step] * self.tree.devices

    def _turns(self, piece: StepSamples, features: int) -> list[tuple[int, int, int]]:
        """Start, stop and place in the step of what is counted at once.

        Features that read the same table take turns device by device, as a device that has
        seen a row with one feature has seen it for the others.
        """
        if features == 1:
            return [(piece.start, piece.stop, piece.first)]
        turns, start, first = [], piece.start, piece.first
        while start < piece.stop:
            stop = min(piece.stop, start + self.batch_size - first % self.batch_size)
            turns.append((start, stop, first))
            first, start = first + stop - start, stop
        return turns

    def _dense_amounts(self, homes: Homes) -> HolderCounts:
        amounts = HolderCounts.none(self.tree)
        if self.options.training:
            for layer in homes.layers:
                add_dense(
                    self.shape, layer.rows, layer.facts, layer.work, amounts.flows, amounts.work_s
                )
        return amounts

    def _finish(self, step: OpenStep) -> StepFacts:
        amounts, tree = step.amounts, self.tree
        for index, dense in enumerate(self._dense):
            amounts.add(dense)
            step.tables[index] += dense.totals(0, 0)
        self.unseen += step.unseen
        self.unseen_lookups += step.unseen_lookups
        self.lookups += int(step.distinct.sum())
        ids, forward, sync, sync_ids = (Flow(*found) for found in amounts.flows)
        backward = forward.back * float(self.options.training)
        time = step_time(
            tree,
            amounts.read + amounts.written,
            amounts.work_s + self._fixed_s + self._pooled_s,
            [ids, forward, backward],
            sync + sync_ids,
            Phases(
                ids.busy, forward.busy, self._relayed, step.extra, sync.busy, self.options.training
            ),
            self.options,
        )
        return StepFacts(
            served=amounts.served,
            read=amounts.read,
            written=amounts.written,
            flows={
                "ids": ids,
                "forward": forward,
                "backward": backward,
                "sync": sync,
                "sync_ids": sync_ids,
            },
            touched=tuple(
                step.distinct[:, 1 + level :].sum(axis=1).reshape(-1, size).sum(axis=1)
                for level, size in enumerate(tree.sizes)
            ),
            home_samples=float(np.count_nonzero(~step.away)),
            time=time,
            tables=step.tables,
        )


def _sums_handled(found: Ints) -> Ints:
    """Per holder the sums that it packs or unpacks; those for itself are both."""
    return np.asarray(found[:, :, :-1].sum(axis=(0, 2)) + 2 * found[0, :, -1])


def _padded(homes: Homes) -> Ints:
    """The facts of all layers in one array, layers × classes × facts."""
    most = homes.classes
    return np.stack(
        [np.pad(layer.facts, ((0, most - len(layer.facts)), (0, 0))) for layer in homes.layers]
    )

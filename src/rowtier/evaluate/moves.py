"""Who fetches which rows from whom when one plan takes the place of another.

Every holder that lacks a row gets it from the nearest holder that has it; several that are
equally near take turns, by the number of the one that fetches. A row that stays on its holder
and changes the tier passes no link.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rowtier.cluster import Cluster
from rowtier.cost.tree import Tree, tree_of
from rowtier.evaluate.classes import (
    Classes,
    PlanSide,
    classes_by_position,
    classes_by_row,
    column_cuts,
)
from rowtier.evaluate.portions import EXTRA_BYTES, order_bytes, portions_of
from rowtier.plan.plan import Plan
from rowtier.profile.curve import Ints
from rowtier.tables import Table

_AT_ONCE = 2**21  # pairs of holders
_NOWHERE = 2**30  # farther than anything


@dataclass(frozen=True, eq=False)
class MoveHolders:
    """The holders among which rows move, and who of them both plans' holders are."""

    tree: Tree
    old: Ints  # by holder of the old cluster; −1 where it is no longer there
    new: Ints
    anchor: Ints  # the first device of the group that a holder hangs at

    @classmethod
    def of(cls, old: Cluster, new: Cluster) -> MoveHolders:
        """The larger of two clusters if it has the holders of both, else the new one."""
        before, after = _holder_names(old), _holder_names(new)
        shrinks = len(before) > len(after) and set(after) <= set(before)
        cluster = old if shrinks else new
        places = {name: place for place, name in enumerate(before if shrinks else after)}
        tree = tree_of(cluster)
        return cls(tree, _mapped(before, places), _mapped(after, places), _anchors(tree))

    def distance(self, one: Ints, other: Ints) -> Ints:
        """The first level whose group has both holders; 0 for the same one."""
        tree = self.tree
        least = np.maximum(tree.attached[one], tree.attached[other])
        far = np.full(np.broadcast_shapes(one.shape, other.shape), tree.levels, dtype=np.int64)
        for level in range(tree.levels - 1, -1, -1):
            size = tree.sizes[level]
            near = self.anchor[one] // size == self.anchor[other] // size
            far[near & (least <= level)] = level
        far[one == other] = 0
        return np.where(other < 0, _NOWHERE, far)

    def nearest(self, want: Ints, have: Ints) -> tuple[Ints, Ints]:
        """For each copy (new groups × …) the holder to get it from, and how far that is.

        `have` are the holders before (old groups × …). Of several that are equally near the
        turn is by the number of the one that fetches.
        """
        far = self.distance(want[None], have[:, None])  # old groups × new groups × …
        least = far.min(axis=0)
        near = far == least
        turn = want % near.sum(axis=0)
        chosen = (near.cumsum(axis=0) == turn + 1).argmax(axis=0)
        return np.take_along_axis(have, chosen, axis=0), least


def _holder_names(cluster: Cluster) -> list[str]:
    return [cluster.holder_name(holder) for holder in range(cluster.num_holders)]


def _mapped(names: list[str], places: dict[str, int]) -> Ints:
    return np.array([places.get(name, -1) for name in names], dtype=np.int64)


def _anchors(tree: Tree) -> Ints:
    anchor = np.arange(tree.holders, dtype=np.int64)
    for rack in tree.racks:
        groups = tree.devices // tree.sizes[rack.level]
        first = np.arange(groups, dtype=np.int64) * tree.sizes[rack.level]
        anchor[rack.first : rack.stop] = np.repeat(first, (rack.stop - rack.first) // groups)
    return anchor


class Moved:
    """What moves, added up: numbers (row × column) and bytes per table (row) and holder."""

    def __init__(self, world: MoveHolders, tables: int, extra_bytes: int = EXTRA_BYTES):
        holders, levels = world.tree.holders, world.tree.levels
        shape, links = (tables, holders), (holders, levels)
        self.world, self._extra_bytes = world, extra_bytes
        self.numbers, self.within_numbers = np.zeros((2, *shape), dtype=np.int64)
        self.received, self.sent, self.within, self.outside = np.zeros((4, *shape), dtype=np.int64)
        self.link_sent, self.link_received = np.zeros((2, *links), dtype=np.int64)
        self.memory = np.zeros((holders, len(world.tree.columns)), dtype=np.int64)
        self.stays = np.zeros(tables, dtype=np.bool_)  # every row where it is
        # Rows that are written to a buffer and read there, and their bytes, by holder.
        self.copied, self.copied_bytes = np.zeros((2, holders), dtype=np.int64)

    def add(
        self, table: int, facts: Table, old: Plan, new: Plan, rows: tuple[Ints, Ints] | None
    ) -> None:
        """Add a table; `rows` are the ids by position, before and after, if these differ."""
        ordered_alike = rows is None or rows[0] is rows[1]
        self.stays[table] = ordered_alike and old.bands[facts.name] == new.bands[facts.name]
        for columns in column_cuts(old, new, facts.name):
            before, after = (PlanSide.of(plan, facts.name, columns) for plan in (old, new))
            if rows is None:
                found = classes_by_position(before, after)
            else:
                found = classes_by_row(before, after, *rows)
            for classes in found:
                self._add(table, facts, columns, (old, before), (new, after), classes)
        if not self.stays[table] and portions_of(old, new, facts, self._extra_bytes) > 1:
            # Half of the rows that stay for a later portion close the gaps of those that left;
            # those that came are brought into order in the end.
            world = self.world
            self.memory += order_bytes(world.tree, world.old, old, facts, 1)
            self.memory += order_bytes(world.tree, world.new, new, facts, 2)

    def _add(
        self,
        table: int,
        facts: Table,
        columns: tuple[int, int],
        old: tuple[Plan, PlanSide],
        new: tuple[Plan, PlanSide],
        classes: Classes,
    ) -> None:
        before, after = old[1].bands[classes.old_band], new[1].bands[classes.new_band]
        sources = self.world.old[tree_of(old[0].cluster).holders_of(before)]
        targets = self.world.new[tree_of(new[0].cluster).holders_of(after)]
        first = 0 if after.columns is None else after.columns[0]
        piece = _Piece(
            table, columns[1] - columns[0], _bytes(facts, columns, first), before.tier, after.tier
        )
        step = max(1, _AT_ONCE // (len(sources) * len(targets)))
        for at in range(0, len(classes.rows), step):
            some = slice(at, at + step)
            have = sources[:, classes.old_member[some]]
            want = targets[:, classes.new_member[some]]
            rows = np.broadcast_to(classes.rows[some], want.shape)
            source, far = self.world.nearest(want, have)
            self._book(piece, source.ravel(), want.ravel(), far.ravel(), rows.ravel())

    def _book(self, piece: _Piece, source: Ints, target: Ints, far: Ints, rows: Ints) -> None:
        amount, table = rows * piece.row_bytes, piece.table
        lost, linked = far == _NOWHERE, (far > 0) & (far < _NOWHERE)
        inside = (far == 0) & (piece.old_tier != piece.new_tier)
        _add_at(self.numbers[table], target, rows * piece.width, lost | linked)
        _add_at(self.within_numbers[table], target, rows * piece.width, inside)
        _add_at(self.received[table], target, amount, linked)
        _add_at(self.sent[table], source, amount, linked)
        _add_at(self.outside[table], target, amount, lost)
        _add_at(self.within[table], target, amount, inside)
        np.add.at(self.link_sent, (source[linked], far[linked] - 1), amount[linked])
        np.add.at(self.link_received, (target[linked], far[linked] - 1), amount[linked])
        columns = self.world.tree.columns
        # Rows that stay in their memory are copied to their new place there, unless all do.
        here = (far == 0) & ~self.stays[table]
        if piece.old_tier in columns:
            _add_at(self.memory[:, columns[piece.old_tier]], source, amount, linked | here)
        if piece.new_tier in columns:
            _add_at(self.memory[:, columns[piece.new_tier]], target, amount, (far != 0) | here)
        for sums, what in ((self.copied, rows), (self.copied_bytes, amount)):
            _add_at(sums, source, what, linked | here)
            _add_at(sums, target, what, linked | here)


@dataclass(frozen=True)
class _Piece:
    """Columns of a table whose rows lie in one tier before, and one after."""

    table: int
    width: int
    row_bytes: int
    old_tier: str
    new_tier: str


def _bytes(table: Table, columns: tuple[int, int], first: int) -> int:
    """Bytes of some columns of a row and of their part of the optimizer state.

    State that a row has once goes with the first columns of the new band.
    """

    def state(width: int) -> int:
        return table.state_bytes(width) if width else 0

    start, stop = columns
    return (stop - start) * table.item_bytes + state(stop - first) - state(start - first)


def _add_at(sums: Ints, places: Ints, amounts: Ints, which: NDArray[np.bool_]) -> None:
    np.add.at(sums, places[which], amounts[which])

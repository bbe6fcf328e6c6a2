"""From one plan to another: the rows and bytes that would move, and how long that takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rowtier.cluster import Cluster
from rowtier.cost.links import Flow
from rowtier.cost.memory import used_bytes
from rowtier.cost.time import busiest_link_bytes, link_time_s, memory_time_s
from rowtier.cost.tree import tree_of
from rowtier.errors import MismatchError
from rowtier.evaluate.figures import frame_of
from rowtier.evaluate.moves import Moved, MoveHolders
from rowtier.evaluate.portions import EXTRA_BYTES
from rowtier.plan.carried import differences, some_of, tables_of
from rowtier.plan.plan import Plan
from rowtier.plan.serving import served
from rowtier.profile.curve import Floats, Ints
from rowtier.units import show_bytes, show_count

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class TableDiff:
    """What moves of one table, every copy counted; part of a row counts as part of a row."""

    name: str
    rows: float  # to holders that do not have them
    moved_bytes: int
    within_rows: float  # to another tier of the same holder
    within_bytes: int
    kept_bytes: int  # in the new plan, all copies

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        return dict(vars(self))


@dataclass(frozen=True)
class LevelDiff:
    """What goes through the links of one level."""

    name: str
    moved_bytes: int
    busiest_bytes: int  # on the busiest link, in its busier direction
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class Diff:
    """What it takes to get from one plan to another. Arrays: tables (rows) × holders, in bytes."""

    cluster: Cluster  # in which rows move
    tables: tuple[TableDiff, ...]
    levels: tuple[LevelDiff, ...]
    received_bytes: Ints
    sent_bytes: Ints
    within_bytes: Ints
    outside_bytes: Ints  # from holders that are no longer there: a checkpoint has them
    memory_s: float  # of the slowest holder: reading and writing what moves
    work_s: float = 0.0  # of the slowest: finding rows, and packing them for the way
    notes: tuple[str, ...] = ()

    @property
    def moved_bytes(self) -> int:
        """Bytes that holders get which do not have them, all copies."""
        return int(self.received_bytes.sum() + self.outside_bytes.sum())

    @property
    def links_s(self) -> float:
        """Seconds on the links, level after level."""
        return sum(level.seconds for level in self.levels)

    @property
    def move_s(self) -> float:
        """Seconds that the move takes: links, then memory and work of the slowest holder."""
        return self.links_s + self.memory_s + self.work_s

    @property
    def verdict(self) -> str:
        """One sentence: how much moves, and how long it takes."""
        kept = sum(table.kept_bytes for table in self.tables)
        rows, within = sum(t.rows for t in self.tables), int(self.within_bytes.sum())
        if not self.moved_bytes and not within:
            return "nothing moves: every row stays where it is"
        said = (
            f"{show_bytes(self.moved_bytes)} move ({show_count(round(rows))} rows, "
            f"{self.moved_bytes / kept:.1%} of all copies)"
        )
        if within:
            said += f", {show_bytes(within)} change the tier on their holder"
        return f"{said}; that takes {_seconds(self.move_s)}"

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        arrays = {
            "received_bytes": self.received_bytes,
            "sent_bytes": self.sent_bytes,
            "within_bytes": self.within_bytes,
            "outside_bytes": self.outside_bytes,
        }
        names = [self.cluster.holder_name(holder) for holder in range(self.cluster.num_holders)]
        return {
            "verdict": self.verdict,
            "notes": list(self.notes),
            "moved_bytes": self.moved_bytes,
            "within_bytes": int(self.within_bytes.sum()),
            "move_s": self.move_s,
            "links_s": self.links_s,
            "memory_s": self.memory_s,
            "work_s": self.work_s,
            "levels": [level.to_dict() for level in self.levels],
            "holders": [
                {"name": name} | {key: int(a[:, holder].sum()) for key, a in arrays.items()}
                for holder, name in enumerate(names)
            ],
            "tables": [table.to_dict() for table in self.tables],
        }

    def to_frame(self) -> pa.Table:
        """One line per table and holder that anything moves to or from, as an Arrow table."""
        arrays = (self.received_bytes, self.sent_bytes, self.within_bytes, self.outside_bytes)
        table, holder = np.nonzero(np.any([a > 0 for a in arrays], axis=0))
        names = [self.cluster.holder_name(place) for place in range(self.cluster.num_holders)]
        columns: dict[str, list[object]] = {
            "table": [self.tables[t].name for t in table],
            "holder": [names[h] for h in holder],
        }
        keys = ("received_bytes", "sent_bytes", "within_bytes", "outside_bytes")
        for key, array in zip(keys, arrays, strict=True):
            columns[key] = array[table, holder].tolist()
        return frame_of(columns)

    def __repr__(self) -> str:
        return f"<Diff: {self.verdict}>"


def diff(old: Plan, new: Plan, *, extra_bytes: int = EXTRA_BYTES) -> Diff:
    """Say which rows would move if `new` took the place of `old`, and how long that takes.

    Weights and optimizer state move; every copy counts. A holder gets what it lacks from the
    nearest one that has it. Where one of the plans serves, weights move alone. How long it takes
    is for `embeddings.migrate` with so much extra memory on every rank.
    """
    old, new = _both_served(old, new)
    check_same_tables(old, new)
    world = MoveHolders.of(old.cluster, new.cluster)
    by_rank = old.order is None or new.order is None
    moved = Moved(world, len(new.profile.stats), extra_bytes)
    for index, stats in enumerate(new.profile.stats):
        rows = None if by_rank else _rows(old, new, stats.table.name)
        moved.add(index, stats.table, old, new, rows)
    cluster = world.tree.cluster
    moving = np.asarray(moved.memory, dtype=np.float64)
    return Diff(
        cluster,
        tuple(_tables(moved, new)),
        tuple(_levels(moved)),
        moved.received,
        moved.sent,
        moved.within,
        moved.outside,
        float(memory_time_s(world.tree, moving).max()),
        _work_s(moved, new),
        tuple(_notes(old, new, world, by_rank, bool(moved.outside.any()))),
    )


def _both_served(old: Plan, new: Plan) -> tuple[Plan, Plan]:
    """Two plans of which one serves, both without optimizer state: there is none to move."""
    if old.serves == new.serves:
        return old, new
    old, new = (replace(plan, profile=served(plan.profile)) for plan in (old, new))
    return old, new


def _rows(old: Plan, new: Plan, table: str) -> tuple[Ints, Ints] | None:
    """The row ids by position in both plans, or None if positions are enough to tell rows apart."""
    assert old.order is not None
    assert new.order is not None
    same = np.array_equal(old.order[table], new.order[table])
    blocks = any(
        band.order == "blocks" for plan in (old, new) for band in plan.bands[table]
    )  # their places go by row id
    if same and not blocks:
        return None
    before = old.rows_in_order(table)
    return before, before if same else new.rows_in_order(table)


def check_same_tables(old: Plan, new: Plan) -> None:
    """Refuse plans whose rows cannot be the same."""
    sides = [(tables_of(plan.profile), plan.vocabularies) for plan in (old, new)]
    wrong = list(differences(sides[0], sides[1], "old plan", "new plan"))
    if wrong:
        raise MismatchError(
            f"the plans are not for the same tables: {some_of(wrong)}. Give two plans of one model"
        )


def _work_s(moved: Moved, new: Plan) -> float:
    """Seconds that the busiest holder needs besides moving bytes, as the cluster's `work` has it.

    Every holder looks up where each row of a table that moves is before and after, to know what
    it has to give and to get; that is what a lookup takes. Rows that move are packed and unpacked.
    """
    work = new.cluster.work
    tables = zip(new.profile.stats, moved.stays.tolist(), strict=True)
    found = sum(stats.table.num_embeddings for stats, stays in tables if not stays)
    packing = moved.copied * work.row_s + moved.copied_bytes * work.byte_s
    return float(2 * found * (work.lookup_s + work.plain_s) + packing.max())


def _tables(moved: Moved, new: Plan) -> Iterator[TableDiff]:
    arriving = (moved.received + moved.outside).sum(axis=1)
    for index, stats in enumerate(new.profile.stats):
        table, alone = stats.table, replace(new.profile, stats=(stats,))
        yield TableDiff(
            table.name,
            float(moved.numbers[index].sum() / table.embedding_dim),
            int(arriving[index]),
            float(moved.within_numbers[index].sum() / table.embedding_dim),
            int(moved.within[index].sum()),
            int(used_bytes(new.bands, alone, new.cluster).sum()),
        )


def _levels(moved: Moved) -> Iterator[LevelDiff]:
    tree = moved.world.tree
    if not tree.levels:
        return
    flow = Flow(*(np.asarray(a, dtype=np.float64) for a in (moved.link_sent, moved.link_received)))
    seconds: Floats = link_time_s(tree, [flow], "exchange").max(axis=0)
    latencies = [level.latency_s for level in tree.cluster.levels]
    seconds = seconds + np.array(latencies) * (flow.total > 0)
    for index, level in enumerate(tree.cluster.levels):
        yield LevelDiff(
            level.name,
            int(flow.total[index]),
            int(busiest_link_bytes(tree, [flow], index)),
            float(seconds[index]),
        )


def _notes(old: Plan, new: Plan, world: MoveHolders, by_rank: bool, outside: bool) -> Iterator[str]:
    if by_rank:
        yield (
            "rows are compared by position, as a plan made from a curve does not know its rows: if "
            "their heat changed too, more of them move"
        )
    if old.cluster != new.cluster:
        machine = tree_of(world.tree.cluster).cluster
        yield (
            f"the old plan is for {old.cluster.num_devices:,} devices of {old.cluster.name}, the "
            f"new one for {new.cluster.num_devices:,} of {new.cluster.name}; a device is the one "
            f"with the same number, and rows move on the links of {machine.name} with "
            f"{machine.num_devices:,} devices"
        )
    if outside:
        yield "rows that only holders had which are not there any more come from a checkpoint"


def _seconds(seconds: float) -> str:
    if seconds >= 60:
        return f"{seconds / 60:.3g} min"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"

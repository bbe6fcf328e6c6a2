"""In which rounds rows move, so that no rank needs more than so much memory for one.

Every table is cut into portions whose rows are spread evenly over all its bands, before and
after, and portions of all tables take turns: so at any time about as large a share of the new
plan is filled as of the old one is empty. Rows on disks are an exception, as they are read and
written page by page: their portions are runs of addresses.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.evaluate.portions import moving_bytes, portions_of
from rowtier.runtime.engine import Engine
from rowtier.runtime.row_moves import is_placed_alike
from rowtier.tables import Table

Ints = NDArray[np.int64]


class Portion(NamedTuple):
    """Some rows of a table: one of so many parts."""

    table: Table
    part: int
    parts: int
    by_address: bool

    def rows(self, engine: Engine) -> Ints:
        """Their ids, ascending; the same on all ranks."""
        count = self.table.num_embeddings
        if not self.by_address:
            return np.arange(self.part, count, self.parts)
        first, last = (count * part // self.parts for part in (self.part, self.part + 1))
        address = engine.remapper.tables[self.table.name].address
        return np.flatnonzero((address >= first) & (address < last))


def rounds_of(before: Engine, after: Engine, extra_bytes: int) -> list[list[Portion]]:
    """What moves in each round; the same on all ranks."""
    tables = [table for table in after.tables if not _stays(before, after, table.name)]
    plans = before.plan, after.plan
    costs = {table.name: moving_bytes(*plans, table) for table in tables}
    total, done = max(1, sum(costs.values())), 0
    timed: list[tuple[float, int, Portion]] = []
    for table in tables:
        parts = portions_of(*plans, table, extra_bytes)
        by_address = _is_on_disk(before, after, table.name)
        for part in range(parts):
            at = (part + 0.5) / parts if parts > 1 else done / total
            timed.append((at, len(timed), Portion(table, part, parts, by_address)))
        done += costs[table.name]
    return _packed([portion for *_, portion in sorted(timed)], costs, extra_bytes)


def _packed(
    portions: list[Portion], costs: dict[str, int], extra_bytes: int
) -> list[list[Portion]]:
    rounds: list[list[Portion]] = []
    room = 0.0
    for portion in portions:
        needed = costs[portion.table.name] / portion.parts
        if not rounds or needed > room:
            rounds.append([])
            room = extra_bytes
        rounds[-1].append(portion)
        room -= needed
    return rounds


def _stays(before: Engine, after: Engine, table: str) -> bool:
    """Whether all rows of a table are where they were, and nothing is to be done."""
    if not is_placed_alike(before.plan, after.plan, table):
        return False
    sides = [
        [engine.shards[piece.number] for layer in engine.pieces[table] for piece in layer]
        for engine in (before, after)
    ]
    return all(was.rows is now.rows for was, now in zip(*sides, strict=True))


def _is_on_disk(before: Engine, after: Engine, table: str) -> bool:
    disks = set(after.options.tiers)
    return any(
        band.tier in disks for engine in (before, after) for band in engine.plan.bands[table]
    )

"""Rows that move alike: how many rows of a table have which place before and after.

A row's *code* says which of a plan's bands keeps it and which of the band's members. Rows
are followed by their ids where both plans know them, else by position; where that is enough,
positions are counted in closed form, so that the work does not depend on the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import lcm

import numpy as np
from numpy.typing import NDArray

from rowtier.band import Band
from rowtier.cost.tree import tree_of
from rowtier.plan.plan import Plan
from rowtier.profile.curve import Ints

Codes = NDArray[np.int32]
_DENSE = 2**22  # pairs of codes that are counted in one array
_AT_ONCE = 2**23  # rows


@dataclass(frozen=True, eq=False)
class PlanSide:
    """The bands of a table in one plan that keep some columns, with how many members each has."""

    bands: tuple[Band, ...]
    members: tuple[int, ...]

    @classmethod
    def of(cls, plan: Plan, table: str, columns: tuple[int, int]) -> PlanSide:
        """The bands that keep these columns, from the hottest rows to the coldest."""
        tree, width = tree_of(plan.cluster), plan.profile[table].table.embedding_dim
        bands = [b for b in plan.bands[table] if _has(b.columns or (0, width), columns)]
        bands.sort(key=lambda band: band.start)
        levels = [tree.scopes[band.scope] for band in bands]
        members = [len(tree.positions(b, k)) for b, k in zip(bands, levels, strict=True)]
        return cls(tuple(bands), tuple(members))

    @property
    def first_codes(self) -> Ints:
        """The code of each band's first member, and one behind the last."""
        return np.concatenate(([0], np.cumsum(self.members))).astype(np.int64)

    @property
    def spread(self) -> bool:
        """Whether positions alone tell the members."""
        pairs = zip(self.bands, self.members, strict=True)
        return all(band.order == "spread" or members == 1 for band, members in pairs)

    def codes(self, rows: Ints) -> Codes:
        """The code of every row, by row id; `rows` are the ids by position."""
        codes = np.empty(len(rows), dtype=np.int32)
        for band, members, first in zip(self.bands, self.members, self.first_codes, strict=False):
            ids = rows[band.start : band.stop]
            codes[ids] = first + _positions(band, members, ids)
        return codes


def _has(outer: tuple[int, int], inner: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _positions(band: Band, members: int, ids: Ints) -> Ints:
    """Which member keeps each row of a band, in the order of the positions."""
    if band.order == "spread":
        return (np.arange(len(ids), dtype=np.int64) + band.offset) % members
    places = np.empty(len(ids), dtype=np.int64)
    places[np.argsort(ids, kind="stable")] = np.arange(len(ids))
    return places // -(-band.rows // members)


@dataclass(frozen=True, eq=False)
class Classes:
    """Rows that the same member of the same band keeps before, and after."""

    old_band: int
    new_band: int
    old_member: Ints
    new_member: Ints
    rows: Ints


def column_cuts(old: Plan, new: Plan, table: str) -> Iterator[tuple[int, int]]:
    """Runs of columns that neither plan cuts."""
    width = new.profile[table].table.embedding_dim
    spans = [b.columns or (0, width) for plan in (old, new) for b in plan.bands[table]]
    yield from pairwise(sorted({edge for span in spans for edge in span}))


def classes_by_position(old: PlanSide, new: PlanSide) -> Iterator[Classes]:
    """Count positions; blocks are taken to be of positions, as no row ids are known."""
    for i, before in enumerate(old.bands):
        for j, after in enumerate(new.bands):
            start, stop = max(before.start, after.start), min(before.stop, after.stop)
            if start < stop:
                found = _in_run(before, old.members[i], after, new.members[j], start, stop)
                yield Classes(i, j, *found)


def _in_run(
    old: Band, old_members: int, new: Band, new_members: int, start: int, stop: int
) -> tuple[Ints, Ints, Ints]:
    """Members before and after, and how many of the positions from start to stop they share."""
    edges = {start, stop}
    period = 1
    for band, members in ((old, old_members), (new, new_members)):
        if band.order == "spread":
            period = lcm(period, members)
        else:
            edges |= {e for e in _block_edges(band, members) if start < e < stop}
    parts = [_periodic(old, old_members, new, new_members, a, b, period) for a, b in
             pairwise(sorted(edges))]  # fmt: skip
    pairs = np.concatenate([pair for pair, _ in parts])
    return _added_up(pairs, np.concatenate([count for _, count in parts]), new_members)


def _block_edges(band: Band, members: int) -> range:
    block = -(-band.rows // members)
    return range(band.start + block, band.stop, block)


def _periodic(
    old: Band, old_members: int, new: Band, new_members: int, start: int, stop: int, period: int
) -> tuple[Ints, Ints]:
    """Pairs of members in a run without edges, which repeat after a period."""
    length = stop - start
    first = np.arange(min(period, length), dtype=np.int64)
    turns, rest = divmod(length, period)
    before = _member_at(old, old_members, start + first)
    after = _member_at(new, new_members, start + first)
    return before * new_members + after, turns + (first < rest)


def _member_at(band: Band, members: int, positions: Ints) -> Ints:
    if band.order == "spread":
        return (positions - band.start + band.offset) % members
    return (positions - band.start) // -(-band.rows // members)


def _added_up(pairs: Ints, counts: Ints, new_members: int) -> tuple[Ints, Ints, Ints]:
    found, place = np.unique(pairs, return_inverse=True)
    rows = np.zeros(len(found), dtype=np.int64)
    np.add.at(rows, place, counts)
    return found // new_members, found % new_members, rows


def _pairs(old: Codes, new: Codes, old_many: int, new_many: int) -> tuple[Ints, Ints]:
    """Which pairs of codes there are, as one number each, and how many rows have them."""
    if old_many * new_many > _DENSE:
        return np.unique(old.astype(np.int64) * new_many + new, return_counts=True)
    counts = np.zeros(old_many * new_many, dtype=np.int64)
    for at in range(0, len(old), _AT_ONCE):
        some = slice(at, at + _AT_ONCE)
        pairs = old[some].astype(np.int64) * new_many + new[some]
        counts += np.bincount(pairs, minlength=len(counts))
    found = np.flatnonzero(counts)
    return found, counts[found]


def classes_by_row(
    old: PlanSide, new: PlanSide, old_rows: Ints, new_rows: Ints
) -> Iterator[Classes]:
    """Follow every row by its id."""
    old_first, new_first = old.first_codes, new.first_codes
    many = int(new_first[-1])
    found, rows = _pairs(old.codes(old_rows), new.codes(new_rows), int(old_first[-1]), many)
    before, after = np.divmod(found, many)
    i = np.searchsorted(old_first, before, side="right") - 1
    j = np.searchsorted(new_first, after, side="right") - 1
    group = i * len(new.bands) + j
    for key in np.unique(group).tolist():
        at = group == key
        a, b = divmod(key, len(new.bands))
        yield Classes(a, b, before[at] - old_first[a], after[at] - new_first[b], rows[at])

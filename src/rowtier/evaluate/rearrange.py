"""Row orders between an old placement and a new one: some rows change places, the others stay.

Bands say which positions live where, and the order says which row is at which position. So rows
move by changing the order, too: a row that became hot takes the position of one that cooled, which
leaves every memory as full as it was. And rows of a band may be put at any of its positions, so
those that are already on one of its members stay there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rowtier.band import Band
from rowtier.cost.tree import Tree, tree_of
from rowtier.evaluate.classes import PlanSide
from rowtier.plan.carried import heat_positions, runs_of, settled
from rowtier.plan.plan import Plan
from rowtier.profile.curve import Ints
from rowtier.profile.order import NarrowInts, rows_by_position
from rowtier.profile.profile import TableStats

Run = tuple[int, int]

_STRATUM = 16  # rows of each member at least, of which all have equally many
_STRATA = 16  # the length of a stratum over the positions before it


@dataclass(frozen=True, eq=False)
class Swaps:
    """Pairs of rows of one table that would change places, those that gain most first.

    A pair is a row that is hotter than those of the run that it should be in, and one of that run
    that is colder than those of the other's.
    """

    plan: Plan
    stats: TableStats
    rows: Ints  # by position, as they are
    hot: Ints  # positions of rows that became hot
    cold: Ints  # positions of rows that cooled

    @classmethod
    def of(cls, plan: Plan, stats: TableStats) -> Swaps:
        """Between the runs of a plan's bands, by the heat of a counted table."""
        bands, rows = plan.bands[stats.table.name], plan.rows_in_order(stats.table.name)
        position = heat_positions(stats)[rows]  # in the order of heat, by place in this one
        stops = np.array([run.stop for run, _ in runs_of(bands, plan.cluster)], dtype=np.int64)
        now = np.searchsorted(stops, np.arange(len(rows)), side="right")
        should = np.searchsorted(stops, position, side="right")
        heat = _heat(stats, position)
        gains, hot, cold = [np.empty(0)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for better, worse in _pairs_of_runs(now, should):
            up = np.flatnonzero((now == worse) & (should == better))
            down = np.flatnonzero((now == better) & (should == worse))
            up, down = up[np.argsort(position[up])], down[np.argsort(-position[down])]
            many = min(len(up), len(down))
            hot.append(up[:many])
            cold.append(down[:many])
            gains.append(heat[up[:many]] - heat[down[:many]])
        order = np.argsort(-np.concatenate(gains), kind="stable")
        found = np.concatenate(hot)[order], np.concatenate(cold)[order]
        return cls(plan, stats, rows, *found)

    @property
    def count(self) -> int:
        """How many pairs there are."""
        return len(self.hot)

    def first(self, pairs: int) -> NarrowInts:
        """The order in which so many pairs have changed places."""
        rows = self.rows.copy()
        hot, cold = self.hot[:pairs], self.cold[:pairs]
        rows[hot], rows[cold] = self.rows[cold], self.rows[hot]
        name = self.stats.table.name
        assert self.plan.order is not None
        if not pairs:
            return self.plan.order[name]
        bands = self.plan.bands[name]
        return settled(rows, bands, self.plan.cluster, self.stats, len(self.plan.order[name]))


def _pairs_of_runs(now: Ints, should: Ints) -> Iterator[tuple[int, int]]:
    wrong = should < now
    if wrong.any():
        found = np.unique(np.stack([should[wrong], now[wrong]], axis=1), axis=0)
        yield from ((int(better), int(worse)) for better, worse in found)


def _heat(stats: TableStats, position: Ints) -> np.ndarray:
    """Lookups expected of each position's row."""
    curve = stats.curve
    heat = np.append(curve.lookups / curve.widths, 0.0)
    return np.asarray(heat[np.searchsorted(curve.stops, position, side="right")])


@dataclass(frozen=True, eq=False)
class Dealer:
    """Puts rows of one table where bands want them, and keeps those on their holder that may."""

    plan: Plan  # in which rows are where they are
    table: str

    @cached_property
    def _holder(self) -> Ints:
        """A holder that keeps the first columns of each row, by row id; the first of its copies."""
        facts = self.plan.profile[self.table].table
        first = (0, min(b.columns[1] if b.columns else facts.embedding_dim for b in self._bands))
        side = PlanSide.of(self.plan, self.table, first)
        tree = tree_of(self.plan.cluster)
        holders = np.concatenate([tree.holders_of(band)[0] for band in side.bands])
        return np.asarray(holders[side.codes(self.plan.rows_in_order(self.table))])

    @property
    def _bands(self) -> Sequence[Band]:
        return self.plan.bands[self.table]

    def order(self, bands: Sequence[Band], stats: TableStats, *, even: bool) -> NarrowInts:
        """Rows by position, each in the run of the bands that its heat puts it in.

        Hot rows that changed may be on a few members now. If all shall have equally many hot rows
        (`even`), rows change places only with those that are about as hot.
        """
        assert stats.counts is not None
        rows, tree = rows_by_position(stats.counts.rows, stats.table.num_embeddings), self._tree
        found = rows.copy()
        for start, stop in ((run.start, run.stop) for run, _ in runs_of(bands, self.plan.cluster)):
            here = [band for band in bands if band.start <= start and stop <= band.stop]
            dealt = [b for b in here if b.order == "spread" and len(tree.holders_of(b)[0]) > 1]
            if not dealt:
                continue
            band, holders = dealt[0], tree.holders_of(dealt[0])
            members = holders.shape[1]
            member = np.full(tree.holders, -1, dtype=np.int64)
            member[holders] = np.arange(members)
            for first, last in _strata(start, stop, members) if even else [(start, stop)]:
                run = rows[first:last]
                slots = (np.arange(first, last) - band.start + band.offset) % members
                found[first:last] = _dealt(run, member[self._holder[run]], slots, members)
        return settled(found, bands, self.plan.cluster, stats)

    @property
    def _tree(self) -> Tree:
        return tree_of(self.plan.cluster)


def _strata(start: int, stop: int, members: int) -> Iterator[Run]:
    """Runs of rows that are about as hot: short ones first, and longer the colder they are."""
    while start < stop:
        last = min(stop, start + max(_STRATUM * members, start // _STRATA))
        yield start, last
        start = last


def _dealt(rows: Ints, wanted: Ints, slots: Ints, members: int) -> Ints:
    """Rows by place: those that want a member have one of its places, as far as there are any.

    `slots` says whose each place is. Rows of a member keep the order that they came in.
    """
    room = np.bincount(slots, minlength=members)
    by_member = np.argsort(wanted, kind="stable")
    turn = np.empty(len(rows), dtype=np.int64)  # how many before a row want the same
    sizes = np.bincount(wanted + 1, minlength=members + 1)
    turn[by_member] = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    stays = (wanted >= 0) & (turn < room[wanted])
    left = room - np.bincount(wanted[stays], minlength=members)
    member = wanted.copy()
    # Others are dealt out like cards, so that nobody gets the hottest of them.
    rounds = np.concatenate([np.arange(count) for count in left]) if left.sum() else left[:0]
    others = np.repeat(np.arange(members), left)[np.argsort(rounds, kind="stable")]
    member[~stays] = others
    places = np.argsort(slots, kind="stable")
    found = np.empty_like(rows)
    found[places] = rows[np.argsort(member, kind="stable")]
    return found

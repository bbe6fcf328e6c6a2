"""Small problems, searched through: rows of a table are painted with every way there is.

Prices are averages over many rows and tables. With a handful of them what fits beside what
decides. So here each table tries to give every run of its ranks, between places where it is cut or
might be, to every home with every owner, against what the other tables ask of every holder, by the
exact cost; then tables try their best in pairs. With a handful of rows all ways to cut a table into
three are tried at once. No proof that the result is the best: the certificate's bound says how far
it may be from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.load import Load, chosen, stacked, total_load
from rowtier.cost.memory import Reserve, pools
from rowtier.cost.options import CostOptions
from rowtier.cost.step import step_cost
from rowtier.plan.constraints import Constraints
from rowtier.plan.joint.owners import Way
from rowtier.plan.joint.space import MOST_CUTS, Placements, TableSpace, together
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile

MOST_LOADS = 2_000  # of bands, that the first round works out: about half a second
_MOST_IN_ALL = 5_000  # the same of all rounds
_IN_PAIRS = 240  # of the best placements of each table
_IN_ALL_PAIRS = 320  # the same by either measure, where all placements are known
_MOST_PAIRS = 100_000  # of two tables, that are priced: with 20,000 a tiny problem was missed
_AT_ONCE = 2_000  # pairs: as many as a processor's cache holds
_ROUNDS = 8
_EXACTLY = 16  # placements of each table that are priced with all others
_LEAST_GAIN = 1e-6  # of a step, that another round must bring


@dataclass(frozen=True, eq=False)
class PairSide:
    """Placements of one of two tables, and what a step takes with each and nothing of the other."""

    places: Ints
    alone_s: Floats
    even_s: Floats  # if every holder had as much to do, and rounds took no time
    rounds_s: Floats

    def with_any_of(self, other: PairSide, nothing_s: float) -> Floats:
        """What a step takes at least with each of these and each of another's.

        Bytes of both add up, and the slowest holder has no less to do than the mean one.
        """
        rounds_s = np.maximum(self.rounds_s[:, None], other.rounds_s)
        even_s = self.even_s[:, None] + other.even_s - nothing_s + rounds_s
        return np.maximum(even_s, np.maximum(self.alone_s[:, None], other.alone_s))


@dataclass(frozen=True, eq=False)
class Search:
    """What tables may choose from, and what there is room for."""

    profile: Profile
    cluster: Cluster
    cost: CostOptions
    wanted: Constraints
    reserve: Reserve
    ways: Sequence[list[Way]]  # of each table: every home with every owner

    spent: list[int] = field(default_factory=lambda: [0])  # loads that were worked out

    @property
    def is_small(self) -> bool:
        """Whether there is enough to spend for every table to try its ways."""
        return self.first_loads <= MOST_LOADS

    @property
    def first_loads(self) -> int:
        """What the first round has to work out."""
        return sum(len(ways) * (MOST_CUTS + 3) for ways in self.ways)

    @property
    def is_over(self) -> bool:
        """Whether all that may be spent is."""
        return self.spent[0] > _MOST_IN_ALL

    def improve(self, bands: Bands) -> Bands:
        """The best bands found from here on; the same if none are better."""
        spaces, names = self._spaces, [stats.table.name for stats in self.profile.stats]
        now = [bands[stats.table.name] for stats in self.profile.stats]
        loads = [space.whole_load(mine) for space, mine in zip(spaces, now, strict=True)]
        best = np.inf
        for _ in range(_ROUNDS):
            before = best
            near: list[Placements] = []
            for index, space in enumerate(spaces):
                if self.is_over:
                    return dict(zip(names, now, strict=True))
                found = together([space.placements(now[index]), *space.every])
                values = self._values(self._others(loads, {index}) + found.loads)
                order = np.argsort(values, kind="stable").astype(np.int64)
                if values[order[0]] < best * (1 - _LEAST_GAIN):
                    best = float(values[order[0]])
                    now[index] = found.bands(int(order[0]))
                    loads[index] = space.whole_load(now[index])
                near.append(found)
            for one, other in combinations(range(len(spaces)), 2):
                best = self._two(near, spaces, now, loads, one, other, best)
            if best > before * (1 - _LEAST_GAIN):
                break
        return self._exactly(dict(zip(names, now, strict=True)), near, loads)

    def _exactly(self, bands: Bands, near: list[Placements], loads: list[Load]) -> Bands:
        """The same with tables moved to where the whole plan takes less work.

        Loads add up, but bands that are alike in several tables run as one. So of each table the
        few placements that look best are priced with all others.
        """
        work = self.cluster.work
        if not (work.band_s or work.bundle_s or work.copied_s):
            return bands
        best, best_s = bands, self._step_s(bands)
        for index, stats in enumerate(self.profile.stats):
            values = self._values(self._others(loads, {index}) + near[index].loads)
            for at in np.argsort(values, kind="stable")[:_EXACTLY].tolist():
                if np.isfinite(values[at]):
                    other = {**best, stats.table.name: near[index].bands(at)}
                    other_s = self._step_s(other)
                    if other_s < best_s * (1 - _LEAST_GAIN):
                        best, best_s = other, other_s
        return best

    def _step_s(self, bands: Bands) -> float:
        return step_cost(bands, self.profile, self.cluster, None, self.cost).step_s

    @cached_property
    def _spaces(self) -> list[TableSpace]:
        common = (self.profile, self.cluster, self.cost, self.spent)
        return [
            TableSpace(stats, ways, self.wanted.exchanges(stats.table), *common)
            for stats, ways in zip(self.profile.stats, self.ways, strict=True)
        ]

    def _two(
        self, near: list[Placements], spaces: list[TableSpace], now: list[tuple[Band, ...]],
        loads: list[Load], one: int, other: int, best: float,
    ) -> float:  # fmt: skip
        """Try pairs of placements: those that are good beside an empty table.

        Where all placements are known, also those that would be good if every holder did the
        same, for every amount of fast memory: the other table may fill what one leaves.
        """
        rest = self._others(loads, {one, other})
        sides = [
            self._promising(rest, near[i].loads, bool(spaces[i].every), best) for i in (one, other)
        ]
        at_least_s = sides[0].with_any_of(sides[1], self._even_s(rest).item())
        places = np.flatnonzero(at_least_s < best)
        places = places[np.argsort(at_least_s.flat[places], kind="stable")][:_MOST_PAIRS]
        for first in range(0, len(places), _AT_ONCE):
            some = places[first : first + _AT_ONCE]
            some = some[at_least_s.flat[some] < best]
            if not len(some):
                break
            picks = [
                side.places[at]
                for side, at in zip(sides, np.unravel_index(some, at_least_s.shape), strict=True)
            ]
            pair = chosen(near[one].loads, picks[0]) + chosen(near[other].loads, picks[1])
            values = self._values(rest + pair)
            at = int(np.argmin(values))
            if values[at] < best * (1 - _LEAST_GAIN):
                best = float(values[at])
                for index, pick in ((one, picks[0]), (other, picks[1])):
                    now[index] = near[index].bands(int(pick[at]))
                    loads[index] = spaces[index].whole_load(now[index])
        return best

    def _promising(self, rest: Load, loads: Load, is_known: bool, best: float) -> PairSide:
        """Placements of a table that are worth trying with some of another's."""
        alone = self._values(rest + loads)
        order = np.argsort(alone, kind="stable")[: max(1, np.count_nonzero(alone < best))]
        places = order[:_IN_PAIRS]
        if is_known:
            evened = self._even_s(rest + loads)
            _, group = np.unique(loads.kept[:, 0].sum(axis=0)[order], return_inverse=True)
            by_group = np.lexsort((evened[order], group))
            firsts = np.searchsorted(group[by_group], np.arange(group.max() + 1))
            place = np.arange(len(order)) - firsts[group[by_group]]
            each = order[by_group[place < _IN_ALL_PAIRS / len(firsts)]]
            places = np.union1d(order[:_IN_ALL_PAIRS], each)
        some = rest + chosen(loads, places)
        even_s = self._even_s(some)
        still_s = self._even_s(replace(some, rounds=some.rounds * 0.0))
        return PairSide(places, alone[places], still_s, even_s - still_s)

    def _even_s(self, loads: Load) -> Floats:
        """Seconds of a step if every holder had as much to do."""
        return loads.evened.step_s(self.cluster, self.cost)

    def _others(self, loads: list[Load], without: set[int]) -> Load:
        """The load of all other tables, with an axis for placements."""
        kept = [load for i, load in enumerate(loads) if i not in without]
        return stacked([total_load(kept or [loads[0] * 0.0])])

    def _values(self, loads: Load) -> Floats:
        """Seconds of a step; endless where rows do not fit."""
        values = loads.step_s(self.cluster, self.cost)
        holders, tiers, placements = loads.kept.shape
        used = self._pools @ loads.kept.reshape(holders * tiers, placements)
        values[(used > self._capacity[:, None] + 0.5).any(axis=0)] = np.inf
        return values

    @cached_property
    def _pools(self) -> Floats:
        """Pools × (holders and tiers): which bytes are in which pool."""
        names, found = self.cluster.tier_names, []
        for pool in pools(self.cluster):
            here = np.zeros((self.cluster.num_holders, len(names)))
            here[list(pool.holders), names.index(pool.tier)] = 1.0
            found.append(here.ravel())
        return np.stack(found)

    @cached_property
    def _capacity(self) -> Floats:
        found = []
        for pool in pools(self.cluster):
            tiers = {tier.name: tier for tier in self.cluster.tiers_of(pool.holders[0])}
            found.append(float(self.reserve.left(tiers[pool.tier], pool.holders)))
        return np.array(found)

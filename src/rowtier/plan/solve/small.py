"""Small problems, searched through: every way to cut and to place a table.

Prices are averages over many rows and tables. With a handful of them what fits beside what
decides, so here each table tries all its placements against what the others ask of every
holder, by the exact cost, then tables try theirs in pairs. No proof that the result is the
best: the certificate's bound says how far it may be from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise

import numpy as np

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.load import Load, chosen, side_by_side, stacked, total_load
from rowtier.cost.memory import Reserve, pools
from rowtier.cost.options import CostOptions
from rowtier.plan.solve.menu import Home
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile, TableStats

MOST_WAYS = 60  # to keep a row, of all tables together
_MOST_CUTS = 3  # places where a table may be cut
_MOST_FOR_THREE = 16  # homes, for three bands to be tried
_IN_PAIRS = 64  # of the best placements of each table
_ROUNDS = 6
_LEAST_GAIN = 1e-9


@dataclass(frozen=True, eq=False)
class Search:
    """What tables may choose from, and what there is room for."""

    profile: Profile
    cluster: Cluster
    cost: CostOptions
    reserve: Reserve
    homes: Sequence[Sequence[Home]]  # of each table

    @property
    def is_small(self) -> bool:
        """Whether searching takes about a second."""
        ways = sum(self.cluster.num_devices if h.owned else 1 for h in self.homes[0])
        return ways * len(self.profile.stats) <= MOST_WAYS and not self.cluster.servers

    def improve(self, bands: Bands) -> Bands:
        """The best bands found from here on; the same if none are better."""
        spaces = [
            _Space.of(stats, homes, bands[stats.table.name], self)
            for stats, homes in zip(self.profile.stats, self.homes, strict=True)
        ]
        picks = [0] * len(spaces)
        best = float(self._step_s(total_load(s.load_of(0) for s in spaces)))
        for _ in range(_ROUNDS):
            before = best
            for index in range(len(spaces)):
                best = self._one(spaces, picks, index, best)
            for one, other in combinations(range(len(spaces)), 2):
                best = self._two(spaces, picks, one, other, best)
            if best > before * (1 - _LEAST_GAIN):
                break
        names = [stats.table.name for stats in self.profile.stats]
        found = zip(names, spaces, picks, strict=True)
        return {name: space.bands[pick] for name, space, pick in found}

    def _one(self, spaces: list[_Space], picks: list[int], index: int, best: float) -> float:
        values = self._values(self._others(spaces, picks, {index}) + spaces[index].loads)
        pick = int(np.argmin(values))
        if values[pick] < best * (1 - _LEAST_GAIN):
            picks[index], best = pick, float(values[pick])
        return best

    def _two(
        self, spaces: list[_Space], picks: list[int], one: int, other: int, best: float
    ) -> float:
        """Try pairs of placements; those that are good beside an empty table are candidates."""
        rest = self._others(spaces, picks, {one, other})
        top = [
            np.argsort(self._values(rest + spaces[i].loads), kind="stable")[:_IN_PAIRS]
            for i in (one, other)
        ]
        first, second = (np.ravel(grid) for grid in np.meshgrid(*top, indexing="ij"))
        pair = chosen(spaces[one].loads, first) + chosen(spaces[other].loads, second)
        values = self._values(rest + pair)
        at = int(np.argmin(values))
        if values[at] < best * (1 - _LEAST_GAIN):
            picks[one], picks[other] = int(first[at]), int(second[at])
            best = float(values[at])
        return best

    def _others(self, spaces: list[_Space], picks: list[int], without: set[int]) -> Load:
        """The load of all other tables, with an axis for placements."""
        loads = [s.load_of(picks[i]) for i, s in enumerate(spaces) if i not in without]
        loads = loads or [spaces[0].load_of(0) * 0.0]
        return stacked([total_load(loads)])

    def _values(self, loads: Load) -> Floats:
        """Seconds of a step; endless where rows do not fit."""
        values = self._step_s(loads)
        holders, tiers, placements = loads.kept.shape
        used = self._pools @ loads.kept.reshape(holders * tiers, placements)
        values[(used > self._capacity[:, None] + 0.5).any(axis=0)] = np.inf
        return values

    def _step_s(self, loads: Load) -> Floats:
        return loads.step_s(self.cluster, self.cost)

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


@dataclass(frozen=True, eq=False)
class _Space:
    """All placements of one table that are tried; the first is the one it has."""

    bands: list[tuple[Band, ...]]
    loads: Load

    def load_of(self, pick: int) -> Load:
        return chosen(self.loads, pick)

    @classmethod
    def of(
        cls, stats: TableStats, homes: Sequence[Home], now: tuple[Band, ...], search: Search
    ) -> _Space:
        cuts, ways = _cuts(stats, now), _ways(homes, search.cluster)

        def load(*bands: Band) -> Load:
            return Load.of(stats, bands, search.profile, search.cluster, search.cost)

        edges = [0, *cuts, stats.table.num_embeddings]
        runs = {
            (a, b): [way.model_copy(update={"start": a, "stop": b}) for way in ways]
            for a, b in combinations(edges, 2)
        }
        alone = {run: stacked([load(band) for band in bands]) for run, bands in runs.items()}
        placed: list[tuple[Band, ...]] = [now]
        parts: list[Load] = [stacked([load(*now)])]
        most = 3 if len(ways) <= _MOST_FOR_THREE else 2
        for count in range(most):
            for inner in combinations(cuts, count):
                between = list(pairwise([0, *inner, edges[-1]]))
                picks = _products(ways, len(between), additive=True)
                if len(picks):
                    columns = zip(between, picks.T, strict=True)
                    parts.append(total_load(chosen(alone[run], at) for run, at in columns))
                    placed += [
                        tuple(runs[run][w] for run, w in zip(between, pick, strict=True))
                        for pick in picks.tolist()
                    ]
        for inner in combinations(cuts, 1):
            between = list(pairwise([0, *inner, edges[-1]]))
            for pick in _products(ways, 2, additive=False).tolist():
                both = tuple(runs[run][w] for run, w in zip(between, pick, strict=True))
                placed.append(both)
                parts.append(stacked([load(*both)]))
        return cls(placed, side_by_side(parts))


def _products(ways: list[Band], count: int, additive: bool) -> Ints:
    """Ways for so many neighbouring bands, no two the same.

    Bands add up unless two send partial sums of one owner, which sends one sum for both.
    """
    grids = np.meshgrid(*[np.arange(len(ways))] * count, indexing="ij")
    picks = np.stack([np.ravel(grid) for grid in grids], axis=1)
    owners = np.array([way.members[0] if way.exchange == "sums" else -1 for way in ways])[picks]
    shared = np.zeros(len(picks), dtype=bool)
    for one, other in combinations(range(count), 2):
        shared |= (owners[:, one] >= 0) & (owners[:, one] == owners[:, other])
    same = (picks[:, 1:] == picks[:, :-1]).any(axis=1)
    return np.asarray(picks[~same & (shared != additive)])


def _ways(homes: Sequence[Home], cluster: Cluster) -> list[Band]:
    """The homes with every owner that they may have."""
    found = []
    for home in homes:
        owners = range(cluster.num_devices) if home.owned else (None,)
        for owner in owners:
            changes = {} if owner is None else {"members": (owner,)}
            found.append(home.band.model_copy(update=changes))
    return found


def _cuts(stats: TableStats, now: tuple[Band, ...]) -> list[int]:
    """Where to cut: where the table is cut now, then where its heat changes most evenly."""
    rows = stats.table.num_embeddings
    used = sorted({band.start for band in now} - {0})[:_MOST_CUTS]
    stops = [int(stop) for stop in stats.curve.stops if stop < rows and stop not in used]
    missing = _MOST_CUTS - len(used)
    if len(stops) > missing:
        places = np.linspace(0, len(stops) - 1, missing + 2)[1:-1]
        stops = [stops[int(place)] for place in places]
    return sorted({*used, *stops})

"""`flexshard`: sequence tables in three bands, and not a byte more memory than row-wise.

"FlexShard: Flexible Sharding for Industry-Scale Sequence Recommendation Models" (arXiv
2301.02959): the vectors of a sequence are not pooled, so every id's row crosses the links.
Rows are sorted by probability: the hottest get a copy on every device, the warm ones a copy
per node, the cold ones one copy over all. Every id's row travels (nothing is coalesced), and
keeping copies equal is counted, dense or sparse, whichever costs a band less.

The budget is what row-wise would use at its peak, exchange buffers included: copies are paid
for by the buffers that they make superfluous. Rows must fit the capacity besides; where
row-wise's buffers fit it too, so does everything here. Remap tables belong to host memory.

Link time and memory of the cuts c1 ≤ c2 are each f(c1) + g(c2), so at one price λ for a byte the
best cuts of a table are exact, by running minima over bucket edges; λ is bisected until all
tables fit together, and what is left over is filled up. Σ min − λ·budget, plus the latency of
rounds that cannot be avoided, bounds every choice of three bands from below.

Pooled tables are placed as row-wise does; so are tables that row-wise has no room for in the
fastest memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.step import StepCost, step_cost
from rowtier.cost.terms import row_terms
from rowtier.cost.time import link_s_per_byte, turn_shares
from rowtier.cost.touch import table_basis
from rowtier.cost.tree import tree_of
from rowtier.plan import row_wise
from rowtier.plan.binding import FULL, rules
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import GIGA, Certificate, Plan, Price
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile, TableStats
from rowtier.units import show_bytes

_ROUNDS = 20  # of aiming lower, because devices are not quite alike
_PRICES = 80
_CLOSE = 1e-7  # of the link time: what a better price could still save


def plan(profile: Profile, cluster: Cluster, options: PlanOptions) -> Plan:
    """Cut sequence tables into bands for the least link time at row-wise's own memory."""
    bands, certificate = flexshard_bands(profile, cluster, options)
    return Plan.build("flexshard", profile, cluster, bands, certificate)


def flexshard_bands(
    profile: Profile, cluster: Cluster, options: PlanOptions, extra: float = 0.0
) -> tuple[Bands, Certificate]:
    """The bands, if every device may use this share of memory more than row-wise does."""
    problem = Problem.of(profile, cluster, options, extra)
    found, bound, price = _search(problem)
    found.append(problem.baseline)
    costs = [problem.cost(bands).time.links_s for bands in found]
    best = int(np.argmin(costs))
    certificate = Certificate(
        view="flexshard",
        objective=costs[best],
        bound=max(0.0, min(bound, costs[best])),
        binding=problem.binding(price, found[best]),
        prices=(Price(resource=cluster.device.tiers[0].name, unit="GB", saves=price * GIGA),),
    )
    return found[best], certificate


class Cuts(NamedTuple):
    """Where a table is cut, a rank per scope (the last is the table's end), and each one's way."""

    stops: tuple[int, ...]
    ways: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Ladder:
    """One sequence table: what its hottest rows cost together, for every way to keep them.

    `seconds` and `kept` hold an array per scope, ways × edges: link time and bytes, both a
    device's share, of the rows before each bucket edge.
    """

    stats: TableStats
    homes: tuple[tuple[Band, ...], ...]  # per scope, from `device` outwards: dense, sparse
    edges: Ints
    seconds: tuple[Floats, ...]
    kept: tuple[Floats, ...]
    devices: tuple[int, ...]  # in a group of each scope

    @classmethod
    def of(cls, stats: TableStats, profile: Profile, cluster: Cluster, tier: str) -> Ladder:
        """Price every scope for every bucket of a table."""
        stops, rest = stats.curve.stops, stats.curve.ranks < stats.table.num_embeddings
        if rest:
            stops = np.append(stops, stats.table.num_embeddings)
        basis = table_basis(stats, profile, tree_of(cluster).sizes, rest=rest)
        widths = np.diff(stops, prepend=0)
        homes = _homes(cluster, tier)
        seconds, kept = [], []
        for ways in homes:
            terms = [row_terms(home, stats.table, basis, cluster) for home in ways]
            times = [(t.exchange_s + t.sync_s).sum(axis=0) for t in terms]
            sizes = [(t.stored_bytes + t.buffer_bytes) / t.group_devices for t in terms]
            seconds.append(_running(np.stack(times) * widths))
            kept.append(_running(np.stack(sizes) * widths))
        edges = np.concatenate(([0], stops))
        devices = tuple(cluster.group_size(cluster.level_of(ways[0].scope)) for ways in homes)
        return cls(stats, homes, edges, tuple(seconds), tuple(kept), devices)

    def best(self, price: float) -> Cuts:
        """The cuts with the least seconds + price · bytes.

        `least[c]` is the least for the rows before c with the scopes so far; the next scope
        takes the rows from some earlier c′ on, and a running minimum finds the best c′.
        """
        back: list[tuple[Ints, Ints]] = []
        least: Floats | None = None
        for seconds, kept in zip(self.seconds, self.kept, strict=True):
            costs = seconds + price * kept
            starts = np.zeros(costs.shape, dtype=np.int64)
            if least is not None:
                drops = least - costs
                starts = _first_least(drops)
                costs = costs + np.take_along_axis(drops, starts, axis=1)
            ways = costs.argmin(axis=0)
            least = np.take_along_axis(costs, ways[None], axis=0)[0]
            back.append((ways, np.take_along_axis(starts, ways[None], axis=0)[0]))
        at, found = len(self.edges) - 1, []
        for way, start in reversed(back):
            found.append((int(self.edges[at]), int(way[at])))
            at = int(start[at])
        found.reverse()
        return Cuts(tuple(stop for stop, _ in found), tuple(way for _, way in found))

    def amounts(self, cuts: Cuts) -> tuple[float, float]:
        """Seconds and bytes of any cuts, also inside buckets, whose rows are all alike."""
        totals, start = [0.0, 0.0], 0
        for scope, (stop, way) in enumerate(zip(*cuts, strict=True)):
            for index, sums in enumerate((self.seconds, self.kept)):
                first, last = np.interp([start, stop], self.edges, sums[scope][way])
                totals[index] += float(last - first)
            start = stop
        return totals[0], totals[1]

    @property
    def bytes_in_nodes(self) -> float:
        """Bytes of a device if no row that is ever looked up is further away than its node."""
        seen, table = self.stats.curve.ranks, self.stats.table
        near, far = self.devices[-2:][0], self.devices[-1]
        rows = seen / near + (table.num_embeddings - seen) / far
        return rows * table.stored_row_bytes

    def bands(self, cuts: Cuts, offset: int) -> tuple[Band, ...]:
        """The bands of some cuts; scopes without rows have none."""
        found, start = [], 0
        for homes, stop, way in zip(self.homes, *cuts, strict=True):
            if stop > start:
                changes = {"start": start, "stop": stop, "offset": offset}
                found.append(homes[way].model_copy(update=changes))
            start = stop
        return tuple(found)


def _homes(cluster: Cluster, tier: str) -> tuple[tuple[Band, ...], ...]:
    scopes = dict.fromkeys([*cluster.scopes[:2], cluster.top])
    homes = []
    for scope in scopes:
        dense = Band(start=0, stop=1, scope=scope, tier=tier)
        copies = (dense, dense.model_copy(update={"sync": "sparse"}))
        homes.append(copies if scope != cluster.top else (dense,))
    return tuple(homes)


def _running(amounts: Floats) -> Floats:
    return np.concatenate((np.zeros((len(amounts), 1)), np.cumsum(amounts, axis=1)), axis=1)


def _first_least(values: Floats) -> Ints:
    """For each position, where the least value so far was met first."""
    least = np.minimum.accumulate(values, axis=1)
    new = np.zeros(values.shape, dtype=np.int64)
    new[:, 1:] = np.where(values[:, 1:] < least[:, :-1], np.arange(1, values.shape[1]), 0)
    return np.maximum.accumulate(new, axis=1)


@dataclass(frozen=True, eq=False)
class Problem:
    """The tables to cut, those that stay as row-wise has them, and the memory there is."""

    profile: Profile
    cluster: Cluster
    baseline: Bands  # row-wise, rows plain
    ladders: tuple[Ladder, ...]
    budget_bytes: float  # of each device's fastest memory, rows and buffers
    usable_bytes: int  # of it there are, for rows at least
    fixed_s: float  # at least, for the tables that are not cut
    fixed_bytes: float  # of a device, on average

    @classmethod
    def of(cls, profile: Profile, cluster: Cluster, options: PlanOptions, extra: float) -> Problem:
        """Ask row-wise where tables go and how much they use."""
        baseline = row_wise.plan(profile, cluster, options).bands
        fast = cluster.device.tiers[0]
        shared = cluster.level_of(fast.shared_by) if fast.shared_by else 0
        usable = options.reserved.least_left(fast) // cluster.group_size(shared)
        cut = [s for s in profile.stats if _is_cut(s, baseline[s.table.name][0], fast.name)]
        fixed = [s for s in profile.stats if s not in cut]
        ladders = tuple(Ladder.of(s, profile, cluster, fast.name) for s in cut)
        peak = _peak_bytes(step_cost(baseline, profile, cluster))
        fixed_s, fixed_bytes = _of_fixed(baseline, fixed, profile, cluster)
        budget = min(peak * (1 + extra), max(peak, usable))
        return cls(profile, cluster, baseline, ladders, budget, usable, fixed_s, fixed_bytes)

    def cost(self, bands: Bands) -> StepCost:
        """What the one cost model says."""
        return step_cost(bands, self.profile, self.cluster)

    def excess_bytes(self, bands: Bands) -> float:
        """Bytes that the fullest device's fastest memory lacks; none if not above zero."""
        cost = self.cost(bands)
        rows = int(cost.memory.rows[: self.cluster.num_devices, 0].max())
        return max(_peak_bytes(cost) - self.budget_bytes, rows - self.usable_bytes)

    def bands(self, cuts: Sequence[Cuts]) -> Bands:
        """All tables' bands."""
        found = dict(self.baseline)
        for index, (ladder, cut) in enumerate(zip(self.ladders, cuts, strict=True)):
            found[ladder.stats.table.name] = ladder.bands(cut, offset=index)
        return found

    def latency_s(self, copies: bool) -> float:
        """Rounds that no cut avoids, times their latency.

        Ids, rows and gradients pass the widest level in four rounds, unless all rows that are
        ever looked up fit as copies per node; copies of rows that are looked up are reduced and
        sent back between nodes at least, in as many.
        """
        levels = self.cluster.levels
        latency = np.array([level.latency_s * (level.size > 1) for level in levels])
        rounds = np.zeros(len(levels))
        if (
            self.fixed_bytes + sum(table.bytes_in_nodes for table in self.ladders)
            > self.budget_bytes
        ):
            rounds[max((i for i, level in enumerate(levels) if level.size > 1), default=0)] += 4
        if copies:
            rounds[min(1, len(levels) - 1) :] += 4
        # Of levels that run side by side, bytes of another may take longer.
        return float(rounds @ (latency * turn_shares(tree_of(self.cluster), "levels")))

    def without_copies_s(self) -> float:
        """Link time of an average device if every row is kept once."""
        seconds = sum(float(ladder.seconds[-1][0, -1]) for ladder in self.ladders)
        return self.fixed_s + seconds + self.latency_s(copies=False)

    def binding(self, price: float, bands: Bands) -> str:
        """What stops the plan from being better, in words."""
        tier = self.cluster.device.tiers[0].name
        if not self.ladders:
            return "no sequence table to cut: everything is row-wise"
        if not price:
            return f"bandwidths: {tier} within the budget is not full"
        cost = self.cost(bands)
        if _peak_bytes(cost) < FULL * self.budget_bytes:
            return rules(cost)
        saved_s = price * 2**20
        return (
            f"memory budget of {show_bytes(int(self.budget_bytes))} of {tier} per device: "
            f"one more MiB saves {saved_s:.3g} s of link time a step"
        )


def _is_cut(stats: TableStats, band: Band, fast: str) -> bool:
    return stats.table.pooling == "none" and band.tier == fast and band.members == "all"


def _peak_bytes(cost: StepCost) -> int:
    used = (cost.memory.rows + cost.memory.buffers)[: cost.cluster.num_devices, 0]
    return int(used.max())


def _of_fixed(
    bands: Bands, stats: Sequence[TableStats], profile: Profile, cluster: Cluster
) -> tuple[float, float]:
    """Link time and memory of an average device; the slowest and the fullest have more."""
    if not stats:
        return 0.0, 0.0
    cost = step_cost(bands, replace(profile, stats=tuple(stats)), cluster)
    devices, links = cluster.num_devices, cost.links
    moved = links.ids.sent + links.forward.received + links.backward.sent
    seconds = moved[:devices].mean(axis=0) @ link_s_per_byte(tree_of(cluster))
    used = (cost.memory.rows + cost.memory.buffers)[:devices, 0]
    return float(seconds), float(used.mean()) - 1.0  # buffers are rounded up


@dataclass(frozen=True, eq=False)
class _Priced:
    price: float
    cuts: tuple[Cuts, ...]
    seconds: float
    kept_bytes: float


def _at(problem: Problem, price: float) -> _Priced:
    cuts = tuple(ladder.best(price) for ladder in problem.ladders)
    amounts = [ladder.amounts(cut) for ladder, cut in zip(problem.ladders, cuts, strict=True)]
    seconds, kept = (sum(column) for column in zip(*amounts, strict=True))
    return _Priced(price, cuts, problem.fixed_s + seconds, problem.fixed_bytes + kept)


def _search(problem: Problem) -> tuple[list[Bands], float, float]:
    """Placements that keep to the budget, a bound on all of them, and the price of a byte.

    Prices see an average device. If the fullest one exceeds the budget, aim lower by that much,
    and by a row, then two, then four, since less than a row may change nothing.
    """
    if not problem.ladders:
        return [], problem.fixed_s, 0.0
    target, found, bound, price = problem.budget_bytes, [], 0.0, 0.0
    row_bytes = max(ladder.stats.table.stored_row_bytes for ladder in problem.ladders)
    for turn in range(_ROUNDS):
        tried = _tried_prices(problem, target)
        if not turn:
            bound = max(p.seconds + p.price * (p.kept_bytes - target) for p in tried)
            bound = min(bound + problem.latency_s(copies=True), problem.without_copies_s())
        fits = [p for p in tried if p.kept_bytes <= target]
        if not fits:
            break
        low = min(fits, key=lambda p: p.price)
        above = [p for p in tried if p.kept_bytes > target]
        cuts = list(low.cuts)
        if above:
            price = low.price if not turn else price
            _fill_up(problem, cuts, max(above, key=lambda p: p.price).cuts, target - low.kept_bytes)
        bands = problem.bands(cuts)
        excess = problem.excess_bytes(bands)
        if excess <= 0:
            found.append(bands)
            break
        target -= excess + row_bytes * 2**turn
    return found, bound, price


def _tried_prices(problem: Problem, target: float) -> list[_Priced]:
    """Prices around the lowest at which everything fits; price 0 if that is enough."""
    tried = [_at(problem, 0.0)]
    if tried[0].kept_bytes <= target:
        return tried
    low, high = 0.0, max(tried[0].seconds, 1e-12) / max(tried[0].kept_bytes, 1.0)
    fits: _Priced | None = None
    for _ in range(_PRICES):
        price = high if fits is None else (low * high) ** 0.5 if low else high / 64
        tried.append(_at(problem, price))
        if tried[-1].kept_bytes > target:
            low, high = price, high if fits else 64 * high
            continue
        high, fits = price, tried[-1]
        if high * (target - fits.kept_bytes) <= _CLOSE * fits.seconds or high < low * (1 + 1e-9):
            break
    return tried


def _fill_up(problem: Problem, cuts: list[Cuts], wider: Sequence[Cuts], left_bytes: float) -> None:
    """Go from cuts that fit towards cuts that do not, the table with most gain per byte first."""
    steps = []
    for index, ladder in enumerate(problem.ladders):
        (slow, small), (quick, large) = ladder.amounts(cuts[index]), ladder.amounts(wider[index])
        if quick < slow:
            steps.append(((large - small) / (slow - quick), index))
    for _, index in sorted(steps):
        ladder = problem.ladders[index]
        before = ladder.amounts(cuts[index])
        cuts[index] = _part_way(ladder, cuts[index], wider[index], left_bytes)
        left_bytes -= ladder.amounts(cuts[index])[1] - before[1]


def _part_way(ladder: Ladder, now: Cuts, then: Cuts, left_bytes: float) -> Cuts:
    """As far from one choice to the other as the bytes allow, if that saves time."""
    slow, small = ladder.amounts(now)
    best, low, high = now, 0.0, 1.0
    for turn in range(40):
        share = 1.0 if not turn else (low + high) / 2
        stops = [a + round(share * (b - a)) for a, b in zip(now.stops, then.stops, strict=True)]
        tried = Cuts(tuple(stops), then.ways)
        seconds, kept = ladder.amounts(tried)
        if kept - small > left_bytes:
            high = share
            continue
        low = share
        if seconds < slow:
            best, slow = tried, seconds
        if share == 1.0:
            break
    return best

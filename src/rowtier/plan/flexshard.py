"""`flexshard`: sequence tables in three bands, and not a byte more memory than row-wise.

"FlexShard: Flexible Sharding for Industry-Scale Sequence Recommendation Models" (arXiv
2301.02959): the vectors of a sequence are not pooled, so every id's row crosses the links.
Rows are sorted by probability: the hottest get a copy on every device, the warm ones a copy
per node, the cold ones one copy over all. Every id's row travels (nothing is coalesced), and
keeping copies equal is counted, dense or sparse, whichever costs a band less.

The budget is what row-wise would use of a device's memory at its peak, all tiers and exchange
buffers included: copies are paid for by the buffers that they make superfluous. Rows must fit the
capacity besides; where that binds, λ below is a price for bytes of rows alone. Remap tables belong
to host memory. Links do not ask which tier a row comes from, so cuts are made first, and then each
band is cut again where a tier is full: the rows and copies that are read most per stored byte lie
in the fastest (`tiers.py`).

Link time and memory of the cuts c1 ≤ c2 are each f(c1) + g(c2), so at one price λ for a byte the
best cuts of a table are exact, by running minima over bucket edges; λ is bisected until all
tables fit together, and what is left over is filled up. Σ min − λ·budget, plus the latency of
rounds that cannot be avoided, bounds every choice of three bands from below.

Pooled tables are placed as row-wise does; so are pinned ones and those for which devices have no
room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.memory import Room, band_bytes
from rowtier.cost.step import StepCost, step_cost
from rowtier.cost.time import link_s_per_byte, turn_shares
from rowtier.cost.tree import tree_of
from rowtier.plan import row_wise
from rowtier.plan.binding import FULL, rules
from rowtier.plan.covers import FLEXSHARD
from rowtier.plan.ladder import Cuts, Ladder
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import GIGA, Certificate, Plan, Price
from rowtier.plan.tiers import Sizes, cut_by_tiers, device_sizes
from rowtier.profile.curve import Ints
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
    found += [problem.baseline, *problem.without_copies()]
    costs = [problem.cost(bands).time.links_s for bands in found]
    if min(costs) > (1 + options.tolerance) * bound:
        by_rows = problem.by_rows()
        others, tighter, price_of_rows = _search(by_rows)
        found += others
        costs += [problem.cost(bands).time.links_s for bands in others]
        if tighter > bound:
            problem, bound, price = by_rows, tighter, price_of_rows
    best = int(np.argmin(costs))
    certificate = Certificate(
        view="flexshard",
        objective=costs[best],
        bound=max(0.0, min(bound, costs[best])),
        covers=FLEXSHARD,
        binding=problem.binding(price, found[best]),
        prices=(Price(resource=cluster.device.tiers[0].name, unit="GB", saves=price * GIGA),),
    )
    return found[best], certificate


@dataclass(frozen=True, eq=False)
class Problem:
    """The tables to cut, those that stay as row-wise has them, and the memory there is."""

    profile: Profile
    cluster: Cluster
    baseline: Bands  # row-wise, rows plain
    ladders: tuple[Ladder, ...]
    most_bytes: float  # of each device's memory, rows and buffers
    budget_bytes: float  # of it for what is priced
    sizes: Sizes  # of it for rows of the tables that are cut, if all devices hold the same
    room_bytes: float  # the same on average
    fixed_s: float  # at least, for the tables that are not cut
    fixed_bytes: float  # of what is priced, of a device, on average

    @classmethod
    def of(cls, profile: Profile, cluster: Cluster, options: PlanOptions, extra: float) -> Problem:
        """Ask row-wise where tables go and how much they use."""
        baseline = row_wise.plan(profile, cluster, options).bands
        cut = [s for s in profile.stats if _is_cut(s, baseline[s.table.name], options)]
        fixed = [s for s in profile.stats if s not in cut]
        ladders = tuple(Ladder.of(s, profile, cluster) for s in cut)
        room = Room(cluster, options.reserved)
        usable = sum(device_sizes(cluster, room).values())
        for stats in fixed:
            for band in baseline[stats.table.name]:
                room.take(band_bytes(stats.table, band, cluster), band.tier)
        sizes, mean = device_sizes(cluster, room), _mean_room_bytes(room, cluster)
        peak = _peak_bytes(step_cost(baseline, profile, cluster))
        fixed_s, fixed_bytes = _of_fixed(baseline, fixed, profile, cluster)
        budget = min(peak * (1 + extra), max(peak, usable))
        limits = (budget, budget, sizes, mean)
        return cls(profile, cluster, baseline, ladders, *limits, fixed_s, fixed_bytes)

    def by_rows(self) -> Problem:
        """The same with a price for bytes of rows alone, which have no more room than this."""
        ladders = tuple(replace(ladder, kept=ladder.stored) for ladder in self.ladders)
        return replace(self, ladders=ladders, budget_bytes=self.room_bytes, fixed_bytes=0.0)

    def cost(self, bands: Bands) -> StepCost:
        """What the one cost model says."""
        return step_cost(bands, self.profile, self.cluster)

    def placed(self, cuts: Sequence[Cuts]) -> tuple[Bands, float]:
        """All tables' bands, and bytes that the fullest device lacks; none if not above zero."""
        runs = [
            run
            for index, (ladder, cut) in enumerate(zip(self.ladders, cuts, strict=True))
            for run in ladder.runs(cut, offset=index)
        ]
        found = {**self.baseline, **{ladder.stats.table.name: () for ladder in self.ladders}}
        lacks = 0.0
        pieces = cut_by_tiers(runs, self.sizes, self.profile, self.cluster)
        for run, bands in zip(runs, pieces, strict=True):
            table = run.stats.table
            found[table.name] += bands
            rows = run.band.rows - sum(band.rows for band in bands)
            lacks += rows / run.members(self.cluster) * table.stored_row_bytes
        return found, lacks or _peak_bytes(self.cost(found)) - self.most_bytes

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

    def without_copies(self) -> Iterator[Bands]:
        """Every row kept once, if that fits: rounds of sync may take longer than copies save."""
        once = [ladder.without_copies for ladder in self.ladders]
        bands, excess = self.placed(once)
        if excess <= 0:
            yield bands

    def without_copies_s(self) -> float:
        """Link time of an average device if every row is kept once."""
        seconds = sum(float(ladder.seconds[-1][0, -1]) for ladder in self.ladders)
        return self.fixed_s + seconds + self.latency_s(copies=False)

    def binding(self, price: float, bands: Bands) -> str:
        """What stops the plan from being better, in words."""
        if not self.ladders:
            return "no sequence table to cut in memory of devices: everything is row-wise"
        if not price:
            return "bandwidths: memory within the budget is not full"
        cost = self.cost(bands)
        rows = int(cost.memory.rows[: self.cluster.num_devices].sum(axis=1).max())
        there = f"one more MiB saves {price * 2**20:.3g} s of link time a step"
        if _peak_bytes(cost) >= FULL * self.most_bytes:
            return f"memory budget of {show_bytes(int(self.most_bytes))} per device: {there}"
        if self.budget_bytes < self.most_bytes and rows >= FULL * self.budget_bytes:
            return f"memory for rows, {show_bytes(rows)} of each device are full: {there}"
        return rules(cost)


def _is_cut(stats: TableStats, bands: Sequence[Band], options: PlanOptions) -> bool:
    on_devices = all(band.members == "all" for band in bands)
    pinned = options.constraints.pin(stats.table.name).places
    return stats.table.pooling == "none" and on_devices and not pinned


def _mean_room_bytes(room: Room, cluster: Cluster) -> float:
    """Bytes that are left of an average device, all tiers together."""
    left = [room.free_on(t.name)[: cluster.num_devices] / cluster.sharers(t) for t in
            cluster.device.tiers]  # fmt: skip
    return float(np.sum(left, axis=0).mean())


def _used_bytes(cost: StepCost) -> Ints:
    """What rows and buffers take of each device, all tiers together."""
    used = cost.memory.rows + cost.memory.buffers
    return np.asarray(used[: cost.cluster.num_devices].sum(axis=1))


def _peak_bytes(cost: StepCost) -> int:
    return int(_used_bytes(cost).max())


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
    return float(seconds), float(_used_bytes(cost).mean()) - 1.0  # buffers are rounded up


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
        bands, excess = problem.placed(cuts)
        if excess <= 0:
            found.append(bands)
            break
        kept = sum(ladder.amounts(c)[1] for ladder, c in zip(problem.ladders, cuts, strict=True))
        target = min(target, problem.fixed_bytes + kept) - excess - row_bytes * 2**turn
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

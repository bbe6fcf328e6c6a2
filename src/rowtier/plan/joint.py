"""`joint`: exchange, scope, members, columns and tier together, for the least step time.

1. price every way to keep a row, per table and bucket (solve/menu.py);
2. find prices for memory at which everything fits; they prove a lower bound;
3. let every table choose (solve/realise.py): rows that go by partial sums get one owner each,
   and owners are cut and balanced; everything else is spread over all devices alike; what
   is left of fast memory is filled;
4. compare with what the other methods give, by the same cost model, and return the best:
   joint is never worse than any of them;
5. search small problems through (solve/small.py).

Pins take homes off the menu. A limit on a link is a price on its bytes: the link is taken to
be slower than it is, until what is chosen keeps to the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from rowtier.band import Bands
from rowtier.cluster import DEVICE, Cluster
from rowtier.cost.options import DEFAULTS, CostOptions
from rowtier.cost.step import StepCost, step_cost
from rowtier.errors import InfeasibleError, InvalidError
from rowtier.plan.binding import binding_step
from rowtier.plan.infeasible import why_infeasible
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import GIGA, Certificate, Plan, Price, Proof
from rowtier.plan.solve.menu import Home, Menu, homes_of, memories, menu_of
from rowtier.plan.solve.pack import packed
from rowtier.plan.solve.prices import (
    LEAST_WORTH,
    Bound,
    Priced,
    at_prices,
    best_prices,
    least_fixed_s,
    scarcity_prices,
)
from rowtier.plan.solve.realise import Maker
from rowtier.plan.solve.refill import tidied
from rowtier.plan.solve.small import Search
from rowtier.profile.curve import Floats
from rowtier.profile.profile import Profile, TableStats

SLACKS = (1.0, 0.95)  # of memory that prices may fill, the first with which all rows fit
PIECES = (2.0, 3.0)  # per device: more are easier to level, but repeat ids or sums
MANY = 2_000  # tables × devices; above, only the first of `PIECES` is tried
WITHOUT_OWNERS = ("sca",)  # methods that spread every row, and take long
# Without counts, blocks of row ids look evenly hot. Spreading the same rows really is even.
NEED_COUNTS = ("row-wise-coalesced",)
STARTS = 2  # of the search through small problems
WORTH_CUTTING = 5e-6  # of a step, that the search must save with every band it adds
WORTH_DROPPING = 0.02  # of a step, that all its rounds take together
SLOWEST = 4.0**8  # how many times slower than it is a link with a limit may look


def plan(profile: Profile, cluster: Cluster, options: PlanOptions) -> Plan:
    """Place every row for the least step time, with a bound on how much less is possible."""
    mistakes = list(options.constraints.mistakes(profile, cluster))
    if mistakes:
        raise InvalidError("constraints", mistakes)
    problem = Problem(profile, cluster, options, options.cost)
    solved, found = problem.solve_for_each_weight()
    found += problem.priced_candidates(_other_methods(profile, cluster, options, solved, found))
    if not found:
        anywhere = [packed(profile, cluster, options, sync) for sync in ("dense", "sparse")]
        found = problem.priced_candidates(problem.refilled(b) for b in anywhere if b is not None)
    found += problem.with_fewer_phases(found)
    found += problem.searched(found)
    best = min(found, key=lambda one: one.cost.step_s, default=None)
    bound = solved.least_s(problem)
    if best is None or problem.violations(best):
        best, bound = problem.within_limits(found, bound)
    step_s = best.cost.step_s
    certificate = Certificate(
        view="step",
        objective=step_s,
        bound=max(0.0, min(bound, step_s)),
        binding=_binding(solved, options, best.cost),
        prices=tuple(_prices(solved, best.cost)),
        proof=None if options.constraints.decides else solved.proof,
    )
    return Plan.build("joint", profile, cluster, best.bands, certificate)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A placement and what it costs."""

    bands: Bands
    cost: StepCost

    @property
    def fixed_share(self) -> float:
        """The share of the step that waiting and the work of rounds take; 0 if no row is copied."""
        time, phases, work = self.cost.time, self.cost.links.phases, self.cost.cluster.work
        if not phases.synced.any() or not phases.asked.any():
            return 0.0
        waiting_s = float(time.exchange_latency_s.sum() + time.sync_latency_s.sum())
        return (waiting_s + work.round_s * float(phases.rounds)) / self.cost.step_s

    def worth_cutting(self, other: Candidate) -> bool:
        """Whether the bands that this has more than another save enough: each takes work."""
        more = sum(map(len, self.bands.values())) - sum(map(len, other.bands.values()))
        return self.cost.step_s <= (1 - WORTH_CUTTING * max(0, more)) * other.cost.step_s


@dataclass(frozen=True, eq=False)
class Solved:
    """Prices, the bound that they prove, and the capacity that they are prices of."""

    priced: Priced
    bound: Bound
    even_s: float  # that no plan beats in which no row has an owner
    capacity: Floats
    sync_weight: float = 1.0

    def least_s(self, problem: Problem) -> float:
        """Seconds that no plan beats.

        A step waits for sync as far as it is not hidden: so for any share of it at least, less the
        same share of what can be hidden. The prices deal what servers do to the devices, but the
        slowest holder need not be slower than the mean over servers as well.
        """
        share = problem.cluster.num_devices / problem.cluster.num_holders
        hidden_s = problem.cost.dense_s * problem.cluster.work.hidden
        fixed_s = least_fixed_s(problem.profile, problem.cluster, problem.cost, self.sync_weight)
        return share * self.bound.seconds + fixed_s - self.sync_weight * hidden_s

    @property
    def worth(self) -> Floats:
        """What each memory is worth as a whole, in seconds; 0 if more of it would save nothing."""
        worth = self.bound.prices * self.capacity
        return np.where(worth > LEAST_WORTH * max(self.bound.seconds, 0.0), worth, 0.0)

    @property
    def proof(self) -> Proof:
        """What it takes to recompute the bound."""
        prices: list[float] = self.bound.prices.tolist()
        capacity_bytes: list[float] = self.capacity.tolist()
        return Proof(
            prices=tuple(prices),
            capacity_bytes=tuple(capacity_bytes),
            sync_weight=self.sync_weight,
        )


@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be placed, where, and under which wishes."""

    profile: Profile
    cluster: Cluster
    options: PlanOptions
    cost: CostOptions = DEFAULTS

    def solve_for_each_weight(self) -> tuple[Solved, list[Candidate]]:
        """What sync taken in full leads to, and if some can be hidden, taken for free as well."""
        hidden = self.cost.dense_s * self.cluster.work.hidden > 0
        tried = [self.solve(sync_weight=weight) for weight in ((1.0, 0.0) if hidden else (1.0,))]
        solved = max((one for one, _ in tried), key=lambda one: one.least_s(self))
        return solved, [candidate for _, found in tried for candidate in found]

    def solve(
        self, slower: dict[str, float] | None = None, sync_weight: float = 1.0
    ) -> tuple[Solved, list[Candidate]]:
        """Prices and the placements they lead to, if some levels' links were slower."""
        cluster = _slowed(self.cluster, slower or {})
        menus = [self._menu(stats, cluster, sync_weight) for stats in self.profile.stats]
        capacity = np.array([size for _, size in memories(cluster, self.options.reserved)])
        maker = Maker(self.profile, cluster, self.options, self.cost)
        priced, bound = best_prices(menus, capacity)
        found = self._made(maker, menus, capacity, priced)
        even = [menu if menu.owned.all() else menu.without_owners() for menu in menus]
        even_s = at_prices(even, capacity, bound.prices).bound
        if slower or even_s < min((one.cost.step_s for one in found), default=np.inf):
            found += self._made(maker, even, capacity, best_prices(even, capacity)[0])
        return Solved(priced, bound, even_s, capacity, sync_weight), found

    def with_fewer_phases(self, found: list[Candidate]) -> list[Candidate]:
        """Placements without copies, or with nothing else, where their rounds are worth dropping.

        Prices see rows one by one, and no row by itself is worth the rounds that all of them share.
        """
        best = min(found, key=lambda one: one.cost.step_s, default=None)
        if best is None or not best.fixed_share > WORTH_DROPPING:
            return []
        made = []
        maker = Maker(self.profile, self.cluster, self.options, self.cost)
        capacity = np.array([size for _, size in memories(self.cluster, self.options.reserved)])
        menus = [self._menu(stats, self.cluster, 1.0) for stats in self.profile.stats]
        for scope in (self.cluster.top, DEVICE):
            kept = [_kept_at(menu, scope) for menu in menus]
            if all(menu.homes for menu in kept):
                made += self._made(maker, kept, capacity, best_prices(kept, capacity)[0])
        return made

    def _made(
        self, maker: Maker, menus: list[Menu], capacity: Floats, priced: Priced
    ) -> list[Candidate]:
        """What prices lead to; with less memory if, row by row, it does not fit quite."""
        for slack in SLACKS:
            choice = priced if slack == 1.0 else best_prices(menus, slack * capacity)[0]
            fast = len(self.cluster.device.tiers) - 1
            scarce = scarcity_prices(menus, capacity, choice, fast)
            made = [maker.bands(menus, choice, scarce, pieces) for pieces in self._pieces]
            if any(bands is not None for bands in made):
                return self.priced_candidates(bands for bands in made if bands is not None)
        return []

    @property
    def _pieces(self) -> tuple[float, ...]:
        many = len(self.profile.stats) * self.cluster.num_devices > MANY
        return PIECES[:1] if many else PIECES

    def _menu(self, stats: TableStats, cluster: Cluster, sync_weight: float) -> Menu:
        homes = self._homes(stats, cluster)
        return menu_of(stats, self.profile, cluster, self.cost, homes, sync_weight)

    def _homes(self, stats: TableStats, cluster: Cluster) -> list[Home]:
        """The homes that the table's pins leave."""
        wanted, name = self.options.constraints, stats.table.name
        pooled, pin = stats.table.pooling != "none", wanted.pin(name)
        homes = homes_of(pooled, cluster, wanted.one_owner(name) and cluster.num_devices > 1)
        kept = [h for h in homes if pin.tier in (None, h.band.tier)]
        kept = [h for h in kept if pin.scope in (None, h.band.scope)]
        if pin.tier is not None:  # a server's tier may have the same name
            kept = [h for h in kept if h.memory < len(cluster.device.tiers)]
        return kept

    def priced_candidates(self, found: Iterable[Bands]) -> list[Candidate]:
        """Placements with their costs; those that pins forbid are left out."""
        candidates = []
        for bands in found:
            cost = step_cost(bands, self.profile, self.cluster, None, self.cost)
            one = Candidate(bands, cost)
            if not self.violations(one, links=False):
                candidates.append(one)
        return candidates

    def violations(self, one: Candidate, links: bool = True) -> list[str]:
        """What a placement does not keep to; the limits of links may be left aside."""
        said = self.options.constraints.violations(one.bands, one.cost)
        return [text for text in said if links or not text.startswith("links.")]

    def refilled(self, bands: Bands) -> Bands:
        """The same placement with what is left of fast memory filled."""
        maker = Maker(self.profile, self.cluster, self.options, self.cost)
        return maker.refilled(bands) or bands

    def searched(self, found: list[Candidate]) -> list[Candidate]:
        """Better placements of a small problem, from the best ones on."""
        wanted = self.options.constraints
        homes = [self._search_homes(stats) for stats in self.profile.stats]
        search = Search(self.profile, self.cluster, self.cost, self.options.reserved, homes)
        if not search.is_small or wanted.pins_owners:
            return []
        starts = sorted(found, key=lambda one: one.cost.step_s)[:STARTS]
        better = self.priced_candidates(tidied(search.improve(one.bands)) for one in starts)
        return [one for one in better if one.worth_cutting(starts[0])]

    def _search_homes(self, stats: TableStats) -> list[Home]:
        """The menu's homes, and those that leave a table to one owner."""
        kept, pin = self._homes(stats, self.cluster), self.options.constraints.pin(stats.table.name)
        alone = [
            home
            for home in homes_of(stats.table.pooling != "none", self.cluster, True)
            if not home.by_sums and pin.tier in (None, home.band.tier)
        ]
        return kept + [home for home in alone if pin.scope in (None, home.band.scope)]

    def within_limits(self, found: list[Candidate], bound: float) -> tuple[Candidate, float]:
        """The best placement that keeps to the limits of links, and a bound for all that do."""
        limits = self.options.constraints.links
        factor = 1.0
        while limits and factor < SLOWEST:
            factor *= 4
            solved, made = self.solve(dict.fromkeys(limits, factor))
            found = found + made
            bound = max(bound, solved.least_s(self) - self._fines(factor))
            if any(not self.violations(one) for one in found):
                for finer in (factor / 2, factor / 1.4, factor * 1.4):
                    solved, made = self.solve(dict.fromkeys(limits, finer))
                    found += made
                    bound = max(bound, solved.least_s(self) - self._fines(finer))
                break
        kept = [one for one in found if not self.violations(one)]
        if not kept:
            least = min(found, key=self._excess, default=None)
            costs = None if least is None else least.cost
            raise why_infeasible(self.profile, self.cluster, self.options, costs)
        return min(kept, key=lambda one: one.cost.step_s), bound

    def _fines(self, factor: float) -> float:
        """The most that slower links can add to the step of a placement within the limits."""
        if self.cluster.servers:
            return float("inf")
        limits = self.options.constraints.links
        return sum(
            (factor - 1) * limits[level.name] / level.bandwidth_bytes_per_s
            for level in self.cluster.levels
            if level.name in limits
        )

    def _excess(self, one: Candidate) -> float:
        return max(self.options.constraints.excess(one.cost).values(), default=1.0)


def _kept_at(menu: Menu, scope: str) -> Menu:
    """The homes that keep one copy in every group of a scope."""
    return menu.only(np.array([float(home.band.scope == scope) for home in menu.homes]))


def _slowed(cluster: Cluster, slower: dict[str, float]) -> Cluster:
    if not slower:
        return cluster
    levels = tuple(
        level.model_copy(
            update={
                "bandwidth_bytes_per_s": level.bandwidth_bytes_per_s / slower.get(level.name, 1.0)
            }
        )
        for level in cluster.levels
    )
    return cluster.model_copy(update={"levels": levels})


def _other_methods(
    profile: Profile, cluster: Cluster, options: PlanOptions, solved: Solved, made: list[Candidate]
) -> list[Bands]:
    """What other methods place, but for those that are known to be worse than what was made."""
    from rowtier.plan.make import METHODS, planner

    found = []
    best_s = min((one.cost.step_s for one in made), default=np.inf)
    for method in METHODS:
        if method == "joint" or method.endswith("milp"):
            continue
        if method in NEED_COUNTS and profile.form != "counted":
            continue
        if method in WITHOUT_OWNERS and solved.even_s >= best_s:
            continue
        try:
            found.append(planner(method)(profile, cluster, options).bands)
        except InfeasibleError:
            continue
    return found


def _binding(solved: Solved, options: PlanOptions, cost: StepCost) -> str:
    """What stops the plan from being better, in words."""
    names = [name for name, _ in memories(cost.cluster, options.reserved)]
    dearest = int(np.argmax(solved.worth))
    tier, says = None, ""
    if solved.worth[dearest] > 0:
        tier = names[dearest]
        units = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "byte": 1}
        unit = next(u for u, size in units.items() if size <= max(solved.capacity[dearest], 1))
        saved_s = solved.bound.prices[dearest] * units[unit]
        says = f"capacity of {tier}: one more {unit} per device saves {saved_s:.3g} s a step"
    return binding_step(cost, tier, says, options.reserved)


def _prices(solved: Solved, cost: StepCost) -> Iterator[Price]:
    """What one more GB of each memory, or GB/s of each link, saves."""
    names = [name for name, _ in memories(cost.cluster)]
    for name, price, worth in zip(names, solved.bound.prices, solved.worth, strict=True):
        yield Price(resource=name, unit="GB", saves=float(price) * GIGA if worth else 0.0)
    for index, level in enumerate(cost.cluster.levels):
        bandwidth = level.bandwidth_bytes_per_s
        waits = cost.time.exchange_latency_s[index], cost.time.sync_latency_s[index]
        exchange_s, sync_s = cost.time.exchange_level_s[index], cost.time.sync_level_s[index]
        moving_s = cost.time.exchange_counts[index] * (exchange_s - waits[0])
        moving_s += cost.time.sync_counts[index] * (sync_s - waits[1])
        saved_s = float(moving_s) * (1 - bandwidth / (bandwidth + GIGA))
        yield Price(resource=level.name, unit="GB/s", saves=saved_s)

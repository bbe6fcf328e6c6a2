"""`joint`: exchange, scope, members, columns and tier together, for the least step time.

1. bound every plan (bound.py): for each case of rounds, prices of memory at which all rows fit;
2. let every table choose at them (place/make.py): rows that go by partial sums get owners, large
   tables are divided and all pieces packed; everything else is spread over all devices; what is
   left of fast memory is filled;
3. compare with what the other methods give, by the same cost model, and return the best: joint is
   never worse than any of them;
4. search small problems through (search.py).

Pins take homes off the menu. A limit on a link is a price on its bytes: the link is taken to
be slower than it is, until what is chosen keeps to the limit.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rowtier.band import Bands
from rowtier.cluster import Cluster
from rowtier.cost.options import DEFAULTS, CostOptions
from rowtier.cost.step import StepCost, step_cost
from rowtier.cost.tree import tree_of
from rowtier.errors import InfeasibleError, InvalidError
from rowtier.plan.constraints import NO_PIN, over_capacity
from rowtier.plan.infeasible import why_infeasible
from rowtier.plan.joint.bound import Case, Least, least_of
from rowtier.plan.joint.certificate import certificate_of
from rowtier.plan.joint.free import freely, node_masses, shared_with_servers
from rowtier.plan.joint.homes import Phase, homes_of, phase_of
from rowtier.plan.joint.owners import Way, owned
from rowtier.plan.joint.search import MOST_LOADS, Search
from rowtier.plan.joint.space import MOST_TABLES
from rowtier.plan.options import PlanOptions
from rowtier.plan.place.fill import tidied
from rowtier.plan.place.make import Maker
from rowtier.plan.place.nodes import with_node_sums
from rowtier.plan.plan import Plan
from rowtier.plan.solve.menu import Home as MenuHome
from rowtier.plan.solve.menu import Menu, menu_of
from rowtier.plan.solve.menu import homes_of as menu_homes
from rowtier.plan.solve.pack import packed
from rowtier.plan.solve.prices import Priced, at_prices, best_prices, scarcity_prices
from rowtier.plan.watch import ALONE, Watch
from rowtier.profile.curve import Floats
from rowtier.profile.profile import Profile, TableStats

SLACKS = (1.0, 0.95)  # of memory that prices may fill, the first with which all rows fit
WITHOUT_OWNERS = ("sca",)  # methods that spread every row, and take long
CUT_SEQUENCES = ("flexshard",)  # methods that without sequence tables are row-wise
CUT_TABLES = ("recshard",)  # methods that do so on demand
# Without counts, blocks of row ids look evenly hot. Dealing the same rows out really is even.
DEALT = ("row-wise-coalesced",)
STARTS = 2  # of the search through small problems
ALIKE = 1e-9  # of a step, by which starts that are the same may differ
MANY_TABLES = 50  # of which a part tells most: few rows matter by themselves
CLOSE = 1.1  # times the bound: where so many are, free choices lead to no better plan
BOTH_WAYS = 200  # tables that are placed with sums inside nodes and without
BUSIEST = (0.05, 0.25)  # of all tables, that other plans are priced with first
SURELY = 1.02  # times slower: with a part of the tables a few bands may be counted apart
NEAR_ENOUGH = 0.01  # above the bound: less than that is not worth a second's search
WORTH_SEARCHING = 1.1  # times the best step, that a start may take
WORTH_TRYING = 8.0  # times the best home's seconds, that one may take to be tried
OWNERS = (3, 1)  # holders of a group that are tried one by one: as many as can be gone through
FEW_HOMES = 16  # of a table, that are all tried
FEW = 16  # bands more or less, that are worth a look
WORTH_CUTTING = 5e-6  # of a step, that the search must save with every band it adds
SLOWEST = 4.0**8  # how many times slower than it is a link with a limit may look


def plan(profile: Profile, cluster: Cluster, options: PlanOptions, watch: Watch = ALONE) -> Plan:
    """Place every row for the least step time, with a bound on how much less is possible.

    If it is stopped, the best placement that was found so far.
    """
    mistakes = list(options.constraints.mistakes(profile, cluster))
    if mistakes:
        raise InvalidError("constraints", mistakes)
    planning = Planning(profile, cluster, options, options.cost, watch)
    least = least_of(profile, cluster, options, options.cost)
    watch.progress(0.25)
    found = planning.made(least)
    watch.progress(0.6)
    if not watch.stop():
        others = _other_methods(profile, cluster, options, least, found)
        found += planning.priced_candidates(planning.hopeful(others, found))
    watch.progress(0.7)
    if not found:
        anywhere = [packed(profile, cluster, options, sync) for sync in ("dense", "sparse")]
        found = planning.priced_candidates(planning.refilled(b) for b in anywhere if b is not None)
    if not watch.stop():
        found += planning.simpler(found)
        found += planning.searched(found, least)
    watch.progress(1.0)
    best = planning.best_of(planning.that_fit(found))
    bound = least.seconds
    if best is None or planning.violations(best):
        best, bound = planning.within_limits(found, bound)
    certificate = certificate_of(least, options, best.cost, bound)
    return Plan.build("joint", profile, cluster, best.bands, certificate)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A placement and what it costs."""

    bands: Bands
    cost: StepCost

    def worth_cutting(self, other: Candidate) -> bool:
        """Whether the bands that this has more than another save enough: each takes work."""
        more = max(0, self.bands_more(other))
        return self.cost.step_s <= (1 - WORTH_CUTTING * more) * other.cost.step_s

    def bands_more(self, other: Candidate) -> int:
        """How many bands this has more than another."""
        return sum(map(len, self.bands.values())) - sum(map(len, other.bands.values()))


@dataclass(frozen=True, eq=False)
class Planning:
    """What is to be placed, where, and under which wishes."""

    profile: Profile
    cluster: Cluster
    options: PlanOptions
    cost: CostOptions = DEFAULTS
    watch: Watch = ALONE

    def made(self, least: Least, slower: dict[str, float] | None = None) -> list[Candidate]:
        """The placements that prices lead to, in every case that may be better than those before.

        Links with a limit may be taken to be slower than they are.
        """
        cluster = _slowed(self.cluster, slower or {})
        maker = Maker(self.profile, cluster, self.options, self.cost, self.watch.stop)
        menus = [self._menu(stats, cluster, least) for stats in self.profile.stats]
        found: list[Candidate] = []
        for case in least.cases:
            best_s = min((self.rank_s(one) for one in found), default=np.inf)
            if not slower and least.seconds_of(case.phase) >= best_s:
                continue
            if found and self.watch.stop():
                break
            for some in self._with_node_sums(menus, least, case):
                found += self._placed(maker, some, least, case, slower=bool(slower))
            if not self._is_close(found, least):
                found += self._free(maker, least, case)
        return found

    def _placed(
        self, maker: Maker, menus: list[Menu], least: Least, case: Case, *, slower: bool
    ) -> list[Candidate]:
        """What the homes of menus that are open in a case lead to, with owners and without."""
        training, capacity = self.cost.training, least.tables.capacity
        kept = [_kept_in(menu, case.phase, maker.cluster, training) for menu in menus]
        if not all(menu.homes for menu in kept):
            return []
        found = self._made(maker, kept, capacity, _priced(kept, capacity, case))
        even = [menu if menu.owned.all() else menu.without_owners() for menu in kept]
        best_s = min((self.rank_s(one) for one in found), default=np.inf)
        if slower or (least.without_owners_s < best_s and all(menu.homes for menu in even)):
            found += self._made(maker, even, capacity, best_prices(even, capacity)[0])
        return found

    def _is_close(self, found: list[Candidate], least: Least) -> bool:
        """Whether so many tables are so well placed that homes which few rows want hardly count."""
        best_s = min((self.rank_s(one) for one in found), default=np.inf)
        return len(self.profile.stats) > MANY_TABLES and best_s <= CLOSE * least.seconds

    def _free(self, maker: Maker, least: Least, case: Case) -> list[Candidate]:
        """What rows choose if every home is open, where it fits."""
        bands = [freely(least.pricing, least.tables, priced) for priced in (case.fits, case.proof)]
        if self.cluster.servers:
            bands += list(shared_with_servers(least, case))
        refilled = [maker.refilled(one) for one in bands]
        return self.priced_candidates(one for one in refilled if one is not None)

    def _made(
        self, maker: Maker, menus: list[Menu], capacity: Floats, priced: Priced
    ) -> list[Candidate]:
        """What prices lead to; with less memory if, row by row, it does not fit quite."""
        for slack in SLACKS:
            choice = priced if slack == 1.0 else best_prices(menus, slack * capacity)[0]
            fast = len(self.cluster.device.tiers) - 1
            scarce = scarcity_prices(menus, capacity, choice, fast)
            made = maker.bands(menus, choice, scarce)
            if made is not None:
                return self.priced_candidates([made])
        return []

    def _menu(self, stats: TableStats, cluster: Cluster, least: Least) -> Menu:
        homes, weight = self._homes(stats, cluster), least.pricing.sync_weight
        return menu_of(stats, self.profile, cluster, self.cost, homes, weight)

    def _with_node_sums(self, menus: list[Menu], least: Least, case: Case) -> Iterator[list[Menu]]:
        """Menus with sums that stay in nodes, where the bound has some; of few tables also without.

        Tables about which something is decided go without.
        """
        wanted, weight = self.options.constraints, least.pricing.sync_weight
        found = []
        for index, menu in enumerate(menus):
            name, masses = menu.stats.table.name, node_masses(least.tables, case.proof, index)
            if masses and wanted.pin(name) == NO_PIN and not wanted.one_owner(name):
                facts = (self.profile, self.cluster, self.cost, weight)
                found.append(with_node_sums(menu, masses, *facts))
            else:
                found.append(menu)
        yield found
        if len(menus) <= BOTH_WAYS and found != menus:
            yield menus

    def _homes(self, stats: TableStats, cluster: Cluster) -> list[MenuHome]:
        """The homes that the table's pins leave."""
        wanted, name = self.options.constraints, stats.table.name
        pooled, pin = stats.table.pooling != "none", wanted.pin(name)
        homes = menu_homes(pooled, cluster, wanted.one_owner(name) and cluster.num_devices > 1)
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

    def hopeful(self, others: Iterable[Bands], found: list[Candidate]) -> Iterator[Bands]:
        """Those that fit and are not known to be slower: what tables ask for adds up.

        So where the busiest of them alone take longer than the best step, all do.
        """
        best_s = min((one.cost.step_s for one in found), default=np.inf)
        for bands in others:
            some = (step_cost(bands, part, self.cluster, None, self.cost) for part in self._busiest)
            if self.fits(bands) and all(cost.step_s < SURELY * best_s for cost in some):
                yield bands

    @cached_property
    def _busiest(self) -> list[Profile]:
        """The tables that are looked up most, some and more; none of a few tables."""
        stats = self.profile.stats
        if len(stats) <= MANY_TABLES:
            return []
        moved = [one.lookups_per_sample * one.table.stored_row_bytes for one in stats]
        order = np.argsort(moved, kind="stable")[::-1].tolist()
        counts = [math.ceil(share * len(stats)) for share in BUSIEST]
        parts = [tuple(stats[at] for at in sorted(order[:count])) for count in counts]
        return [replace(self.profile, stats=part) for part in parts]

    def rank_s(self, one: Candidate) -> float:
        """Seconds by which placements are ranked: of mean loads, or the mean over steps."""
        mean_loads = self.options.objective == "step"
        return one.cost.step_s if mean_loads else one.cost.spread.expected_s

    def violations(self, one: Candidate, links: bool = True) -> list[str]:
        """What a placement does not keep to; the limits of links may be left aside."""
        said = self.options.constraints.violations(one.bands, one.cost)
        return [text for text in said if links or not text.startswith("links.")]

    def refilled(self, bands: Bands) -> Bands:
        """The same placement with what is left of fast memory filled."""
        maker = Maker(self.profile, self.cluster, self.options, self.cost)
        return maker.refilled(bands) or bands

    def best_of(self, found: list[Candidate]) -> Candidate | None:
        """The fastest; but of those with a few bands less one that is hardly slower."""
        best = min(found, key=self.rank_s, default=None)
        for other in sorted(found, key=self.rank_s):
            assert best is not None
            if 0 < best.bands_more(other) <= FEW and not best.worth_cutting(other):
                best = other
        return best

    def that_fit(self, found: list[Candidate]) -> list[Candidate]:
        """Where buffers and remap tables must fit, too, those with room for them, if any."""
        if self.options.fit == "rows":
            return found
        return [one for one in found if not any(over_capacity(one.cost))] or found

    def simpler(self, found: list[Candidate]) -> list[Candidate]:
        """The best placements with nothing in stages or with fewer bands: less work, more bytes."""
        maker = Maker(self.profile, self.cluster, self.options, self.cost)
        simpler = []
        for one in sorted(found, key=self.rank_s)[:STARTS]:
            if any(band.staged for mine in one.bands.values() for band in mine):
                simpler.append(_changed(one.bands, staged=False))
            if self.cluster.work.band_s and (joined := maker.with_ends_joined(one.bands)):
                simpler.append(joined)
        return self.priced_candidates(simpler)

    def searched(self, found: list[Candidate], least: Least) -> list[Candidate]:
        """Better placements of a small problem, from the best ones on."""
        homes = len(homes_of(self.cluster, pooled=True))
        if not found or len(self.profile.stats) * homes > MOST_LOADS:
            return []
        best_s = min(map(self.rank_s, found))
        near = best_s <= (1 + NEAR_ENOUGH) * least.seconds
        if near and len(self.profile.stats) > MOST_TABLES:
            return []
        better: list[Candidate] = []
        starts: list[Candidate] = []
        for one in sorted(found, key=self.rank_s):  # those that take as long lead to the same
            if not starts or self.rank_s(one) > (1 + ALIKE) * self.rank_s(starts[-1]):
                starts.append(one)
        search: Search | None = None
        for start in starts[:STARTS]:
            if self.rank_s(start) > WORTH_SEARCHING * self.rank_s(starts[0]):
                break
            if search is None or self.options.constraints.pins_owners:
                search = self._search(start, least)
            if search.is_small:
                found_bands = search.improve(start.bands)
                fitting = [b for b in (tidied(found_bands), found_bands) if self.fits(b)]
                better += self.priced_candidates(fitting)
        first = min(found, key=self.rank_s)
        return [one for one in better if one.worth_cutting(first)]

    def _search(self, start: Candidate, least: Least) -> Search:
        """A search with as many ways as it can go through."""
        for owners in OWNERS:
            ways = [self._ways(stats, start, least, owners) for stats in self.profile.stats]
            search = Search(self.profile, self.cluster, self.cost, self.options.reserved, ways)
            if 2 * search.first_loads <= MOST_LOADS:
                break
        return search

    def fits(self, bands: Bands) -> bool:
        """Whether there is room for all rows."""
        return Maker(self.profile, self.cluster, self.options, self.cost).fits(bands)

    def _ways(self, stats: TableStats, start: Candidate, least: Least, owners: int) -> list[Way]:
        """Homes that pins leave, with every owner; a table that has one owner keeps it.

        Of those that differ in seconds only, the ones that are best for some rows, and the direct
        one beside any that takes more rounds; none that is far from the best for all rows. All, if
        there are few.
        """
        costs, seconds, _ = least.pricing.seconds(stats, least.tables.weights)
        shelf = np.array([least.tables.shelf_of(home) for home in costs.homes])
        near = (seconds <= WORTH_TRYING * seconds.min(axis=0)).any(axis=1)
        open_homes = np.flatnonzero(np.isfinite(seconds).any(axis=1)).tolist()
        kept = set(open_homes if len(open_homes) <= FEW_HOMES else ())
        for row in set(shelf.tolist()):
            mine = np.flatnonzero((shelf == row) & near)
            direct = mine[[not costs.homes[at].band.staged for at in mine.tolist()]]
            for some in (mine, direct):
                if len(some):
                    kept.update(some[seconds[some].argmin(axis=0)].tolist())
        name, dim = stats.table.name, stats.table.embedding_dim
        busy_s = start.cost.time.memory_s + start.cost.time.work_s
        homes = [costs.homes[at] for at in sorted(kept)]
        if self.options.constraints.one_owner(name) and self.cluster.num_devices > 1:
            owner = start.bands[name][0].members
            return [(home.band.model_copy(update={"members": owner}),) for home in homes]
        return [way for home in homes for way in owned(home, self.cluster, dim, busy_s, owners)]

    def within_limits(self, found: list[Candidate], bound: float) -> tuple[Candidate, float]:
        """The best placement that keeps to the limits of links, and a bound for all that do."""
        limits = self.options.constraints.links
        factor = 1.0
        while limits and factor < SLOWEST:
            factor *= 4
            bound = max(bound, self._limited(factor, found))
            if any(not self.violations(one) for one in found):
                for finer in (factor / 2, factor / 1.4, factor * 1.4):
                    bound = max(bound, self._limited(finer, found))
                break
        kept = [one for one in found if not self.violations(one)]
        if not kept:
            least = min(found, key=self._excess, default=None)
            costs = None if least is None else least.cost
            raise why_infeasible(self.profile, self.cluster, self.options, costs)
        return min(kept, key=self.rank_s), bound

    def _limited(self, factor: float, found: list[Candidate]) -> float:
        """A bound from links with limits that look so much slower; what it leads to is added."""
        slower = dict.fromkeys(self.options.constraints.links, factor)
        cluster = _slowed(self.cluster, slower)
        least = least_of(self.profile, cluster, self.options, self.cost)
        found += self.made(least, slower)
        return least.seconds - self._fines(factor)

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


def _priced(menus: list[Menu], capacity: Floats, case: Case) -> Priced:
    """What a part of all homes comes to at the prices of all; at its own, if that does not fit."""
    found = at_prices(menus, capacity, case.fits.prices)
    return found if (found.used_bytes <= capacity).all() else best_prices(menus, capacity)[0]


def _kept_in(menu: Menu, phase: Phase, cluster: Cluster, training: bool) -> Menu:
    """The homes that take part in no other rounds."""
    tree = tree_of(cluster)
    kept = []
    for home in menu.homes:
        kind = int(tree.kinds[tree.holders_of(home.band)[0, 0]])
        kept.append(float(phase.allows(phase_of(home.band, kind, tree, training))))
    return menu.only(np.array(kept))


def _changed(bands: Bands, **fields: object) -> Bands:
    return {n: tuple(b.model_copy(update=fields) for b in mine) for n, mine in bands.items()}


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
    profile: Profile, cluster: Cluster, options: PlanOptions, least: Least, made: list[Candidate]
) -> list[Bands]:
    """What other methods place, but for those that are known to be worse than what was made."""
    from rowtier.plan.make import METHODS, planner

    found = []
    best_s = min((one.cost.step_s for one in made), default=np.inf)
    for method in METHODS:
        if method == "joint" or method.endswith("milp"):
            continue
        if method in CUT_SEQUENCES and all(s.table.pooling != "none" for s in profile.stats):
            continue
        if method in WITHOUT_OWNERS and least.without_owners_s >= best_s:
            continue
        for split in (False, True) if method in CUT_TABLES else (options.split,):
            wishes = options.model_copy(update={"split": split})
            with contextlib.suppress(InfeasibleError):
                bands = planner(method)(profile, cluster, wishes).bands
                if method in DEALT:
                    found.append(_changed(bands, order="spread"))
                if method not in DEALT or profile.form == "counted":
                    found.append(bands)
    return found

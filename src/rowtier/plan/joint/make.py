"""`joint`: exchange, scope, members, columns and tier together, for the least step time.

1. bound every plan (bound.py): for each case of rounds, prices of memory at which all rows fit;
2. let every table choose at them (place/): rows that go by partial sums get owners, large
   tables are divided and all pieces packed; everything else is spread over all devices; what is
   left of fast memory is filled;
3. compare with what the other methods give, by the same cost model, and return the best: joint is
   never worse than any of them;
4. search small problems through (search.py).

Pins take homes off the menu. A limit on a link is a price on its bytes: the link is taken to
be slower than it is, until what is chosen keeps to the limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rowtier.band import Bands
from rowtier.cluster import Cluster
from rowtier.cost.options import DEFAULTS, CostOptions
from rowtier.cost.step import StepCost, step_cost
from rowtier.errors import InvalidError
from rowtier.plan.constraints import over_capacity
from rowtier.plan.infeasible import why_infeasible
from rowtier.plan.joint.bound import BoundCase, Least, allowed_shelves, is_possible, least_of
from rowtier.plan.joint.certificate import certificate_of
from rowtier.plan.joint.dual import Priced, best_prices, scarcity_prices
from rowtier.plan.joint.free import freely, shared_with_servers
from rowtier.plan.joint.homes import homes_of
from rowtier.plan.joint.limits import fines_s, slowed
from rowtier.plan.joint.owners import Way, owned
from rowtier.plan.joint.place.fill import tidied
from rowtier.plan.joint.place.make import Maker
from rowtier.plan.joint.place.menu import menus_of
from rowtier.plan.joint.problem import sums_of_devices
from rowtier.plan.joint.rivals import MANY_TABLES, Rivals
from rowtier.plan.joint.search import MOST_LOADS, Search
from rowtier.plan.joint.space import MOST_TABLES
from rowtier.plan.joint.whole import changed, elsewhere
from rowtier.plan.options import PlanOptions
from rowtier.plan.pack import packed
from rowtier.plan.plan import Plan
from rowtier.plan.watch import ALONE, Watch
from rowtier.profile.curve import Floats
from rowtier.profile.profile import Profile, TableStats

SLACKS = (1.0, 0.95)  # of memory that prices may fill, the first with which all rows fit
STARTS = 2  # of the search through small problems
MOVED = 4  # searches from one of them, between which tables that are kept whole may be moved
ALIKE = 1e-9  # of a step, by which starts that are the same may differ
CLOSE = 1.1  # times the bound: where so many are, free choices lead to no better plan
BOTH_WAYS = 200  # tables that are placed with sums inside nodes and without
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
        found += planning.rivals(least, found)
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

    def made(self, least: Least, *, limited: bool = False) -> list[Candidate]:
        """The placements that prices lead to, in every case that may be better than those before.

        All cases, if links with a limit are taken to be slower than they are.
        """
        cluster = least.pricing.cluster
        maker = Maker(self.profile, cluster, self.options, self.cost, self.watch.stop)
        found: list[Candidate] = []
        for case in least.cases:
            best_s = min((self.rank_s(one) for one in found), default=np.inf)
            if not limited and least.seconds_of(case.phase) >= best_s:
                continue
            if found and self.watch.stop():
                break
            found += self._placed(maker, least, case, limited=limited)
            if not self._is_close(found, least):
                found += self._free(maker, least, case)
        return found

    def _placed(
        self, maker: Maker, least: Least, case: BoundCase, *, limited: bool
    ) -> list[Candidate]:
        """What prices lead to in a case, with owners and without.

        For few tables all of it once more without sums inside groups, if there are some.
        """
        tables, allowed = least.placeable, allowed_shelves(least.tables, case.phase)
        owners, inside = (shelves * allowed for shelves in sums_of_devices(tables))
        chosen = case.fits if tables is least.tables else best_prices(tables, allowed)[0]
        goes_inside = inside[chosen.shelf].any()
        found: list[Candidate] = []
        for kept in (allowed, allowed - inside)[: 1 + (goes_inside and tables.count <= BOTH_WAYS)]:
            if kept is not allowed:
                chosen = best_prices(tables, kept)[0]
            found += self._made(maker, least, kept, chosen)
            best_s = min((self.rank_s(one) for one in found), default=np.inf)
            even = kept - owners
            if (limited or least.without_owners_s < best_s) and is_possible(tables, even):
                found += self._made(maker, least, even, best_prices(tables, even)[0])
        return found

    def _is_close(self, found: list[Candidate], least: Least) -> bool:
        """Whether so many tables are so well placed that homes which few rows want hardly count."""
        best_s = min((self.rank_s(one) for one in found), default=np.inf)
        return len(self.profile.stats) > MANY_TABLES and best_s <= CLOSE * least.seconds

    def _free(self, maker: Maker, least: Least, case: BoundCase) -> list[Candidate]:
        """What rows choose if every home is open, where it fits."""
        bands = [freely(least.pricing, least.tables, priced) for priced in (case.fits, case.proof)]
        if self.cluster.servers:
            bands += list(shared_with_servers(least, case))
        refilled = [maker.refilled(one) for one in bands]
        return self.priced_candidates(one for one in refilled if one is not None)

    def _made(self, maker: Maker, least: Least, allowed: Floats, priced: Priced) -> list[Candidate]:
        """What prices lead to; with less memory if, row by row, it does not fit quite."""
        fast = len(self.cluster.device.tiers) - 1
        for slack in SLACKS:
            tables = least.placeable
            if slack < 1:
                tables = replace(tables, capacity=slack * tables.capacity)
                priced = best_prices(tables, allowed)[0]
            menus, chosen = menus_of(least.pricing, tables, priced.prices, allowed)
            scarce, last = scarcity_prices(tables, chosen, fast, allowed), slack == SLACKS[-1]
            made = maker.bands(menus, chosen, scarce, evenly=last)
            if made is not None and maker.cluster is not self.cluster:  # links that look slower
                return self.priced_candidates([made[0]])
            if made is not None:
                return self._kept([Candidate(*made)])
        return []

    def priced_candidates(self, found: Iterable[Bands]) -> list[Candidate]:
        """Placements with their costs; those that pins forbid are left out."""
        facts = (self.profile, self.cluster, None, self.cost)
        return self._kept(Candidate(bands, step_cost(bands, *facts)) for bands in found)

    def _kept(self, found: Iterable[Candidate]) -> list[Candidate]:
        """Those that pins do not forbid."""
        return [one for one in found if not self.violations(one, links=False)]

    def rivals(self, least: Least, found: list[Candidate]) -> list[Candidate]:
        """What other methods place where it fits, but for those that are known to be slower."""
        best_s = min((one.cost.step_s for one in found), default=np.inf)
        rivals = Rivals(self.profile, self.cluster, self.options, self.cost)
        bands = rivals.bands(best_s, least.without_owners_s)
        return self.priced_candidates(one for one in bands if self.fits(one))

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
            if self._waits and any(band.staged for mine in one.bands.values() for band in mine):
                simpler.append(changed(one.bands, staged=False))
            if self.cluster.work.band_s and (joined := maker.with_ends_joined(one.bands)):
                simpler.append(joined)
        return self.priced_candidates(simpler)

    @property
    def _waits(self) -> bool:
        """Whether rounds take time, whatever they carry."""
        levels = any(level.latency_s or level.message_s for level in self.cluster.levels)
        return levels or self.cluster.work.round_s > 0

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
            if search is None or self._whole_tables:
                search = self._search(start, least)
            if search.is_small:
                better += self._improved(search, start, least)
        first = min(found, key=self.rank_s)
        return [one for one in better if one.worth_cutting(first)]

    def _improved(self, search: Search, start: Candidate, least: Least) -> list[Candidate]:
        """What a search finds; tables that pins keep whole are moved between two searches."""
        better: list[Candidate] = []
        for _ in range(MOVED):
            bands = search.improve(start.bands)
            fitting = [b for b in (tidied(bands), bands) if self.fits(b)]
            better += self.priced_candidates(fitting)
            best = min([start, *better], key=self.rank_s)
            start = self._moved(best)
            if start is best:
                break
            better.append(start)
            search = self._search(start, least)
        return better

    def _moved(self, best: Candidate) -> Candidate:
        """The same with tables that pins keep whole on other devices, as far as that is better."""
        while True:
            places = elsewhere(best.bands, self._whole_tables, self.cluster.num_devices)
            others = [bands for bands in places if self.fits(bands)]
            other = min(self.priced_candidates(others), key=self.rank_s, default=best)
            if self.rank_s(other) >= (1 - WORTH_CUTTING) * self.rank_s(best):
                return best
            best = other

    @cached_property
    def _whole_tables(self) -> list[tuple[str, ...]]:
        """Tables that pins keep on one device, whichever; together those that they keep so."""
        wanted, names = self.options.constraints, [s.table.name for s in self.profile.stats]
        if self.cluster.num_devices == 1:
            return []
        alone = [(n,) for n in names if wanted.one_owner(n) and wanted.group(n) is None]
        return [g for g in (*wanted.keep_together, *alone) if wanted.device(g[0]) is None]

    def _search(self, start: Candidate, least: Least) -> Search:
        """A search with as many ways as it can go through."""
        for owners in OWNERS:
            ways = [self._ways(stats, start, least, owners) for stats in self.profile.stats]
            common = (self.profile, self.cluster, self.cost, self.options.constraints)
            search = Search(*common, self.options.reserved, ways)
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
        known, seconds, _ = least.pricing.seconds(stats, least.tables.weights)
        costs, shelf = known.costs, known.shelf
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
        cluster = slowed(self.cluster, slower)
        least = least_of(self.profile, cluster, self.options, self.cost)
        found += self.made(least, limited=True)
        return least.seconds - fines_s(self.cluster, self.options.constraints.links, factor)

    def _excess(self, one: Candidate) -> float:
        return max(self.options.constraints.excess(one.cost).values(), default=1.0)

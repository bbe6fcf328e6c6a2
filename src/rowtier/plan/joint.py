"""`joint`: exchange, scope, members, columns and tier together, for the least step time.

1. price every way to keep a row, per table and bucket (solve/menu.py);
2. find prices for memory at which everything fits; they prove a lower bound;
3. let every table choose: rows that go by partial sums get one owner each, and owners are
   balanced; everything else is spread over all devices alike;
4. compare with what the other methods give, by the same cost model, and return the best:
   joint is never worse than any of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.memory import Room, band_bytes
from rowtier.cost.options import CostOptions
from rowtier.cost.step import step_cost
from rowtier.errors import InfeasibleError
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Certificate, Plan
from rowtier.plan.solve.menu import Home, Menu, homes_of, memories, menu_of
from rowtier.plan.solve.owners import Course, Owners, cut_pieces
from rowtier.plan.solve.prices import Priced, best_prices, least_latency_s
from rowtier.plan.solve.refill import refill, tidied
from rowtier.plan.solve.small import Search
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile
from rowtier.units import show_bytes

SLACKS = (1.0, 0.95)  # of memory that prices may fill: owners never fill it evenly
PIECES = (1.0, 4.0)  # per device: more of them are easier to balance, but repeat ids or sums
MOST_WITHOUT_OWNER = 24
STARTS = 3  # of the search through small problems


def plan(profile: Profile, cluster: Cluster, options: PlanOptions) -> Plan:
    """Place every row for the least step time, with a bound on how much less is possible."""
    cost = CostOptions()
    menus = [menu_of(stats, profile, cluster, cost) for stats in profile.stats]
    capacity = np.array([size for _, size in memories(cluster, options.reserve)])
    priced, bound = best_prices(menus, capacity)
    found: list[Bands] = []
    maker = _Maker(profile, cluster, options, cost)
    scarce = bool((priced.used_bytes > min(SLACKS) * capacity).any())
    for slack in SLACKS if scarce else SLACKS[:1]:
        choice = priced if slack == 1.0 else best_prices(menus, slack * capacity)[0]
        found += [bands for pieces in PIECES if (bands := maker.bands(menus, choice, pieces))]
    even = [menu.without_owners() for menu in menus]
    found += filter(None, [maker.bands(even, best_prices(even, capacity)[0], 1)])
    found += _other_methods(profile, cluster, options)
    if not found:
        raise _infeasible(profile, cluster, options.reserve)
    costs = [step_cost(bands, profile, cluster, None, cost).step_s for bands in found]
    search = Search(profile, cluster, cost, options.reserve, _all_homes(profile, cluster))
    if search.is_small:
        for start in np.argsort(costs, kind="stable")[:STARTS].tolist():
            found.append(tidied(search.improve(found[start])))
            costs.append(step_cost(found[-1], profile, cluster, None, cost).step_s)
    best = int(np.argmin(costs))
    bound += least_latency_s(profile, cluster, cost)
    certificate = Certificate(
        view="step",
        objective=costs[best],
        bound=max(0.0, min(bound, costs[best])),
        binding=_binding(priced, capacity, cluster),
    )
    return Plan.build("joint", profile, cluster, found[best], certificate)


def _all_homes(profile: Profile, cluster: Cluster) -> list[tuple[Home, ...]]:
    """Every home of each table, those that leave it to one owner included."""
    kinds = [stats.table.pooling != "none" for stats in profile.stats]
    owned = {k: [h for h in homes_of(k, cluster, True) if not h.by_sums] for k in set(kinds)}
    return [(*homes_of(kind, cluster), *owned[kind]) for kind in kinds]


def _other_methods(profile: Profile, cluster: Cluster, options: PlanOptions) -> list[Bands]:
    from rowtier.plan.make import METHODS, planner

    found = []
    for method in METHODS:
        if method == "joint" or method.endswith("milp"):
            continue
        try:
            found.append(planner(method)(profile, cluster, options).bands)
        except InfeasibleError:
            continue
    return found


@dataclass(frozen=True, eq=False)
class _Maker:
    """Turns choices into bands."""

    profile: Profile
    cluster: Cluster
    options: PlanOptions
    cost: CostOptions

    def bands(self, menus: list[Menu], priced: Priced, pieces: float) -> Bands | None:
        """The bands that were chosen; a table that finds no owner goes without one."""
        menus, choices = list(menus), list(priced.choices)
        for _ in range(MOST_WITHOUT_OWNER):
            found = self._try(menus, choices, pieces)
            if not isinstance(found, int):
                return found
            menus[found] = menus[found].without_owners()
            choices[found] = menus[found].choose(priced.prices, 0)
        return None

    def _try(self, menus: list[Menu], choices: list[Ints], pieces: float) -> Bands | int | None:
        """The bands, the index of a table that found no owner, or None if rows do not fit."""
        room = Room(self.cluster, self.options.reserve)
        bands: dict[str, list[Band]] = {}
        courses: list[Course] = []
        for index, (menu, choice) in enumerate(zip(menus, choices, strict=True)):
            table, runs = menu.stats.table, list(menu.runs(choice, offset=index))
            bands[table.name] = [band for band, owned in runs if not owned]
            if any(owned for _, owned in runs):
                courses.append(Course(menu, choice, index, self.profile, self.cluster, self.cost))
            for band in bands[table.name]:
                needed = band_bytes(table, band, self.cluster)
                if not room.fits(needed, band.tier):
                    return None
                room.take(needed, band.tier)
        fixed = {name: tuple(mine) for name, mine in bands.items()}
        even = step_cost(fixed, self.profile, self.cluster, None, self.cost).time.memory_s
        owners = Owners(self.cluster, room, even[: self.cluster.num_devices])
        without = owners.deal(cut_pieces(courses, pieces, self.cluster))
        if without is not None:
            return without
        owners.level()
        for piece, owner in zip(owners.pieces, owners.owners, strict=True):
            bands[piece.course.menu.stats.table.name] += piece.bands(owner)
        refilled = refill(bands, self.profile, self.cluster, room, self.cost)
        # Where a spread band begins and ends decides who has a row more, so look again.
        unjoined = {name: tuple(sorted(b, key=_place)) for name, b in refilled.items()}
        for candidate in (tidied(refilled), unjoined, tidied(bands)):
            if self._fits(candidate):
                return candidate
        return None

    def _fits(self, bands: Bands) -> bool:
        room = Room(self.cluster, self.options.reserve)
        for stats in self.profile.stats:
            for band in bands[stats.table.name]:
                needed = band_bytes(stats.table, band, self.cluster)
                if not room.fits(needed, band.tier):
                    return False
                room.take(needed, band.tier)
        return True


def _place(band: Band) -> tuple[int, tuple[int, int]]:
    return band.start, band.columns or (0, 0)


def _binding(priced: Priced, capacity: Floats, cluster: Cluster) -> str:
    """What stops the plan from being better, in words."""
    names = [name for name, _ in memories(cluster)]
    dearest = int(np.argmax(priced.prices * capacity))
    if priced.used_bytes[dearest] > 0.99 * capacity[dearest]:
        saved_s = priced.prices[dearest] * 2**30
        return f"capacity of {names[dearest]}: one more GiB per device saves {saved_s:.3g} s a step"
    return "bandwidths and latencies: more memory would save nothing"


def _infeasible(profile: Profile, cluster: Cluster, reserve: float) -> InfeasibleError:
    needed = sum(stats.table.stored_bytes for stats in profile.stats)
    there = sum(size for _, size in memories(cluster, reserve)) * cluster.num_devices
    less = f" (with {reserve:.0%} reserved)" if reserve else ""
    return InfeasibleError(
        f"the tables need {show_bytes(needed)} and {cluster.name!r} has {show_bytes(there)}{less}: "
        "add capacity, a tier or devices"
    )

"""`recshard`: every table on one device, its hottest rows in fast memory, no device slow.

"RecShard: Statistical Feature-Based Memory Optimization for Industry-Scale Neural
Recommendation" (arXiv 2201.10095, ASPLOS 2022) poses the problem: a step takes as long as
the slowest device, and a device as long as reading what its rows are asked for. Every
lookup counts, nothing is coalesced, links are free. The paper solves a mixed-integer
program (`recshard_milp`); here it is vector balancing in the dual, which `solve` explains.

With `split` tables may be cut: large ones into every k-th rank, others into runs of ranks
where that makes devices even, and rows that burden a device alone into columns.

Devices hold the rows; servers are passed over. A tier that devices share is divided
evenly among them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from rowtier.band import Bands
from rowtier.cluster import Cluster
from rowtier.cost.step import step_cost
from rowtier.cost.views import access_time_s
from rowtier.errors import InfeasibleError
from rowtier.plan.binding import binding
from rowtier.plan.covers import RECSHARD_CUT, RECSHARD_WHOLE
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import GIGA, Certificate, Plan, Price, Proof
from rowtier.plan.recshard.bound import Bound, pool_bound, whole_bound
from rowtier.plan.recshard.heat import Heat, heat_of
from rowtier.plan.recshard.layout import PieceLayout, Solution
from rowtier.plan.recshard.machine import Machine, machine_of, roomiest, tiers_by_speed
from rowtier.plan.recshard.parts import TablePart, bands_of, heavy_rows_cut, item_of, whole_tables
from rowtier.plan.recshard.split import solve_split
from rowtier.plan.recshard.whole import solve_whole
from rowtier.profile.curve import Floats
from rowtier.profile.profile import Profile
from rowtier.units import show_bytes

# A row that takes more than this share of a device's time alone is cut by columns: as few as
# possible at first, for every piece keeps optimizer state of its own.
HEAVY = (1 / 2, 1 / 16, 1 / 128)


def plan(profile: Profile, cluster: Cluster, options: PlanOptions) -> Plan:
    """Place tables whole, or cut them if `options.split`, and bound what could be better."""
    problem = RecShardProblem.of(profile, cluster, options)
    if options.split:
        parts, solution = _split(problem)
    else:
        parts, solution = problem.parts, _whole(problem)
    if solution is None:
        raise problem.not_packed()
    return problem.certified("recshard", parts, solution.layout, solution.bound)


def _whole(problem: RecShardProblem, wanted: float = np.inf) -> Solution | None:
    heat, machine, options = problem.heat, problem.machine, problem.options
    if (heat.rows * heat.row_bytes).max() > machine.sizes.sum():
        return None
    return solve_whole(heat, machine, options.tolerance, options.seed, wanted)


def _split(problem: RecShardProblem) -> tuple[list[TablePart], Solution | None]:
    """Cut tables, unless whole ones come as close to the bound or closer."""
    heat, machine, tolerance = problem.heat, problem.machine, problem.options.tolerance
    bound = pool_bound(heat, machine, whole=False)
    enough = bound.seconds * (1 + tolerance)
    if whole_bound(heat, machine).seconds <= enough:
        whole = _whole(problem, enough)
        if whole is not None and whole.seconds <= enough:
            return problem.parts, whole._replace(bound=bound)
    found: list[tuple[list[TablePart], Solution]] = []
    tried = 0
    for share in HEAVY:
        parts, heat = problem.without_heavy_rows(share * bound.seconds)
        if len(parts) == tried:
            continue
        cut, tried = solve_split(heat, machine, bound, tolerance), len(parts)
        if cut is not None:
            found.append((parts, cut))
            if cut.seconds <= enough:
                return parts, cut
    whole = _whole(problem)
    if whole is not None:
        found.append((problem.parts, whole._replace(bound=bound)))
    return min(found, key=lambda entry: entry[1].seconds) if found else (problem.parts, None)


@dataclass(frozen=True, eq=False)
class RecShardProblem:
    """Tables and devices, in words and as the solver sees them."""

    profile: Profile
    cluster: Cluster
    options: PlanOptions
    machine: Machine
    parts: list[TablePart]  # the whole tables
    heat: Heat

    @classmethod
    def of(cls, profile: Profile, cluster: Cluster, options: PlanOptions) -> RecShardProblem:
        """The problem, if there is room for the tables at all."""
        machine = machine_of(cluster, options.reserved)
        parts = whole_tables(profile)
        heat = heat_of([item_of(part, profile, cluster.num_devices) for part in parts])
        problem = cls(profile, cluster, options, machine, parts, heat)
        problem._check_room()
        return problem

    def without_heavy_rows(self, seconds: float) -> tuple[list[TablePart], Heat]:
        """The tables, with rows that take more than so many seconds cut by columns."""
        devices, cost = self.cluster.num_devices, float(self.machine.costs[0])
        hottest = self.heat.density[self.heat.first[:-1]] * self.heat.row_bytes * cost
        if (hottest <= seconds).all():
            return self.parts, self.heat
        items = [item_of(part, self.profile, devices) for part in self.parts]
        parts = [
            piece
            for part, item in zip(self.parts, items, strict=True)
            for piece in heavy_rows_cut(part, item, cost, seconds)
        ]
        return parts, heat_of([item_of(part, self.profile, devices) for part in parts])

    def _check_room(self) -> None:
        needed = self.heat.rows * self.heat.row_bytes
        device = int(self.machine.sizes.sum())
        total, room = int(needed.sum()), device * self.machine.devices
        if total > room:
            each = show_bytes(-(-(total - room) // self.machine.devices))
            raise InfeasibleError(
                f"the tables need {show_bytes(total)} and {self._devices} have "
                f"{show_bytes(room)}: {show_bytes(total - room)} is missing; add {each} of "
                "memory to each device, a tier or devices"
            )
        largest = int(np.argmax(needed))
        if needed[largest] > device and not self.options.split:
            raise InfeasibleError(
                f"table {self._name(largest)!r} needs {show_bytes(int(needed[largest]))} on one "
                f"device and each of {self._devices} has {show_bytes(device)}: add capacity or a "
                "tier, or let tables be cut (--split)"
            )

    @property
    def _devices(self) -> str:
        less = str(self.options.reserved)
        reserved = f" ({less})" if less else ""
        shared = [tier.name for tier in self.cluster.device.tiers if tier.shared_by]
        even = f" with equal parts of {', '.join(shared)}" if shared else ""
        servers = " (servers are passed over)" if self.cluster.servers else ""
        name = f"the {self.machine.devices} devices of {self.cluster.name!r}"
        return f"{name}{servers}{reserved}{even}"

    def _name(self, item: int) -> str:
        return self.parts[item].stats.table.name

    def not_packed(self) -> InfeasibleError:
        """What to say when bytes fit in total, but no way was found to divide them."""
        needed = self.heat.rows * self.heat.row_bytes
        whole = "" if self.options.split else ", or let tables be cut (--split)"
        return InfeasibleError(
            f"no way was found to pack {len(needed)} tables of {show_bytes(int(needed.sum()))}, "
            f"the largest {show_bytes(int(needed.max()))}, onto {self._devices}, "
            f"{show_bytes(int(self.machine.sizes.sum()))} each: add capacity or devices{whole}"
        )

    def certified(
        self, method: str, parts: list[TablePart], layout: PieceLayout, bound: Bound
    ) -> Plan:
        """The plan of a layout, its time computed anew from the bands."""
        bands = bands_of(parts, layout, self.cluster, self.options.constraints)
        plan = Plan.build(method, self.profile, self.cluster, bands)
        objective = float(recshard_time_s(plan).max())
        bound = self._for_all_plans(bound)
        assert objective >= bound.seconds, f"{objective} beats {bound}"
        certificate = Certificate(
            view="recshard",
            objective=objective,
            bound=bound.seconds,
            covers=RECSHARD_CUT if self.options.split else RECSHARD_WHOLE,
            binding=self._binding(bound, bands),
            prices=self._prices(bound),
            proof=self._proof(bound),
        )
        return dataclasses.replace(plan, certificate=certificate)

    def _for_all_plans(self, bound: Bound) -> Bound:
        """The bound, unless some plan may use more memory than was counted on."""
        roomy = roomiest(self.cluster, self.options.reserved)
        pairs = ((roomy.sizes, self.machine.sizes), (roomy.largest, self.machine.largest))
        if all(np.array_equal(*pair) for pair in pairs):
            return bound
        pool = pool_bound(self.heat, roomy, whole=not self.options.split)
        return min(bound, pool, key=lambda one: one.seconds)

    def _proof(self, bound: Bound) -> Proof | None:
        """That the bound of tables that may be cut can be recomputed: it takes no prices."""
        return Proof(prices=()) if self.options.split and bound.reason == "pool" else None

    def _prices(self, bound: Bound) -> tuple[Price, ...]:
        """What the bound falls by with one more GB of each memory on every device."""
        found = []
        now = pool_bound(self.heat, self.machine, whole=False)
        for index, tier in enumerate(tiers_by_speed(self.cluster)):
            saves = 0.0
            if bound.reason == "pool":
                sizes = self.machine.sizes.copy()
                sizes[index] += int(GIGA)
                more = pool_bound(self.heat, self.machine._replace(sizes=sizes), whole=False)
                saves = max(0.0, now.seconds - more.seconds)
            found.append(Price(resource=tier.name, unit="GB", saves=saves))
        return tuple(found)

    def _binding(self, bound: Bound, bands: Bands) -> str:
        names = [repr(self._name(item)) for item in bound.items]
        if bound.reason == "alone":
            return f"table {names[0]} cannot be split"
        if bound.reason == "together":
            return f"tables {', '.join(names[:-1])} and {names[-1]} cannot have a device each"
        if bound.reason == "apart":
            return "large tables leave room on their devices that no other table can use"
        if bound.reason == "tried":
            return "whole tables: every placement was tried"
        fast = tiers_by_speed(self.cluster)[0].name
        read = sum(p.stats.curve.positions * p.stats.table.stored_row_bytes for p in self.parts)
        if read > int(self.machine.sizes[0]) * self.machine.devices:
            cost = step_cost(bands, self.profile, self.cluster)
            return binding(cost, fast, f"{fast} of all devices", self.options.reserved)
        return f"bandwidth of {fast}: all rows that are read fit into it"


def recshard_time_s(plan: Plan) -> Floats:
    """RecShard's objective per holder: seconds a step to read every lookup from its tier."""
    return access_time_s(plan.bands, plan.profile, plan.cluster, plan.order)

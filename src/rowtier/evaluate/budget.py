"""The best plan that moves at most so many bytes away from an earlier one.

Between the plan that keeps every row where it is and the one that is made anew there is a path of
plans, which does not depend on the budget: the budget says how far along it to go. So a larger
budget never gives a slower plan.

Every table has a ladder of offers: to stay; to let some of the rows that became hot change places
with rows that cooled, in the bands that it has; to do so with all of them; to take its new bands,
with rows that are on a fitting holder staying there; to take its new bands as they are. What an
offer saves is estimated table by table at the prices that a byte of each memory and link has in a
step, and the offer that saves most for each byte that it moves is taken next, if it fits. The plans
on that path, and on the one back from the new plan, are priced as a whole by the cost model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from rowtier.band import Bands
from rowtier.cluster import Cluster
from rowtier.cost.options import CostOptions
from rowtier.cost.step import StepCost, step_cost
from rowtier.cost.views import assumptions, objective
from rowtier.errors import InfeasibleError, UserError
from rowtier.evaluate.diff import Diff, diff
from rowtier.evaluate.drift import kept_plan
from rowtier.evaluate.path import OfferLadder, paths
from rowtier.evaluate.rearrange import Dealer, Swaps
from rowtier.evaluate.relabel import relabelled
from rowtier.plan.carried import statistics_of
from rowtier.plan.check import refuse_mistakes
from rowtier.plan.claims import kept_mistakes
from rowtier.plan.make import make_plan
from rowtier.plan.moved import certified_within
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.plan.watch import ALONE, Watch
from rowtier.profile.order import RowOrder
from rowtier.profile.profile import Profile
from rowtier.reading import StrPath
from rowtier.units import show_bytes

_RUNGS = 24  # shares of a table's rows that change places, where there are few tables
_NEW_BANDS = 3  # offers that change the bands: rows stay, rows stay if that is even, as planned
_PRICED = 600  # tables whose rungs are priced at least
_ALL_MIXES = 200  # of some offers of each table, that are all priced
_SAME = 1e-9  # of a step: not worth a byte


@dataclass(frozen=True, eq=False)
class Stage:
    """A plan on the way from an old plan to a new one."""

    plan: Plan
    moved_bytes: int  # to other holders and to other tiers of the same
    objective: float  # seconds of a step, in the view that the new plan is certified in


@dataclass(frozen=True, eq=False)
class MovePath:
    """Plans between an old one and one that is made anew, those that move least first."""

    old: Plan
    fresh: Plan
    stages: tuple[Stage, ...]

    def within(self, budget_bytes: int) -> Stage:
        """The fastest that moves at most so many bytes; of those that are as fast, the first."""
        found = [stage for stage in self.stages if stage.moved_bytes <= budget_bytes]
        if not found:
            least = min((stage.moved_bytes for stage in self.stages), default=0)
            raise InfeasibleError(
                f"no plan that keeps to the constraints and fits moves at most "
                f"{show_bytes(budget_bytes)}: {show_bytes(least)} are needed at least; raise "
                "--move-budget"
            )
        best = min(stage.objective for stage in found)
        return next(stage for stage in found if stage.objective <= best * (1 + _SAME))

    def plan_within(self, budget_bytes: int) -> Plan:
        """The same as a finished plan, with its certificate."""
        stage = self.within(budget_bytes)
        plan = certified_within(stage.plan, self.fresh, stage.objective, budget_bytes)
        moved = {
            "from": self.old.fingerprint,
            "budget_bytes": budget_bytes,
            "moved_bytes": stage.moved_bytes,
        }
        plan = replace(plan, origin={**plan.origin, "moved": moved})
        refuse_mistakes(plan, f"plan {plan.method!r}")
        return plan


def plan_within(
    profile: Profile | StrPath,
    cluster: Cluster | StrPath,
    old: Plan | StrPath,
    budget_bytes: int | None = None,
    method: str = "joint",
    options: PlanOptions | None = None,
    *,
    fresh: Plan | None = None,
    progress: Callable[[float], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Plan:
    """Place every row, and move at most so many bytes away from where an old plan has them.

    Bytes count as `diff` counts them, with optimizer state, in every copy: those that a holder
    gets which it does not have, and those that change the tier on their holder. With a budget of 0
    every row stays; without one it is what `make_plan` gives: `fresh`, if that is known.
    """
    watched: Any = {"progress": progress, "stop": stop}
    if budget_bytes is None:
        return fresh or make_plan(profile, cluster, method, options, **watched)
    if budget_bytes < 0:
        raise UserError(f"a budget of {budget_bytes:,} bytes: give 0 or more")
    path = move_path(profile, cluster, old, method, options, fresh=fresh, **watched)
    return path.plan_within(budget_bytes)


def move_path(
    profile: Profile | StrPath,
    cluster: Cluster | StrPath,
    old: Plan | StrPath,
    method: str = "joint",
    options: PlanOptions | None = None,
    *,
    fresh: Plan | None = None,
    progress: Callable[[float], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> MovePath:
    """Find plans between an old one and the one that `make_plan` gives, for every budget.

    If that one is known, it is given as `fresh`, made with the same options.
    """
    old = old if isinstance(old, Plan) else Plan.load(old)
    profile = profile if isinstance(profile, Profile) else Profile.load(profile)
    machine = cluster if isinstance(cluster, Cluster) else Cluster.open(cluster)
    options = options or PlanOptions()
    watch = Watch(progress or ALONE.progress, stop or ALONE.stop)
    kept = kept_plan(old, profile, machine)
    if fresh is None:
        fresh = make_plan(
            profile, machine, method, options,
            progress=lambda share: watch.progress(share / 2), stop=watch.stop,
        )  # fmt: skip
    fresh.check_made_for(profile=profile, cluster=machine)
    return _Between(old, kept, fresh, profile, options, watch).path()


@dataclass(frozen=True, eq=False)
class _Between:
    """What is known of both ends, and how plans between them are made and priced."""

    old: Plan
    kept: Plan
    fresh: Plan
    counted: Profile
    options: PlanOptions
    watch: Watch

    def path(self) -> MovePath:
        """All plans that were looked at and that fit, without those that others outdo."""
        levels = self._levels
        ladder = OfferLadder(
            [level.cost for level in levels],
            np.array([level.bytes_by_table for level in levels]).T,
            self.fresh.cluster,
            self.options.reserved,
            levels[0].used_by_table,
            [level.used_by_table for level in levels[-_NEW_BANDS:]],
        )
        stages = [stage for stage in self._ends() if stage is not None]
        mixes = self._mixes(ladder)
        for done, mix in enumerate(mixes):
            self.watch.progress(0.5 + 0.5 * done / len(mixes))
            if self.watch.stop():
                break
            stage = self._priced(mix)
            if stage is not None:
                stages.append(stage)
        stages.sort(key=lambda stage: (stage.moved_bytes, stage.objective))
        return MovePath(self.old, self.fresh, tuple(_undominated(stages)))

    def _mixes(self, ladder: OfferLadder) -> list[tuple[int, ...]]:
        """Which offer each table takes, for every plan to be priced."""
        found = dict.fromkeys(paths(ladder))
        each = int(_ALL_MIXES ** (1 / ladder.tables) * (1 + 1e-9))  # offers of a table
        if each > 1:
            offers = [ladder.distinct(table, each) for table in range(ladder.tables)]
            found |= dict.fromkeys(product(*offers))
        return [mix for mix in found if any(mix)]

    def _ends(self) -> Iterator[Stage | None]:
        yield self._priced((0,) * len(self.counted.stats))
        moves = diff(self.old, self.fresh)
        yield self._stage(self.fresh, _bytes(moves))

    def _priced(self, mix: tuple[int, ...]) -> Stage | None:
        """The plan in which each table takes one of its offers; None if it does not fit."""
        names = [stats.table.name for stats in self.counted.stats]
        chosen = [self._levels[level] for level in mix]
        bands = {name: level.bands[name] for name, level in zip(names, chosen, strict=True)}
        order = {name: level.order[name] for name, level in zip(names, chosen, strict=True)}
        stats = tuple(level.profile.stats[at] for at, level in enumerate(chosen))
        moved = sum(int(level.bytes_by_table[at]) for at, level in enumerate(chosen))
        profile = replace(self._levels[0].profile, stats=stats)
        return self._stage(self._plan(bands, order, profile), moved)

    def _plan(self, bands: Bands, order: RowOrder, profile: Profile) -> Plan:
        return replace(self.fresh, bands=bands, order=order, profile=profile, certificate=None)

    def _stage(self, plan: Plan, moved_bytes: int) -> Stage | None:
        facts = (plan.bands, plan.profile, plan.cluster, plan.order)
        cost = step_cost(*facts, self.assumed)
        if next(kept_mistakes(replace(plan, certificate=None), cost), None) is not None:
            return None
        view = self.view
        found = cost.step_s
        if view != "step":
            found = objective(view, *facts, assumptions(view, self.assumed))
        return Stage(plan, moved_bytes, found)

    @property
    def view(self) -> str:
        """The measure by which plans are chosen."""
        return "step" if self.fresh.certificate is None else self.fresh.certificate.view

    @property
    def assumed(self) -> CostOptions:
        """What the cost model is to assume."""
        return self.options.cost

    @cached_property
    def _planning(self) -> Profile:
        """The statistics that the new plan was made from."""
        profile = self.counted.with_batches(self.options.batches)
        return profile.for_planning(self.options.confidence)

    @cached_property
    def _levels(self) -> list[_Level]:
        """All tables at each offer: to stay, some swaps, all of them, and new bands."""
        kept, fresh = self.kept, self.fresh
        assert kept.order is not None
        assert fresh.order is not None
        renamed = relabelled(kept, fresh)
        swaps = {s.table.name: Swaps.of(kept, s) for s in self._planning.stats}
        offers: list[tuple[Bands, RowOrder]] = [(kept.bands, kept.order)]
        rungs = max(3, min(_RUNGS, _PRICED // len(swaps)))
        for share in np.geomspace(1e-3, 1.0, rungs):
            some = {name: each.first(round(share * each.count)) for name, each in swaps.items()}
            offers.append((kept.bands, some))
        for bands, even in product((kept.bands, renamed.bands), (False, True)):
            dealt = {
                s.table.name: Dealer(kept, s.table.name).order(bands[s.table.name], s, even=even)
                for s in self._planning.stats
            }
            offers.append((bands, dealt))
        offers.append((fresh.bands, fresh.order))
        return [self._level(bands, order) for bands, order in offers]

    def _level(self, bands: Bands, order: RowOrder) -> _Level:
        plan = self._plan(bands, order, self._planning)
        plan = replace(plan, profile=statistics_of(plan, self._planning))
        cost = step_cost(bands, plan.profile, plan.cluster, order, self.assumed)
        return _Level(bands, order, plan.profile, cost, diff(self.old, plan), plan.cluster)


@dataclass(frozen=True, eq=False)
class _Level:
    """One offer of every table, as a whole plan that need not fit."""

    bands: Bands
    order: RowOrder
    profile: Profile
    cost: StepCost
    moves: Diff
    cluster: Cluster

    @cached_property
    def bytes_by_table(self) -> np.ndarray:
        """What each table moves."""
        return np.array([table.moved_bytes + table.within_bytes for table in self.moves.tables])

    @cached_property
    def used_by_table(self) -> np.ndarray:
        """Tables × holders × tiers: bytes of rows."""
        from rowtier.cost.memory import used_bytes

        alone = [replace(self.profile, stats=(stats,)) for stats in self.profile.stats]
        return np.stack([used_bytes(self.bands, one, self.cluster) for one in alone])


def _bytes(moves: Diff) -> int:
    return moves.moved_bytes + int(moves.within_bytes.sum())


def _undominated(stages: list[Stage]) -> Iterator[Stage]:
    """Of plans by what they move, those that are faster than all that move less."""
    best = np.inf
    for stage in stages:
        if stage.objective < best * (1 - _SAME):
            best = stage.objective
            yield stage

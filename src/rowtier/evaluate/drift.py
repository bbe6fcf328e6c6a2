"""Data has moved on: what a plan costs now, what the best one would, and whether moving pays.

Both plans are priced on the new statistics, each with the row order that it has: rows of the old
plan are where they were put, however hot they are now. Every price is asked again with the fewest
and the most distinct rows that batches are expected to have, and with hot rows at the low end of
their interval. A saving counts if it is one in all of these cases; the two plans are compared case
by case, as the same data would meet either of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rowtier.cluster import Cluster
from rowtier.cost.options import CostOptions
from rowtier.cost.step import StepCost, step_cost
from rowtier.errors import MismatchError
from rowtier.evaluate.diff import Diff, diff
from rowtier.evaluate.figures import frame_of
from rowtier.evaluate.hot_sets import TableDrift, table_drifts
from rowtier.evaluate.intervals import with_distinct_rows
from rowtier.evaluate.phrases import ms
from rowtier.plan.carried import carried, check_same_tables, statistics_of, with_batches_of
from rowtier.plan.check import find_mistakes
from rowtier.plan.make import DOUBT, METHODS, make_plan
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.profile.profile import Profile
from rowtier.reading import StrPath
from rowtier.units import show_bytes, show_count

if TYPE_CHECKING:
    import pyarrow as pa

_SAME = 1e-9  # of a step: a saving that is none
_OF_95 = 1.96  # deviations, nineteen times in twenty
_OF_P99 = 2.326  # deviations from p50 to p99


@dataclass(frozen=True)
class StepRange:
    """Seconds a step, and from where to where they are expected to be."""

    seconds: float
    low_s: float
    high_s: float

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        return dict(vars(self))

    def __str__(self) -> str:
        return f"{ms(self.seconds)} ({ms(self.low_s)} to {ms(self.high_s)})"


@dataclass(frozen=True, eq=False)
class PlanDrift:
    """What new statistics make of a plan, and what another plan would be worth."""

    kept: Plan  # the plan, on the new statistics
    best: Plan  # as it was made
    planned_s: float  # seconds a step that the plan was made for
    step: StepRange  # of the plan as it is
    best_step: StepRange
    saving: StepRange  # a step, if the best plan takes its place
    move: Diff
    tables: tuple[TableDrift, ...]  # those that lost most lookups of their hot set first
    notes: tuple[str, ...] = ()

    @property
    def pays(self) -> bool:
        """Whether the best plan is surely faster."""
        return self.saving.low_s > _SAME * self.step.seconds

    @property
    def move_s(self) -> float:
        """Seconds that the move takes."""
        return self.move.move_s

    @property
    def break_even_steps(self) -> float:
        """Steps after which the move has paid; infinite if it is not sure that it ever does."""
        return self.move_s / self.saving.seconds if self.pays else math.inf

    @property
    def verdict(self) -> str:
        """One sentence: what a step takes, what it could take, and when moving has paid."""
        takes = f"a step takes {self.step} on the new statistics"
        if not self.pays:
            return f"keep the plan: {takes}, and {self._why_not}"
        moving = f"moving {show_bytes(self._bytes)} takes {ms(self.move_s)}"
        steps = math.ceil(self.break_even_steps)
        return (
            f"{takes} and {self.best_step} with the best plan, {self._faster:.1%} less; {moving} "
            f"and has paid after {show_count(steps)} step{'s' * (steps != 1)}"
        )

    @property
    def _bytes(self) -> int:
        return self.move.moved_bytes + int(self.move.within_bytes.sum())

    @property
    def _faster(self) -> float:
        return self.saving.seconds / self.step.seconds if self.step.seconds else 0.0

    @property
    def _why_not(self) -> str:
        if self.saving.seconds <= _SAME * self.step.seconds:
            return f"no better one was found ({ms(self.best_step.seconds)})"
        return (
            f"the best plan's {ms(self.best_step.seconds)} may be no less: it saves between "
            f"{_signed(self.saving.low_s)} and {_signed(self.saving.high_s)} a step"
        )

    @cached_property
    def says(self) -> list[str]:
        """What else there is to know, line by line."""
        more = self.step.seconds / self.planned_s - 1 if self.planned_s else 0.0
        said = [f"when it was planned, a step took {ms(self.planned_s)}: now {more:+.1%}"]
        if self.pays or self._bytes:
            said.append(f"to the best plan {self.move.verdict}")
        if self.best.certificate is not None and self.best.certificate.view == "step":
            gap = self.best.certificate.gap
            said.append(f"the best plan is at most {gap:.2%} above the best possible")
        moved = [table for table in self.tables if table.moved]
        said += [table.verdict for table in moved[:3]]
        if not moved:
            said.append("no table's hot set changed")
        return said

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        steps = self.break_even_steps
        return {
            "verdict": self.verdict,
            "notes": list(self.notes),
            "says": self.says,
            "pays": self.pays,
            "planned_s": self.planned_s,
            "step": self.step.to_dict(),
            "best_step": self.best_step.to_dict(),
            "saving": self.saving.to_dict(),
            "break_even_steps": steps if math.isfinite(steps) else None,
            "moved_bytes": self.move.moved_bytes,
            "within_bytes": int(self.move.within_bytes.sum()),
            "move_s": self.move_s,
            "move": self.move.to_dict(),
            "tables": [table.to_dict() for table in self.tables],
        }

    def to_frame(self) -> pa.Table:
        """One line per table, as an Arrow table."""
        lines = [table.to_dict() for table in self.tables]
        return frame_of({key: [line[key] for line in lines] for key in lines[0]})

    def __repr__(self) -> str:
        return f"<PlanDrift: {self.verdict}>"


def drift(
    plan: Plan | StrPath,
    profile: Profile | StrPath,
    *,
    best: Plan | None = None,
    cluster: Cluster | StrPath | None = None,
    method: str | None = None,
    options: PlanOptions | None = None,
    cost_options: CostOptions | None = None,
    progress: Callable[[float], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> PlanDrift:
    """Say what a plan costs on new statistics, and whether it pays to move to the best plan.

    The best plan is made with `method` and `options`, those of the plan if not given, for the
    plan's cluster or another, unless it is given as `best`. All steps are priced under
    `cost_options`, which are the plan's assumptions if not given.
    """
    plan = plan if isinstance(plan, Plan) else Plan.load(plan)
    profile = profile if isinstance(profile, Profile) else Profile.load(profile)
    machine = cluster if cluster is None or isinstance(cluster, Cluster) else Cluster.open(cluster)
    kept = kept_plan(plan, profile, machine)
    seen = with_batches_of(plan, profile)
    if best is None:
        wishes = options or PlanOptions.of(plan).model_copy(update={"batches": seen.batches})
        chosen = method or (plan.method if plan.method in METHODS else "joint")
        best = make_plan(seen, kept.cluster, chosen, wishes, progress=progress, stop=stop)
    else:
        check_same_tables(best, profile)
    assumed = plan.assumed if cost_options is None else cost_options
    cases = [seen, *with_distinct_rows(seen), seen.for_planning(DOUBT)]
    costs = [[_cost(one, case, assumed) for case in cases] for one in (kept, best)]
    savings = [old.step_s - new.step_s for old, new in zip(*costs, strict=True)]
    now = replace(best, profile=statistics_of(best, seen))
    return PlanDrift(
        kept,
        best,
        _cost(plan, None, assumed).step_s,
        _expected(costs[0], seen, kept.cluster),
        _expected(costs[1], seen, kept.cluster),
        StepRange(savings[0], min(savings), max(savings)),
        diff(plan, best),
        tuple(table_drifts(plan, kept, now, seen)),
        tuple(_notes(plan, seen, machine)),
    )


def kept_plan(plan: Plan, profile: Profile, cluster: Cluster | None = None) -> Plan:
    """The plan on new statistics, every row where it is; refused where the cluster has no room."""
    kept = carried(plan, profile, cluster)
    if kept.cluster != plan.cluster:
        wrong = next(iter(find_mistakes(kept)), None)
        if wrong is not None:
            raise MismatchError(
                f"the plan cannot stay as it is on cluster {kept.cluster.name!r}: {wrong}. Give "
                "the cluster that it was made for, or plan anew and look at `rowtier diff`"
            )
    return kept


def _cost(plan: Plan, statistics: Profile | None, options: CostOptions) -> StepCost:
    seen = plan.profile if statistics is None else statistics_of(plan, statistics)
    return step_cost(plan.bands, seen, plan.cluster, plan.order, options)


def _expected(costs: list[StepCost], profile: Profile, cluster: Cluster) -> StepRange:
    """All cases, and as much more as so few profiled steps may be off by chance."""
    found, spread = [cost.step_s for cost in costs], costs[0].spread
    steps = min(s.samples for s in profile.stats) / (profile.batch_size * cluster.num_devices)
    deviation_s = max(0.0, spread.p99_s - spread.p50_s) / _OF_P99
    chance_s = _OF_95 * deviation_s / math.sqrt(max(steps, 1e-9))
    return StepRange(found[0], max(0.0, min(found) - chance_s), max(found) + chance_s)


def _notes(plan: Plan, profile: Profile, cluster: Cluster | None) -> Iterator[str]:
    if profile.batch_size != plan.profile.batch_size:
        yield (
            f"the plan was made for batches of {plan.profile.batch_size:,} samples and the profile "
            f"is for {profile.batch_size:,}: both plans are priced with the latter"
        )
    if profile.batches != plan.profile.batches:
        yield (
            "the plan was made for neighbouring samples, which the profile does not know: both "
            "plans are priced with shuffled batches"
        )
    if cluster is not None and cluster != plan.cluster:
        yield f"both plans are priced on cluster {cluster.name}, not the one the plan was made for"


def _signed(seconds: float) -> str:
    return f"−{ms(-seconds)}" if seconds < 0 else ms(seconds)

"""The usual placements of the same tables on the same machine, to measure a plan against."""

from __future__ import annotations

from dataclasses import dataclass

from rowtier.errors import InfeasibleError
from rowtier.evaluate.baselines import plan_baseline
from rowtier.evaluate.compare import PlanLoad
from rowtier.plan.plan import Plan

BASELINES = ("row-wise", "row-wise-coalesced", "table-wise", "size", "lookup", "size-lookup")


@dataclass(frozen=True, eq=False)
class Baseline:
    """A baseline's load, or why it has none."""

    name: str
    load: PlanLoad | None = None
    why: str = ""

    @property
    def step_s(self) -> float:
        """Seconds of a step of mean loads; only of a baseline that fits."""
        assert self.load is not None
        return self.load.step_s


def make_baselines(plan: Plan) -> tuple[Baseline, ...]:
    """Plan every baseline on the plan's own statistics and cluster."""
    return tuple(_baseline(name, plan) for name in BASELINES if name != plan.method)


def _baseline(name: str, plan: Plan) -> Baseline:
    try:
        made = plan_baseline(name, plan)
    except InfeasibleError as error:
        return Baseline(name, why=str(error))
    return Baseline(name, PlanLoad.of(name, made))

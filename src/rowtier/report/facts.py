"""Everything a report says about one plan, gathered once from the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from rowtier.cost.memory import Pool, pools
from rowtier.cost.step import StepCost, step_cost
from rowtier.evaluate.compare import PlanLoad
from rowtier.evaluate.shares import step_shares
from rowtier.plan.plan import Plan
from rowtier.profile.look import TableLook, look_at_all
from rowtier.report.baselines import Baseline, make_baselines


@dataclass(frozen=True, eq=False)
class Facts:
    """A plan with its cost, and the baselines it is measured against."""

    plan: Plan
    cost: StepCost
    load: PlanLoad
    baselines: tuple[Baseline, ...]

    @classmethod
    def of(cls, plan: Plan, baselines: bool = True) -> Facts:
        """Ask the cost model; planning the baselines is what takes time."""
        cost = step_cost(plan.bands, plan.profile, plan.cluster, plan.order, plan.assumed)
        others = make_baselines(plan) if baselines else ()
        return cls(plan, cost, PlanLoad.of(plan.method, plan), others)

    @cached_property
    def shares(self) -> list[float]:
        """Each table's share of the step time."""
        return step_shares(self.cost)

    @cached_property
    def looks(self) -> list[TableLook]:
        """What the statistics say of each table."""
        return look_at_all(self.plan.profile)

    @cached_property
    def by_importance(self) -> list[int]:
        """Numbers of the tables, those with the largest share of the step first."""
        return sorted(range(len(self.shares)), key=lambda index: -self.shares[index])

    @cached_property
    def pools(self) -> list[tuple[Pool, dict[str, int]]]:
        """Bytes in every memory, by what they are for."""
        kinds, columns = vars(self.cost.memory), self.plan.cluster.tier_names
        return [
            (
                pool,
                {
                    kind: int(held[list(pool.holders), columns.index(pool.tier)].sum())
                    for kind, held in kinds.items()
                },
            )
            for pool in pools(self.plan.cluster)
        ]

    @property
    def best_baseline(self) -> Baseline | None:
        """The fastest baseline that fits."""
        fitting = [b for b in self.baselines if b.load is not None]
        return min(fitting, key=lambda b: b.step_s, default=None)

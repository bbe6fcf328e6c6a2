"""Plans side by side: step time, bytes and lookups per device, and which plan is the fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowtier.cost.lookups import served_lookups
from rowtier.cost.memory import used_bytes
from rowtier.cost.step import step_cost
from rowtier.errors import MismatchError, UserError
from rowtier.plan.plan import Plan


@dataclass(frozen=True, eq=False)
class Load:
    """What one plan asks of every holder: rows are holders, columns are tiers."""

    name: str
    tiers: tuple[str, ...]
    used_bytes: NDArray[np.int64]
    lookups: NDArray[np.float64]  # per step
    memory_s: float  # of a step, on the slowest holder
    links_s: float

    @classmethod
    def of(cls, name: str, plan: Plan) -> Load:
        """Measure a plan by the cost model."""
        used = used_bytes(plan.bands, plan.profile, plan.cluster)
        lookups = served_lookups(plan.bands, plan.profile, plan.cluster, plan.order)
        time = step_cost(plan.bands, plan.profile, plan.cluster, plan.order).time
        tiers = plan.cluster.tier_names
        return cls(name, tiers, used, lookups, time.slowest_memory_s, time.links_s)

    @property
    def step_s(self) -> float:
        """Expected seconds of a step."""
        return self.memory_s + self.links_s

    @property
    def busiest_lookups(self) -> float:
        """Lookups per step on the busiest holder."""
        return float(self.lookups.sum(axis=1).max())

    @property
    def imbalance(self) -> float:
        """Busiest holder over the mean of those that hold anything."""
        busy = self.lookups.sum(axis=1)[self.used_bytes.sum(axis=1) > 0]
        return float(busy.max() / busy.mean()) if busy.sum() else 1.0

    @property
    def slow_share(self) -> float:
        """Share of all lookups that a tier other than the fastest serves."""
        total = self.lookups.sum()
        return float(self.lookups[:, 1:].sum() / total) if total else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        return {
            "plan": self.name,
            "step_s": self.step_s,
            "memory_s": self.memory_s,
            "links_s": self.links_s,
            "busiest_lookups": self.busiest_lookups,
            "imbalance": self.imbalance,
            "slow_share": self.slow_share,
            "tiers": list(self.tiers),
            "used_bytes": self.used_bytes.tolist(),
            "lookups": self.lookups.tolist(),
        }


@dataclass(frozen=True, eq=False)
class Comparison:
    """Loads of several plans for the same tables on the same cluster."""

    loads: tuple[Load, ...]

    @property
    def best(self) -> Load:
        """The plan with the shortest step."""
        return min(self.loads, key=lambda load: load.step_s)

    @property
    def verdict(self) -> str:
        """One sentence: which plan is the fastest, and how much faster than the next."""
        best, *others = sorted(self.loads, key=lambda load: load.step_s)
        said = f"{best.name} takes {1e3 * best.step_s:.4g} ms a step"
        if not others or not best.step_s:
            return said
        following, last = others[0], others[-1]
        said += f", {following.step_s / best.step_s:.2f}× faster than {following.name}"
        if last is not following:
            said += f" and {last.step_s / best.step_s:.2f}× faster than {last.name}"
        return said

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        return {"verdict": self.verdict, "plans": [load.to_dict() for load in self.loads]}


def compare(plans: Mapping[str, Plan]) -> Comparison:
    """Compare plans made for the same tables and the same cluster."""
    if not plans:
        raise UserError("there is no plan to compare; give at least one")
    first_name, first = next(iter(plans.items()))
    for name, plan in plans.items():
        if plan.made_for != first.made_for:
            raise MismatchError(
                f"{first_name} was made for profile {first.made_for.profile} and cluster "
                f"{first.made_for.cluster}, {name} for profile {plan.made_for.profile} and cluster "
                f"{plan.made_for.cluster}: compare plans of the same two"
            )
    return Comparison(tuple(Load.of(name, plan) for name, plan in plans.items()))

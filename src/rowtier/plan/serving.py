"""Plans for clusters that only read: no gradients, no optimizer state, copies that never change.

A plan that serves is made from the same statistics of the same tables, but for two facts: tables
keep no optimizer state, and a step is one that reads (`CostOptions(training=False)`). Both are set
in one place each, here and in `PlanOptions.cost`, and everything else follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rowtier.errors import UserError
from rowtier.plan.options import PlanOptions
from rowtier.profile.profile import Profile
from rowtier.tables import DType

SERVED_TYPES = ("fp32", "fp16")  # of rows in plans that serve
STATELESS = "sgd"  # the optimizer that keeps nothing beside a row
TRAINING_ONLY: Mapping[str, str] = {
    "flexshard": "its objective is link time of training, sync of copies counted",
    "sca": "beside copies it leaves room for gradients that wait for sync",
    "torchrec": "TorchRec's planner counts a training step",
}


def refuse_unservable(method: str, options: PlanOptions) -> None:
    """Refuse a method whose objective is about training alone, if the plan is to serve."""
    if options.serve and method in TRAINING_ONLY:
        raise UserError(
            f"{method} makes no plans that serve: {TRAINING_ONLY[method]}; plan with joint, or "
            "without --serve and look at it with `rowtier predict --read-only`"
        )


def served(profile: Profile, rows_as: DType | None = None) -> Profile:
    """The same statistics of tables that keep no optimizer state, and rows of another type."""
    stats = []
    for one in profile.stats:
        facts = {"optimizer": STATELESS, "dtype": rows_as or one.table.dtype}
        stats.append(replace(one, table=one.table.model_copy(update=facts)))
    return replace(profile, stats=tuple(stats))


def seen_as(profile: Profile, options: PlanOptions) -> Profile:
    """A profile as a planner with these wishes sees its tables."""
    return served(profile, options.rows_as) if options.serve else profile

"""The main path: a profile and a cluster in, a checked plan out.

A planner is a pure function `(profile, cluster, options) -> Plan`, one per file. It
prints nothing, reads no file and no clock, so equal inputs give equal plans.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from rowtier.cluster import Cluster
from rowtier.errors import UserError
from rowtier.files import StrPath
from rowtier.plan.check import find_mistakes
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.profile.profile import Profile

Planner = Callable[[Profile, Cluster, PlanOptions], Plan]

METHODS: Mapping[str, str] = {
    "row-wise": "every table cut into equal blocks of rows over all devices",
    "table-wise": "whole tables dealt to the devices in turn",
    "size": "RecShard's baseline: whole tables, largest first, balancing bytes",
    "lookup": "RecShard's baseline: whole tables, balancing dim × pooling",
    "size-lookup": "RecShard's baseline: whole tables, balancing dim × pooling × log10 rows",
    "recshard": "RecShard's problem, solved in the dual: hot rows fast, no device slow",
    "recshard-milp": "RecShard's mixed-integer program on HiGHS, for comparison",
    "flexshard": "FlexShard: sequence tables in three bands by heat, for the least link time",
    "sca": "Stochastic Communication Avoidance: coalescing and the best cache, fewest bytes",
    "joint": "everything together: exchange, scope, owners, columns and tier, least step time",
}


def make_plan(
    profile: Profile | StrPath,
    cluster: Cluster | StrPath,
    method: str = "joint",
    options: PlanOptions | None = None,
) -> Plan:
    """Place every row of a profile's tables on a cluster, and check the result.

    Both may be given as a path, and the cluster by the name of a preset.
    """
    options = options or PlanOptions()
    if not isinstance(profile, Profile):
        profile = Profile.load(profile)
    if not isinstance(cluster, Cluster):
        cluster = Cluster.open(cluster)
    plan = planner(method)(profile.for_planning(options.confidence), cluster, options)
    mistakes = [str(mistake) for mistake in find_mistakes(plan)]
    assert not mistakes, f"{method} made a broken plan: {mistakes[:3]}"
    return plan


def planner(method: str) -> Planner:
    """The planner of a name; `METHODS` lists them."""
    if method not in METHODS:
        raise UserError(f"no method {method!r}; there are {', '.join(METHODS)}")
    found: Planner = importlib.import_module(f"rowtier.plan.{method.replace('-', '_')}").plan
    return found

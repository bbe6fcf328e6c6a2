"""The main path: a profile and a cluster in, a checked plan out.

A planner is a pure function `(profile, cluster, options) -> Plan`, one per file. It
prints nothing, reads no file and no clock, so equal inputs give equal plans.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rowtier.cluster import Cluster
from rowtier.cost.step import step_cost
from rowtier.cost.views import assumptions, objective
from rowtier.errors import InfeasibleError, InvalidError, UserError
from rowtier.plan.constraints import Constraints, ReservedBytes, over_capacity
from rowtier.plan.covers import leaving
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Caution, Certificate, MadeFor, Plan
from rowtier.plan.serving import refuse_unservable, seen_as
from rowtier.plan.watch import ALONE, Watch
from rowtier.profile.arranged import by_heat
from rowtier.profile.profile import Profile
from rowtier.reading import StrPath
from rowtier.units import show_bytes

MOST_ROUNDS = 5  # of leaving more room for buffers
DOUBT = 0.9  # the interval whose low end says what the statistics leave open

# Of a profile, a cluster and options; one that takes long takes a `watch`, too, by that name.
Planner = Callable[..., Plan]

METHODS: Mapping[str, str] = {
    "row-wise": "every table cut into equal blocks of rows over all devices",
    "row-wise-coalesced": "the same blocks, each row fetched once per device and step",
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
    method: str | Planner = "joint",
    options: PlanOptions | None = None,
    *,
    progress: Callable[[float], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Plan:
    """Place every row of a profile's tables on a cluster, and check the result.

    Both may be given as a path, and the cluster by the name of a preset. `method` is one of
    `METHODS`, or a planner of your own: a function of a profile, a cluster and options that
    returns a plan. `joint` tells `progress` what share of its work is done, and returns the best
    plan it has soon after `stop` says so; so can a planner that takes a `watch`.
    """
    planned_by = planner(method)
    name = method if isinstance(method, str) else _name_of(method)
    watch = Watch(progress or ALONE.progress, stop or ALONE.stop)
    options = options or PlanOptions()
    if not isinstance(profile, Profile):
        profile = Profile.load(profile)
    if not isinstance(cluster, Cluster):
        cluster = Cluster.open(cluster)
    if any(stats.arranged for stats in profile.stats):
        profile = by_heat(profile)
    if options.batches != profile.batches:
        profile = profile.with_batches(options.batches)
    mistakes = list(options.constraints.mistakes(profile, cluster))
    if mistakes:
        raise InvalidError("constraints", mistakes)
    refuse_unservable(name, options)
    made_for = MadeFor(profile=profile.fingerprint, cluster=cluster.fingerprint)
    profile = seen_as(profile, options)
    plan = replace(_planned(profile, cluster, planned_by, options, watch), made_for=made_for)
    if plan.certificate is not None:
        plan = replace(plan, certificate=_with_doubts(plan, profile, planned_by, options))
    if options.constraints != Constraints():
        plan = replace(plan, constraints=options.constraints)
    if options.unusual:
        plan = replace(plan, origin={**plan.origin, "options": options.unusual})
    return plan


def _planned(
    profile: Profile, cluster: Cluster, planned_by: Planner, options: PlanOptions, watch: Watch
) -> Plan:
    """A plan that keeps to the constraints, and leaves room for all that must fit."""
    watched = {"watch": watch} if "watch" in inspect.signature(planned_by).parameters else {}
    asked = len(options.constraints.reserve)
    for _ in range(MOST_ROUNDS):
        statistics = profile.for_planning(options.confidence)
        plan = _checked(planned_by, planned_by(statistics, cluster, options, **watched))
        if options.fit == "rows" and options.constraints == Constraints():
            return plan
        cost = step_cost(plan.bands, statistics, cluster, plan.order, options.cost)
        said = next(options.constraints.violations(plan.bands, cost), None)
        if said is not None:
            raise UserError(f"{plan.method} takes no such constraint ({said}); plan with joint")
        lack = list(over_capacity(cost)) if options.fit == "all" else []
        if not lack:
            return _that_leaves(plan, options.constraints.reserve[asked:])
        # A placement that is made anew fills memory otherwise, so leave a quarter more.
        more = [m.model_copy(update={"amount_bytes": m.amount_bytes * 5 // 4}) for m in lack]
        options = options.leaving(more)
        if any(options.constraints.mistakes(profile, cluster)):
            break  # that is more than the tier has
    raise InfeasibleError(
        f"exchange buffers, outputs and remap tables do not fit beside rows on {cluster.name!r}: "
        f"{lack[0].tier} lacks {show_bytes(lack[0].amount_bytes)}; lower batch_size or add to it"
    )


def _that_leaves(plan: Plan, left: tuple[ReservedBytes, ...]) -> Plan:
    """The plan with a certificate that says what was left free beside rows: so is its bound."""
    certificate = plan.certificate
    if certificate is None or not left:
        return plan
    changes = {"left": left, "covers": leaving(certificate.covers, left)}
    return replace(plan, certificate=certificate.model_copy(update=changes))


def _with_doubts(
    plan: Plan, profile: Profile, planned_by: Planner, options: PlanOptions
) -> Certificate:
    """The certificate, with what the statistics leave open and what caution costs."""
    certificate = plan.certificate
    assert certificate is not None
    if profile.form != "counted":
        return certificate

    def cost(of: Plan, confidence: float | None) -> float:
        view, statistics = certificate.view, profile.for_planning(confidence)
        return objective(
            view, of.bands, statistics, of.cluster, of.order, assumptions(view, options.cost)
        )

    expected, low = cost(plan, None), cost(plan, DOUBT)
    changes: dict[str, Any] = {"from_statistics": abs(low / expected - 1) if expected else 0.0}
    if options.confidence is not None:
        unafraid = options.model_copy(update={"confidence": None})
        bold = _planned(profile, plan.cluster, planned_by, unafraid, ALONE)
        changes["caution"] = Caution(
            confidence=options.confidence,
            expected=expected,
            expected_without=cost(bold, None),
            pessimistic=cost(plan, options.confidence),
            pessimistic_without=cost(bold, options.confidence),
        )
    return certificate.model_copy(update=changes)


def planner(method: str | Planner) -> Planner:
    """The planner of a name; `METHODS` lists them. A function is taken as it is."""
    if callable(method):
        return method
    if method not in METHODS:
        raise UserError(
            f"no method {method!r}; there are {', '.join(METHODS)}, and a function of your own"
        )
    found: Planner = importlib.import_module(f"rowtier.plan.{method.replace('-', '_')}").plan
    return found


def _name_of(planned_by: Planner) -> str:
    """What a planner is called in messages, before it has made a plan that says so."""
    return str(getattr(planned_by, "__name__", type(planned_by).__name__))


def _checked(planned_by: Planner, found: object) -> Plan:
    """What a planner returned, which must be a plan: those of users are passed, too."""
    if not isinstance(found, Plan):
        raise UserError(
            f"{_name_of(planned_by)} returned a {type(found).__name__}; a planner returns a Plan, "
            "such as Plan.build(name, profile, cluster, bands)"
        )
    return found

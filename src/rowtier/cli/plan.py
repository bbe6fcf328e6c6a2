"""`rowtier plan`: a profile and a cluster in, a plan folder out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rowtier.cli import show
from rowtier.cli.data_options import BatchesOption, DenseOption, checked_batches
from rowtier.cli.plan_options import (
    ClusterOption,
    ConfidenceOption,
    ConstraintsOption,
    FitOption,
    MethodOption,
    MoveBudgetOption,
    ObjectiveOption,
    OldOption,
    OutputOption,
    ProfileOption,
    ReserveOption,
    RowsAsOption,
    ServeOption,
    SplitOption,
    TimeLimitOption,
)

if TYPE_CHECKING:
    from rowtier.cluster import Cluster
    from rowtier.plan.options import PlanOptions
    from rowtier.plan.plan import Certificate, Plan
    from rowtier.profile.profile import Profile

SEARCH_S = 60.0  # of methods that have no end of their own
MOVED = "moved"  # what a plan says of its way from an earlier one
TORCHREC = "torchrec"  # not one of rowtier's planners: it needs TorchRec, and a clock


def command(
    profile: ProfileOption,
    cluster: ClusterOption,
    output: OutputOption,
    method: MethodOption = "joint",
    split: SplitOption = False,
    confidence: ConfidenceOption = None,
    objective: ObjectiveOption = "step",
    batches: BatchesOption = None,
    dense: DenseOption = None,
    time_limit: TimeLimitOption = None,
    reserve: ReserveOption = "0%",  # type: ignore[assignment]
    constraints: ConstraintsOption = None,
    serve: ServeOption = False,
    rows_as: RowsAsOption = None,
    fit: FitOption = "rows",
    old: OldOption = None,
    move_budget: MoveBudgetOption = None,
    json: show.JsonOption = False,
) -> None:
    """Place every row of the profile's tables on the cluster."""
    from rowtier.cluster import Cluster
    from rowtier.folders import claimed
    from rowtier.plan.constraints import Constraints
    from rowtier.plan.options import PlanOptions
    from rowtier.plan.plan import Plan
    from rowtier.profile.profile import Profile

    _check_method(method, fit, objective, old, move_budget)
    _check_serving(method, serve=serve, rows_as=rows_as, dense_s=dense)
    wanted = Constraints() if constraints is None else Constraints.load(constraints)
    _check_time_limit(time_limit)
    options = PlanOptions(
        reserve=reserve, split=split, confidence=confidence, constraints=wanted,
        fit=fit, dense_s=dense or 0.0, time_limit_s=time_limit or SEARCH_S,
        objective=objective, batches=checked_batches(batches) or "shuffled",
        serve=serve, rows_as=rows_as,
    )  # fmt: skip
    with claimed(output, "plan.json"):  # before minutes of work
        statistics = Profile.load(profile)
        machine = Cluster.open(cluster)
        with show.progress(f"planning with {method}", quiet=json, after_s=1.0) as progress:
            made = partial(_made, statistics, machine, method, options, time_limit, progress)
            plan = made() if old is None else made(Plan.load(old), move_budget)
        plan.save(output)
    if json:
        show.as_json(_facts(plan, method, output))
    else:
        _show(plan, method, old)
        show.written(output)


def _check_method(
    method: str, fit: str, objective: str, old: Path | None, move_budget: int | None
) -> None:
    """Refuse what cannot be meant, before anything is read."""
    from rowtier.errors import UserError
    from rowtier.plan.make import planner

    if method != TORCHREC:
        planner(method)
    if fit not in ("rows", "all"):
        raise UserError(f"--fit {fit!r}: accepted are rows and all")
    if objective not in ("step", "expected_max"):
        raise UserError(f"--objective {objective!r}: accepted are step and expected_max")
    if (old is None) != (move_budget is None) or (old is not None and method == TORCHREC):
        raise UserError("--from PLAN and --move-budget BYTES go together, with rowtier's methods")


def _check_time_limit(time_limit_s: float | None) -> None:
    from rowtier.errors import UserError

    if time_limit_s is not None and time_limit_s <= 0:
        raise UserError(f"--time-limit {time_limit_s:g}: give seconds above 0")


def _facts(plan: Plan, method: str, output: Path) -> dict[str, Any]:
    """The JSON of a plan."""
    from rowtier.evaluate import phrases
    from rowtier.evaluate.compare import PlanLoad

    facts: dict[str, Any] = {
        "plan": str(output),
        "method": method,
        "fingerprint": plan.fingerprint,
        "assumes": phrases.assumptions(plan),
    }
    if plan.certificate is not None:
        facts["certificate"] = {**plan.certificate.to_data(), "gap": plan.certificate.gap}
    if method == TORCHREC:
        facts[TORCHREC] = _torchrec_facts(plan)
    if MOVED in plan.origin:
        facts[MOVED] = plan.origin[MOVED]
    return {**facts, **PlanLoad.of(method, plan).to_dict()}


def _show(plan: Plan, method: str, old: Path | None) -> None:
    """A plan in words: what it places, how long a step takes, and how good it is."""
    from rowtier.evaluate import phrases

    _show_load(plan, method)
    if MOVED in plan.origin:
        from rowtier.units import show_bytes

        moved, budget = (plan.origin[MOVED][key] for key in ("moved_bytes", "budget_bytes"))
        show.line(f"{show_bytes(moved)} of at most {show_bytes(budget)} move from {old}")
    for assumption in phrases.assumptions(plan):
        show.line(assumption)
    if plan.certificate is not None:
        _certificate(plan.certificate)
    if method == TORCHREC:
        said = _torchrec_facts(plan)
        cut = "" if said["finished"] else ", all that --time-limit allows"
        show.line(
            f"TorchRec's planner took {said['planner_seconds']:.1f} s{cut}, and estimates "
            f"{said['score_ms']:.4g} ms for its slowest device"
        )
    _show_lacks(plan)


def _show_load(plan: Plan, method: str) -> None:
    from rowtier.evaluate import phrases
    from rowtier.evaluate.compare import PlanLoad
    from rowtier.units import show_bytes

    load = PlanLoad.of(method, plan)
    total = sum(stats.table.stored_bytes for stats in plan.profile.stats)
    beside = "without" if plan.serves else "with"
    show.line(
        f"{method} places {len(plan.profile.stats)} tables ({show_bytes(total)} {beside} optimizer "
        f"state) on {plan.cluster.num_devices} devices of {plan.cluster.name}"
    )
    show.line(
        f"predicted step: {1e3 * load.step_s:.4g} ms (memory {1e3 * load.memory_s:.4g} ms, work "
        f"{1e3 * load.work_s:.4g} ms, links {1e3 * load.links_s:.4g} ms); "
        f"{load.slow_share:.1%} of all lookups are in a slower tier"
    )
    show.line(phrases.spread(load.spread))


def _show_lacks(plan: Plan) -> None:
    """What would not fit beside rows."""
    from rowtier.cost.step import step_cost
    from rowtier.plan.constraints import over_capacity
    from rowtier.units import show_bytes

    cost = step_cost(plan.bands, plan.profile, plan.cluster, plan.order, plan.assumed)
    for lack in over_capacity(cost):
        show.line(
            f"note: with exchange buffers, outputs and remap tables {lack.tier} would lack "
            f"{show_bytes(lack.amount_bytes)} on its fullest holder; --fit all leaves room for them"
        )


def _check_serving(method: str, *, serve: bool, rows_as: str | None, dense_s: float | None) -> None:
    """Refuse wishes about serving that do not go together, before anything is read."""
    from rowtier.errors import UserError
    from rowtier.plan.options import PlanOptions
    from rowtier.plan.serving import SERVED_TYPES, refuse_unservable

    if rows_as is not None and not serve:
        raise UserError(
            f"--rows-as {rows_as}: only plans that serve keep rows of another type than their "
            "tables; add --serve, or set dtype in tables.yaml and profile again"
        )
    if rows_as == "int8":
        raise UserError(
            "--rows-as int8: a plan counts what is sent, and sums of int8 rows are not int8; plan "
            "with --rows-as fp16: rows that `rowtier export --rows-as int8` writes take less"
        )
    if rows_as not in (None, *SERVED_TYPES):
        raise UserError(f"--rows-as {rows_as!r}: accepted are {' and '.join(SERVED_TYPES)}")
    if serve and dense_s:
        raise UserError(
            "--dense with --serve: other work hides sync of copies, and a plan that serves has "
            "none; drop one of them"
        )
    refuse_unservable(method, PlanOptions(serve=serve))


def _made(
    statistics: Profile, machine: Cluster, method: str, options: PlanOptions,
    time_limit_s: float | None, progress: Callable[[float], None],
    old: Plan | None = None, budget_bytes: int | None = None,
) -> Plan:  # fmt: skip
    if method == TORCHREC:
        from rowtier.torchrec import plan_with_torchrec

        return plan_with_torchrec(statistics, machine, options)
    from rowtier.plan.make import make_plan

    started = time.monotonic()
    limit_s = math.inf if time_limit_s is None else time_limit_s
    watched: Any = {"progress": progress, "stop": lambda: time.monotonic() - started > limit_s}
    if old is None:
        return make_plan(statistics, machine, method, options, **watched)
    from rowtier.evaluate.budget import plan_within

    return plan_within(statistics, machine, old, budget_bytes, method, options, **watched)


def _torchrec_facts(plan: Plan) -> dict[str, Any]:
    wanted = ("planner_seconds", "time_limit_s", "finished", "score_ms")
    return {name: plan.origin[TORCHREC][name] for name in wanted}


def _certificate(certificate: Certificate) -> None:
    from rowtier.cost.views import VIEWS
    from rowtier.evaluate import phrases

    show.line(
        f"{VIEWS[certificate.view].says}: {show.amount(certificate)}, at most "
        f"{certificate.gap:.2%} above the best possible; what binds is {certificate.binding}"
    )
    worth = [said for said in phrases.prices(certificate) if not said.endswith("nothing")]
    if worth:
        show.line(f"what more would save: {'; '.join(worth)}")
    doubt = certificate.from_statistics
    if doubt is not None:
        share = doubt / (doubt + certificate.gap) if doubt + certificate.gap else 0.0
        show.line(
            f"statistics: {doubt:.2%} more if hot rows take only the low end of their 90 % "
            f"interval; {share:.0%} of what is uncertain comes from them, the rest from the gap"
        )
    if certificate.caution is not None:
        caution = certificate.caution
        price = f"{caution.price:.2%}" if caution.price > 0 else "nothing"
        gain = f"{caution.gain:.2%}" if caution.gain > 0 else "nothing"
        show.line(
            f"caution at {caution.confidence:.0%} costs {price} if all goes as "
            f"expected, and saves {gain} if hot rows are as cold as feared, which is what the "
            "times above are for"
        )

"""`rowtier plan`: a profile and a cluster in, a plan folder out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rowtier.cli import show
from rowtier.cli.data_options import BatchesOption, DenseOption, checked_batches
from rowtier.units import parse_bytes, parse_share

if TYPE_CHECKING:
    from rowtier.cluster import Cluster
    from rowtier.plan.options import PlanOptions
    from rowtier.plan.plan import Certificate, Plan
    from rowtier.profile.profile import Profile

METHODS_HELP = (
    "How to place the rows: joint, recshard, recshard-milp, flexshard, sca, row-wise, "
    "row-wise-coalesced, table-wise, size, lookup or size-lookup; torchrec runs TorchRec's own "
    "planner."
)
CLUSTER_HELP = (
    "A cluster file, or a preset: recshard-16, dgx-a100-2, dgx-h100-2, gb200-nvl72, mi300x-8, "
    "torchrec-default, federated-1000, parameter-server or local."
)
SEARCH_S = 60.0  # of methods that have no end of their own
MOVED = "moved"  # what a plan says of its way from an earlier one
TORCHREC = "torchrec"  # not one of rowtier's planners: it needs TorchRec, and a clock


def _budget(text: str) -> int:
    """Bytes that may move; nothing has no unit."""
    return 0 if text.strip() == "0" else parse_bytes(text)


def command(
    profile: Annotated[Path, typer.Option(help="A profile folder.")],
    cluster: Annotated[str, typer.Option(help=CLUSTER_HELP)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The plan folder to write.")],
    method: Annotated[str, typer.Option(help=METHODS_HELP)] = "joint",
    split: Annotated[
        bool, typer.Option("--split", help="recshard: tables may be cut over devices.")
    ] = False,
    confidence: Annotated[
        float | None,
        typer.Option(
            parser=parse_share,
            metavar="SHARE",
            help="Plan for the low end of what hot rows will serve and the high end of distinct "
            "rows, at this confidence, such as 90%. On six real data sets steps were not faster "
            "for it (docs/statistics.md): for when slow steps cost more than fast ones gain.",
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            help="joint: which time of a step to make short: step, that of mean loads, or "
            "expected_max, the mean over steps, each of which waits for its own slowest device."
        ),
    ] = "step",
    batches: BatchesOption = None,
    dense: DenseOption = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="Seconds to search: joint then returns the best plan it has (without, it takes "
            "all it needs); recshard-milp and torchrec stop after 60 otherwise.",
        ),
    ] = None,
    reserve: Annotated[
        float,
        typer.Option(
            parser=parse_share,
            metavar="SHARE",
            help="Share of every memory tier to leave free, such as 10%.",
        ),
    ] = "0%",  # type: ignore[assignment]
    constraints: Annotated[
        Path | None,
        typer.Option(help="A file of pins, bytes to leave free and limits: docs/planning.md."),
    ] = None,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="For a cluster that only reads: no gradients, no optimizer state, copies that "
            "never change. joint, recshard, recshard-milp and the baselines can.",
        ),
    ] = False,
    rows_as: Annotated[
        str | None,
        typer.Option(
            "--rows-as",
            metavar="TYPE",
            help="With --serve: fp32 or fp16, the type in which rows are kept and sent there; "
            "without, the tables' own.",
        ),
    ] = None,
    fit: Annotated[
        str,
        typer.Option(
            help="What must fit into memory: rows, or all (buffers, outputs and remap tables too)."
        ),
    ] = "rows",
    old: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="PLAN",
            help="The plan folder that is in use, with --move-budget: docs/living.md.",
        ),
    ] = None,
    move_budget: Annotated[
        int | None,
        typer.Option(
            parser=_budget,
            metavar="BYTES",
            help="With --from: move at most so many bytes, such as 10GiB, to other holders or "
            "tiers; 0 keeps every row where it is.",
        ),
    ] = None,
    json: show.JsonOption = False,
) -> None:
    """Place every row of the profile's tables on the cluster."""
    from rowtier.cluster import Cluster
    from rowtier.cost.step import step_cost
    from rowtier.errors import UserError
    from rowtier.evaluate import phrases
    from rowtier.evaluate.compare import PlanLoad
    from rowtier.folders import claimed
    from rowtier.plan.constraints import Constraints, over_capacity
    from rowtier.plan.make import planner
    from rowtier.plan.options import PlanOptions
    from rowtier.plan.plan import Plan
    from rowtier.profile.profile import Profile
    from rowtier.units import show_bytes

    if method != TORCHREC:
        planner(method)  # an unknown method is refused before anything is read
    if fit not in ("rows", "all"):
        raise UserError(f"--fit {fit!r}: accepted are rows and all")
    if objective not in ("step", "expected_max"):
        raise UserError(f"--objective {objective!r}: accepted are step and expected_max")
    if (old is None) != (move_budget is None) or (old is not None and method == TORCHREC):
        raise UserError("--from PLAN and --move-budget BYTES go together, with rowtier's methods")
    _check_serving(method, serve=serve, rows_as=rows_as, dense_s=dense)
    wanted = Constraints() if constraints is None else Constraints.load(constraints)
    if time_limit is not None and time_limit <= 0:
        raise UserError(f"--time-limit {time_limit:g}: give seconds above 0")
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
    load = PlanLoad.of(method, plan)
    if json:
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
        show.as_json({**facts, **load.to_dict()})
        return
    total = sum(stats.table.stored_bytes for stats in plan.profile.stats)
    beside = "without" if plan.serves else "with"
    show.line(
        f"{method} places {len(statistics.stats)} tables ({show_bytes(total)} {beside} optimizer "
        f"state) on "
        f"{machine.num_devices} devices of {machine.name}"
    )
    show.line(
        f"predicted step: {1e3 * load.step_s:.4g} ms (memory {1e3 * load.memory_s:.4g} ms, work "
        f"{1e3 * load.work_s:.4g} ms, links {1e3 * load.links_s:.4g} ms); "
        f"{load.slow_share:.1%} of all lookups are in a slower tier"
    )
    show.line(phrases.spread(load.spread))
    if MOVED in plan.origin:
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
    cost = step_cost(plan.bands, plan.profile, plan.cluster, plan.order, plan.assumed)
    for lack in over_capacity(cost):
        show.line(
            f"note: with exchange buffers, outputs and remap tables {lack.tier} would lack "
            f"{show_bytes(lack.amount_bytes)} on its fullest holder; --fit all leaves room for them"
        )
    show.written(output)


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

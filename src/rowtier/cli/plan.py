"""`rowtier plan`: a profile and a cluster in, a plan folder out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rowtier.cli import show
from rowtier.cli.data_options import BatchesOption, DenseOption, checked_batches
from rowtier.units import parse_share

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
TORCHREC = "torchrec"  # not one of rowtier's planners: it needs TorchRec, and a clock


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
    fit: Annotated[
        str,
        typer.Option(
            help="What must fit into memory: rows, or all (buffers, outputs and remap tables too)."
        ),
    ] = "rows",
    json: show.JsonOption = False,
) -> None:
    """Place every row of the profile's tables on the cluster."""
    from rowtier.cluster import Cluster
    from rowtier.cost.step import step_cost
    from rowtier.errors import UserError
    from rowtier.evaluate import phrases
    from rowtier.evaluate.compare import Load
    from rowtier.folders import claimed
    from rowtier.plan.constraints import Constraints, over_capacity
    from rowtier.plan.make import planner
    from rowtier.plan.options import PlanOptions
    from rowtier.profile.profile import Profile
    from rowtier.units import show_bytes

    if method != TORCHREC:
        planner(method)  # an unknown method is refused before anything is read
    if fit not in ("rows", "all"):
        raise UserError(f"--fit {fit!r}: accepted are rows and all")
    if objective not in ("step", "expected_max"):
        raise UserError(f"--objective {objective!r}: accepted are step and expected_max")
    wanted = Constraints() if constraints is None else Constraints.load(constraints)
    if time_limit is not None and time_limit <= 0:
        raise UserError(f"--time-limit {time_limit:g}: give seconds above 0")
    options = PlanOptions(
        reserve=reserve, split=split, confidence=confidence, constraints=wanted,
        fit=fit, dense_s=dense or 0.0, time_limit_s=time_limit or SEARCH_S,
        objective=objective, batches=checked_batches(batches) or "shuffled",
    )  # fmt: skip
    with claimed(output, "plan.json"):  # before minutes of work
        statistics = Profile.load(profile)
        machine = Cluster.open(cluster)
        with show.progress(f"planning with {method}", quiet=json, after_s=1.0) as progress:
            plan = _made(statistics, machine, method, options, time_limit, progress)
        plan.save(output)
    load = Load.of(method, plan)
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
        show.as_json({**facts, **load.to_dict()})
        return
    total = sum(stats.table.stored_bytes for stats in statistics.stats)
    show.line(
        f"{method} places {len(statistics.stats)} tables ({show_bytes(total)} with optimizer "
        f"state) on "
        f"{machine.num_devices} devices of {machine.name}"
    )
    show.line(
        f"predicted step: {1e3 * load.step_s:.4g} ms (memory {1e3 * load.memory_s:.4g} ms, work "
        f"{1e3 * load.work_s:.4g} ms, links {1e3 * load.links_s:.4g} ms); "
        f"{load.slow_share:.1%} of all lookups are in a slower tier"
    )
    show.line(phrases.spread(load.spread))
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


def _made(
    statistics: Profile, machine: Cluster, method: str, options: PlanOptions,
    time_limit_s: float | None, progress: Callable[[float], None],
) -> Plan:  # fmt: skip
    if method == TORCHREC:
        from rowtier.torchrec import plan_with_torchrec

        return plan_with_torchrec(statistics, machine, options)
    from rowtier.plan.make import make_plan

    started = time.monotonic()
    limit_s = math.inf if time_limit_s is None else time_limit_s
    return make_plan(
        statistics, machine, method, options,
        progress=progress, stop=lambda: time.monotonic() - started > limit_s,
    )  # fmt: skip


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

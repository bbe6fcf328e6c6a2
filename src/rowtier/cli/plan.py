"""`rowtier plan`: a profile and a cluster in, a plan folder out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rowtier.cli import show
from rowtier.units import parse_share

METHODS_HELP = (
    "How to place the rows: joint, recshard, recshard-milp, flexshard, sca, row-wise, "
    "table-wise, size, lookup or size-lookup."
)


def command(
    profile: Annotated[Path, typer.Option(help="A profile folder.")],
    cluster: Annotated[str, typer.Option(help="A cluster file, or the name of a preset.")],
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
            help="Plan for the heat that hot rows fall short of so rarely, such as 90%.",
        ),
    ] = None,
    time_limit: Annotated[float, typer.Option(help="recshard-milp: seconds for HiGHS.")] = 60.0,
    reserve: Annotated[
        float,
        typer.Option(
            parser=parse_share,
            metavar="SHARE",
            help="Share of every memory tier to leave free, such as 10%.",
        ),
    ] = "0%",  # type: ignore[assignment]
    json: show.JsonOption = False,
) -> None:
    """Place every row of the profile's tables on the cluster."""
    from rowtier.cluster import Cluster
    from rowtier.cost.views import VIEWS
    from rowtier.evaluate.compare import Load
    from rowtier.files import check_replaceable
    from rowtier.plan.make import make_plan, planner
    from rowtier.plan.options import PlanOptions
    from rowtier.profile.profile import Profile
    from rowtier.units import show_bytes

    planner(method)  # an unknown method is refused before anything is read
    options = PlanOptions(
        reserve=reserve, split=split, confidence=confidence, time_limit_s=time_limit
    )
    check_replaceable(output, "plan.json")
    statistics = Profile.load(profile)
    machine = Cluster.open(cluster)
    plan = make_plan(statistics, machine, method, options)
    plan.save(output)
    load = Load.of(method, plan)
    if json:
        facts: dict[str, Any] = {
            "plan": str(output),
            "method": method,
            "fingerprint": plan.fingerprint,
        }
        if plan.certificate is not None:
            facts["certificate"] = {**plan.certificate.to_data(), "gap": plan.certificate.gap}
        show.as_json({**facts, **load.to_dict()})
        return
    total = sum(stats.table.stored_bytes for stats in statistics.stats)
    show.line(
        f"{method} places {len(statistics.stats)} tables ({show_bytes(total)} with optimizer "
        f"state) on "
        f"{machine.num_devices} devices of {machine.name}"
    )
    show.line(
        f"expected step: {1e3 * load.step_s:.4g} ms (memory {1e3 * load.memory_s:.4g} ms, links "
        f"{1e3 * load.links_s:.4g} ms); {load.slow_share:.1%} of all lookups are in a slower tier"
    )
    if plan.certificate is not None:
        certificate = plan.certificate
        show.line(
            f"{VIEWS[certificate.view].says}: {show.amount(certificate)}, at most "
            f"{certificate.gap:.2%} above the best possible; what binds is {certificate.binding}"
        )
    show.written(output)

"""`rowtier plan`: a profile and a cluster in, a plan folder out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rowtier.cli import show

METHODS_HELP = "How to place the rows: row-wise, table-wise, size, lookup or size-lookup."


def command(
    profile: Annotated[Path, typer.Option(help="A profile folder.")],
    cluster: Annotated[str, typer.Option(help="A cluster file, or the name of a preset.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The plan folder to write.")],
    method: Annotated[str, typer.Option(help=METHODS_HELP)] = "size-lookup",
    reserve: Annotated[
        str, typer.Option(help="Share of every memory tier to leave free, such as 10%.")
    ] = "0%",
    json: show.JsonOption = False,
) -> None:
    """Place every row of the profile's tables on the cluster."""
    from rowtier.cluster import Cluster
    from rowtier.evaluate.compare import Load
    from rowtier.files import check_replaceable
    from rowtier.plan.make import make_plan, planner
    from rowtier.plan.options import PlanOptions
    from rowtier.profile.profile import Profile
    from rowtier.units import parse_share, show_bytes

    planner(method)  # an unknown method is refused before anything is read
    options = PlanOptions(reserve=parse_share(reserve))
    check_replaceable(output, "plan.json")
    statistics = Profile.load(profile)
    machine = Cluster.open(cluster)
    plan = make_plan(statistics, machine, method, options)
    plan.save(output)
    load = Load.of(method, plan)
    if json:
        facts = {"plan": str(output), "method": method, "fingerprint": plan.fingerprint}
        show.as_json({**facts, **load.to_dict()})
        return
    total = sum(stats.table.stored_bytes for stats in statistics.stats)
    show.line(
        f"{method} places {len(statistics.stats)} tables ({show_bytes(total)}) on "
        f"{machine.num_devices} devices of {machine.name}"
    )
    show.line(
        f"busiest holder: {load.busiest_lookups:,.0f} lookups a step, {load.imbalance:.2f}× the "
        f"mean; {load.slow_share:.1%} of all lookups are served by a slower tier"
    )
    show.written(output)

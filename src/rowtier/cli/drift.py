"""`rowtier drift`: what a plan costs on new statistics, and whether another one is worth it."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rowtier.cli import show
from rowtier.cli.names import shortened
from rowtier.cli.plan_options import CLUSTER_HELP
from rowtier.cli.predict import more

if TYPE_CHECKING:
    from rowtier.evaluate.drift import PlanDrift

MAX_TABLES = 12
NAME_WIDTH = 36

TimeLimitOption = Annotated[
    float | None, typer.Option(help="Seconds to search for the best plan; all it needs, without.")
]


def command(
    plan: Annotated[Path, typer.Argument(help="The plan folder that is in use.")],
    profile: Annotated[Path, typer.Argument(help="A profile folder of newer data.")],
    cluster: Annotated[
        str | None, typer.Option(help=f"{CLUSTER_HELP} Default: the plan's.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="How to make the best plan; default: as the plan was made.")
    ] = None,
    time_limit: TimeLimitOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the best plan to this folder.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show every table.")] = False,
    json: show.JsonOption = False,
) -> None:
    """Say what a plan costs on new statistics, what the best one would, and when moving has paid.

    `rowtier report PLAN --drift PROFILE` makes a page of it.
    """
    from rowtier.folders import claimed

    claim = contextlib.nullcontext() if output is None else claimed(output, "plan.json")
    with claim:  # before minutes of work
        found = measured(plan, profile, cluster, method, time_limit, quiet=json)
        if output is not None:
            found.best.save(output)
    if json:
        show.as_json({**found.to_dict(), "plan": None if output is None else str(output)})
        return
    show.line(found.verdict)
    for note in found.notes:
        show.line(f"! {note}")
    for said in found.says:
        show.line(f"  {said}")
    _tables(found, full)
    if output is not None:
        show.written(output)


def measured(
    plan: Path,
    profile: Path,
    cluster: str | None = None,
    method: str | None = None,
    time_limit_s: float | None = None,
    *,
    quiet: bool = False,
) -> PlanDrift:
    """Read a plan and a profile, and measure the one on the other."""
    from rowtier.errors import UserError
    from rowtier.evaluate.drift import drift
    from rowtier.plan.make import planner

    if method is not None:
        planner(method)  # an unknown method is refused before anything is read
    if time_limit_s is not None and not time_limit_s > 0:
        raise UserError(f"--time-limit {time_limit_s:g}: give seconds above 0")
    started, limit_s = time.monotonic(), math.inf if time_limit_s is None else time_limit_s
    with show.progress("planning for the new statistics", quiet=quiet, after_s=1.0) as progress:
        return drift(
            plan, profile, cluster=cluster, method=method,
            progress=progress, stop=lambda: time.monotonic() - started > limit_s,
        )  # fmt: skip


def _tables(found: PlanDrift, full: bool) -> None:
    from rowtier.units import show_bytes, show_count

    moving = {table.name: table for table in found.move.tables}
    changed = [table for table in found.tables if full or table.moved]
    shown = changed if full else changed[:MAX_TABLES]
    if not shown:
        return
    names = shortened([table.name for table in shown], NAME_WIDTH)
    rows = [
        [
            name,
            show_count(table.lookups),
            *(f"{share:.1%}" for share in (table.before, table.now, table.best, table.unseen)),
            show_bytes(moving[table.name].moved_bytes + moving[table.name].within_bytes),
        ]
        for name, table in zip(names, shown, strict=True)
    ]
    show.table(["table", "lookups", "planned", "now", "best", "unseen", "would move"], rows)
    more(len(changed) - len(shown), "tables")
    show.line(
        "lookups: of a device and step; planned, now, best: share of them that fast memory and "
        "copies serve; unseen: on rows that the plan's profile never saw"
    )

"""`rowtier report`: a plan as one page that opens in any browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rowtier.cli import show
from rowtier.cli.drift import measured


def command(
    plan: Annotated[Path, typer.Argument(help="A plan folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines/--no-baselines", help="Plan the usual baselines and compare with them."
        ),
    ] = True,
    drift: Annotated[
        Path | None,
        typer.Option(
            metavar="PROFILE",
            help="A profile of newer data: what the plan costs on it, and whether moving to "
            "another pays.",
        ),
    ] = None,
    json: show.JsonOption = False,
) -> None:
    """Write a page about a plan: verdict, alerts, memory, load, curves, links, tables, baselines.

    The page needs no network. Charts need the extra "report".
    """
    from rowtier.errors import UserError
    from rowtier.report.html import make_report

    if output.is_dir():
        raise UserError(
            f"{output}: is a folder; give a file to write, such as {output}/report.html"
        )
    moved_on = None if drift is None else measured(plan, drift, quiet=json)
    made = make_report(plan, baselines=baselines, drift=moved_on)
    made.save(output)
    if json:
        show.as_json({"report": str(output), **made.to_dict()})
        return
    show.line(made.headline)
    for alert in made.alerts:
        show.line(f"{alert.level}: {alert.text}")
    show.written(output)

"""`rowtier diff`: what would move from one plan to another, and how long that takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rowtier.cli import show
from rowtier.cli.names import shortened
from rowtier.cli.predict import more

if TYPE_CHECKING:
    from rowtier.evaluate.diff import Diff

MAX_HOLDERS = 16
MAX_TABLES = 12
NAME_WIDTH = 36


def command(
    old: Annotated[Path, typer.Argument(help="The plan folder that is in use.")],
    new: Annotated[Path, typer.Argument(help="The plan folder that takes its place.")],
    full: Annotated[bool, typer.Option("--full", help="Show every holder and table.")] = False,
    json: show.JsonOption = False,
) -> None:
    """Count the rows and bytes that would move from one plan to another, and the time it takes."""
    from rowtier.evaluate.diff import diff
    from rowtier.plan.plan import Plan

    found = diff(Plan.load(old), Plan.load(new))
    if json:
        show.as_json(found.to_dict())
        return
    show.line(found.verdict)
    for note in found.notes:
        show.line(f"! {note}")
    if found.moved_bytes or found.within_bytes.any():
        _levels(found)
        _holders(found, full)
        _tables(found, full)


def _levels(found: Diff) -> None:
    from rowtier.units import show_bytes

    rows = [
        [
            f"{level.name} links",
            show_bytes(level.moved_bytes),
            show_bytes(level.busiest_bytes),
            _time(level.seconds),
        ]
        for level in found.levels
    ]
    rows.append(["memory", "", "", _time(found.memory_s)])
    if found.work_s:
        rows.append(["work", "", "", _time(found.work_s)])
    show.table(["where", "moved", "busiest link", "time"], rows)


def _holders(found: Diff, full: bool) -> None:
    from rowtier.units import show_bytes

    arrays = (found.received_bytes, found.sent_bytes, found.within_bytes, found.outside_bytes)
    sums = [array.sum(axis=0) for array in arrays]
    if not sums[3].any():
        sums.pop()
    total = sum(sums)
    order = sorted(range(len(total)), key=lambda holder: (-total[holder], holder))
    order = [holder for holder in order if total[holder]]
    shown = order if full else order[:MAX_HOLDERS]
    names = shortened([found.cluster.holder_name(holder) for holder in shown], NAME_WIDTH)
    rows = [
        [name, *(show_bytes(amount[holder]) for amount in sums)]
        for name, holder in zip(names, shown, strict=True)
    ]
    titles = ["holder", "received", "sent", "other tier", "from outside"]
    show.table(titles[: len(sums) + 1], rows)
    more(len(order) - len(shown), "holders")


def _tables(found: Diff, full: bool) -> None:
    from rowtier.units import show_bytes, show_count

    moving = [table for table in found.tables if table.moved_bytes or table.within_bytes]
    moving.sort(key=lambda table: (-table.moved_bytes, -table.within_bytes, table.name))
    shown = moving if full else moving[:MAX_TABLES]
    names = shortened([table.name for table in shown], NAME_WIDTH)
    rows = [
        [
            name,
            show_count(round(table.rows)),
            show_bytes(table.moved_bytes),
            f"{table.moved_bytes / table.kept_bytes:.1%}",
            show_bytes(table.within_bytes),
        ]
        for name, table in zip(names, shown, strict=True)
    ]
    show.table(["table", "rows", "moved", "of its copies", "other tier"], rows)
    more(len(moving) - len(shown), "tables that move")
    if len(moving) < len(found.tables):
        show.line(f"{len(found.tables) - len(moving):,} tables stay where they are")


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"

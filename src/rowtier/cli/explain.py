"""`rowtier explain`: a plan in words and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rowtier.cli import show
from rowtier.cli.data_options import DenseOption
from rowtier.cli.names import shortened
from rowtier.cli.predict import more
from rowtier.foreign import columns

if TYPE_CHECKING:
    from rowtier.evaluate.cuts import HomePart, TableStory
    from rowtier.evaluate.explain import Explanation
    from rowtier.evaluate.what_if import WhatIf

MAX_TABLES = 5
MAX_CHANGED = 8
MAX_PARTS = 8
MAX_OTHERS = 3  # homes that were not chosen, per part
NAME_WIDTH = 24


def command(
    plan: Annotated[Path, typer.Argument(help="A plan folder.")],
    table: Annotated[str | None, typer.Argument(help="A table: why it is cut where it is.")] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Plan anew for another machine: tiers.hbm.capacity=40GiB, "
            "levels.cluster.bandwidth=50GB/s, levels.node.latency=2us, levels.cluster.size=4, "
            "batch_size=4096. May be given several times.",
        ),
    ] = None,
    dense: DenseOption = None,
    full: Annotated[
        bool, typer.Option("--full", help="Show every table, cut and alternative.")
    ] = False,
    json: show.JsonOption = False,
) -> None:
    """Explain a plan: what binds, what matters most, what more memory or bandwidth would change."""
    from rowtier.errors import InfeasibleError
    from rowtier.evaluate.explain import explain
    from rowtier.plan.plan import Plan

    loaded = Plan.load(plan)
    if dense is not None:
        loaded = loaded.assuming(dense)
    found = explain(loaded, table, what_if=what_if or ())
    if json:
        show.as_json(found.to_dict())
    else:
        _say(found, full)
    if found.what_if is not None and found.what_if.why_not:
        raise typer.Exit(InfeasibleError.exit_code)


def _say(found: Explanation, full: bool) -> None:
    from rowtier.evaluate import phrases

    show.line(found.verdict)
    certificate = found.plan.certificate
    if certificate is not None and certificate.covers:
        show.line(f"the bound is about {certificate.covers}")
    if certificate is not None and certificate.rounds:
        show.line(phrases.rounds_needed(certificate))
    if found.table is not None:
        _table(found, found.table, full)
    if found.what_if is not None:
        _what_if(found.what_if, full)
    if found.table is None and found.what_if is None:
        _plan(found, full)


def _plan(found: Explanation, full: bool) -> None:
    show.line(f"what binds: {found.binds}")
    for line in found.step:
        show.line(line)
    _listed("memory", [entry.says for entry in found.memory])
    _listed("with more of it", found.more)
    _listed("the statistics", found.statistics)
    _tables(found, full)


def _listed(title: str, lines: list[str]) -> None:
    show.line(f"{title}:")
    for line in lines:
        show.line(f"  {line}")


def _tables(found: Explanation, full: bool) -> None:
    from rowtier.units import show_bytes, show_count

    shown = found.tables if full else found.tables[:MAX_TABLES]
    names = shortened([weight.name for weight in shown], NAME_WIDTH)
    room = _room(names, 44)
    rows = [
        [
            name,
            f"{weight.share:.1%}",
            show_count(weight.lookups),
            show_bytes(weight.kept_bytes),
            _short(weight.placement, room),
        ]
        for name, weight in zip(names, shown, strict=True)
    ]
    show.line("the tables that matter most:")
    show.table(["table", "of the step", "lookups", "bytes", "placed"], rows)
    more(len(found.tables) - len(shown), "tables")


def _room(names: list[str], others: int) -> int:
    """Columns that are left for words beside the names and so many other columns."""
    return show.WIDTH - others - max(map(columns, names), default=0)


def _short(words: str, width: int) -> str:
    return words if len(words) <= width else words[: width - 1] + "…"


def _table(found: Explanation, story: TableStory, full: bool) -> None:
    from rowtier.units import show_bytes, show_count

    weight = next(weight for weight in found.tables if weight.name == story.name)
    count = len(story.parts)
    show.line(
        f"{story.name} takes {weight.share:.1%} of the step: {show_count(weight.lookups)} lookups "
        f"a device and step, {show_bytes(weight.kept_bytes)} with all copies, "
        f"{count} kind{'s' if count > 1 else ''} of home"
    )
    wanted = found.plan.constraints
    decided = [] if wanted is None else wanted.said_of(story.name)
    if decided:
        show.line(f"decided by hand: {'; '.join(decided)} (homes below may break that)")
    table = found.plan.profile[story.name].table
    if table.weights == "learned":
        show.line(f"rows travel, never sums: {table.why_rows}")
    shown = story.parts if full else story.parts[:MAX_PARTS]
    for index, part in enumerate(shown):
        if index:
            show.line(f"cut at position {part.start:,}: {story.edges[index - 1].says}")
        _part(story, part, full)
    more(len(story.parts) - len(shown), "parts")
    show.line(
        "step: how much longer a step gets if only these rows are moved there, all else left as it "
        "is"
    )


def _part(story: TableStory, part: HomePart, full: bool) -> None:
    from rowtier.evaluate.phrases import more_ms
    from rowtier.units import show_bytes

    show.line(
        f"positions {part.start:,} to {part.stop:,}, {part.lookups:.1%} of the lookups, "
        f"{show_bytes(part.kept_bytes)}: {part.home}"
    )
    others = [o for o in story.alternatives if (o.start, o.stop) == (part.start, part.stop)]
    shown = others if full else others[:MAX_OTHERS]
    rows = [
        [
            _short(other.home, 56),
            more_ms(other.step_s),
            f"lacks {show_bytes(other.lacks_bytes)} {other.lacks_tier}"
            if other.lacks_tier
            else "fits",
        ]
        for other in shown
    ]
    if rows:
        show.table(["  elsewhere", "step", "memory"], rows)


def _what_if(found: WhatIf, full: bool) -> None:
    from rowtier.units import show_bytes

    show.line(found.verdict)
    for line in found.says:
        show.line(f"  {line}")
    if found.replanned is None:
        return
    rows = [[tier, show_bytes(was), show_bytes(now)] for tier, was, now in found.memory]
    show.table(["most rows in", "now", "then"], rows)
    shown = found.tables if full else found.tables[:MAX_CHANGED]
    names = shortened([change.name for change in shown], NAME_WIDTH)
    room = _room(names, 24) // 2
    rows = [
        [name, f"{change.share:.1%}", _short(change.before, room), _short(change.after, room)]
        for name, change in zip(names, shown, strict=True)
    ]
    count, total = len(found.tables), len(found.plan.profile.stats)
    show.line(f"{count:,} of {total:,} tables would be placed otherwise")
    if rows:
        show.table(["table", "of the step", "placed", "then"], rows)
    more(count - len(shown), "tables")

"""`rowtier replay`: count what a plan's placement does on real batches."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rowtier.cli import show
from rowtier.cli.data_options import (
    AfterOption,
    BatchesOption,
    BeforeOption,
    TimeOption,
    checked_batches,
)
from rowtier.cli.policy import OutOfRangeOption, checked_policy
from rowtier.cli.predict import (
    IdsOption,
    ReadOnlyOption,
    TraceOption,
    WeightedOption,
    cost_options,
    more,
)

if TYPE_CHECKING:
    from rowtier.evaluate.replay import Replay
    from rowtier.evaluate.replayed import Figure

MAX_HOLDERS = 8
MAX_TABLES = 8
_ORDERS = {"shuffled": "shuffled", "in_time_order": "in time order"}


def command(
    plan: Annotated[Path, typer.Argument(help="A plan folder.")],
    data: Annotated[
        str, typer.Argument(help="Parquet, Criteo TSV, npz or pt: a file, a folder or a glob.")
    ],
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples per device and step; default: the plan's.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="So many steps only, drawn from the data by --seed.")
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0, help="Draws the samples of shuffled batches, and the steps of --steps."
        ),
    ] = 0,
    before: BeforeOption = None,
    after: AfterOption = None,
    time: TimeOption = None,
    batches: BatchesOption = None,
    on_out_of_range: OutOfRangeOption = None,
    ids: IdsOption = "wide",
    weighted: WeightedOption = None,
    read_only: ReadOnlyOption = False,
    full: Annotated[bool, typer.Option("--full", help="Show every figure.")] = False,
    trace: TraceOption = None,
    json: show.JsonOption = False,
) -> None:
    """Count accesses, distinct rows and bytes of real batches, beside what was predicted."""
    from rowtier.evaluate.replay import replay
    from rowtier.plan.plan import Plan

    policy = checked_policy(on_out_of_range)
    order = checked_batches(batches)
    loaded = Plan.load(plan)
    options = cost_options(loaded, ids, weighted)
    options = options.reading if read_only else options
    with show.progress(f"replaying {data}", quiet=json) as progress:
        found = replay(
            loaded, data, batch_size, steps, seed, after, progress,
            before=before, time=time, batches=order,
            options=options, on_out_of_range=policy,
        )  # fmt: skip
    if trace is not None:
        from rowtier.report.trace import write_trace

        write_trace(trace, found.worst, loaded.cluster)
    if json:
        show.as_json(found.to_dict())
        return
    _report(found, full)
    if trace is not None:
        show.line("the trace is that of the slowest step")
        show.written(trace)


def _report(found: Replay, full: bool) -> None:
    from rowtier.evaluate.phrases import assumptions
    from rowtier.units import show_count

    for warning in found.warnings:
        show.line(f"! {warning}")
    show.line(found.verdict)
    show.line(_spread(found))
    for said in assumptions(found.prediction.plan, found.prediction.options):
        show.line(said)
    show.line(
        f"{show_count(found.samples)} samples, {_ORDERS[found.batches]}, "
        f"{show_count(found.lookups)} lookups; figures are means per step"
    )
    show.line(
        f"rows that the profile never saw: {found.unseen / found.steps:,.4g} a step, with "
        f"{found.unseen_lookups:,} of {found.lookups:,} lookups "
        f"({found.unseen_lookups / max(1, found.lookups):.2%})"
    )
    figures = [f for f in found.figures if f.label.kind in ("step", "level", "tier")]
    _table("figure", figures, percentiles=("p50", "p90", "p99") if full else ("p90", "p99"))
    if full:
        _table("group", [f for f in found.figures if f.label.kind == "group"])
    _holders(found, full)
    _tables(found, full)
    figures = [f for f in found.figures if f.label.unit != "s"]
    inside = sum(figure.as_expected for figure in figures)
    show.line(
        "error: predicted over replayed. ±: how far the two may be apart although the data is like "
        f"the profiled data (docs/evaluating.md says why); {inside:,} of {len(figures):,} figures "
        "are within it"
    )


def _spread(found: Replay) -> str:
    """How steps differ, replayed and predicted."""
    from rowtier.evaluate.phrases import ms

    step, expected = found.figure("step"), found.prediction.cost.spread
    assert step.percentiles is not None
    pairs = {
        "on average": (step.replayed, expected.expected_s),
        "p50": (step.percentiles[0], expected.p50_s),
        "p99": (step.percentiles[2], expected.p99_s),
    }
    said = (f"{name} {ms(real)} ({ms(told)} predicted)" for name, (real, told) in pairs.items())
    return f"from step to step: {', '.join(said)}"


def _holders(found: Replay, full: bool) -> None:
    """Lookups and memory of the busiest holders; with `full` all their figures."""
    figures = [f for f in found.figures if f.label.kind == "holder"]
    if not full:
        wanted = ("lookups", "read")
        figures = [f for f in figures if f.label.name in wanted]
    load: dict[str, float] = {}
    for figure in figures:
        if figure.label.name == "read":
            load[figure.label.of] = load.get(figure.label.of, 0.0) + figure.replayed
    order = sorted(load, key=lambda name: -load[name])
    shown = set(order if full else order[:MAX_HOLDERS])
    _table("holder", [f for f in figures if f.label.of in shown])
    more(len(order) - len(shown), "holders")


def _tables(found: Replay, full: bool) -> None:
    """The tables that move the most bytes; with `full` all figures of all."""
    figures = [f for f in found.figures if f.label.kind == "table"]
    moved: dict[str, float] = {}
    for figure in figures:
        moved.setdefault(figure.label.of, 0.0)
        moved[figure.label.of] += figure.replayed * (figure.label.unit == "bytes")
    order = sorted(moved, key=lambda name: -moved[name])
    shown = set(order if full else order[:MAX_TABLES])
    wanted = ("lookups", "rows touched", "forward")
    figures = [f for f in figures if f.label.of in shown and (full or f.label.name in wanted)]
    _table("table", figures)
    more(len(order) - len(shown), "tables")


def _table(title: str, figures: list[Figure], percentiles: tuple[str, ...] = ()) -> None:
    rows = []
    for figure in figures:
        reach = max(figure.high - figure.predicted, figure.predicted - figure.low)
        facts = figure.to_dict()
        rows.append(
            [
                _name(figure),
                _amount(figure, figure.replayed),
                _amount(figure, figure.predicted),
                _percent(figure.error),
                _percent(reach / figure.predicted if figure.predicted else 0.0, sign=False),
                *(_amount(figure, facts[name]) for name in (*percentiles, "worst")),
            ]
        )
    show.table([title, "replayed", "predicted", "error", "±", *percentiles, "worst"], rows)


def _name(figure: Figure) -> str:
    label = figure.label
    name = ", ".join(part for part in (label.of, label.name, label.at) if part)
    return f"{name}, ms" if label.unit == "s" else name


def _amount(figure: Figure, value: float) -> str:
    from rowtier.units import show_bytes, show_count

    if figure.label.unit == "s":
        return f"{1e3 * value:.4g}"
    return show_bytes(value) if figure.label.unit == "bytes" else show_count(value)


def _percent(share: float, sign: bool = True) -> str:
    if not math.isfinite(share):
        return "–"
    return f"{share:+.1%}" if sign else f"{share:.1%}"

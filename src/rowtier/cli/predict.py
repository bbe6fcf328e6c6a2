"""`rowtier predict`: what a step of a plan costs, by the cost model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from rowtier.cli import show
from rowtier.cli.data_options import BatchesOption, DenseOption, checked_batches

if TYPE_CHECKING:
    from rowtier.cost.options import CostOptions
    from rowtier.evaluate.predict import Prediction
    from rowtier.plan.plan import Plan

MAX_HOLDERS = 16
MAX_TABLES = 12
ID_WIDTHS = ("wide", "narrow")

TraceOption = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="Write the step as a trace for ui.perfetto.dev."),
]
IdsOption = Annotated[
    str,
    typer.Option(
        metavar="WIDTH",
        help="How ids travel: wide, 8 bytes each, or narrow, 4 bytes where the rows fit.",
    ),
]
WeightedOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TABLE",
        help="A table whose lookups carry a weight each, 4 bytes beside an id that an owner pools; "
        "repeat for more.",
    ),
]

ReadOnlyOption = Annotated[
    bool,
    typer.Option(
        "--read-only",
        help="Rows are only read, as by a model that serves: no gradients return, neither rows nor "
        "optimizer state are written, copies are not kept equal.",
    ),
]


def command(
    plan: Annotated[Path, typer.Argument(help="A plan folder.")],
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples per device and step; default: the plan's.")
    ] = None,
    batches: BatchesOption = None,
    ids: IdsOption = "wide",
    weighted: WeightedOption = None,
    dense: DenseOption = None,
    read_only: ReadOnlyOption = False,
    full: Annotated[bool, typer.Option("--full", help="Show every holder and table.")] = False,
    trace: TraceOption = None,
    json: show.JsonOption = False,
) -> None:
    """Predict step time, and bytes and lookups per device, tier, link level and table."""
    from rowtier.evaluate.phrases import assumptions, spread
    from rowtier.evaluate.predict import predict
    from rowtier.plan.plan import Plan

    loaded = Plan.load(plan)
    order = checked_batches(batches)
    options = cost_options(loaded, ids, weighted, dense)
    options = options.reading if read_only else options
    prediction = predict(loaded, options, batch_size=batch_size, batches=order)
    if trace is not None:
        from rowtier.report.trace import write_trace

        write_trace(trace, prediction.facts, prediction.plan.cluster)
    if json:
        show.as_json(prediction.to_dict())
        return
    show.line(prediction.verdict)
    show.line(spread(prediction.cost.spread))
    for said in assumptions(prediction.plan, prediction.options):
        show.line(said)
    _work(prediction)
    _levels(prediction)
    _tiers(prediction)
    _holders(prediction, full)
    _tables(prediction, full)
    _touched(prediction)
    if trace is not None:
        show.written(trace)


def cost_options(
    plan: Plan, ids: str, weighted: list[str] | None, dense_s: float | None = None
) -> CostOptions:
    """What the options say about ids and the rest of the model, or else what the plan assumes."""
    from rowtier.cost.options import CostOptions
    from rowtier.errors import UserError

    if ids not in ID_WIDTHS:
        raise UserError(f"--ids {ids!r}: accepted are {', '.join(ID_WIDTHS)}")
    names = [table.name for table, _ in plan]
    for name in weighted or ():
        if name not in names:
            raise UserError(
                f"--weighted {name!r}: the plan has no such table; there are {_some(names)}"
            )
    width = cast(Literal["wide", "narrow"], ids)
    dense_s = plan.assumed.dense_s if dense_s is None else dense_s
    training = plan.assumed.training
    tables = frozenset(weighted or ())
    return CostOptions(ids=width, weighted=tables, dense_s=dense_s, training=training)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:MAX_TABLES])
    return shown if len(names) <= MAX_TABLES else f"{shown} and {len(names) - MAX_TABLES:,} more"


def _work(prediction: Prediction) -> None:
    """What the slowest holder works at, and the rounds of the plan's exchanges."""
    from rowtier.evaluate.phrases import rounds, work

    for said in (work(prediction.cost), rounds(prediction.cost)):
        if said:
            show.line(said)


def _levels(prediction: Prediction) -> None:
    from rowtier.units import show_bytes

    time, flows = prediction.cost.time, prediction.cost.links.flows
    rows = [
        [
            level.name,
            ms(float(time.exchange_level_s[i])),
            ms(float(time.sync_level_s[i])),
            *(show_bytes(float(flow.total[i])) for flow in flows.values()),
        ]
        for i, level in enumerate(prediction.plan.cluster.levels)
    ]
    if rows:
        columns = ["links", "exchange", "keeping equal", "ids", "forward", "backward"]
        show.table([*columns, "sync", "sync ids"], rows)


def _tiers(prediction: Prediction) -> None:
    from rowtier.units import show_bytes, show_count

    facts, kept = prediction.facts, prediction.cost.memory.total
    rows = [
        [
            tier,
            show_count(float(facts.served[:, i].sum())),
            f"{facts.served[:, i].sum() / max(1e-300, facts.served.sum()):.1%}",
            show_bytes(float(facts.read[:, i].sum())),
            show_bytes(float(facts.written[:, i].sum())),
            show_bytes(float(kept[:, i].max())),
        ]
        for i, tier in enumerate(prediction.plan.cluster.tier_names)
    ]
    show.table(["tier", "lookups", "share", "read", "written", "most in use"], rows)


def _holders(prediction: Prediction, full: bool) -> None:
    from rowtier.units import show_bytes, show_count

    cluster, facts, time = prediction.plan.cluster, prediction.facts, prediction.cost.time
    sent = sum(flow.sent.sum(axis=1) for flow in facts.flows.values())
    received = sum(flow.received.sum(axis=1) for flow in facts.flows.values())
    busy_s = time.memory_s + time.work_s
    order = sorted(range(cluster.num_holders), key=lambda h: (-busy_s[h], h))
    shown = order if full else order[:MAX_HOLDERS]
    rows = [
        [
            cluster.holder_name(holder),
            ms(float(time.memory_s[holder])),
            ms(float(time.work_s[holder])),
            show_count(float(facts.served[holder].sum())),
            show_bytes(float(facts.read[holder].sum())),
            show_bytes(float(facts.written[holder].sum())),
            show_bytes(float(sent[holder])),
            show_bytes(float(received[holder])),
        ]
        for holder in shown
    ]
    columns = ["holder", "memory time", "work", "lookups", "read", "written", "sent", "received"]
    show.table(columns, rows)
    more(len(order) - len(shown), "holders")


def _tables(prediction: Prediction, full: bool) -> None:
    import numpy as np

    from rowtier.units import show_bytes, show_count

    facts = prediction.facts.tables
    tiers = len(prediction.plan.cluster.tier_names)
    names = [stats.table.name for stats in prediction.plan.profile.stats]
    levels = len(prediction.plan.cluster.levels)
    links = facts[:, 2 + 2 * tiers :].reshape(len(names), 4, levels).sum(axis=2)
    amounts = np.concatenate([facts[:, 2 : 2 + 2 * tiers].sum(axis=1, keepdims=True), links], 1)
    amounts[:, 3] += amounts[:, 4]  # copies' gradients and their ids
    order = np.argsort(-amounts[:, :4].sum(axis=1), kind="stable").tolist()
    shown = order if full else order[:MAX_TABLES]
    rows = [
        [
            names[i],
            *(show_count(float(facts[i, column])) for column in (0, 1)),
            *(show_bytes(float(amount)) for amount in amounts[i, :4]),
        ]
        for i in shown
    ]
    columns = ["table", "lookups", "rows touched", "memory moved", "forward", "ids", "sync"]
    show.table(columns, rows)
    more(len(order) - len(shown), "tables")


def _touched(prediction: Prediction) -> None:
    from rowtier.units import show_count

    facts, cluster = prediction.facts, prediction.plan.cluster
    rows = ", ".join(
        f"{show_count(round(float(rows)))} by a {scope}"
        for scope, rows in zip(cluster.scopes, facts.distinct, strict=True)
    )
    samples = prediction.plan.profile.batch_size * cluster.num_devices
    show.line(f"distinct rows touched in a step: {rows}")
    show.line(
        f"samples that need nothing from elsewhere: {facts.home_samples / samples:.1%} of "
        f"{show_count(samples)}"
    )


def ms(seconds: float) -> str:
    """Seconds as milliseconds for people."""
    return f"{1e3 * seconds:.4g} ms"


def more(count: int, what: str) -> None:
    """Say how much is not shown."""
    if count > 0:
        show.line(f"… and {count:,} more {what}: --full shows them")

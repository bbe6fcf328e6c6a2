"""`rowtier compare`: plans side by side, verdict first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rowtier.cli import show
from rowtier.cli.data_options import (
    AfterOption,
    BatchesOption,
    BeforeOption,
    DenseOption,
    TimeOption,
    checked_batches,
)
from rowtier.cli.names import shortened, unique
from rowtier.cli.policy import OutOfRangeOption, checked_policy
from rowtier.cli.predict import IdsOption, ReadOnlyOption, WeightedOption, cost_options, more
from rowtier.foreign import columns

if TYPE_CHECKING:
    from rowtier.cost.options import CostOptions
    from rowtier.evaluate.compare import Comparison, PlanLoad
    from rowtier.plan.plan import Plan

MAX_HOLDERS = 16
CELL_WIDTH = 10  # of bytes or lookups
NAME_WIDTH = 20
MAX_LEVELS = 3  # with a column each

_Plans = Annotated[
    list[str],
    typer.Argument(
        help="Plan folders for one profile and cluster, and methods to compare with, such as "
        "row-wise, planned on the same."
    ),
]
_Data = Annotated[
    str | None,
    typer.Option(help="Replay every plan on this data: Parquet, Criteo TSV, npz or pt."),
]
_BatchSize = Annotated[
    int | None, typer.Option(min=1, help="With --data: samples per device and step.")
]
_Steps = Annotated[
    int | None, typer.Option(min=1, help="With --data: so many steps only, drawn by --seed.")
]
_Seed = Annotated[
    int,
    typer.Option(min=0, help="Draws the samples of shuffled batches, and the steps of --steps."),
]
_Full = Annotated[bool, typer.Option("--full", help="Show every holder.")]


def command(
    plans: _Plans,
    data: _Data = None,
    batch_size: _BatchSize = None,
    steps: _Steps = None,
    seed: _Seed = 0,
    before: BeforeOption = None,
    after: AfterOption = None,
    time: TimeOption = None,
    batches: BatchesOption = None,
    on_out_of_range: OutOfRangeOption = None,
    ids: IdsOption = "wide",
    weighted: WeightedOption = None,
    dense: DenseOption = None,
    read_only: ReadOnlyOption = False,
    full: _Full = False,
    json: show.JsonOption = False,
) -> None:
    """Compare plans and methods: which is the fastest, by how much and why; memory used."""
    from rowtier.evaluate.compare import compare

    loaded, baselines = _sorted_out(plans)
    options = cost_options(next(iter(loaded.values())), ids, weighted, dense)
    reads = read_only or any(plan.serves for plan in loaded.values())
    options = options.reading if reads else options
    wishes = {
        "batch_size": batch_size,
        "steps": steps,
        "before": before,
        "after": after,
        "time": time,
        "batches": checked_batches(batches),
        "seed": seed or None,
        "on_out_of_range": checked_policy(on_out_of_range),
    }
    replaying: dict[str, Any] = {key: wish for key, wish in wishes.items() if wish is not None}
    with show.progress(f"replaying {data}", quiet=json or data is None) as progress:
        if data is not None:
            replaying["progress"] = progress
        result = compare(loaded, data, baselines=baselines, options=options, **replaying)
    if json:
        show.as_json(result.to_dict())
        return
    _report(result, next(iter(loaded.values())), options, full)


def _sorted_out(arguments: list[str]) -> tuple[dict[str, Plan], list[str]]:
    """Plan folders by name, and the methods among the arguments; a folder wins over a method."""
    from rowtier.errors import UserError
    from rowtier.plan.make import METHODS
    from rowtier.plan.plan import Plan

    folders = [Path(a) for a in arguments if Path(a).exists() or a not in METHODS]
    baselines = list(dict.fromkeys(a for a in arguments if Path(a) not in folders))
    for path in folders:
        if not path.exists():
            raise UserError(
                f"{path}: there is no such plan folder and no such method; the methods are "
                f"{', '.join(METHODS)}"
            )
    if not folders:
        raise UserError(
            f"{', '.join(baselines)}: methods are planned on the profile and cluster of a plan; "
            "give a plan folder too"
        )
    names = unique([_name(path, folders) for path in folders])
    return {name: Plan.load(path) for name, path in zip(names, folders, strict=True)}, baselines


def _name(path: Path, paths: list[Path]) -> str:
    """The folder's name, or the whole path where another folder has the same name."""
    others = {other.resolve() for other in paths if other.resolve().name == path.resolve().name}
    return str(path) if len(others) > 1 else path.resolve().name


def _report(result: Comparison, plan: Plan, options: CostOptions, full: bool) -> None:
    from rowtier.evaluate.phrases import assumptions

    show.line(result.verdict)
    for line in (*result.explanation, *assumptions(plan, options)):
        show.line(f"  {line}")
    for note in (*result.notes, *_warnings(result)):
        show.line(f"! {note}")
    for name, why in result.left_out.items():
        show.line(f"! {name} is left out, as it does not fit: {why.splitlines()[0]}")
    _per_holder(result, plan, full)
    _where(result, [level.name for level in plan.cluster.levels])
    if result.loads[0].replayed is not None:
        _replayed(result)
    _memory(result)


def _warnings(result: Comparison) -> list[str]:
    """What is said of every plan once, what is said of some with their names."""
    by_text: dict[str, list[str]] = {}
    for load in result.loads:
        for text in load.replayed.warnings if load.replayed else ():
            by_text.setdefault(text, []).append(load.name)
    return [
        text if len(names) == len(result.loads) else f"{', '.join(names)}: {text}"
        for text, names in by_text.items()
    ]


def _names(result: Comparison, width: int = NAME_WIDTH) -> dict[PlanLoad, str]:
    ranked = result.ranked
    return dict(zip(ranked, shortened([load.name for load in ranked], width), strict=True))


def _where(result: Comparison, levels: list[str]) -> None:
    """Where the time of a step goes, plan by plan."""
    groups: dict[str, list[str]] = {
        "fast": ["fast memory"],
        "slow": ["slow memory"],
        "imbalance": ["imbalance"],
        "work": ["work"],
    }
    if len(levels) <= MAX_LEVELS:
        groups |= {short: [f"{name} links"] for name, short in _short(levels)}
    else:
        groups["links"] = [f"{name} links" for name in levels]
    groups["sync"] = [f"{name} sync" for name in levels]
    groups["waiting"] = ["waiting"]
    rows = [
        [
            name,
            _ms(load.step_s),
            *(_ms(sum(load.parts[part] for part in parts)) for parts in groups.values()),
        ]
        for load, name in _names(result).items()
    ]
    links = "links" if len(levels) > MAX_LEVELS else " and ".join(f"{n} links" for n in levels)
    show.table(["plan", "step", *groups], rows)
    ends = (f"{name} {_ms(load.spread.p99_s)}" for load, name in _names(result).items())
    show.line(f"the slowest of a hundred steps (p99), in ms: {', '.join(ends)}")
    show.line(
        "predicted, in ms. Step: of mean loads. Fast and slow "
        "memory: if all holders had the same to do; imbalance: how much longer the slowest one "
        "takes; work: what ranks do besides moving bytes; "
        + (f"{links}: ids, rows or sums, gradients; " if links else "")
        + "sync: keeping copies equal; waiting: latencies and messages"
    )


def _short(levels: list[str]) -> list[tuple[str, str]]:
    return list(zip(levels, shortened(levels, 8), strict=True))


def _replayed(result: Comparison) -> None:
    """What was counted on the data, beside what was predicted."""
    rows = []
    for load, name in _names(result).items():
        assert load.replayed is not None
        names = ("step", "memory", "work", "links")
        step, memory, work, links = (load.replayed.figure(n) for n in names)
        assert step.percentiles is not None
        cells = [step.replayed, step.predicted, *(f.replayed for f in (memory, work, links))]
        ends = (step.percentiles[2], load.spread.p99_s, step.worst)
        rows.append([name, *map(_ms, cells[:2]), f"{step.error:+.1%}", *map(_ms, cells[2:])])
        rows[-1] += map(_ms, ends)
    found = result.loads[0].replayed
    assert found is not None
    show.line(f"replayed, in ms, over {found.steps:,} steps")
    titles = ["plan", "step", "predicted", "error", "memory", "work", "links"]
    show.table([*titles, "p99 step", "predicted", "worst"], rows)


def _memory(result: Comparison) -> None:
    from rowtier.units import show_bytes

    rows = [
        [
            name,
            f"{load.imbalance:.2f}",
            f"{load.slow_share:.1%}",
            *(show_bytes(amount) for amount in load.used_bytes.max(axis=0)),
            show_bytes(load.used_bytes.sum()),
            show_bytes((load.kept_bytes - load.used_bytes).sum()),
        ]
        for load, name in _names(result).items()
    ]
    tiers = [f"most {tier}" for tier in shortened(result.loads[0].tiers, 8)]
    show.table(["plan", "× mean", "slow lookups", *tiers, "all rows", "beside them"], rows)
    show.line(
        "× mean: lookups of the busiest holder over the mean; slow: not in the first tier; most: "
        "rows with optimizer state on the fullest holder, without buffers, outputs and remap tables"
    )


def _per_holder(result: Comparison, plan: Plan, full: bool) -> None:
    from rowtier.units import show_bytes, show_count

    cluster, names = plan.cluster, list(_names(result, 15).items())
    shown = _busiest(result, cluster.num_holders if full else MAX_HOLDERS)
    show.line("bytes of rows and lookups a step, per holder")
    for some in _abreast(names, max(columns(cluster.holder_name(i)) for i in shown)):
        rows = [
            [cluster.holder_name(i)]
            + [
                f"{show_bytes(load.used_bytes[i].sum())}\n{show_count(load.lookups[i].sum())}"
                for load, _ in some
            ]
            for i in shown
        ]
        show.table(["holder", *(name for _, name in some)], rows)
    more(cluster.num_holders - len(shown), "holders")


def _abreast(names: list[tuple[PlanLoad, str]], taken: int) -> list[list[tuple[PlanLoad, str]]]:
    """As many plans side by side as fit beside a column of names."""
    tables: list[list[tuple[PlanLoad, str]]] = [[]]
    left = show.WIDTH - taken - 3
    for load, name in names:
        width = max(columns(name), CELL_WIDTH) + 3
        if tables[-1] and width > left:
            tables.append([])
            left = show.WIDTH - taken - 3
        tables[-1].append((load, name))
        left -= width
    return tables


def _busiest(result: Comparison, count: int) -> list[int]:
    """The holders that are the busiest in any plan, in their own order."""
    import numpy as np

    load = np.max([each.lookups.sum(axis=1) for each in result.loads], axis=0)
    return sorted(np.argsort(-load, kind="stable")[:count].tolist())


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}" if seconds >= 1e-3 else f"{1e3 * seconds:.3f}"

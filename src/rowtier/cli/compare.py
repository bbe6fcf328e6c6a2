"""`rowtier compare`: plans side by side, verdict first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rowtier.cli import show

if TYPE_CHECKING:
    from rowtier.evaluate.compare import Comparison

MAX_HOLDERS = 16
MAX_PLANS = 7


def command(
    plans: Annotated[list[Path], typer.Argument(help="Plan folders for one profile and cluster.")],
    full: Annotated[bool, typer.Option(help="Show every holder, not only the first 16.")] = False,
    json: show.JsonOption = False,
) -> None:
    """Compare plans: step time, and bytes and lookups on every device."""
    from rowtier.evaluate.compare import compare
    from rowtier.plan.plan import Plan

    loaded = {_name(path, plans): Plan.load(path) for path in plans}
    result = compare(loaded)
    if json:
        show.as_json(result.to_dict())
        return
    show.line(result.verdict)
    cluster = next(iter(loaded.values())).cluster
    _per_holder(result, [cluster.holder_name(h) for h in range(cluster.num_holders)], full)
    _summary(result)


def _name(path: Path, paths: list[Path]) -> str:
    """The folder's name, or the whole path where two folders have the same name."""
    names = [other.resolve().name for other in paths]
    return str(path) if names.count(path.resolve().name) > 1 else path.resolve().name


def _summary(result: Comparison) -> None:
    from rowtier.units import show_bytes

    tiers = result.loads[0].tiers
    columns = ["plan", "step", "memory", "links", "× mean", "slow lookups"]
    columns += [f"most {tier}" for tier in tiers]
    rows = [
        [
            load.name,
            *(f"{1e3 * seconds:.4g} ms" for seconds in (load.step_s, load.memory_s, load.links_s)),
            f"{load.imbalance:.2f}",
            f"{load.slow_share:.1%}",
            *(show_bytes(amount) for amount in load.used_bytes.max(axis=0)),
        ]
        for load in sorted(result.loads, key=lambda load: load.step_s)
    ]
    show.table(columns, rows)
    show.line("× mean: lookups of the busiest holder over the mean; slow: not in the first tier")


def _per_holder(result: Comparison, names: list[str], full: bool) -> None:
    from rowtier.units import show_bytes, show_count

    if len(result.loads) > MAX_PLANS:
        show.line(f"bytes and lookups per holder: compare {MAX_PLANS} plans or fewer to see them")
        return
    shown = names if full else names[:MAX_HOLDERS]
    show.line("bytes and lookups a step, per holder")
    rows = [
        [name]
        + [
            f"{show_bytes(load.used_bytes[i].sum())}\n{show_count(load.lookups[i].sum())}"
            for load in result.loads
        ]
        for i, name in enumerate(shown)
    ]
    show.table(["holder", *(load.name for load in result.loads)], rows)
    if len(shown) < len(names):
        show.line(f"… and {len(names) - len(shown)} more holders: --full shows them")

"""`rowtier verify`: recompute what a plan claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rowtier.cli import show


def command(
    plan: Annotated[Path, typer.Argument(help="A plan folder.")], json: show.JsonOption = False
) -> None:
    """Recompute a plan's invariants, objective and gap (exit code 2 if a claim does not hold)."""
    from rowtier.cost.views import VIEWS
    from rowtier.errors import InvalidError
    from rowtier.plan.plan import Plan
    from rowtier.plan.verify import verify

    verdict = verify(Plan.load(plan))
    if verdict.mistakes:
        raise InvalidError(plan, verdict.mistakes)
    if json:
        show.as_json(verdict.to_dict())
        return
    if verdict.view is None or verdict.recomputed is None:
        show.line("the plan holds; it claims no objective, so there is no gap to check")
    else:
        unit = VIEWS[verdict.view].unit
        found = f"the plan holds: {verdict.recomputed:.6g} {unit} in view {verdict.view!r}"
        if verdict.gap is None:
            show.line(f"{found}; its bound says nothing")
        else:
            claims = "" if verdict.proved is not None or verdict.gap == 0 else "it claims to be "
            best = f"above the best possible ({verdict.bound:.6g} {unit})"
            show.line(f"{found}, {claims}at most {verdict.gap:.2%} {best}")
    if verdict.covers:
        show.line(f"the bound is about {verdict.covers}")
    if verdict.proved is not None:
        show.line("the bound was recomputed, without the solver")
    elif verdict.bound:
        show.line("the bound was not recomputed: it rests on more than prices for memory")
    show.line(f"predicted step time: {1e3 * verdict.step_s:.4g} ms")

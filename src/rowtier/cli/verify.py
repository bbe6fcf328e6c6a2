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
    if verdict.view is None or verdict.recomputed is None or verdict.gap is None:
        show.line("the plan holds; it claims no objective, so there is no gap to check")
    else:
        show.line(
            f"the plan holds: {verdict.recomputed:.6g} {VIEWS[verdict.view].unit} in view "
            f"{verdict.view!r}, at most {verdict.gap:.2%} above the best possible "
            f"({verdict.bound:.6g} {VIEWS[verdict.view].unit})"
        )
    if verdict.proved is not None:
        show.line("the bound was recomputed from its prices, without the solver")
    elif verdict.bound:
        show.line("the bound was not recomputed: the certificate names no prices that prove it")
    show.line(f"expected step time: {1e3 * verdict.step_s:.4g} ms")

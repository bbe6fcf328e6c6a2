"""`rowtier verify`: recompute what a plan claims."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rowtier.cli import show

if TYPE_CHECKING:
    from rowtier.plan.verify import Verdict


MOST = 8  # wishes that are listed


def command(
    plan: Annotated[Path, typer.Argument(help="A plan folder.")],
    profile: Annotated[
        Path | None,
        typer.Option(help="The profile folder that it was made from: finds an edited copy."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="The cluster file or preset that it was made for: the same."),
    ] = None,
    json: show.JsonOption = False,
) -> None:
    """Recompute a plan's invariants, objective and gap (exit code 2 if a claim does not hold).

    From the profile and cluster given, or else from the plan's own copies, which whoever edits
    them can seal anew.
    """
    from rowtier.errors import InvalidError
    from rowtier.plan.verify import verify

    verdict = verify(plan, profile, cluster)
    if verdict.mistakes:
        raise InvalidError(plan, verdict.mistakes)
    if json:
        show.as_json(verdict.to_dict())
        return
    show.line(_gap(verdict))
    if verdict.covers:
        show.line(f"the bound is about {verdict.covers}")
    if verdict.proved is not None:
        show.line("the bound was recomputed, without the solver")
    elif verdict.bound:
        show.line(
            "the bound is claimed, not proved: it rests on more than prices for memory, and was "
            "not recomputed"
        )
    show.line(verdict.against)
    if verdict.assumes:
        rest = len(verdict.assumes) - MOST
        more = [f"and {rest} more (--json lists them)"] if rest > 0 else []
        show.line(f"made with: {'; '.join([*verdict.assumes[:MOST], *more])}")
    if verdict.step_s is not None:
        show.line(f"predicted step time: {1e3 * verdict.step_s:.4g} ms")


def _gap(verdict: Verdict) -> str:
    from rowtier.cost.views import VIEWS

    if verdict.view is None or verdict.recomputed is None or verdict.certified is None:
        return "the plan holds; it claims no objective, so there is no gap to check"
    unit = VIEWS[verdict.view].unit
    found = f"the plan holds: {verdict.recomputed:.6g} {unit} in view {verdict.view!r}"
    if verdict.gap is None:
        return f"{found}; its bound says nothing"
    claims = "" if verdict.gap_is_proved else "it claims to be "
    best = f"above the best possible ({verdict.certified:.6g} {unit})"
    return f"{found}, {claims}at most {verdict.gap:.2%} {best}"

"""Check a plan's claims by code that shares nothing with the solvers.

The invariants are `check.py`'s; the objective is recomputed from the finished bands by the
cost model, in the view that the certificate names. A solver's word is never enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rowtier.cost.step import step_cost
from rowtier.cost.views import VIEWS, assumptions, objective
from rowtier.errors import Mistake
from rowtier.plan.check import find_mistakes
from rowtier.plan.plan import Plan
from rowtier.plan.prove import proved_s

TOLERANCE = 1e-9
PROOF_TOLERANCE = 1e-6  # sums of a million terms


@dataclass(frozen=True)
class Verdict:
    """What a plan claims, and what was found."""

    mistakes: tuple[Mistake, ...]
    view: str | None
    claimed: float | None
    recomputed: float | None
    bound: float | None
    covers: str  # which plans the bound is about; empty if the plan does not say
    proved: float | None  # the bound, recomputed from its prices
    step_s: float

    @property
    def holds(self) -> bool:
        """Whether every claim holds."""
        return not self.mistakes

    @property
    def gap(self) -> float | None:
        """At most this share above the best possible, from the recomputed objective."""
        if self.recomputed is None or self.bound is None:
            return None
        if self.bound == 0:
            return 0.0 if self.recomputed == 0 else None
        return self.recomputed / self.bound - 1

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        found = [{"key": m.key, "accepted": m.accepted} for m in self.mistakes]
        facts = {"holds": self.holds, "mistakes": found, "view": self.view, "gap": self.gap}
        numbers = {"claimed": self.claimed, "recomputed": self.recomputed, "bound": self.bound}
        numbers["proved"] = self.proved
        facts["covers"] = self.covers
        return facts | numbers | {"step_s": self.step_s}


def verify(plan: Plan) -> Verdict:
    """Recompute everything that a plan says about itself."""
    mistakes = list(find_mistakes(plan))
    certificate = plan.certificate
    recomputed = None
    if certificate is not None and certificate.view in VIEWS and not mistakes:
        recomputed = objective(
            certificate.view,
            plan.bands,
            plan.profile,
            plan.cluster,
            plan.order,
            assumptions(certificate.view, plan.assumed),
        )
    mistakes += _claims(plan, recomputed)
    proved = None if mistakes else proved_s(plan)
    claimed = 0.0 if certificate is None else certificate.bound
    if proved is not None and claimed > proved * (1 + PROOF_TOLERANCE):
        accepted = f"no more than {proved!r} is proved; plan again"
        mistakes.append(Mistake("certificate.bound", claimed, accepted))
    cost = step_cost(plan.bands, plan.profile, plan.cluster, plan.order, plan.assumed)
    if plan.constraints is not None and not mistakes:
        broken = plan.constraints.violations(plan.bands, cost)
        mistakes += [Mistake("constraints", None, text) for text in broken]
    return Verdict(
        tuple(mistakes),
        None if certificate is None else certificate.view,
        None if certificate is None else certificate.objective,
        recomputed,
        None if certificate is None else certificate.bound,
        "" if certificate is None else certificate.covers,
        proved,
        cost.step_s,
    )


def _claims(plan: Plan, recomputed: float | None) -> Iterator[Mistake]:
    certificate = plan.certificate
    if certificate is None:
        return
    if certificate.view not in VIEWS:
        accepted = ", ".join(VIEWS)
        yield Mistake("certificate.view", certificate.view, f"there is no such view; {accepted}")
        return
    if recomputed is not None:
        if abs(recomputed - certificate.objective) > TOLERANCE * abs(recomputed):
            yield Mistake(
                "certificate.objective",
                certificate.objective,
                f"the bands cost {recomputed!r} in this view; plan again",
            )
        if certificate.bound > recomputed * (1 + TOLERANCE):
            yield Mistake(
                "certificate.bound",
                certificate.bound,
                f"nothing can cost less than the bound, and the plan costs {recomputed!r}",
            )
    if certificate.bound < 0:
        yield Mistake("certificate.bound", certificate.bound, "no cost is below zero")

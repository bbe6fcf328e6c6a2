"""What is proved of a plan that may move only so many bytes.

No plan beats the bound of the problem without a budget, so none does that moves less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rowtier.cost.step import StepCost, step_cost
from rowtier.plan.claims import kept_mistakes, rounds_of
from rowtier.plan.covers import however_many
from rowtier.plan.plan import Certificate, Plan, RoundsUsed
from rowtier.plan.prove import Proved, prove
from rowtier.units import show_bytes

_AS_GOOD = 1.001  # times the objective without a budget


def certified_within(plan: Plan, fresh: Plan, objective: float, budget_bytes: int) -> Plan:
    """A plan within a budget, with the bound of the plan without one.

    There is no certificate if the bound is for plans that leave more memory free than this one.
    """
    certificate = fresh.certificate
    if certificate is None:
        return replace(plan, certificate=None)
    binding = certificate.binding
    if objective > certificate.objective * _AS_GOOD:
        binding = f"the budget: {show_bytes(budget_bytes)} may move"
    claimed = certificate.model_copy(
        update={
            "objective": objective,
            "covers": however_many(certificate.covers),
            "binding": binding,
            "from_statistics": None,
            "caution": None,
            "rounds": (),
        }
    )
    cost = step_cost(plan.bands, plan.profile, plan.cluster, plan.order, plan.assumed)
    made = replace(plan, certificate=claimed)
    if next(kept_mistakes(made, cost), None) is not None:
        return replace(plan, certificate=None)
    # Rows that share a bucket of these statistics need not be those of the plan that was proved.
    proved = prove(made)
    bound = min(certificate.bound, objective)
    if proved is not None:
        bound = min(bound, proved.seconds)
    rounds = tuple(_rounds(certificate, cost, bound, proved))
    changes = {"bound": bound, "rounds": rounds if certificate.view == "step" else ()}
    return replace(plan, certificate=claimed.model_copy(update=changes))


def _rounds(
    certificate: Certificate, cost: StepCost, bound: float, proved: Proved | None
) -> Iterator[RoundsUsed]:
    """Rounds that the plan has; what nothing beats without them is at least the bound."""
    known = {one.kind: one for one in certificate.rounds}
    for kind, rounds in rounds_of(cost).items():
        if not rounds:
            continue
        without = known[kind].without if kind in known else bound
        least = None if proved is None else proved.without.get(kind)
        if proved is not None and least is not None and without is not None:
            without = min(without, least)
        yield RoundsUsed(kind=kind, rounds=rounds, without=without)

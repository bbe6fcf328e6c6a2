"""What a certificate says beside its numbers, held against what can be known of the plan.

Every claim is recomputed, or must be one of those that there are; what is neither (`binding`,
`prices`, figures of `caution`) stays a claim, and `verify` prints none of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

from rowtier.cost.step import StepCost
from rowtier.cost.views import VIEWS
from rowtier.errors import Mistake
from rowtier.plan.constraints import Constraints, over_capacity
from rowtier.plan.covers import CERTIFIED, certified_view, known_covers
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Certificate, Plan, RoundKind
from rowtier.plan.prove import Proved
from rowtier.plan.prove_facts import reserve_of
from rowtier.units import show_bytes, show_seconds

TOLERANCE = 1e-9
PROOF_TOLERANCE = 1e-6  # sums of a million terms


def word_mistakes(plan: Plan) -> Iterator[Mistake]:
    """Claims in words that cannot be, and numbers that are none."""
    certificate = plan.certificate
    if certificate is None:
        return
    # Earlier versions wrote `capacity_bytes`, which nothing reads.
    said = certificate.model_dump(exclude={"proof": {"capacity_bytes"}})
    for key, value in _numbers("certificate", said):
        yield Mistake(key, value, "is not a finite number; plan again")
    if certificate.view not in VIEWS:
        return  # `check.py` says so
    if plan.method not in CERTIFIED:
        known = ", ".join(CERTIFIED)
        accepted = f"certifies nothing, so the certificate is not its own; those that do: {known}"
        yield Mistake("method", plan.method, accepted)
        return
    view = certified_view(plan.method, serves=plan.serves)
    if certificate.view != view:
        accepted = f"{plan.method} certifies in view {view!r}; plan again"
        yield Mistake("certificate.view", certificate.view, accepted)
    wanted = plan.constraints or Constraints()
    known_texts = known_covers(plan.method, wanted, certificate.left, serves=plan.serves)
    if certificate.covers not in ("", *known_texts):
        accepted = f"a bound of this plan is about {' or '.join(known_texts)}"
        yield Mistake("certificate.covers", certificate.covers, accepted)


def _numbers(key: str, value: Any) -> Iterator[tuple[str, float]]:
    """Numbers that are not finite, by their keys."""
    if isinstance(value, float) and not isfinite(value):
        yield key, value
    elif isinstance(value, dict):
        for name, entry in value.items():
            yield from _numbers(f"{key}.{name}", entry)
    elif isinstance(value, (list, tuple)):
        for index, entry in enumerate(value):
            yield from _numbers(f"{key}[{index}]", entry)


def objective_mistakes(certificate: Certificate, recomputed: float) -> Iterator[Mistake]:
    """Claims that do not fit what the bands cost."""
    if not isfinite(recomputed) or recomputed < 0:
        accepted = f"the bands cost {recomputed!r} in this view, which is no cost; profile again"
        yield Mistake("certificate.objective", certificate.objective, accepted)
        return
    if not abs(recomputed - certificate.objective) <= TOLERANCE * abs(recomputed):
        accepted = f"the bands cost {recomputed!r} in this view; plan again"
        yield Mistake("certificate.objective", certificate.objective, accepted)
    if not certificate.bound <= recomputed * (1 + TOLERANCE):
        accepted = f"nothing can cost less than the bound, and the plan costs {recomputed!r}"
        yield Mistake("certificate.bound", certificate.bound, accepted)
    if certificate.bound < 0:
        yield Mistake("certificate.bound", certificate.bound, "no cost is below zero")


def missing_proof(plan: Plan) -> Iterator[Mistake]:
    """A proof that is gone: `joint` gives one, unless wishes decide where tables lie."""
    certificate, wanted = plan.certificate, plan.constraints or Constraints()
    if certificate is None or certificate.proof is not None or certificate.bound <= 0:
        return
    if plan.method == "joint" and not wanted.decides_places:
        why = "the proof is missing, so the bound is nobody's word; plan again"
        yield Mistake("certificate.proof", None, why)


def bound_mistakes(certificate: Certificate, proved: Proved) -> Iterator[Mistake]:
    """Bounds above what is proved: of all plans, and of those without rounds of a kind."""
    if certificate.bound > proved.seconds * (1 + PROOF_TOLERANCE):
        accepted = f"no more than {proved.seconds!r} is proved; plan again"
        yield Mistake("certificate.bound", certificate.bound, accepted)
    for index, one in enumerate(certificate.rounds):
        least = proved.without.get(one.kind)
        if least is None:
            continue  # there is no plan without them
        if one.without is None or one.without > least * (1 + PROOF_TOLERANCE):
            accepted = f"no more than {least!r} is proved of plans without {one.kind}; plan again"
            yield Mistake(f"certificate.rounds[{index}].without", one.without, accepted)


def round_mistakes(certificate: Certificate, cost: StepCost) -> Iterator[Mistake]:
    """Rounds that the bands do not have, or more or fewer of them."""
    counts = rounds_of(cost)
    for index, one in enumerate(certificate.rounds):
        if one.rounds != counts[one.kind]:
            accepted = f"the bands have {counts[one.kind]} rounds of {one.kind}; plan again"
            yield Mistake(f"certificate.rounds[{index}].rounds", one.rounds, accepted)


def rounds_of(cost: StepCost) -> dict[RoundKind, int]:
    """How many rounds of each kind a placement has."""
    phases, each = cost.links.phases, cost.phases()
    copies = each.get("copies", 0)
    relayed = int((phases.relayed & phases.asked).sum())
    return {"exchange": sum(each.values()) - copies, "gateways": relayed, "copies": copies}


def kept_mistakes(plan: Plan, cost: StepCost) -> Iterator[Mistake]:
    """What the plan says that it keeps to, and does not: constraints, memory to leave free."""
    if plan.constraints is not None:
        wanted = plan.constraints
        found = [m.below("constraints") for m in wanted.mistakes(plan.profile, plan.cluster)]
        yield from found
        if not found:
            said = wanted.violations(plan.bands, cost)
            yield from (Mistake("constraints", None, text) for text in said)
    reserve = reserve_of(plan)
    rows, tiers = cost.memory.rows, plan.cluster.tier_names
    for pool, _ in cost.memory.in_pools(plan.cluster):
        holders = list(pool.holders)
        own = plan.cluster.tiers_of(holders[0])
        left = reserve.left(next(t for t in own if t.name == pool.tier), holders)
        used = int(rows[holders, tiers.index(pool.tier)].sum())
        if used > left:
            accepted = (
                f"{pool.place} keeps {show_bytes(used)} of rows in {pool.tier}, where reserves "
                f"({reserve}) leave {show_bytes(left)}; plan again"
            )
            yield Mistake("reserve", None, accepted)
            break
    if PlanOptions.of(plan).fit == "all":
        for lack in over_capacity(cost):
            accepted = f"{lack.tier} lacks {show_bytes(lack.amount_bytes)} beside rows; plan again"
            yield Mistake("origin.options.fit", "all", accepted)


def assumed(plan: Plan) -> tuple[str, ...]:
    """What a plan's numbers rest on beside profile and cluster, which only its maker knows."""
    options, reserve = PlanOptions.of(plan), str(reserve_of(plan))
    said = [reserve] if reserve else []
    if options.serve:
        said.append("a cluster that only reads")
    if options.dense_s:
        said.append(f"{show_seconds(options.dense_s)} of other work a step")
    if options.confidence is not None:
        said.append(f"hot rows as hot as is {options.confidence:.0%} sure")
    if options.batches != "shuffled":
        said.append("batches of neighbouring samples")
    wanted = plan.constraints or Constraints()
    pinned = [stats.table.name for stats in plan.profile.stats if wanted.said_of(stats.table.name)]
    said += [f"{name} pinned ({', '.join(wanted.said_of(name))})" for name in pinned]
    said += [f"at most {show_bytes(most)} on {level} links" for level, most in wanted.links.items()]
    return tuple(said)

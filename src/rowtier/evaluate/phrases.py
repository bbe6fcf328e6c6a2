"""Figures in words: durations, objectives, and what more of a memory or a link would save."""

from __future__ import annotations

from rowtier.cost.options import CostOptions
from rowtier.cost.spread import StepSpread
from rowtier.cost.step import StepCost
from rowtier.cost.views import VIEWS
from rowtier.plan.plan import Certificate, Plan, Price
from rowtier.units import show_bytes, show_seconds

ms = show_seconds


def more_ms(seconds: float) -> str:
    """A difference of durations for people, with its sign."""
    return f"{'−' if seconds < 0 else '+'}{ms(abs(seconds))}"


def amount(certificate: Certificate, value: float) -> str:
    """A figure in the unit of the certificate's view."""
    return ms(value) if VIEWS[certificate.view].unit == "s" else show_bytes(value)


def prices(certificate: Certificate | None) -> list[str]:
    """What more of a memory or a link would save, in words."""
    if certificate is None:
        return []
    said = []
    for price in certificate.prices:
        memory = price.unit == "GB"
        what = f"{price.resource} everywhere" if memory else f"on every {price.resource} link"
        unit, saves = _unit(price, certificate.objective) if memory else (price.unit, price.saves)
        saved = f"{'at most' if memory else 'at least'} {amount(certificate, saves)} a step"
        said.append(f"1 {unit} more {what}: {saved if saves else 'nothing'}")
    return said


def rounds_needed(certificate: Certificate) -> str:
    """The kinds of rounds that a plan has, and what nothing beats without each."""
    said = []
    for one in certificate.rounds:
        least = "no plan is" if one.without is None else f"at least {ms(one.without)}"
        said.append(f"{one.rounds} of {one.kind} (without: {least})")
    return f"rounds: {', '.join(said)}"


def _unit(price: Price, most: float) -> tuple[str, float]:
    """A unit of memory that is not worth more than all there is to save."""
    for unit, share in (("GB", 1.0), ("MB", 1e-3)):
        if price.saves * share <= most:
            return unit, price.saves * share
    return "kB", price.saves * 1e-6


def assumptions(plan: Plan, options: CostOptions | None = None) -> list[str]:
    """What is taken for granted beside profile and cluster, if anything."""
    assumed, hidden = options or plan.assumed, plan.cluster.work.hidden
    if not assumed.training:
        return ["read-only: no gradients return, no row is written, copies are not kept equal"]
    if not assumed.dense_s:
        return []
    return [f"assumes {ms(assumed.dense_s)} of other work a step, {hidden:.0%} of which hides sync"]


def work(cost: StepCost) -> str:
    """What the slowest holder's work is made of; nothing if none is counted."""
    parts = {name: seconds for name, seconds in cost.work_parts().items() if seconds}
    order = sorted(parts, key=lambda name: -parts[name])
    said = ", ".join(f"{ms(parts[name])} {name}" for name in order)
    holder = cost.cluster.holder_name(cost.time.slowest)
    return f"work of {holder}: {said}" if said else ""


def spread(found: StepSpread) -> str:
    """What steps take, whose loads are not the mean ones."""
    return (
        f"from step to step: {ms(found.expected_s)} on average, {ms(found.p50_s)} p50, "
        f"{ms(found.p99_s)} p99"
    )


def rounds(cost: StepCost) -> str:
    """The kinds of exchange that there are, and the rounds of each; nothing if there are none."""
    phases = cost.phases()
    said = ", ".join(f"{count} for {name}" for name, count in phases.items())
    return f"rounds: {sum(phases.values())} a step, {said}" if said else ""

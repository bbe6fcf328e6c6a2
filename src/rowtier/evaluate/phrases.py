"""Figures in words: durations, objectives, and what more of a memory or a link would save."""

from __future__ import annotations

from rowtier.cost.views import VIEWS
from rowtier.plan.plan import Certificate, Price
from rowtier.units import show_bytes


def ms(seconds: float) -> str:
    """A duration for people."""
    if not seconds:
        return "0"
    size = abs(seconds)
    if size >= 1:
        return f"{seconds:.4g} s"
    return f"{1e3 * seconds:.4g} ms" if size >= 1e-3 else f"{1e6 * seconds:.4g} µs"


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


def _unit(price: Price, most: float) -> tuple[str, float]:
    """A unit of memory that is not worth more than all there is to save."""
    for unit, share in (("GB", 1.0), ("MB", 1e-3)):
        if price.saves * share <= most:
            return unit, price.saves * share
    return "kB", price.saves * 1e-6

"""Whether a better cluster ever gets a slower plan: more capacity, more bandwidth, less waiting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from harness.bounds.draw import Instance
from rowtier import Plan, make_plan
from rowtier.cluster import Cluster, Level, Tier
from rowtier.errors import InfeasibleError

T = TypeVar("T")


@dataclass(frozen=True)
class Compared:
    """How much slower the plan for a better cluster is, and how much its certificate allows."""

    what: str
    slower: float
    gap: float


def compared(instance: Instance, plan: Plan, random: np.random.Generator) -> Compared:
    """Improve one thing, and plan again."""
    ways = list(improved(instance.cluster, float(random.choice([1.05, 1.5, 4.0]))))
    what, cluster = ways[int(random.integers(len(ways)))]
    better = replace(instance, cluster=cluster)
    try:
        other = make_plan(better.profile, better.cluster, "joint", better.options)
    except InfeasibleError:
        return Compared(what, np.inf, 0.0)
    assert plan.certificate is not None
    assert other.certificate is not None
    slower = other.certificate.objective / plan.certificate.objective - 1
    return Compared(what, max(0.0, slower), other.certificate.gap)


def improved(cluster: Cluster, factor: float) -> Iterator[tuple[str, Cluster]]:
    """Every cluster in which one thing is better by a factor."""
    for index, tier in enumerate(cluster.device.tiers):
        for what, better in _tiers(tier, factor):
            tiers = _with(cluster.device.tiers, index, better)
            device = cluster.device.model_copy(update={"tiers": tiers})
            yield what, cluster.model_copy(update={"device": device})
    for index, level in enumerate(cluster.levels):
        for what, faster in _levels(level, factor):
            yield what, cluster.model_copy(update={"levels": _with(cluster.levels, index, faster)})
    for index, server in enumerate(cluster.servers):
        for what, better in _tiers(server.tiers[0], factor):
            other = server.model_copy(update={"tiers": _with(server.tiers, 0, better)})
            servers = _with(cluster.servers, index, other)
            yield f"server's {what}", cluster.model_copy(update={"servers": servers})


def _tiers(tier: Tier, factor: float) -> Iterator[tuple[str, Tier]]:
    more: dict[str, dict[str, float]] = {
        "capacity": {"capacity_bytes": int(np.ceil(tier.capacity_bytes * factor))},
        "bandwidth": {"bandwidth_bytes_per_s": tier.bandwidth_bytes_per_s * factor},
    }
    for what, change in more.items():
        yield f"{what} of {tier.name}", tier.model_copy(update=change)


def _levels(level: Level, factor: float) -> Iterator[tuple[str, Level]]:
    faster = {"bandwidth_bytes_per_s": level.bandwidth_bytes_per_s * factor}
    yield f"bandwidth of {level.name}", level.model_copy(update=faster)
    for what in ("latency_s", "message_s"):
        if getattr(level, what):
            less = {what: getattr(level, what) / factor}
            yield f"{what} of {level.name}", level.model_copy(update=less)


def _with(entries: tuple[T, ...], index: int, entry: T) -> tuple[T, ...]:
    return (*entries[:index], entry, *entries[index + 1 :])

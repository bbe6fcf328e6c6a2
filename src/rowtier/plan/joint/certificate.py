"""What joint certifies: the bound and its proof, what binds, what more would save, which rounds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rowtier.cost.memory import memory_sizes
from rowtier.cost.step import StepCost
from rowtier.plan.binding import binding_step
from rowtier.plan.claims import rounds_of
from rowtier.plan.covers import joint_covers
from rowtier.plan.joint.bound import Least, proof_of
from rowtier.plan.joint.dual import LEAST_WORTH
from rowtier.plan.joint.homes import Phase
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import GIGA, Certificate, Price, RoundsUsed
from rowtier.profile.curve import Floats


def certificate_of(least: Least, options: PlanOptions, cost: StepCost, bound: float) -> Certificate:
    """The certificate of a placement that costs this."""
    wanted = options.constraints
    return Certificate(
        view="read-only" if options.serve else "step",
        objective=cost.step_s,
        bound=bound,
        covers=joint_covers(wanted, serves=options.serve),
        binding=_binding(least, options, cost),
        prices=tuple(_prices(least, cost)),
        rounds=tuple(_rounds(least, cost)),
        proof=None if wanted.decides_places else proof_of(least),
    )


def _worth(least: Least) -> Floats:
    """What each memory is worth as a whole, in seconds; 0 if more of it would save nothing."""
    worth = least.cases[0].proof.prices * least.tables.capacity
    return np.where(worth > LEAST_WORTH * least.seconds, worth, 0.0)


def _binding(least: Least, options: PlanOptions, cost: StepCost) -> str:
    """What stops the plan from being better, in words."""
    names = [name for name, _ in memory_sizes(cost.cluster, options.reserved)]
    worth, capacity = _worth(least), least.tables.capacity
    dearest = int(np.argmax(worth))
    tier, says = None, ""
    if worth[dearest] > 0:
        tier = names[dearest]
        units = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "byte": 1}
        unit = next(u for u, size in units.items() if size <= max(capacity[dearest], 1))
        saved_s = least.cases[0].proof.prices[dearest] * units[unit]
        says = f"capacity of {tier}: one more {unit} per device saves {saved_s:.3g} s a step"
    return binding_step(cost, tier, says, options.reserved)


def _rounds(least: Least, cost: StepCost) -> Iterator[RoundsUsed]:
    """The kinds of rounds that a plan has, and what nothing beats without each."""
    for kind, rounds in rounds_of(cost).items():
        if rounds:
            lacking = [p for p in least.phases if not _has(p, kind)]
            without = min((least.seconds_of(p) for p in lacking), default=None)
            yield RoundsUsed(kind=kind, rounds=rounds, without=without)


def _has(phase: Phase, kind: str) -> bool:
    has = {"exchange": phase.widest > 0, "gateways": phase.relayed, "copies": phase.lowest > 0}
    return has[kind]


def _prices(least: Least, cost: StepCost) -> Iterator[Price]:
    """What one more GB of each memory, or GB/s of each link, saves."""
    names = [name for name, _ in memory_sizes(cost.cluster)]
    prices = least.cases[0].proof.prices
    for name, price, worth in zip(names, prices, _worth(least), strict=True):
        yield Price(resource=name, unit="GB", saves=float(price) * GIGA if worth else 0.0)
    for index, level in enumerate(cost.cluster.levels):
        bandwidth = level.bandwidth_bytes_per_s
        waits = cost.time.exchange_latency_s[index], cost.time.sync_latency_s[index]
        exchange_s, sync_s = cost.time.exchange_level_s[index], cost.time.sync_level_s[index]
        moving_s = cost.time.exchange_counts[index] * (exchange_s - waits[0])
        moving_s += cost.time.sync_counts[index] * (sync_s - waits[1])
        saved_s = float(moving_s) * (1 - bandwidth / (bandwidth + GIGA))
        yield Price(resource=level.name, unit="GB/s", saves=saved_s)

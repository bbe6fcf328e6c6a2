"""From step to step: what steps take on average and at their worst, beside what mean loads take.

A step waits for the slowest, and who that is differs from step to step. So the mean over steps is
above the time of mean loads (Jensen: the time is convex in the loads), and a bound on the latter
is one on the former. Here every holder's load is normal with the variance of `variance.py`, and
holders are independent of each other, but for memory that they share and updates of copies that
all of them make: E[max] and percentiles follow from the product of their distributions. The
flows of a link rise together. The slowest holder and the busiest link of each level are taken to be
independent: they are seldom the same holder's. Of tiers and levels that run side by side those
count which take longer on average, and rounds are as many as in the mean step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rowtier.cost.links import Flow
from rowtier.cost.normal import Largest, larger_of_two, largest
from rowtier.cost.step_time import StepTime, outlasting
from rowtier.cost.time import Purpose, efficiencies, one_way_s, tier_time_s, tiers_side_by_side
from rowtier.cost.tree import Tree, tree_of
from rowtier.cost.variance import CostRequest, Variances, variances_of
from rowtier.profile.curve import Floats, Ints


@dataclass(frozen=True, eq=False)
class StepSpread:
    """How much steps differ. Arrays count holders (rows) and levels (columns)."""

    expected_s: float  # mean over steps
    p50_s: float
    p99_s: float
    busy_deviation_s: Floats  # of a holder's memory time and work
    link_deviation_s: Floats  # of the exchange through its links

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        return {"expected_s": self.expected_s, "p50_s": self.p50_s, "p99_s": self.p99_s}


def spread_of(
    asked: CostRequest, moved_bytes: Floats, exchange: list[Flow], sync: Flow, time: StepTime
) -> StepSpread:
    """How much the steps of a placement differ, whose mean loads are known."""
    tree = tree_of(asked.cluster)
    varied = variances_of(asked, _tier_counts(tree, moved_bytes, time))
    busy_s2, sharers = _busy_variance(tree, varied)
    busy = _slowest(tree, time.memory_s + time.work_s, varied, sharers)
    back = varied.forward.back * float(asked.options.training)
    flows = list(zip(exchange, [varied.ids.back, varied.forward, back], strict=True))
    mean_s, link_s2 = _link_times(tree, flows, "exchange")
    parts = [busy, *_levels(tree, mean_s, link_s2, time.exchange_counts)]
    sync_flow = Flow(varied.sync, varied.sync)
    sync_mean_s, sync_s2 = _link_times(tree, [(sync, sync_flow)], "sync")
    counts = outlasting(time.sync_level_s, time.side_by_side, axis=0)
    copies = _levels(tree, sync_mean_s, sync_s2, counts)
    waiting_s = float(time.exchange_counts @ time.exchange_latency_s)
    late = _unhidden(_in_turn(copies), float(counts @ time.sync_latency_s) - time.hidden_s)
    step = _in_turn([*parts, late])
    return StepSpread(
        max(time.step_s, waiting_s + step.mean), waiting_s + step.p50, waiting_s + step.p99,
        np.sqrt(busy_s2), np.sqrt(link_s2),
    )  # fmt: skip


def _in_turn(parts: list[Largest]) -> Largest:
    """Parts that follow each other, independent of each other."""
    p50 = sum(part.p50 for part in parts)
    late = math.hypot(*(part.p99 - part.p50 for part in parts))
    deviation = math.hypot(*(part.deviation for part in parts))
    return Largest(sum(part.mean for part in parts), deviation, p50, p50 + late)


def _tier_counts(tree: Tree, moved_bytes: Floats, time: StepTime) -> Floats:
    """Kinds × tiers: 1 for those that the slowest holder of a kind waits for."""
    counts = outlasting(tier_time_s(tree, moved_bytes), tiers_side_by_side(tree), axis=1)
    busy_s = time.memory_s + time.work_s
    kinds = range(len(tree.tiers))
    return np.stack([counts[np.where(tree.kinds == kind, busy_s, -1.0).argmax()] for kind in kinds])


def _busy_variance(tree: Tree, varied: Variances) -> tuple[Floats, int]:
    """Of each holder, with what sharers add; how many share memory at most."""
    tiers = tree.cluster.device.tiers
    sharers = max(tree.cluster.sharers(tier) for tier in tiers)
    shared = varied.shared.copy()
    together = shared[: tree.devices].reshape(-1, sharers).sum(axis=1)
    shared[: tree.devices] = np.repeat(together, sharers)
    return varied.own + shared + varied.common, sharers


def _slowest(tree: Tree, busy_s: Floats, varied: Variances, sharers: int) -> Largest:
    """The slowest holder; those that share memory are slow together, and all that have copies."""
    means, variances = list(busy_s[tree.devices :]), list(varied.own[tree.devices :])
    for first in range(0, tree.devices, sharers):
        group = slice(first, first + sharers)
        one = largest(busy_s[group], varied.own[group])
        means.append(one.mean)
        variances.append(one.deviation**2 + varied.shared[group].sum())
    return largest(np.array(means), np.array(variances)).plus(float(varied.common.max()))


def _link_times(
    tree: Tree, flows: list[tuple[Flow, Flow]], purpose: Purpose
) -> tuple[Floats, Floats]:
    """Mean and variance of each holder's link times: flows in turn, the busier way of each."""
    mean_s, deviation_s = np.zeros((2, tree.holders, tree.levels))
    for index in range(tree.levels):
        for flow, variance in flows:
            ways = [
                (
                    one_way_s(tree, amount[:, index], index),
                    one_way_s(tree, square[:, index], index, 2),
                )
                for amount, square in (
                    (flow.sent, variance.sent),
                    (flow.received, variance.received),
                )
            ]
            mean, square = larger_of_two(*ways[0], *ways[1])
            mean_s[:, index] += mean
            deviation_s[:, index] += np.sqrt(square)
    reached = efficiencies(tree, purpose)
    return mean_s / reached, (deviation_s / reached) ** 2


def _levels(tree: Tree, mean_s: Floats, variance: Floats, counts: Floats) -> list[Largest]:
    """The busiest link of each level that the step waits for."""
    found = []
    for index in np.flatnonzero(counts).tolist():
        links = _links(tree, index)
        found.append(largest(mean_s[links, index], variance[links, index]))
    return found


def _links(tree: Tree, index: int) -> Ints:
    """One holder of each link of a level."""
    if tree.cluster.levels[index].per == "device":
        return tree.places
    own = [rack for rack in tree.racks if rack.level > index or rack.bandwidth_bytes_per_s]
    servers = [tree.places[rack.first : rack.stop] for rack in own]
    return np.concatenate([tree.places[: tree.devices : tree.sizes[index]], *servers])


def _unhidden(copies: Largest, more_s: float) -> Largest:
    """What keeping copies equal adds to the step, beside what is hidden."""
    zero = np.zeros(1)
    mean, variance = np.array([copies.mean + more_s]), np.array([copies.deviation**2])
    late, square = larger_of_two(mean, variance, zero, zero)
    p50, p99 = (max(0.0, seconds + more_s) for seconds in (copies.p50, copies.p99))
    return Largest(float(late[0]), math.sqrt(float(square[0])), p50, p99)

"""Seconds: memory time of every holder, link time of every level, and the step they make.

    step = slowest holder's memory time
         + Σ over levels: busiest link's bytes / bandwidth + rounds × latency
         − overlap × the part of the link time that keeps copies equal

All tables travel together, and messages of one round are under way at the same time: a
round costs the widest level that it goes through one latency, however many holders it reaches.
Ranks tell each other how much will come before it comes, so asking takes two rounds, and so does
each half of keeping copies equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rowtier.cost.links import Flow
from rowtier.cost.options import CostOptions
from rowtier.cost.tree import Tree
from rowtier.profile.curve import Floats, Ints

Busy = NDArray[np.bool_]  # levels, and further axes


@dataclass(frozen=True, eq=False)
class StepTime:
    """Where the time of a step goes. Arrays count holders (rows) and levels (columns)."""

    memory_s: Floats  # per holder
    exchange_s: Floats  # ids, rows or sums, gradients: bytes over bandwidth
    sync_s: Floats  # the same for copies
    exchange_latency_s: Floats  # per level
    sync_latency_s: Floats
    overlap: float

    @property
    def slowest_memory_s(self) -> float:
        """Memory time of the slowest holder."""
        return float(self.memory_s.max())

    @property
    def exchange_level_s(self) -> Floats:
        """Time of each level's links for ids, rows or sums, and gradients."""
        return np.asarray(self.exchange_s.max(axis=0) + self.exchange_latency_s)

    @property
    def sync_level_s(self) -> Floats:
        """Time of each level's links for keeping copies equal."""
        return np.asarray(self.sync_s.max(axis=0) + self.sync_latency_s)

    @property
    def links_s(self) -> float:
        """Link time on the critical path, all levels together."""
        return float(self._links_s)

    @property
    def step_s(self) -> float:
        """Memory and links, one after the other."""
        return float(self.each_step_s)

    @property
    def each_step_s(self) -> Floats:
        """The step's time, where arrays have further axes: one for each placement."""
        return np.asarray(self.memory_s.max(axis=0) + self._links_s)

    @property
    def _links_s(self) -> Floats:
        kept = (1 - self.overlap) * self.sync_level_s.sum(axis=0)
        return np.asarray(self.exchange_level_s.sum(axis=0) + kept)


def memory_time_s(tree: Tree, moved_bytes: Floats) -> Floats:
    """Seconds that each holder's memories are busy, one after the other."""
    rates = _tier_s_per_byte(tree)
    return np.asarray((moved_bytes * _stretched(rates, moved_bytes)).sum(axis=1))


def _stretched(factors: Floats, amounts: Floats | Ints) -> Floats:
    """The same factors for amounts with further axes."""
    return factors.reshape(*factors.shape, *(1,) * (amounts.ndim - factors.ndim))


def tier_s_per_byte(tree: Tree, kind: int) -> Floats:
    """Seconds per byte of each tier column of a kind of holder; zero where it has none."""
    rates = np.zeros(len(tree.columns))
    for name, tier in tree.tiers[kind].items():
        rates[tree.columns[name]] = 1 / tier.bandwidth_bytes_per_s
    return rates


def _tier_s_per_byte(tree: Tree) -> Floats:
    return np.stack([tier_s_per_byte(tree, kind) for kind in range(len(tree.tiers))])[tree.kinds]


def link_s_per_byte(tree: Tree, efficiency: float = 1.0) -> Floats:
    """Seconds per level for each byte that every device sends; groups share `per: group` links."""
    return np.array(
        [
            (tree.sizes[index] if level.per == "group" else 1)
            / (level.bandwidth_bytes_per_s * efficiency)
            for index, level in enumerate(tree.cluster.levels)
        ]
    )


def link_time_s(tree: Tree, flows: Iterable[Flow], efficiency: float) -> Floats:
    """Seconds that each holder's links are busy, flow after flow, the busier direction of each."""
    flows = list(flows)
    time_s = np.zeros(flows[0].sent.shape)
    for flow in flows:
        for index in range(tree.levels):
            time_s[:, index] += np.maximum(
                _one_way_s(tree, flow.sent[:, index], index),
                _one_way_s(tree, flow.received[:, index], index),
            )
    return time_s / efficiency


def _one_way_s(tree: Tree, moved_bytes: Floats, index: int) -> Floats:
    level = tree.cluster.levels[index]
    bandwidth = np.full(tree.holders, level.bandwidth_bytes_per_s)
    for rack in tree.racks:
        if rack.bandwidth_bytes_per_s is not None:
            bandwidth[rack.first : rack.stop] = rack.bandwidth_bytes_per_s
    own_s: Floats = moved_bytes / _stretched(bandwidth, moved_bytes)
    if level.per == "device":
        return own_s
    return _shared_s(tree, moved_bytes, own_s, index)


def _shared_s(tree: Tree, moved_bytes: Floats, own_s: Floats, index: int) -> Floats:
    """A group of the level below has one link for all it holds; servers beside it their own."""
    level = tree.cluster.levels[index]
    shared_s = tree.group_sums(moved_bytes, index) / level.bandwidth_bytes_per_s
    time_s = own_s.copy()
    time_s[: tree.devices] = np.repeat(shared_s, tree.sizes[index], axis=0)
    for rack in tree.racks:
        if rack.level <= index:
            at = slice(rack.first, rack.stop)
            inside = np.repeat(shared_s, (rack.stop - rack.first) // len(shared_s), axis=0)
            own = own_s[at] if rack.bandwidth_bytes_per_s is not None else 0.0
            time_s[at] = np.maximum(inside, own)
    return time_s


def busiest_link_bytes(tree: Tree, flows: Iterable[Flow], index: int) -> float:
    """Bytes that the busiest link of a level carries, in its busier direction."""
    both = list(flows)
    one_way = [
        sum((getattr(f, way)[:, index] for f in both), np.zeros(tree.holders))
        for way in ("sent", "received")
    ]
    if tree.cluster.levels[index].per == "group":
        one_way = [tree.group_sums(amounts, index) for amounts in one_way]
    return float(max(amounts.max() for amounts in one_way))


def exchange_rounds(
    asked: Busy, answered: Busy, relayed: Busy, added_up: Busy, training: bool
) -> Ints:
    """Rounds per level, where the arrays say which levels carry ids, rows or sums at all.

    What goes directly passes all levels in one round. Gateways (`relayed`) and devices that add
    partial sums up for others (`added_up`) pass things on level by level.
    """
    passes = 2 if training else 1
    return 2 * _turns(asked, relayed) + passes * (_turns(answered, relayed) + added_up)


def sync_rounds(synced: Busy) -> Ints:
    """Rounds per level that keep copies equal: gradients are told and sent, and so are sums."""
    return 4 * synced.astype(np.int64)


def _turns(busy: Busy, relayed: Busy) -> Ints:
    above = np.logical_or.accumulate(busy[::-1])[::-1]  # here, or at a wider level
    widest = busy.copy()
    widest[:-1] &= ~above[1:]
    return np.asarray(widest | (busy & relayed), dtype=np.int64)


def latency_s(tree: Tree, rounds: Ints) -> Floats:
    """Seconds of waiting per level."""
    latencies = np.array([level.latency_s for level in tree.cluster.levels])
    return np.asarray(_stretched(latencies, rounds) * rounds)


def step_time(
    tree: Tree,
    moved_bytes: Floats,
    exchange: tuple[list[Flow], Ints],
    sync: tuple[list[Flow], Ints],
    options: CostOptions,
) -> StepTime:
    """Turn bytes and rounds into seconds."""
    return StepTime(
        memory_s=memory_time_s(tree, moved_bytes),
        exchange_s=link_time_s(tree, exchange[0], options.exchange_efficiency),
        sync_s=link_time_s(tree, sync[0], options.sync_efficiency),
        exchange_latency_s=latency_s(tree, exchange[1]),
        sync_latency_s=latency_s(tree, sync[1]),
        overlap=options.overlap,
    )

"""Seconds: memory and work of every holder, link time of every level, and the step they make.

    step = slowest holder's memory time and work
         + Σ over levels: busiest link's bytes / bandwidth + rounds × latency + messages
         − the part of keeping copies equal that runs beside the rest of the model

All tables travel together, and messages of one round are under way at the same time: a
round costs the widest level that it goes through one latency, and each peer a message.
A message tells how much is in it, so asking takes one round, and so does each half of keeping
copies equal. Tiers and levels take turns, unless the cluster says that they
run side by side (`overlap`): then the longest of them counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from rowtier.cost.links import Flow
from rowtier.cost.options import CostOptions
from rowtier.cost.step_time import StepTime, outlasting, summed
from rowtier.cost.tree import Tree
from rowtier.profile.curve import Floats, Ints

N = TypeVar("N", np.float64, np.int64)
Busy = NDArray[np.bool_]  # levels, and further axes
Purpose = Literal["exchange", "sync"]
ASKING = 1  # round: the ids, and how many they are
TELLING = 1  # round more, where sums are added up inside groups: of which samples they are
SYNCING = 2  # rounds: gradients are sent, and their sums


def memory_time_s(tree: Tree, moved_bytes: Floats) -> Floats:
    """Seconds that each holder's memories are busy."""
    return summed(tier_time_s(tree, moved_bytes), tiers_side_by_side(tree), axis=1)


def tier_time_s(tree: Tree, moved_bytes: Floats) -> Floats:
    """Seconds that each tier (column) of each holder (row) is busy; sharers wait for each other."""
    rates = np.stack([own_s_per_byte(tree, kind) for kind in range(len(tree.tiers))])[tree.kinds]
    time_s = np.asarray(moved_bytes * _stretched(rates, moved_bytes))
    for name, tier in tree.tiers[0].items():
        sharers = tree.cluster.sharers(tier)
        if sharers > 1:
            column, devices = tree.columns[name], slice(0, tree.devices)
            own_s = time_s[devices, column]
            together_s = own_s.reshape(-1, sharers, *own_s.shape[1:]).sum(axis=1)
            time_s[devices, column] = np.repeat(together_s, sharers, axis=0)
    return time_s


def own_time_s(tree: Tree, moved_bytes: Floats) -> Floats:
    """Seconds of each holder, tier after tier, if sharers leave it its part of the bandwidth."""
    rates = np.stack([_part_s_per_byte(tree, kind) for kind in range(len(tree.tiers))])[tree.kinds]
    return np.asarray((moved_bytes * rates).sum(axis=1))


def counted_tier_time_s(tree: Tree, moved_bytes: Floats) -> Floats:
    """The same, but 0 for tiers that run beside one that takes longer: a holder's add up."""
    time_s = tier_time_s(tree, moved_bytes)
    return time_s * outlasting(time_s, tiers_side_by_side(tree), axis=1)


def _stretched(factors: NDArray[N], amounts: NDArray[Any]) -> NDArray[N]:
    """The same factors for amounts with further axes."""
    return factors.reshape(*factors.shape, *(1,) * (amounts.ndim - factors.ndim))


def own_s_per_byte(tree: Tree, kind: int) -> Floats:
    """Seconds of a byte in each tier of a holder of a kind; zero where it has none."""
    rates = np.zeros(len(tree.columns))
    for name, tier in tree.tiers[kind].items():
        rates[tree.columns[name]] = 1 / tier.bandwidth_bytes_per_s
    return rates


@lru_cache(maxsize=256)
def _side_by_side(tree: Tree, what: Literal["tiers", "levels"]) -> tuple[tuple[int, ...], ...]:
    """Columns of tiers, or of levels, that run at the same time."""
    columns = tree.columns if what == "tiers" else {n: k - 1 for n, k in tree.scopes.items() if k}
    return tuple(
        tuple(columns[name] for name in names)
        for names in tree.cluster.overlap
        if all(name in columns for name in names)
    )


def tiers_side_by_side(tree: Tree) -> tuple[tuple[int, ...], ...]:
    """Columns of tiers that run at the same time."""
    return _side_by_side(tree, "tiers")


def turn_shares(tree: Tree, what: Literal["tiers", "levels"]) -> Floats:
    """Shares of each tier's or level's time that a step takes at least.

    Of what runs side by side, the longest is above the mean.
    """
    shares = np.ones(len(tree.columns) if what == "tiers" else tree.levels)
    for together in _side_by_side(tree, what):
        shares[list(together)] = 1 / len(together)
    return shares


def tier_s_per_byte(tree: Tree, kind: int) -> Floats:
    """Seconds that a step takes at least for each byte that all holders of a kind move alike.

    By tier column; zero where the kind has none.
    """
    return _part_s_per_byte(tree, kind) * turn_shares(tree, "tiers")


def _part_s_per_byte(tree: Tree, kind: int) -> Floats:
    rates = own_s_per_byte(tree, kind)
    for name, tier in tree.tiers[kind].items():
        rates[tree.columns[name]] *= tree.cluster.sharers(tier)
    return rates


def link_s_per_byte(tree: Tree, purpose: Purpose = "exchange") -> Floats:
    """Seconds that a step takes at least for each byte that every device sends, by level.

    Groups share `per: group` links.
    """
    rates = np.array(
        [
            (tree.sizes[index] if level.per == "group" else 1) / level.bandwidth_bytes_per_s
            for index, level in enumerate(tree.cluster.levels)
        ]
    )
    shares = turn_shares(tree, "levels")
    return np.asarray(rates.reshape(-1) * shares / efficiencies(tree, purpose))


def efficiencies(tree: Tree, purpose: Purpose) -> Floats:
    """What the messages of a purpose reach of each level's bandwidth."""
    return np.array([getattr(level, f"{purpose}_efficiency") for level in tree.cluster.levels])


def link_time_s(tree: Tree, flows: Iterable[Flow], purpose: Purpose) -> Floats:
    """Seconds that each holder's links are busy, flow after flow, the busier direction of each."""
    flows = list(flows)
    time_s = np.zeros(flows[0].sent.shape)
    for flow in flows:
        for index in range(tree.levels):
            time_s[:, index] += np.maximum(
                one_way_s(tree, flow.sent[:, index], index),
                one_way_s(tree, flow.received[:, index], index),
            )
    return np.asarray(time_s / _stretched(efficiencies(tree, purpose), time_s[0]))


def one_way_s(tree: Tree, moved_bytes: Floats, index: int, power: int = 1) -> Floats:
    """Seconds of each holder's link of a level, one way; with `power` 2, of variances."""
    level = tree.cluster.levels[index]
    bandwidth = np.full(tree.holders, level.bandwidth_bytes_per_s)
    for rack in tree.racks:
        if rack.bandwidth_bytes_per_s is not None:
            bandwidth[rack.first : rack.stop] = rack.bandwidth_bytes_per_s
    own_s: Floats = moved_bytes / _stretched(bandwidth, moved_bytes) ** power
    if level.per == "device":
        return own_s
    return _shared_s(tree, moved_bytes, own_s, index, power)


def _shared_s(tree: Tree, moved_bytes: Floats, own_s: Floats, index: int, power: int) -> Floats:
    """A group of the level below has one link for all it holds; servers beside it their own."""
    level = tree.cluster.levels[index]
    shared_s = tree.group_sums(moved_bytes, index) / level.bandwidth_bytes_per_s**power
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


@dataclass(frozen=True, eq=False)
class Phases:
    """Which kinds of exchange a plan has at all, level by level; each costs its rounds.

    What goes directly passes all levels in one round. Gateways (`relayed`) and devices that add
    partial sums up for others (`added_up`) pass things on level by level.
    """

    asked: Busy
    answered: Busy
    relayed: Busy
    added_up: Busy
    synced: Busy
    training: bool

    @property
    def exchange_rounds(self) -> Ints:
        """Rounds per level of ids, rows or sums, and gradients, one after the other."""
        answers = _turns(self.answered, self.relayed) + self.added_up
        asking = ASKING * _turns(self.asked, self.relayed) + TELLING * self.added_up
        return asking + self._passes * answers

    @property
    def sync_rounds(self) -> Ints:
        """Rounds per level that keep copies equal."""
        return SYNCING * self.synced.astype(np.int64)

    @property
    def rounds(self) -> Ints:
        """All rounds, one after the other."""
        return np.asarray((self.exchange_rounds + self.sync_rounds).sum(axis=0))

    def named(self) -> dict[str, int]:
        """The phases that there are, and the rounds of each."""
        found = {
            "ids": ASKING * int(_turns(self.asked, self.relayed).sum()),
            "rows and sums": int(_turns(self.answered, self.relayed).sum()),
            "sums inside groups": (1 + TELLING) * int(self.added_up.sum()),
        }
        answers = found["rows and sums"] + int(self.added_up.sum())
        found["gradients"] = answers * (self._passes - 1)
        found["copies"] = int(self.sync_rounds.sum())
        return {name: rounds for name, rounds in found.items() if rounds}

    def exchange_messages(self, tree: Tree) -> Ints:
        """Messages per level that a device sends: in each round one to every peer there."""
        rounds = ASKING * self.asked.astype(np.int64) + self._passes * self.answered
        near, far = (_stretched(peers, self.asked) for peers in _peers(tree))
        direct = np.where(self.relayed, near, far) * rounds
        return np.asarray(direct + (TELLING + self._passes) * near * self.added_up)

    def sync_messages(self, tree: Tree) -> Ints:
        """The same for copies, which meet level by level."""
        return np.asarray(_stretched(_peers(tree)[0], self.synced) * self.sync_rounds)

    @property
    def _passes(self) -> int:
        return 2 if self.training else 1


def _peers(tree: Tree) -> tuple[Ints, Ints]:
    """Per level the groups beside a device's own, and all devices in them."""
    sizes = np.array(tree.sizes, dtype=np.int64)
    return sizes[1:] // sizes[:-1] - 1, np.diff(sizes)


def _turns(busy: Busy, relayed: Busy) -> Ints:
    above = np.logical_or.accumulate(busy[::-1])[::-1]  # here, or at a wider level
    widest = busy.copy()
    widest[:-1] &= ~above[1:]
    return np.asarray(widest | (busy & relayed), dtype=np.int64)


def _waiting_s(tree: Tree, rounds: Ints, messages: Ints) -> Floats:
    levels = tree.cluster.levels
    latency = np.array([level.latency_s for level in levels])
    message = np.array([level.message_s for level in levels])
    return np.asarray(_stretched(latency, rounds) * rounds + _stretched(message, rounds) * messages)


def step_time(
    tree: Tree,
    moved_bytes: Floats,
    work_s: Floats,
    exchange: list[Flow],
    sync: Flow,
    phases: Phases,
    options: CostOptions,
) -> StepTime:
    """Turn bytes, the holders' own work and rounds into seconds."""
    work = tree.cluster.work
    return StepTime(
        memory_s=memory_time_s(tree, moved_bytes),
        work_s=np.asarray(work_s + work.step_s + work.round_s * phases.rounds),
        exchange_s=link_time_s(tree, exchange, "exchange"),
        sync_s=link_time_s(tree, [sync], "sync"),
        exchange_latency_s=_waiting_s(tree, phases.exchange_rounds, phases.exchange_messages(tree)),
        sync_latency_s=_waiting_s(tree, phases.sync_rounds, phases.sync_messages(tree)),
        hidden_s=options.dense_s * work.hidden,
        side_by_side=_side_by_side(tree, "levels"),
    )

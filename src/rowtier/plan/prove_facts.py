"""What a proof may not say of itself: the memory there is, and what its numbers must be like.

Prices may be any: what they prove is a bound. Bytes, statistics and speeds are facts, and are taken
from the cluster, from the statistics and from what the plan was asked to leave free.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import isfinite, prod

import numpy as np

from rowtier.cluster import Cluster, Tier
from rowtier.cost.amounts import whole_bytes
from rowtier.cost.memory import Reserve
from rowtier.errors import Mistake
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan, Proof
from rowtier.tables import Table

DEAREST = 1e15  # seconds for a byte: beyond it products would overflow
NEAREST = 1e-9  # masses that are nearer to each other say nothing but rounding errors
MOST_BOXES = 2**16  # far more than any planner cuts


def reserve_of(plan: Plan) -> Reserve:
    """All memory that rows of a plan were not to use."""
    left = () if plan.certificate is None else plan.certificate.left
    return PlanOptions.of(plan).leaving(left).reserved


def capacity_bytes(plan: Plan) -> list[float]:
    """Bytes of every memory that rows may use, for each device: its own first, then servers'."""
    cluster, reserve, found = plan.cluster, reserve_of(plan), []
    devices = cluster.num_devices
    for tier, kind, _ in memories(cluster):
        if kind:
            count = len(cluster.server_members(cluster.servers[kind - 1]))
            found.append(reserve.left(tier) * count / devices)
            continue
        sharers = cluster.sharers(tier)
        firsts = range(0, devices, sharers)
        total = sum(reserve.left(tier, range(first, first + sharers)) for first in firsts)
        found.append(total / devices)
    return found


def memories(cluster: Cluster) -> Iterator[tuple[Tier, int, int]]:
    """Every memory: its tier, and the kind of its holders and the level that they hang at."""
    yield from ((tier, 0, 0) for tier in cluster.device.tiers)
    for kind, server in enumerate(cluster.servers, start=1):
        yield from ((tier, kind, attached_level(cluster, kind)) for tier in server.tiers)


def attached_level(cluster: Cluster, kind: int) -> int:
    """The level that servers of a kind hang at; 0 for devices."""
    return cluster.level_of(cluster.servers[kind - 1].level) if kind else 0


def pooled_s(plan: Plan) -> float:
    """RecShard's objective with the memory of all devices as one, filled with the hottest rows."""
    devices, kept, read = plan.cluster.num_devices, [], []
    for stats in plan.profile.stats:
        curve, table = stats.curve, stats.table
        lookups = plan.profile.lookups_per_step(stats) * devices
        kept.append(curve.widths * float(table.stored_row_bytes))
        read.append(curve.probabilities * curve.widths * lookups * table.row_bytes)
    kept_bytes, read_bytes = np.concatenate(kept), np.concatenate(read)
    order = np.argsort(-read_bytes / kept_bytes, kind="stable")
    until = np.concatenate(([0.0], np.cumsum(kept_bytes[order])))
    served = np.concatenate(([0.0], np.cumsum(read_bytes[order])))
    speed = plan.cluster.own_bandwidth
    tiers = zip(plan.cluster.device.tiers, capacity_bytes(plan), strict=False)  # no servers
    room, before, seconds = 0.0, 0.0, 0.0
    for tier, size in sorted(tiers, key=lambda entry: -speed(entry[0])):
        room += size * devices
        now = float(np.interp(room, until, served))
        seconds += (now - before) / speed(tier)
        before = now
    return seconds / devices


def form_mistakes(proof: Proof, cluster: Cluster, dimensions: int) -> Iterator[Mistake]:
    """What keeps the numbers of a proof from proving anything, whatever the plan."""
    levels = [None, *(level.name for level in cluster.levels)]
    count = len(list(memories(cluster)))
    yield from _price_mistakes("prices", proof.prices, count)
    most = 2 * len(levels) ** 2
    if len(proof.cases) > most:
        yield Mistake("cases", len(proof.cases), f"there are no more than {most}; plan again")
    for index, case in enumerate(proof.cases[:most]):
        yield from _price_mistakes(f"cases[{index}].prices", case.prices, count)
        for key, name in (("widest", case.widest), ("meets", case.meets)):
            if name not in levels:
                known = ", ".join(level.name for level in cluster.levels)
                yield Mistake(f"cases[{index}].{key}", name, f"no such level; there are {known}")
    if not 0 <= proof.sync_weight <= 1:
        yield Mistake("sync_weight", proof.sync_weight, "must be 0 to 1")
    weights, kinds = proof.holder_weights, 1 + len(cluster.servers)
    if len(weights) != kinds or not all(isfinite(w) and w >= 0 for w in weights):
        accepted = f"a weight of 0 or more for each of {kinds} kinds of holders; plan again"
        yield Mistake("holder_weights", weights, accepted)
    elif sum(weights) > 1 + 1e-9:
        yield Mistake("holder_weights", weights, "must not add up to more than 1: no mean does")
    yield from _mass_mistakes(proof.masses, dimensions)


def _price_mistakes(key: str, prices: tuple[float, ...], count: int) -> Iterator[Mistake]:
    if len(prices) != count:
        yield Mistake(key, len(prices), f"there are {count} memories; name a price for each")
    for price in prices:
        if not 0 <= price <= DEAREST:
            yield Mistake(key, price, f"a price is 0 to {DEAREST:g} seconds for a byte")
            return


def _mass_mistakes(masses: tuple[tuple[float, ...], ...], dimensions: int) -> Iterator[Mistake]:
    if len(masses) != dimensions:
        yield Mistake("masses", len(masses), f"there are {dimensions} lists of them; plan again")
    for index, cut in enumerate(masses):
        whole = len(cut) >= 2 and cut[0] == 0 and cut[-1] == 1
        if not whole or not all(b - a >= NEAREST for a, b in pairwise(cut)):
            yield Mistake(f"masses[{index}]", cut, "must rise from 0 to 1, so that all is covered")
    if prod(max(1, len(cut) - 1) for cut in masses) > MOST_BOXES:
        yield Mistake("masses", None, f"cut more than {MOST_BOXES} boxes; plan again")


def saves_when_cut(table: Table, cluster: Cluster) -> bool:
    """Whether fewer columns move fewer bytes each, in any memory."""
    for tier, _, _ in memories(cluster):
        for beside in (0, 1):
            moved = [
                whole_bytes(n * table.item_bytes + beside * table.state_bytes(n), tier) / n
                for n in range(1, table.embedding_dim + 1)
            ]
            if min(moved) < moved[-1] * (1 - 1e-12):
                return True
    return False

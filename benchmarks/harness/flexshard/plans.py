"""The plans that `flexshard.py` compares, at equal memory, and what replay says of them."""

from __future__ import annotations

import rowtier
from harness.flexshard.data import Data, step_batches
from rowtier import Band, Cluster, Device, Level, Plan, Profile, Tier
from rowtier.cost.options import CostOptions
from rowtier.cost.step import StepCost, step_cost

OURS = ("row-wise plain", "row-wise coalesced", "flexshard", "joint")
NARROW = CostOptions(ids="narrow")  # as the runtime sends them
PLENTY_BYTES = 8 * 2**30


def nominal(nodes: int, ranks: int, rate_bits_per_s: float) -> Cluster:
    """Round figures for links of this rate: the same plans in every run, whose bytes are compared.

    Four ranks on a machine with two cores wait for each other's wakeups, several times as long
    as these latencies: planned for what calibrate finds, joint may rather send more than go by
    gateways.
    """
    inside = Level(name="node", size=ranks, bandwidth_bytes_per_s=1e9, latency_s=3e-4)
    between = Level(
        name="cluster", size=nodes, bandwidth_bytes_per_s=0.8 * rate_bits_per_s / 8,
        latency_s=5e-4, per="group" if ranks > 1 else "device",
    )  # fmt: skip
    ram = Tier(
        name="ram", capacity_bytes=PLENTY_BYTES, bandwidth_bytes_per_s=2e9, granularity_bytes=64
    )
    levels = (inside, between) if ranks > 1 else (between,)
    return Cluster(name=f"{nodes}x{ranks}", levels=levels, device=Device(tiers=(ram,)))


def with_capacity(cluster: Cluster, capacity_bytes: int) -> Cluster:
    """The same cluster with so much memory per device."""
    tier = cluster.device.tiers[0].model_copy(update={"capacity_bytes": capacity_bytes})
    device = cluster.device.model_copy(update={"tiers": (tier,)})
    return cluster.model_copy(update={"device": device})


def plans_of(profile: Profile, cluster: Cluster) -> dict[str, Plan]:
    """rowtier's contenders."""
    plain = rowtier.make_plan(profile, cluster, "row-wise")
    table, tier = profile.stats[0].table, cluster.device.tiers[0].name
    band = Band(start=0, stop=table.num_embeddings, scope=cluster.top, tier=tier, coalesced=True)
    coalesced = Plan.build("row-wise coalesced", profile, cluster, {table.name: (band,)})
    flexshard = rowtier.make_plan(profile, cluster, "flexshard")
    return dict(zip(OURS, (plain, coalesced, flexshard, joint(profile, plain)), strict=True))


def joint(profile: Profile, plain: Plan) -> Plan:
    """joint in the memory that plain row-wise uses at its peak, buffers of both counted."""
    budget_bytes = capacity_bytes = peak_bytes(plain)
    least_bytes = int(cost_of(plain).memory.rows[:, 0].max())
    while True:
        cluster = with_capacity(plain.cluster, capacity_bytes)
        plan = rowtier.make_plan(profile, cluster, "joint")
        excess = peak_bytes(plan) - budget_bytes
        if excess <= 0 or capacity_bytes == least_bytes:
            return plan
        capacity_bytes = max(least_bytes, capacity_bytes - max(excess, budget_bytes // 50))


def cost_of(plan: Plan) -> StepCost:
    return step_cost(plan.bands, plan.profile, plan.cluster, plan.order, NARROW)


def peak_bytes(plan: Plan) -> int:
    """Rows and exchange buffers of the fullest device."""
    memory = cost_of(plan).memory
    return int((memory.rows + memory.buffers)[:, 0].max())


def replayed_bytes(plan: Plan, data: Data, world: int, steps: list[int]) -> tuple[float, float]:
    """Bytes between nodes in a step: all of them, and those of rows, gradients and sync."""
    moved = _replayed(plan, data, world, steps, "level", plan.cluster.top)
    rows = sum(moved.get(flow, 0.0) for flow in ("forward", "backward", "sync"))
    return rows + sum(moved.get(flow, 0.0) for flow in ("ids", "sync_ids")), rows


def replayed_s(plan: Plan, data: Data, world: int, steps: list[int]) -> float:
    """Seconds that the links are busy in a step."""
    return _replayed(plan, data, world, steps, "step", "")["links"]


def _replayed(
    plan: Plan, data: Data, world: int, steps: list[int], kind: str, of: str
) -> dict[str, float]:
    """Figures of one kind; flows that a plan has not are left out."""
    found = rowtier.replay(
        plan, step_batches(data, world, steps), batches="in_time_order", options=NARROW
    )
    return {f.label.name: f.replayed for f in found.figures if f.label[:2] == (kind, of)}

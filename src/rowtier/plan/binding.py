"""What stops a plan from being better, in words: one rule for all planners.

A memory is named only where it is in use: rows, buffers, outputs and remap tables fill 95 % of what
may be used of it, on its fullest holder. Else what rules the step is named, its largest part.
"""

from __future__ import annotations

import numpy as np

from rowtier.cost.memory import Reserve
from rowtier.cost.step import StepCost
from rowtier.cost.time import counted_tier_time_s
from rowtier.cost.tree import tree_of
from rowtier.units import show_seconds

FULL = 0.95  # of a memory that binds
NOTHING_RESERVED = Reserve()


def used_share(cost: StepCost, tier: str, reserve: Reserve = NOTHING_RESERVED) -> float:
    """The share in use of a tier, of what is not reserved, where it is fullest."""
    shares = [0.0]
    for pool, used_bytes in cost.memory.in_pools(cost.cluster):
        if pool.tier == tier:
            owner = cost.cluster.tiers_of(pool.holders[0])
            left = reserve.left(next(one for one in owner if one.name == tier), pool.holders)
            shares.append(used_bytes / left if left else 1.0)
    return max(shares)


def binding(
    cost: StepCost, tier: str | None, says: str, reserve: Reserve = NOTHING_RESERVED
) -> str:
    """What a planner says of a tier that it found scarce, or what rules the step instead."""
    if tier is not None and used_share(cost, tier, reserve) >= FULL:
        return says
    return rules(cost)


def binding_step(
    cost: StepCost, tier: str | None, says: str, reserve: Reserve = NOTHING_RESERVED
) -> str:
    """The same for a planner that minimises the step: work and waiting come first if they rule."""
    scarce = tier is not None and used_share(cost, tier, reserve) >= FULL
    ruling = max(_parts(cost).items(), key=lambda part: part[1])[0]
    if not scarce or ruling in ("work", "waiting"):
        return f"{rules(cost)}; {says}" if scarce else rules(cost)
    return says


def rules(cost: StepCost) -> str:
    """The largest part of the step."""
    parts = _parts(cost)
    name = max(parts, key=lambda part: parts[part])
    if not parts[name]:
        return "nothing: a step takes no time"
    if name == "work":
        return f"work: {_work(cost)}"
    if name == "waiting":
        rounds = sum(cost.phases().values())
        return f"waiting: {rounds} rounds, {show_seconds(parts[name])} of latencies and messages"
    if name == "memory":
        return f"bandwidth of {_busiest_tier(cost)}"
    return f"the {name} links"


def _parts(cost: StepCost) -> dict[str, float]:
    """Seconds of the step: memory, work, waiting, and the bytes of each level's links."""
    time = cost.time
    moving_s = time.exchange_counts * time.exchange_s.max(axis=0)
    moving_s = moving_s + time.sync_counts * time.sync_s.max(axis=0)
    links = zip(cost.cluster.levels, moving_s.tolist(), strict=True)
    return {
        "memory": time.slowest_memory_s,
        "work": time.slowest_work_s,
        "waiting": time.waiting_s,
        **{level.name: seconds for level, seconds in links},
    }


def _work(cost: StepCost) -> str:
    """What most of the work of the slowest holder is for."""
    parts = cost.work_parts()
    total_s, most = sum(parts.values()), max(parts, key=lambda part: parts[part])
    work, rounds = cost.cluster.work, sum(cost.phases().values())
    each = {
        "rounds": f", {rounds} of {show_seconds(work.round_s)}",
        "tables": f", {len(cost.tables)} of {show_seconds(work.table_s)}",
        "bands": f", {cost.pieces.pieces} of them",
    }
    return f"{show_seconds(parts[most])} of {show_seconds(total_s)} for {most}{each.get(most, '')}"


def _busiest_tier(cost: StepCost) -> str:
    """The tier that keeps the slowest holder busy longest."""
    moved = cost.read_bytes + cost.written_bytes
    tier_s = counted_tier_time_s(tree_of(cost.cluster), moved)[int(cost.time.memory_s.argmax())]
    return cost.cluster.tier_names[int(np.argmax(tier_s))]

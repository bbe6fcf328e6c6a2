"""Where the time of a step goes, in parts that add up to it: so differences can be explained.

fast memory   what the first tiers take, if all holders had the same to do
slow memory   the same for all other tiers
imbalance     how much longer the slowest holder takes than the mean
work          what ranks do besides moving bytes
LEVEL links   ids, rows or partial sums and gradients, on the busiest link of a level
LEVEL sync    gradients of copies, as far as nothing else runs beside it
waiting       latencies of rounds, and messages
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rowtier.cluster import Cluster
from rowtier.cost.step import StepCost
from rowtier.cost.tree import tree_of
from rowtier.evaluate.phrases import more_ms
from rowtier.evaluate.shares import seconds_by_tier, tier_seconds
from rowtier.profile.curve import Floats

if TYPE_CHECKING:
    from rowtier.evaluate.replay import Replay

Parts = Mapping[str, float]  # seconds, by the names above
_TELLING = 0.05  # of all that differs: less is not worth a word
_MOST = 3


def step_parts(cost: StepCost) -> dict[str, float]:
    """The parts of a predicted step."""
    time, levels = cost.time, [level.name for level in cost.cluster.levels]
    parts = _memory_parts(cost.cluster, tier_seconds(cost), time.slowest_memory_s)
    parts["work"] = time.slowest_work_s
    exchange_s = time.exchange_counts * time.exchange_s.max(axis=0)
    for name, seconds in zip(levels, exchange_s, strict=True):
        parts[f"{name} links"] = float(seconds)
    sync_s = time.sync_counts * time.sync_s.max(axis=0)
    for name, seconds in zip(levels, sync_s, strict=True):
        parts[f"{name} sync"] = float(seconds)
    parts["waiting"] = time.waiting_s
    return parts


def replayed_parts(found: Replay) -> dict[str, float]:
    """The parts of a replayed step, means over the steps; latencies are in those of the links."""
    cluster, means = found.prediction.plan.cluster, _means(found)
    tiers = cluster.tier_names
    holders = [cluster.holder_name(holder) for holder in range(cluster.num_holders)]
    moved = np.array(
        [
            [sum(means.get((h, way, t), 0.0) for way in ("read", "written")) for t in tiers]
            for h in holders
        ]
    )
    parts = _memory_parts(cluster, seconds_by_tier(cluster, moved), means["", "memory", ""])
    parts["work"] = means["", "work", ""]
    time = found.prediction.cost.time
    for level, counts in zip(cluster.levels, time.exchange_counts, strict=True):
        exchange_s = means.get((level.name, "exchange", ""), 0.0)
        parts[f"{level.name} links"] = float(counts) * exchange_s
    for level, counts in zip(cluster.levels, time.sync_counts, strict=True):
        sync_s = means.get((level.name, "keeping equal", ""), 0.0)
        parts[f"{level.name} sync"] = float(counts) * sync_s
    return parts


def _means(found: Replay) -> dict[tuple[str, str, str], float]:
    return {(f.label.of, f.label.name, f.label.at): f.replayed for f in found.figures}


def _memory_parts(cluster: Cluster, tier_s: Floats, slowest_s: float) -> dict[str, float]:
    tree = tree_of(cluster)
    first = np.array([tree.columns[next(iter(tiers))] for tiers in tree.tiers])[tree.kinds]
    mean_s = float(tier_s.sum(axis=1).mean())
    fast_s = float(tier_s[np.arange(tree.holders), first].mean())
    return {
        "fast memory": fast_s,
        "slow memory": max(0.0, mean_s - fast_s),
        "imbalance": slowest_s - max(mean_s, fast_s),
    }


def difference(one: Parts, other: Parts) -> dict[str, float]:
    """Seconds that `other` takes more than `one`, part by part."""
    return {name: other.get(name, 0.0) - one.get(name, 0.0) for name in {**one, **other}}


def reasons(differs: Parts) -> str:
    """The parts that matter most, in words: "cluster links +28.4 ms, imbalance −1.2 ms"."""
    total = sum(map(abs, differs.values()))
    order = sorted(differs, key=lambda name: -abs(differs[name]))
    told = [name for name in order[:_MOST] if abs(differs[name]) > _TELLING * total]
    return ", ".join(f"{name} {more_ms(differs[name])}" for name in told) or "nothing"

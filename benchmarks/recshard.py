"""RecShard's comparison: greedy placements of whole tables against placements by row.

rm1, rm2, rm3 and a fat rm2 (nearly all rows used) on 16 devices with 24 + 128 GiB. A speed-up is
the best of RecShard's three greedy baselines over the method, by the same cost model: on
RecShard's own objective (memory time per access of the slowest device, links free), and beside
it on step time. Two stronger baselines are scored too: `lookup+coverage` balances what is really
read, `time-aware` balances time and gives fast memory to the tables that are read most per byte.
`worse_than_highs_max` compares with the mixed-integer program after 60 s of HiGHS, on the first
seed of each model.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

import numpy as np
from harness.form import Measured, run

from rowtier import Cluster, Plan, PlanOptions, Profile, make_plan
from rowtier.cost.lookups import served_lookups
from rowtier.cost.memory import Room
from rowtier.cost.step import step_cost
from rowtier.cost.views import objective
from rowtier.errors import InfeasibleError
from rowtier.plan.greedy import place_heaviest_first, place_whole
from rowtier.profile.profile import TableStats
from rowtier.synth.rm import rm_profile

GREEDY = ("size", "lookup", "size-lookup")
MODELS = {"rm1": ("rm1", False), "rm2": ("rm2", False), "rm3": ("rm3", False), "fat": ("rm2", True)}
HIGHS_S = 60.0


def read_per_sample(stats: TableStats) -> float:
    """Bytes read per sample: what `lookup` weighs, with coverage."""
    return stats.table.row_bytes * stats.lookups_per_sample


def time_aware(profile: Profile, cluster: Cluster) -> Plan:
    """Whole tables, most read per byte first, each to the device that is done the soonest."""
    room, busy, bands = Room(cluster), np.zeros(cluster.num_devices), {}
    rate = {tier.name: 1 / tier.bandwidth_bytes_per_s for tier in cluster.device.tiers}
    density = {s.table.name: read_per_sample(s) / s.table.stored_bytes for s in profile.stats}
    for stats in sorted(profile.stats, key=lambda s: -density[s.table.name]):
        by_time = [int(device) for device in np.argsort(busy, kind="stable")]
        sent = stats.table.exchanges[-1]
        device, band = place_whole(stats.table, by_time, room, cluster, sent)
        busy[device] += read_per_sample(stats) * rate[band.tier]
        bands[stats.table.name] = (band,)
    return Plan.build("time-aware", profile, cluster, bands)


def with_coverage(profile: Profile, cluster: Cluster) -> Plan:
    """The `lookup` baseline, told how often features occur."""
    return place_heaviest_first("lookup+coverage", profile, cluster, PlanOptions(), read_per_sample)


def methods(with_highs: bool) -> Mapping[str, Callable[[Profile, Cluster], Plan]]:
    """Everything that is compared, by name."""

    def method(name: str, options: PlanOptions | None = None) -> Callable[..., Plan]:
        return lambda profile, cluster: make_plan(profile, cluster, name, options)

    found: dict[str, Callable[[Profile, Cluster], Plan]] = {name: method(name) for name in GREEDY}
    found |= {"lookup+coverage": with_coverage, "time-aware": time_aware}
    found |= {"recshard": method("recshard"), "joint": method("joint")}
    found["recshard, split"] = method("recshard", PlanOptions(split=True))
    if with_highs:
        found["highs"] = method("recshard-milp", PlanOptions(time_limit_s=HIGHS_S))
    return found


def score(plan: Plan) -> dict[str, float]:
    """A plan on both objectives, its slow lookups, and how even it is."""
    lookups = served_lookups(plan.bands, plan.profile, plan.cluster)
    busy = lookups.sum(axis=1)
    return {
        "memory_s": objective("recshard", plan.bands, plan.profile, plan.cluster),
        "step_s": step_cost(plan.bands, plan.profile, plan.cluster).step_s,
        "slow_lookups": float(lookups[:, 1:].sum()),
        "imbalance": float(busy.max() / busy.mean()),
    }


def one_model(model: str, seed: int, with_highs: bool) -> dict[str, dict[str, float]]:
    """Score every method on one model."""
    name, fat = MODELS[model]
    profile, cluster = rm_profile(name, seed=seed, fat=fat), Cluster.preset("recshard-16")
    scores = {}
    for method, make in methods(with_highs).items():
        try:
            scores[method] = score(make(profile, cluster))
        except InfeasibleError:
            continue
    return scores


def row_of(model: str, seed: int, scores: dict[str, dict[str, float]]) -> dict[str, object]:
    """Speed-ups over the best greedy baseline, on both objectives."""
    row: dict[str, object] = {"model": model, "seed": seed}
    for objective_name, short in (("memory_s", "recshard"), ("step_s", "step")):
        best = min(scores[name][objective_name] for name in GREEDY if name in scores)
        for method in ("lookup+coverage", "time-aware", "recshard", "recshard, split", "joint"):
            if method in scores:
                row[f"{method} ({short})"] = best / scores[method][objective_name]
    slow = min(scores[name]["slow_lookups"] for name in GREEDY if name in scores)
    row["slow ratio"] = slow / max(1.0, scores["recshard, split"]["slow_lookups"])
    row["imbalance"] = scores["recshard, split"]["imbalance"]
    if "highs" in scores:
        row["over highs"] = scores["recshard"]["memory_s"] / scores["highs"]["memory_s"] - 1
    return row


def measure(quick: bool) -> Measured:
    """All models, ten seeds."""
    rows = []
    for model in MODELS:
        for seed in range(2 if quick else 10):
            rows.append(row_of(model, seed, one_model(model, seed, seed == 0 and not quick)))
    figures: dict[str, float | None] = {}
    for model in MODELS:
        mine = [
            float(str(row["recshard, split (recshard)"])) for row in rows if row["model"] == model
        ]
        figures[f"{model}_speedup_median"] = statistics.median(mine)
        figures[f"{model}_speedup_min"] = min(mine)
    over = [float(str(row["over highs"])) for row in rows if "over highs" in row]
    figures["worse_than_highs_max"] = float(np.max(over)) if over else None
    return Measured(rows, figures)


if __name__ == "__main__":
    run(
        "recshard",
        measure,
        goals={
            "rm2_speedup_median": (">=", 10.0),
            "rm3_speedup_median": (">=", 10.0),
            "rm2_speedup_min": (">=", 4.5),
            "rm3_speedup_min": (">=", 4.5),
            "worse_than_highs_max": ("<=", 0.001),
        },
    )

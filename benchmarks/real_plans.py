"""Whether joint is the best plan for real data, as predicted and on data that came later.

Every data set of `real_data.py`, in batches of 64, 512 and 4,096 samples a device, on two clusters
whose fast memory holds a quarter of the model:

    2x4    two nodes of four devices; links of a node answer in 5 us, those between nodes in 20 us
    1x2    two devices, on a link of 1 Gbit/s that answers in 50 us

Each of these cells is planned from the first half of the data, by joint and by every other method:
recshard with whole tables and with tables that may be split, mixed-integer programs left out, and
whatever does not fit. Where the second half, shuffled, has at least 8 steps, all plans are replayed
on it; other cells are only predicted. A ratio above 1 says that joint is faster.

    best_rival_over_joint_min  predicted step of the best other plan over joint's, the worst cell
    replayed_min               the same for replayed steps; the best other plan may be another
    fast_memory_used_min       share of all fast memory that joint fills with rows, the worst of the
                               cells whose certificate says that its capacity binds
    fast_memory_priced_min     the same where a certificate only has a price for more of it
    cells_*                    how many cells there are; that were replayed; whose fast memory
                               binds; that fall short of a goal

Lines come worst first; `short` names the goals that a cell misses: predicted, replayed, memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.folders import DATA
from harness.form import Goal, Measured, meets, run
from real_data import LEVELS, cluster_for, data_sets

from rowtier import (
    METHODS,
    Cluster,
    InfeasibleError,
    Level,
    Plan,
    PlanOptions,
    Profile,
    ProfileOptions,
    make_plan,
    make_profile,
    predict,
    replay,
)

BATCHES = (64, 512, 4096)  # samples a device
LEAST_STEPS = 8  # of the second half; means of fewer are left to chance
LARGEST_BYTES = 4e6  # of a file that is read if quick
CLUSTERS: Mapping[str, tuple[Level, ...]] = {
    "2x4": tuple(
        level.model_copy(update={"latency_s": latency_s})
        for level, latency_s in zip(LEVELS, (5e-6, 20e-6), strict=True)
    ),
    "1x2": (Level(name="node", size=2, bandwidth_bytes_per_s=1.25e8, latency_s=50e-6),),
}
RIVALS: Mapping[str, tuple[str, PlanOptions]] = {
    **{
        method: (method, PlanOptions())
        for method in METHODS
        if method != "joint" and not method.endswith("milp")
    },
    "recshard, split": ("recshard", PlanOptions(split=True)),
}
GOALS: dict[str, Goal] = {
    "best_rival_over_joint_min": (">=", 0.999),
    "replayed_min": (">=", 0.97),
    "fast_memory_used_min": (">=", 0.97),
}
SHORT_OF = dict(zip(GOALS, ("predicted", "replayed", "memory"), strict=True))


@dataclass(frozen=True, eq=False)
class Cell:
    """What is planned, and the file whose second half it is replayed on."""

    data: str
    path: str
    profile: Profile  # of the first half
    cluster: Cluster

    @property
    def steps(self) -> int:
        """Whole steps of the second half, which is as long as the first."""
        samples = self.profile.stats[0].samples
        return samples // (self.profile.batch_size * self.cluster.num_devices)


@dataclass(frozen=True)
class Best:
    """The fastest of the other plans beside joint, either predicted or replayed."""

    joint_s: float
    rival: str
    rival_s: float

    @classmethod
    def of(cls, steps_s: Mapping[str, float]) -> Best:
        """From the steps of all plans."""
        rival = min(steps_s.keys() - {"joint"}, key=lambda name: (steps_s[name], name))
        return cls(steps_s["joint"], rival, steps_s[rival])

    @property
    def over_joint(self) -> float:
        """Above 1 if joint is faster."""
        return self.rival_s / self.joint_s


def measure(quick: bool) -> Measured:
    """All cells; quick: the smaller sets, in the smallest batches."""
    rows: list[dict[str, Any]] = []
    batches, largest_bytes = (BATCHES[:1], LARGEST_BYTES) if quick else (BATCHES, math.inf)
    for cell in cells(batches, largest_bytes):
        rows.append(look_at(cell))
        print(line_of(rows[-1]), flush=True)
    if not rows:
        print(f"no data: {DATA} has none; set ROWTIER_DATA")
    return Measured(sorted(rows, key=margin), figures_of(rows))


def cells(batches: Sequence[int], largest_bytes: float) -> Iterator[Cell]:
    """Every set that is not too large, on every cluster, in batches of every size."""
    for name, path, tables in data_sets():
        if Path(path).stat().st_size > largest_bytes:
            continue
        profile = make_profile(path, tables, ProfileOptions(before="50%"))
        for cluster, levels in CLUSTERS.items():
            for batch_size in batches:
                here = replace(profile, batch_size=batch_size)
                yield Cell(name, path, here, cluster_for(tables, levels, cluster))


def look_at(cell: Cell) -> dict[str, Any]:
    """One line of the result: joint beside the best of the others, and the memory it fills."""
    plans = plans_of(cell)
    predicted = Best.of({name: predict(plan).step_s for name, plan in plans.items()})
    later = None
    if cell.steps >= LEAST_STEPS:
        steps_s = {name: replay(p, cell.path, after="50%").step_s for name, p in plans.items()}
        later = Best.of(steps_s)
    row = {
        "data": cell.data,
        "cluster": cell.cluster.name,
        "batch": cell.profile.batch_size,
        "joint_ms": 1e3 * predicted.joint_s,
        "rival": predicted.rival,
        "rival_over_joint": predicted.over_joint,
        "steps": cell.steps,
        "replayed_ms": later and 1e3 * later.joint_s,
        "replayed_rival": later and later.rival,
        "replayed_over_joint": later and later.over_joint,
        **fast_memory(plans["joint"]),
    }
    return row | {"short": ", ".join(missed(row))}


def missed(row: Mapping[str, Any]) -> list[str]:
    """The goals that a cell misses."""
    found = judged(row).items()
    return [SHORT_OF[name] for name, value in found if not meets(value, GOALS[name])]


def line_of(row: Mapping[str, Any]) -> str:
    """A cell in a line, for those who wait."""
    text = "{data}, {cluster}, batch {batch}: {rival_over_joint:.4f} to {rival}".format(**row)
    if row["replayed_over_joint"] is None:
        text += ", too few steps to replay: {steps}".format(**row)
    else:
        text += ", replayed {replayed_over_joint:.4f} to {replayed_rival}".format(**row)
    text += ", fast memory {fast_used:.1%} full".format(**row)
    return text + (f"; SHORT: {row['short']}" if row["short"] else "")


def plans_of(cell: Cell) -> dict[str, Plan]:
    """Joint's plan, and those of all other methods whose plans fit."""
    plans = {"joint": make_plan(cell.profile, cell.cluster)}
    for name, (method, options) in RIVALS.items():
        try:
            plans[name] = make_plan(cell.profile, cell.cluster, method, options)
        except InfeasibleError:
            continue
    return plans


def fast_memory(plan: Plan) -> dict[str, Any]:
    """The share of all devices' fast memory that rows fill, and what the certificate says of it."""
    certificate, fast = plan.certificate, plan.cluster.device.tiers[0]
    assert certificate is not None
    rows_bytes = predict(plan).cost.memory.rows[:, plan.cluster.tier_names.index(fast.name)]
    price = next(price for price in certificate.prices if price.resource == fast.name)
    return {
        "fast_used": float(rows_bytes.mean()) / fast.capacity_bytes,
        "fast_binds": f"capacity of {fast.name}" in certificate.binding,
        "fast_priced": price.saves > 0,
        "gap": certificate.gap,
    }


def judged(row: Mapping[str, Any]) -> dict[str, float]:
    """What a cell adds to the figures that have goals."""
    found = {"best_rival_over_joint_min": row["rival_over_joint"]}
    if row["replayed_over_joint"] is not None:
        found["replayed_min"] = row["replayed_over_joint"]
    if row["fast_binds"]:
        found["fast_memory_used_min"] = row["fast_used"]
    return found


def margin(row: Mapping[str, Any]) -> float:
    """By how much a cell reaches its goals where it is worst, below 1 if it does not."""
    return min(value / GOALS[name][1] for name, value in judged(row).items())


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """What follows from all cells together."""
    all_judged = [judged(row) for row in rows]
    worst = {name: min((j[name] for j in all_judged if name in j), default=None) for name in GOALS}
    priced = [row["fast_used"] for row in rows if row["fast_priced"]]
    counts = {
        "cells": len(rows),
        "cells_replayed": sum("replayed_min" in j for j in all_judged),
        "cells_fast_memory_binds": sum("fast_memory_used_min" in j for j in all_judged),
        "cells_short": sum(bool(missed(row)) for row in rows),
    }
    return {
        **worst,
        "fast_memory_priced_min": min(priced, default=None),
        **{name: count if rows else None for name, count in counts.items()},
    }


if __name__ == "__main__":
    run("real_plans", measure, goals=GOALS)

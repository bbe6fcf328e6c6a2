"""How fast `recshard` and `joint` plan, and how far from the best their plans can be.

Instances: RecShard-like models (`synth.rm`: rm2, and rm2 with `fat` tables), seeds 0 to 9.
More than 397 tables are those of several seeds. Devices have RecShard's bandwidths. Fast
memory holds a quarter (seed 0) to a half (seed 9) of the bytes of rows that are read, and
slow memory twice all bytes, or the largest table if that is more.

Seconds are CPU seconds of all threads, from a profile in memory to a checked plan. The
profile's own fingerprint, imports and compilation are left out; `compile_seconds` is what a
new process pays once for imports and for code that was compiled and kept by an earlier one.

`joint` minimises step time on the same instances: on all of 397 x 16, and on as many of the
larger ones as stand in `JOINT`, since they take minutes. `rows_seconds_ratio` is the longest over
the shortest of planning a model whose tables have a million, a billion and a trillion rows.
`joint_step_vs_before` is a step over that of the plan which `joint` made before it was remade (its
menu did not have everything, so its gaps say nothing), in `plan_scale_before.json`: steps of the
same cost model on the same instances. `…_with_work` are some of these instances on the same devices
with the latencies and the guessed `work:` of the preset recshard-16, so that a step has rounds and
bands that cost something; there are no goals for them.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from harness.form import Measured, run

from rowtier.cluster import Cluster, Device, Level, Tier
from rowtier.plan.make import make_plan
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Certificate
from rowtier.profile.curve import Curve, bucket_stops
from rowtier.profile.profile import FeatureStats, Profile, TableStats
from rowtier.synth.rm import BATCH_SIZE, rm_profile
from rowtier.tables import Table

MODEL = "rm2"
SEEDS = 10
RUNS: dict[str, tuple[int, int, PlanOptions]] = {
    "397x16_split": (397, 16, PlanOptions(split=True)),
    "397x16_unsplit": (397, 16, PlanOptions()),
    "1000x128": (1000, 128, PlanOptions(split=True)),
    "5000x1024": (5000, 1024, PlanOptions(split=True)),
    "5000x1024_1pct": (5000, 1024, PlanOptions(split=True, tolerance=0.01)),
}
BEFORE = Path(__file__).parent / "plan_scale_before.json"
JOINT = {(397, 16): 10, (1000, 128): 2, (5000, 1024): 1}  # seeds
JOINT_WITH_WORK = {(397, 16): 2, (1000, 128): 1}
ROWS = (10**6, 10**9, 10**12)
Row = dict[str, object]
GOALS: dict[str, Any] = {
    "gap_397x16_split": ("<=", 0.001),
    "seconds_397x16_split": ("<=", 2.0),
    "gap_397x16_unsplit": ("<=", 0.0025),
    "seconds_397x16_unsplit": ("<=", 2.0),
    "gap_1000x128": ("<=", 0.002),
    "seconds_1000x128": ("<=", 5.0),
    "gap_5000x1024": ("<=", 0.0025),
    "seconds_5000x1024": ("<=", 30.0),
    "gap_5000x1024_1pct": ("<=", 0.01),
    "seconds_5000x1024_1pct": ("<=", 5.0),
    "compile_seconds": ("<=", 5.0),
    "rows_seconds_ratio": ("<=", 1.5),
    "joint_step_vs_before_max": ("<=", 1.001),
    "joint_step_vs_before_5000x1024": ("<=", 0.93),
    "joint_gap_397x16": ("<=", 0.03),
    "joint_seconds_397x16": ("<=", 4.0),
    "joint_gap_1000x128": ("<=", 0.055),
    "joint_seconds_1000x128": ("<=", 10.0),
    "joint_gap_5000x1024": ("<=", 0.09),
    "joint_seconds_5000x1024": ("<=", 40.0),
}


def measure(quick: bool) -> Measured:
    """Every run on every instance; the figures are the worst of each."""
    warm_up()
    compile_seconds = float(_own_process("start"))
    rows: list[Row] = []
    for tables, devices in dict.fromkeys((tables, devices) for tables, devices, _ in RUNS.values()):
        if quick and tables > 1000:
            continue
        for fat in (False, True):
            for seed in range(2 if quick else SEEDS):
                rows += measure_instance(tables, devices, seed, fat)
    figures: dict[str, float | None] = {}
    for name in RUNS:
        found = [row for row in rows if row["run"] == name]
        figures |= {f"{key}_{name}": largest(found, key) for key in ("gap", "seconds")}
    figures["compile_seconds"] = compile_seconds
    figures["rows_seconds_ratio"] = rows_ratio(rows)
    for tables, devices in JOINT:
        found = joint_rows(tables, devices, JOINT[tables, devices], quick)
        rows += found
        for key in ("gap", "seconds", "step_vs_before"):
            figures[f"joint_{key}_{tables}x{devices}"] = largest(found, key)
    figures["joint_step_vs_before_max"] = largest(rows, "step_vs_before")
    for tables, devices in JOINT_WITH_WORK:
        found = joint_rows(tables, devices, JOINT_WITH_WORK[tables, devices], quick, work=True)
        rows += found
        for key in ("gap", "seconds"):
            figures[f"joint_{key}_{tables}x{devices}_with_work"] = largest(found, key)
    return Measured(rows, figures)


def largest(rows: list[Row], key: str) -> float | None:
    """The worst value that rows have, if any has one."""
    return max((float(str(row[key])) for row in rows if key in row), default=None)


def joint_rows(tables: int, devices: int, seeds: int, quick: bool, work: bool = False) -> list[Row]:
    """`joint` on all instances of a size; quick: on one of each kind, or on one with work."""
    those = [(seed, fat) for fat in (False, True) for seed in range(seeds)]
    if quick:
        those = those[:: seeds * (1 + work)] if tables == 397 else []
    return [measure_joint(tables, devices, seed, fat, work) for seed, fat in those]


def measure_joint(tables: int, devices: int, seed: int, fat: bool, work: bool) -> Row:
    """`joint` on one instance."""
    profile = model(tables, seed, fat)
    cluster = machine(profile, devices, fast_share=0.25 + 0.25 * seed / (SEEDS - 1))
    name, kind = f"{tables}x{devices}", "fat" if fat else "rm"
    row: Row = {"run": f"joint_{name}" + "_with_work" * work, "kind": kind, "seed": seed}
    seconds, made = plan(profile, with_work(cluster) if work else cluster, PlanOptions(), "joint")
    row |= {"seconds": seconds, "gap": made.gap}
    if work:
        return row
    before_s = json.loads(BEFORE.read_text())[f"{name} {kind} {seed}"]
    return row | {"step_vs_before": made.objective / before_s}


def rows_ratio(rows: list[Row]) -> float:
    """Longest over shortest time to plan the same tables with ever more rows, by all methods."""
    worst = 0.0
    for method in ("recshard", "joint"):
        times = []
        for count in ROWS:
            profile = long_tables(count)
            cluster = machine(profile, 16, fast_share=0.3)
            taken = sorted(plan(profile, cluster, PlanOptions(), method)[0] for _ in range(3))
            times.append(taken[1])
            rows.append({"run": f"{method}, {count:.0e} rows", "seconds": taken[1]})
        worst = max(worst, max(times) / min(times))
    return worst


def long_tables(rows: int, tables: int = 40) -> Profile:
    """Tables of so many rows each, all of them read, by Zipf's law in buckets."""
    stats = []
    for index in range(tables):
        stops = bucket_stops(rows)
        ends = np.concatenate(([0.0], stops.astype(np.float64)))
        lookups = np.diff((ends + 1) ** (0.1 + 0.01 * (index % 20)))
        lookups *= 1e9 / lookups.sum()
        table = Table(
            name=f"t{index}", num_embeddings=rows, embedding_dim=64, features=(f"f{index}",)
        )
        feature = FeatureStats(name=f"f{index}", present=10**8, lookups=10**9)
        stats.append(TableStats(table, 10**8, (feature,), Curve(stops, lookups)))
    return Profile(BATCH_SIZE, tuple(stats))


def measure_instance(tables: int, devices: int, seed: int, fat: bool) -> list[Row]:
    """The runs of one size on one instance."""
    profile = model(tables, seed, fat)
    cluster = machine(profile, devices, fast_share=0.25 + 0.25 * seed / (SEEDS - 1))
    rows: list[Row] = []
    for name, (wanted_tables, wanted_devices, options) in RUNS.items():
        if (wanted_tables, wanted_devices) != (tables, devices):
            continue
        seconds, made = plan(profile, cluster, options)
        kind = "fat" if fat else "rm"
        measured = {"seconds": seconds, "gap": made.gap}
        rows.append({"run": name, "kind": kind, "seed": seed, **measured})
    return rows


def plan(
    profile: Profile, cluster: Cluster, options: PlanOptions, method: str = "recshard"
) -> tuple[float, Certificate]:
    """CPU seconds of one plan, and how good it is."""
    # Curves remember what was computed from them: new ones, so that every run starts alike.
    curves = [Curve(s.curve.stops, s.curve.lookups) for s in profile.stats]
    fresh = [replace(s, bucketed=c) for s, c in zip(profile.stats, curves, strict=True)]
    profile = Profile(profile.batch_size, tuple(fresh))
    _ = profile.fingerprint
    gc.collect()
    before = time.process_time()
    made = make_plan(profile, cluster, method, options)
    seconds = time.process_time() - before
    assert made.certificate is not None
    return seconds, made.certificate


def model(tables: int, seed: int, fat: bool) -> Profile:
    """As many tables as wanted, from as many seeds as that takes."""
    found: list[TableStats] = []
    while len(found) < tables:
        part = rm_profile(MODEL, seed + 1000 * (len(found) // 397), fat)
        found += [_renamed(stats, len(found) + i) for i, stats in enumerate(part.stats)]
    return Profile(BATCH_SIZE, tuple(found[:tables]))


def _renamed(stats: TableStats, index: int) -> TableStats:
    feature = stats.features[0].model_copy(update={"name": f"f{index}"})
    named = {"name": f"t{index}", "features": (feature.name,)}
    table = stats.table.model_copy(update=named)
    return replace(stats, table=table, features=(feature,))


def machine(profile: Profile, devices: int, fast_share: float) -> Cluster:
    """Devices in nodes of eight, with fast memory for a share of the rows that are read."""
    read = sum(s.curve.positions * s.table.stored_row_bytes for s in profile.stats)
    total = sum(s.table.stored_bytes for s in profile.stats)
    largest = max(s.table.stored_bytes for s in profile.stats)
    fast, slow = int(fast_share * read / devices), max(2 * total // devices, largest)
    return Cluster(
        name=f"{devices} devices",
        levels=(
            Level(name="node", size=8, bandwidth_bytes_per_s=3e11),
            Level(name="cluster", size=devices // 8, bandwidth_bytes_per_s=2.5e10),
        ),
        device=Device(
            tiers=(
                Tier(name="hbm", capacity_bytes=fast, bandwidth_bytes_per_s=1.5e12),
                Tier(name="dram", capacity_bytes=slow, bandwidth_bytes_per_s=1.6e10),
            )
        ),
    )


def with_work(cluster: Cluster) -> Cluster:
    """The same devices with the latencies and the work of RecShard's preset."""
    preset = Cluster.preset("recshard-16")
    levels = tuple(
        level.model_copy(update={"latency_s": like.latency_s, "message_s": like.message_s})
        for level, like in zip(cluster.levels, preset.levels, strict=True)
    )
    return cluster.model_copy(update={"levels": levels, "work": preset.work})


def warm_up() -> None:
    """Run everything that is compiled, on small models."""
    for tables, seed in ((8, 0), (60, 1), (60, 2)):
        profile = model(tables, seed, fat=True)
        for split in (False, True):
            # No gap is small enough, so that every part of the search is used.
            plan(profile, machine(profile, 8, 0.3), PlanOptions(split=split, tolerance=0.0))
    small = model(8, 0, fat=True)
    cluster = machine(small, 8, 0.3)
    for each in (cluster, with_work(cluster)):
        plan(small, each, PlanOptions(), "joint")


def _own_process(task: str) -> str:
    script = [sys.executable, __file__, task]
    return subprocess.run(script, check=True, capture_output=True, text=True).stdout


def _print_start() -> None:
    """CPU seconds of this process until it has planned once, less those of planning again."""
    warm_up()
    first = time.process_time()
    warm_up()
    print(2 * first - time.process_time())


if __name__ == "__main__":
    if sys.argv[1:2] == ["start"]:
        _print_start()
    else:
        run("plan_scale", measure, goals=GOALS)

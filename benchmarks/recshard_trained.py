"""RecShard's table, really trained: 40 hash tables of 1 GiB, a quarter of it in RAM.

The model is rm2 scaled down (benchmarks/harness/hashed_model.py); Zipf .8, 1.05, 1.2 and seeds 0,
1, 2 make nine settings. All rows that do not fit into 256 MiB lie on a disk. Profiles are of a
million samples other than those trained on. SGD, the disk tier with its default buffer of 64 MiB a
rank; ids become addresses beforehand, as in RecShard's data pipeline. Every contender has processes
of its own whose memory is bounded, page cache included; all take turns with the same batches, and
times are medians over rounds.

    trained      one rank in the pipelined loop: ids and pages of a batch are read while the one
                 before it is trained, on this machine's other core
    plain loop   one setting without reading ahead
    two ranks    gloo, 128 MiB each, the plain loop: for balance. Two ranks and the threads that
                 read for them share two cores, so that work in memory, which is the same for
                 everyone, weighs more than in `trained`
    batch        one setting with 2,048 samples: the 16 × 16,384 of the paper make .22 lookups a
                 row and step on rm2, and here it takes about that many. Greedy steps do not fit
                 into the buffer then and read pages twice; 512 is what most of them can hold

    size, lookup, size-lookup   whole tables, largest first, rows in the order of their ids: the
                                paper's baselines as the paper runs them. Without statistics of
                                rows there is nothing to order rows by
    …, hotness order            the same tables with hot rows side by side on few pages: stronger
                                than anything in the paper, and reported apart
    recshard, recshard split    hot rows of every table in RAM; `split` may cut tables over ranks
    joint                       rowtier's own

Plans that are alike run once: `same_as` says whose figures a row shows.

A row has, per step: `slow_reads`, lookups that the disk tier serves (what RecShard counts);
`slow_rows`, the distinct rows of them that are updated: both the same in every run. `pages_read`
and times are measured. A rank is busy while its threads compute or it waits for the disk, not
while it waits for the other: `imbalance` is the busiest rank over the mean, minus 1; `waiting_ms`
is the difference. `predicted_*` is the cost model's word, `access_ms` RecShard's own objective.

Figures compare joint (or `_of_recshard`, `_of_recshard_split`) with the fastest greedy baseline of
the same setting, and are medians over settings; slow reads with the greedy baseline that has the
fewest. `settings_above_87`: in how many settings slow reads fall by the paper's 87 times. Rows
`told …` are an ablation by the cost model, for two ranks: recshard split planned from a profile
with the same pooling, coverage or both for all tables, scored on the true one.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.contenders import BY_HEAT, GREEDY, Field, Result, first_alike, greedy_plans, imbalance
from harness.form import Measured, run
from harness.hashed_model import HashedModel
from harness.partial_profiles import TOLD, flattened
from harness.trainer import machine

import rowtier
from rowtier.cost.lookups import served_lookups
from rowtier.cost.step import step_cost
from rowtier.cost.views import access_time_s

KEY = ("part", "zipf", "seed", "batch", "contender")
COUNTS = ("slow_reads", "slow_rows", "predicted_slow_reads")
MIB = 2**20
BATCH, LARGE_BATCH = 512, 2048
ZIPFS, SEEDS = (0.8, 1.05, 1.2), (0, 1, 2)
MIDDLE = (1.05, 0)  # where more is tried
# For all alike, a rank: the buffer of pages, the plan's order of rows, ids, outputs, the heap.
WORKING_BYTES, LARGE_BYTES = 272 * MIB, 256 * MIB
TRAINED, TWO_RANKS, PLAIN, LARGE = "trained", "two ranks", "plain loop", "batch"
PLACED = ("joint", "recshard", "recshard split")
FEWER = 87.0  # times, the paper's slow reads
LEAST_IMBALANCE = 0.01  # less is noise
GOALS: Any = {
    "recshard_throughput_ratio": (">=", 6.0),
    "recshard_slow_ratio": (">=", 87.0),
    "recshard_balance_ratio": (">=", 12.0),
}
Row = dict[str, Any]


class Setting:
    """One model with its plans for so many ranks."""

    def __init__(self, zipf: float, seed: int, total_bytes: int, ranks: int):
        self.zipf, self.seed, self.ranks = zipf, seed, ranks
        self.model = HashedModel(seed, zipf, total_bytes)
        self.cluster = machine(ranks, total_bytes // 4)
        self.profile = self.model.profile(BATCH)
        self.plans = plans_of(self.profile, self.cluster)
        self.same_as = first_alike(self.plans)

    def race(
        self, field: Field, names: Sequence[str], batch: int, rounds: int, steps: int, piped: bool
    ) -> dict[str, Result]:
        """Train contenders on the same batches, which no profile has seen."""
        numbers = range(1 + rounds * steps)
        drawn = [[self.model.batch(n, rank, batch) for n in numbers] for rank in range(self.ranks)]
        plans = {name: self.plans[name] for name in names}
        return field.race(plans, drawn, rounds, 1, piped)

    def row(self, part: str, contender: str, plan: rowtier.Plan, batch: int = BATCH) -> Row:
        """What is known of a plan before it is trained."""
        return {
            "part": part, "zipf": self.zipf, "seed": self.seed, "batch": batch,
            "contender": contender,
        } | dict.fromkeys(MEASURED) | scores(plan, self.profile_at(batch))  # fmt: skip

    def profile_at(self, batch: int) -> rowtier.Profile:
        """The profile with another batch size."""
        return rowtier.Profile(batch, self.profile.stats)


MEASURED = (
    "same_as", "samples_per_s", "step_ms", "fastest_ms", "cpu_ms", "disk_ms", "slow_reads",
    "slow_rows", "pages_read", "imbalance", "slow_rows_imbalance", "waiting_ms", "memory_bound_by",
)  # fmt: skip


def plans_of(profile: rowtier.Profile, cluster: rowtier.Cluster) -> dict[str, rowtier.Plan]:
    """Every contender's plan."""
    split = rowtier.PlanOptions(split=True)
    return greedy_plans(profile, cluster) | {
        "recshard": rowtier.make_plan(profile, cluster, "recshard"),
        "recshard split": rowtier.make_plan(profile, cluster, "recshard", split),
        "joint": rowtier.make_plan(profile, cluster, "joint"),
    }


def scores(plan: rowtier.Plan, profile: rowtier.Profile) -> Row:
    """What the cost model says of a plan on a profile, which may be another than the plan's."""
    given = (plan.bands, profile, plan.cluster, plan.order)
    return {
        "predicted_ms": 1e3 * step_cost(*given).step_s,
        "access_ms": 1e3 * float(access_time_s(*given).max()),
        "predicted_slow_reads": float(served_lookups(*given)[:, -1].sum()),
    }


def measured(result: Result, batch: int) -> Row:
    """What training showed, per step."""
    busy, slow = result.by_rank("busy_s"), result.counts["slow_rows_by_position"]
    return {
        "samples_per_s": len(busy) * batch / result.step_s,
        "step_ms": 1e3 * result.step_s,
        "fastest_ms": 1e3 * result.fastest_s,
        "cpu_ms": 1e3 * statistics.mean(result.by_rank("cpu_s")),
        "disk_ms": 1e3 * statistics.mean(result.by_rank("disk_s")),
        "slow_reads": result.counts["slow_reads"],
        "slow_rows": sum(slow),
        "pages_read": sum(result.by_rank("pages")),
        "imbalance": imbalance(busy),
        "slow_rows_imbalance": imbalance(slow),
        "waiting_ms": 1e3 * (max(busy) - statistics.mean(busy)),
        "memory_bound_by": result.bound,
    }


def trained(
    setting: Setting, part: str, field: Field, turns: tuple[int, int], piped: bool
) -> list[Row]:
    """All contenders of a setting; those with the same plan have the same figures."""
    names = [name for name, first in setting.same_as.items() if name == first]
    results = setting.race(field, names, BATCH, *turns, piped)
    rows = []
    for name, first in setting.same_as.items():
        row = setting.row(part, name, setting.plans[name])
        row |= measured(results[first], BATCH)
        rows.append(row | {"same_as": None if name == first else first})
    return rows


def tried(
    setting: Setting, part: str, greedy: str, field: Field, batch: int, turns: tuple[int, int],
    piped: bool,
) -> list[Row]:  # fmt: skip
    """joint and the fastest greedy baseline in another way."""
    results = setting.race(field, ("joint", greedy), batch, *turns, piped)
    return [
        setting.row(part, f"{name}, {part}", setting.plans[name], batch) | measured(result, batch)
        for name, result in results.items()
    ]


def told(setting: Setting) -> list[Row]:
    """What the planner makes of fewer statistics, by the cost model on all of them."""
    options, rows = rowtier.PlanOptions(split=True), []
    for name in TOLD:
        profile = flattened(setting.profile, name)
        plan = rowtier.make_plan(profile, setting.cluster, "recshard", options)
        rows.append(setting.row("told", f"recshard split, told {name}", plan))
    return rows


def best_greedy(rows: Mapping[str, Row], end: str = "") -> str:
    """The baseline that trains fastest."""
    return max((f"{name}{end}" for name in GREEDY), key=lambda n: float(rows[n]["samples_per_s"]))


def ratios(rows: Mapping[str, Row], ours: str) -> dict[str, float]:
    """One contender against the baselines, in one setting."""
    mine, fastest = rows[ours], rows[best_greedy(rows)]
    by_heat = rows[best_greedy(rows, BY_HEAT)]
    fewest = min(rows[name]["slow_reads"] for name in GREEDY)
    return {
        "throughput_ratio": mine["samples_per_s"] / fastest["samples_per_s"],
        "throughput_ratio_hotness_order": mine["samples_per_s"] / by_heat["samples_per_s"],
        "slow_ratio": fewest / max(mine["slow_reads"], 1.0),
    }


def balances(rows: Mapping[str, Row], ours: str) -> dict[str, float]:
    """The same on two ranks, where one may wait for the other."""
    mine, fastest = rows[ours], rows[best_greedy(rows)]
    uneven = [max(row["imbalance"], LEAST_IMBALANCE) for row in (fastest, mine)]
    return {
        "balance_ratio": uneven[0] / uneven[1],
        "waiting_ratio": fastest["waiting_ms"] / max(mine["waiting_ms"], 1e-2),
        "throughput_ratio_two_ranks": mine["samples_per_s"] / fastest["samples_per_s"],
    }


def _settings(rows: Sequence[Row], part: str) -> list[dict[str, Row]]:
    found: dict[Any, dict[str, Row]] = {}
    for row in rows:
        if row["part"] == part:
            found.setdefault((row["zipf"], row["seed"]), {})[row["contender"]] = row
    return list(found.values())


def figures_of(rows: Sequence[Row]) -> dict[str, float | None]:
    """Medians over the settings, for joint with the extremes."""
    figures: dict[str, float | None] = {}
    for ours in PLACED:
        each = [ratios(found, ours) for found in _settings(rows, TRAINED)]
        even = [balances(found, ours) for found in _settings(rows, TWO_RANKS)]
        of = "" if ours == "joint" else f"_of_{ours.replace(' ', '_')}"
        columns = {name: [found[name] for found in each] for name in each[0]}
        columns |= {name: [found[name] for found in even] for name in even[0]}
        for name, values in columns.items():
            figures[f"recshard_{name}{of}"] = statistics.median(values)
            if not of and name in ("throughput_ratio", "slow_ratio"):
                figures |= {f"recshard_{name}_min": min(values)}
                figures |= {f"recshard_{name}_max": max(values)}
        above = sum(found["slow_ratio"] >= FEWER for found in each)
        figures[f"settings_above_87{of}"] = float(above)
    return figures | _more_figures(rows)


def _more_figures(rows: Sequence[Row]) -> dict[str, float | None]:
    """joint against greedy where more was tried, and what statistics are worth."""
    found: dict[str, float | None] = {}
    for part, name in ((LARGE, f"batch_{LARGE_BATCH}"), (PLAIN, "plain_loop")):
        mine = [row["samples_per_s"] for row in rows if row["part"] == part]
        found[f"recshard_throughput_ratio_{name}"] = mine[0] / mine[1] if mine else None
    for name in TOLD[:-1]:
        pairs = {
            end: [r["access_ms"] for r in rows if r["contender"].endswith(f", told {end}")]
            for end in (name, TOLD[-1])
        }
        times = [a / b for a, b in zip(pairs[name], pairs[TOLD[-1]], strict=True)]
        found[f"access_time_told_{name.replace(' ', '_')}"] = statistics.median(times)
    return found


def measure(quick: bool) -> Measured:
    """Nine settings; quick is one of 128 MiB, contenders one after the other."""
    total_bytes = 128 * MIB if quick else 1024 * MIB
    asked = [MIDDLE] if quick else [(zipf, seed) for zipf in ZIPFS for seed in SEEDS]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".recshard-") as name:
        folder = Path(name)
        limit_bytes = total_bytes // 4 + WORKING_BYTES
        with Field(1, limit_bytes, folder, shared=quick) as field:
            for zipf, seed in asked:
                setting = Setting(zipf, seed, total_bytes, ranks=1)
                turns = (2, 2) if quick else (3, 8)
                found = trained(setting, TRAINED, field, turns, piped=True)
                rows += found
                if (zipf, seed) == MIDDLE and not quick:
                    greedy = best_greedy({row["contender"]: row for row in found})
                    rows += tried(setting, PLAIN, greedy, field, BATCH, turns, piped=False)
                    with Field(1, limit_bytes + LARGE_BYTES, folder) as large:
                        rows += tried(setting, LARGE, greedy, large, LARGE_BATCH, (3, 4), True)
        with Field(2, limit_bytes + WORKING_BYTES, folder, shared=quick) as field:
            for zipf, seed in asked:
                setting = Setting(zipf, seed, total_bytes, ranks=2)
                turns = (2, 2) if quick else (3, 3)
                rows += trained(setting, TWO_RANKS, field, turns, piped=False)
                if zipf == MIDDLE[0]:
                    rows += told(setting)
    return Measured(rows, figures_of(rows))


if __name__ == "__main__":
    run("recshard_trained", measure, goals=GOALS)

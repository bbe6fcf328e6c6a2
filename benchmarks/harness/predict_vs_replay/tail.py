"""Steps of many small batches: what they take on average and at their worst, as predicted.

Small batches, since the smaller they are the more steps differ, and links without latency, which
would be the same in all steps. The first half of the data is profiled and the second replayed, both
in the order of the data and shuffled.

`objectives` compares `joint` with and without `objective: expected_max` where it matters: tables
that are alike, with one id in every sample, for which there are several placements with about the
same mean loads.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rowtier import (
    Cluster,
    PlanOptions,
    Profile,
    Replay,
    Table,
    Tables,
    make_plan,
    replay,
)
from rowtier.profile.rarefaction import BATCHES as BATCH_ORDERS

METHODS = ("row-wise", "row-wise-coalesced", "table-wise", "recshard", "joint")
BATCHES = (8, 32)
STEPS = 400
ERRORS = ("step_error", "expected_error", "p50_error", "p99_error")
TAIL_DATA = ("rentals", "diginetica", "criteo_sample")


def tail_errors(found: Replay) -> dict[str, float]:
    """Errors of the step of mean loads, of the mean over steps, and of its percentiles."""
    step, spread = found.figure("step"), found.prediction.cost.spread
    assert step.percentiles is not None
    p50_s, _, p99_s = step.percentiles
    return {
        "step_error": step.predicted / step.replayed - 1,
        "expected_error": spread.expected_s / step.replayed - 1,
        "p50_error": spread.p50_s / p50_s - 1,
        "p99_error": spread.p99_s / p99_s - 1,
    }


def tails(
    name: str, data: Path, profile: Profile, cluster: Cluster, quick: bool
) -> Iterator[tuple[str, str, Replay]]:
    """Replays of the second half of some data in small batches, as its first half predicts."""
    for batch in BATCHES[-1:] if quick else BATCHES:
        small = replace(profile, batch_size=batch)
        for method in METHODS[::4] if quick else METHODS:
            plan = make_plan(small, without_latencies(cluster), method)
            for order in BATCH_ORDERS:
                found = replay(plan, data, steps=STEPS, after=0.5, batches=order)
                yield f"{name}, {order}, {found.steps} steps of {batch}", method, found


def alike(folder: Path, tables: int, zipf: float) -> tuple[Tables, Path]:
    """Tables that are nearly alike, each looked up once by every sample."""
    random = np.random.default_rng(2)
    columns, made = {}, []
    for index in range(tables):
        rows, name = 20_000 + 500 * index, f"f{index}"
        heat = np.arange(1, rows + 1, dtype=float) ** -zipf
        columns[name] = random.choice(rows, size=100_000, p=heat / heat.sum())
        made.append(Table(name=name, num_embeddings=rows, embedding_dim=32, features=(name,)))
    path = folder / f"alike{tables}_{zipf}.parquet"
    pq.write_table(pa.table(columns), path)
    return Tables(batch_size=BATCHES[0], tables=tuple(made)), path


def objectives(
    name: str, data: Path, profile: Profile, cluster: Cluster
) -> Iterator[tuple[str, Replay, Replay]]:
    """Replays of what `joint` makes for mean loads, and for the mean over steps."""
    machine = without_latencies(cluster)
    for batch in BATCHES:
        small = replace(profile, batch_size=batch)
        by_step, by_mean = (
            replay(plan, data, steps=STEPS, after=0.5, batches="shuffled")
            for plan in (
                make_plan(small, machine, "joint", PlanOptions(objective="step")),
                make_plan(small, machine, "joint", PlanOptions(objective="expected_max")),
            )
        )
        yield f"{name}, {by_step.steps} steps of {batch}", by_step, by_mean


def objective_figures(found: list[tuple[Replay, Replay]]) -> dict[str, float | None]:
    """Replayed mean and 99th percentile with `expected_max` over those without, geometric means."""
    steps = [(one.figure("step"), other.figure("step")) for one, other in found]
    means = [other.replayed / one.replayed for one, other in steps]
    ends = [other.percentiles[2] / one.percentiles[2] for one, other in steps]  # type: ignore[index]
    return {
        "expected_max_mean_ratio": statistics.geometric_mean(means),
        "expected_max_p99_ratio": statistics.geometric_mean(ends),
    }


def without_latencies(cluster: Cluster) -> Cluster:
    """The same cluster, with nothing in a step that is the same in all steps."""
    levels = tuple(level.model_copy(update={"latency_s": 0.0}) for level in cluster.levels)
    return cluster.model_copy(update={"levels": levels})


def tail_figures(rows: list[dict[str, Any]], kind: str) -> dict[str, float | None]:
    """Mean sizes of the errors of some rows."""
    return {
        f"{kind}_{name}": statistics.fmean(abs(row[name]) for row in rows) if rows else None
        for name in ERRORS
    }

"""The logic of benchmarks/real_plans.py: the worst cell decides, of those that can be judged."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import real_data
import real_plans

from rowtier import Band, InfeasibleError, Plan, make_plan, predict, replay

SAMPLES = 2 * 1024


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One set with a table of whole numbers, some of them hot."""
    ids = np.random.default_rng(0).zipf(1.3, SAMPLES) % 500
    path = tmp_path / "shop.parquet"
    pq.write_table(pa.table({"item": pa.array(ids, pa.int64())}), path)
    monkeypatch.setattr(real_data, "DATA", tmp_path)
    return path


def test_every_set_is_planned_on_both_clusters_from_its_first_half(data: Path) -> None:
    found = list(real_plans.cells((16, 64), largest_bytes=1e6))
    at = [(cell.cluster.name, cell.cluster.num_devices, cell.profile.batch_size) for cell in found]
    assert at == [("2x4", 8, 16), ("2x4", 8, 64), ("1x2", 2, 16), ("1x2", 2, 64)]
    assert [cell.steps for cell in found] == [8, 2, 32, 8]
    for cell in found:
        (stats,) = cell.profile.stats
        assert stats.samples == SAMPLES // 2
        held = cell.cluster.device.tiers[0].capacity_bytes * cell.cluster.num_devices
        assert held == pytest.approx(stats.table.stored_bytes / 4, rel=0.01)
    latencies = [level.latency_s for level in found[0].cluster.levels]
    assert latencies == [5e-6, 20e-6]
    assert not list(real_plans.cells((16,), largest_bytes=data.stat().st_size - 1))


def test_a_cell_holds_joint_against_the_best_other_plan_twice(data: Path) -> None:
    enough, few = list(real_plans.cells((16, 64), largest_bytes=1e6))[:2]
    row = real_plans.look_at(enough)
    plans = real_plans.plans_of(enough)
    assert {"recshard", "recshard, split", "row-wise-coalesced", "sca"} <= plans.keys()
    assert not any(name.endswith("milp") for name in plans)
    joint = plans.pop("joint")
    least_s = min(predict(plan).step_s for plan in plans.values())
    assert row["rival_over_joint"] == pytest.approx(least_s / predict(joint).step_s)
    least_s = min(replay(plan, data, after="50%").step_s for plan in plans.values())
    assert row["replayed_over_joint"] == least_s / replay(joint, data, after="50%").step_s
    assert real_plans.look_at(few)["replayed_over_joint"] is None


@pytest.mark.usefixtures("data")
def test_a_method_whose_plan_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def choosy(profile: Any, cluster: Any, method: str = "joint", options: Any = None) -> Plan:
        if method == "size":
            raise InfeasibleError("too large")
        return make_plan(profile, cluster, method, options)

    monkeypatch.setattr(real_plans, "make_plan", choosy)
    cell = next(real_plans.cells((16,), largest_bytes=1e6))
    assert real_plans.plans_of(cell).keys() == {"joint", *real_plans.RIVALS} - {"size"}


@pytest.mark.usefixtures("data")
def test_fast_memory_is_that_of_rows_on_all_devices() -> None:
    cell = next(real_plans.cells((16,), largest_bytes=1e6))
    made, fast = make_plan(cell.profile, cell.cluster), cell.cluster.device.tiers[0]
    ((table, _),) = made
    bands = (  # two copies of 40 rows, each on four devices
        Band(start=0, stop=40, scope="node", tier="hbm"),
        Band(start=40, stop=table.num_embeddings, scope="cluster", tier="dram"),
    )
    found = real_plans.fast_memory(replace(made, bands={table.name: bands}))
    row_bytes = table.stored_bytes // table.num_embeddings
    assert found["fast_used"] == pytest.approx(2 * 40 * row_bytes / (8 * fast.capacity_bytes))


def row(rival: float, replayed: float | None, used: float, *, binds: bool) -> dict[str, Any]:
    memory = {"fast_used": used, "fast_binds": binds, "fast_priced": True}
    return {"rival_over_joint": rival, "replayed_over_joint": replayed, **memory}


def test_figures_are_of_the_worst_cell_that_can_be_judged() -> None:
    rows = [
        row(1.2, 1.1, 0.3, binds=False),
        row(1.0, None, 0.98, binds=True),
        row(1.1, 0.96, 0.99, binds=True),
    ]
    assert real_plans.figures_of(rows) == {
        "best_rival_over_joint_min": 1.0,
        "replayed_min": 0.96,
        "fast_memory_used_min": 0.98,
        "fast_memory_priced_min": 0.3,
        "cells": 3,
        "cells_replayed": 2,
        "cells_fast_memory_binds": 2,
        "cells_short": 1,
    }
    assert [real_plans.missed(row) for row in rows] == [[], [], ["replayed"]]
    assert sorted(rows, key=real_plans.margin) == [rows[2], rows[1], rows[0]]


def test_without_data_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_data, "DATA", tmp_path)
    measured = real_plans.measure(quick=True)
    assert not measured.rows
    assert set(measured.figures.values()) == {None}

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from harness.ranks import run_ranks
from harness.step_truth.data import Drawn, Recorded
from harness.step_truth.figures import coefficient_spreads, figures_of
from harness.step_truth.job import (
    METHODS,
    Task,
    distinct,
    first_alike,
    measure_cells,
    paired_ratio,
    parts_of,
    plans_of,
    rotated,
)

from rowtier import Cluster, Device, Level, Table, Tables, Tier

TIER = Tier(name="ram", capacity_bytes=2**30, bandwidth_bytes_per_s=5e9, granularity_bytes=64)


def cluster_of(size: int, latency_s: float = 1e-4) -> Cluster:
    level = Level(name="node", size=size, bandwidth_bytes_per_s=1e9, latency_s=latency_s)
    return Cluster(
        name="made-up", levels=(level,) if size > 1 else (), device=Device(tiers=(TIER,))
    )


def test_every_cell_has_a_line_for_every_plan_with_parts_that_add_up():
    drawn = Drawn("pooled", "sum", (1, 2), rows=500), Drawn("sequence", "none", (3,), rows=500)
    task = Task([(one, one.profile()) for one in drawn], {8: 2, 16: 2}, warm=1)
    rows, others = run_ranks(2, measure_cells, [cluster_of(2), cluster_of(2, 2e-4)], task)
    assert len(rows) == len(others) == 2 * 2 * len(METHODS)
    for row in rows:
        parts = row["memory_ms"] + row["work_ms"] + row["links_ms"]
        assert row["predicted_ms"] == pytest.approx(parts)
        assert row["predicted_again_ms"] > row["predicted_before_ms"]
        assert 0 < row["measured_low_ms"] <= row["measured_ms"] <= row["measured_high_ms"]
    figures = figures_of(rows, cores=2)
    assert figures["step_error_median"] is not None
    assert figures["joint_measured_min"] is not None
    for one in rows:
        assert 0 < one["over_joint_low"] <= one["over_joint"] <= one["over_joint_high"]
        alike = one["same as"] == "joint"
        assert not alike or one["over_joint"] == 1
    assert 0 < figures["equal_plans_paired_min"] <= 1


def test_plans_with_equal_bands_are_run_once():
    profile = Drawn("sequence", "none", (3,), rows=500).profile()
    plans = plans_of(profile, cluster_of(2))
    twice = {"joint": plans["joint"], "again": plans["joint"], "row-wise": plans["row-wise"]}
    assert first_alike(twice) == {"joint": "joint", "again": "joint", "row-wise": "row-wise"}
    assert list(distinct(twice)) == ["joint", "row-wise"]


def test_every_plan_begins_equally_often():
    firsts = [rotated(list("abc"), number)[0] for number in range(6)]
    assert firsts == list("abcabc")


def test_rounds_are_shared_out_among_the_modules_that_are_made():
    assert parts_of(300, 5) == [60] * 5
    assert parts_of(7, 3) == [2, 2, 3]
    assert parts_of(2, 5) == [1, 1]


def test_ratios_are_of_the_same_round_and_their_interval_holds_the_true_one():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        hump = rng.choice([1.0, 1.5], 101)  # a median of times would jump between the two
        low, middle, high = paired_ratio(
            list(1.1 * hump * rng.lognormal(0, 0.1, 101)), list(hump * rng.lognormal(0, 0.1, 101))
        )
        assert low <= middle <= high
        held += low <= 1.1 <= high
    assert 180 <= held <= 200
    assert paired_ratio([3.0], [2.0]) == (1.5, 1.5, 1.5)


def test_drawn_batches_differ_by_rank_and_number_and_keep_to_their_lengths():
    data = Drawn("pooled", "sum", (1, 4), rows=300)
    first, again, *others = (
        data.batch(rank, 2, number, 50)["f1"] for rank, number in ((1, 3), (1, 3), (0, 3), (1, 4))
    )
    assert np.array_equal(first[0], again[0])
    assert not any(np.array_equal(first[0], other[0]) for other in others)
    assert set(first[1]) == {2, 3, 4, 5, 6}
    assert set(data.batch(0, 1, 0, 9)["f0"][1]) == {1}


def test_the_second_half_of_real_data_comes_once_and_then_again(tmp_path: Path):
    bags = [[n, n + 1][: n % 3] for n in range(40)]
    pq.write_table(pa.table({"item": pa.array(bags, pa.list_(pa.int64()))}), tmp_path / "x.parquet")
    item = Table(
        name="item", num_embeddings=50, embedding_dim=4, pooling="none", features=("item",)
    )
    tables = Tables(batch_size=4, tables=(item,))
    data = Recorded("x", str(tmp_path / "x.parquet"), tables)
    assert data.profile().stats[0].samples == 20
    found = [data.batch(rank, 2, number, 5)["item"] for number in (0, 1) for rank in (0, 1)]
    rows = np.concatenate([rows for rows, _ in found])
    assert sorted(rows) == sorted(row for bag in bags[20:] for row in bag)
    again = data.batch(0, 2, 2, 5)["item"]
    assert np.array_equal(again[0], found[0][0])
    assert np.array_equal(again[1], found[0][1])


def row(plan: str, predicted: float, measured: float, **more: object) -> dict[str, object]:
    cell = {"ranks": 2, "data": "pooled", "batch": 32, "plan": plan, "same as": None}
    times = {"predicted_ms": predicted, "measured_ms": measured}
    others = {"predicted_before_ms": predicted, "predicted_again_ms": predicted}
    return cell | times | others | more


def test_figures_leave_out_plans_that_are_the_same_and_ranks_without_a_core():
    rows = [
        row("joint", 9.0, 10.0),
        row("row-wise", 12.0, 20.0),
        row("row-wise-coalesced", 9.0, 10.0, **{"same as": "joint"}),
        row("table-wise", 11.0, 10.5),
        row("joint", 10.0, 40.0, ranks=4),
        row("row-wise", 20.0, 30.0, ranks=4, predicted_again_ms=30.0),
    ]
    figures = figures_of(rows, cores=2)
    assert figures["step_error_max"] == pytest.approx(0.4)
    assert figures["step_error_median"] == pytest.approx(0.1)
    assert figures["order_agreement"] == 1  # joint and table-wise are too close to count
    assert figures["joint_measured_min"] == 1  # the best other one is joint's own
    assert figures["oversubscribed_step_error_median"] == pytest.approx((0.75 + 1 / 3) / 2)
    assert figures["oversubscribed_order_agreement"] == 0
    assert figures["calibrate_spread_4_ranks"] == 0.5
    assert figures["calibrate_spread"] == figures["calibrate_spread_2_ranks"] == 0
    worse = [row("joint", 9.0, 10.0), row("table-wise", 9.0, 8.0)]
    assert figures_of(worse, cores=2)["joint_measured_min"] == pytest.approx(0.8)
    assert figures_of([], cores=2)["step_error_median"] is None
    paired = [
        row("joint", 9.0, 10.0, over_joint=1.02, over_joint_high=1.03),
        row("table-wise", 9.0, 8.0, over_joint=0.97, over_joint_high=0.99),
        row("row-wise", 9.0, 8.0, over_joint=1.5, over_joint_high=1.6),
    ]
    found = figures_of(paired, cores=2)
    assert (found["joint_paired_min"], found["joint_paired_min_high"]) == (0.97, 0.99)
    assert found["equal_plans_paired_min"] == pytest.approx(1 / 1.02)


def test_every_figure_of_a_cluster_that_changed_is_named():
    first, second = cluster_of(2).model_dump(), cluster_of(2, 2e-4).model_dump()
    assert dict(coefficient_spreads(first, second)) == {"made-up.levels.node.latency_s": 1.0}
    assert not dict(coefficient_spreads(first, first))

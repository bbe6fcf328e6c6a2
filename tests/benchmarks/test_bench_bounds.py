"""Bounds are below legal plans of every kind, and what looks for such plans does find them."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from bounds import (
    BROKEN,
    GOALS,
    OPTIMAL,
    drawn_row,
    hand_row,
    look_at,
    measure,
    planned,
    rows_of,
    tiny_row,
)
from harness.bounds.brute import best_of_all, ways_of
from harness.bounds.classes import CLASSES, held
from harness.bounds.draw import draw_instance, draw_tiny, hand_made, serving
from harness.bounds.edits import best_edit, load_of
from harness.bounds.monotone import improved
from harness.bounds.plans import cost_of, draw_band, draw_plan, legal_cost, uniform_plans
from harness.bounds.processes import in_processes, mixed

from rowtier import Band, Cluster
from rowtier.cost.load import total_load
from rowtier.plan.joint.homes import homes_of


def test_no_plan_is_below_the_bound_over_everything() -> None:
    rows = [row for seed in range(10_000, 10_010) for row in drawn_row(seed, edits=10_003)]
    assert len(rows) >= 8  # nothing fits into the others
    assert sum(row["plans"] for row in rows) > 500
    assert sum(row["edit_gain"] is not None for row in rows) == 3
    assert [row["broken"] for row in rows] == [0] * len(rows)


def test_no_plan_reads_faster_than_the_bound_of_one_that_serves() -> None:
    seen = 0
    for seed in range(20_001, 20_004):
        random = np.random.default_rng(seed)
        instance = serving(draw_instance(random))
        plan = planned(instance)
        if plan is not None:
            assert plan.certificate is not None
            assert plan.certificate.view == "read-only"
            row = look_at(f"serving {seed}", instance, plan, random)
            assert (row["broken"], row["not_proved"]) == (0, False)
            seen += row["plans"]
    assert seen > 100


def test_tiny_plans_that_serve_are_the_best_of_all() -> None:
    best = []
    for seed in range(6):
        instance = serving(draw_tiny(np.random.default_rng(seed)))
        plan = planned(instance)
        assert plan is not None
        assert plan.certificate is not None
        found = best_of_all(instance, plan.certificate.objective)
        assert found.step_s >= plan.certificate.bound * (1 - BROKEN)
        best.append(plan.certificate.objective <= found.step_s * (1 + OPTIMAL))
    assert all(best)


def test_servers_beside_devices_stay_above_the_bound() -> None:
    name = "2 devices and 2 servers"
    (row,) = hand_row(name, dict(hand_made())[name])
    assert row["broken"] == 0
    assert row["families"]["by hand"] == 19
    assert 1 <= row["joint_vs_other"] / row["hand"] < 1.2  # the best by hand is among the best


def test_every_field_of_a_band_is_drawn_and_in_the_bound() -> None:
    said = {"start", "stop", "columns", "members", "order", "offset"}  # which rows, and where
    ways = {"scope", "tier", "exchange", "coalesced", "staged", "sync"}
    assert set(Band.model_fields) == said | ways
    cluster, random = Cluster.preset("dgx-h100-2"), np.random.default_rng(1)
    profile = draw_instance(np.random.default_rng(4)).profile
    pooled = next(s.table for s in profile.stats if s.table.pooling != "none")
    drawn = [draw_band(pooled, cluster, random, 0, 1, None) for _ in range(300)]
    for name in ways:
        values = {getattr(way.band, name) for way in homes_of(cluster, pooled=True)}
        assert values == {getattr(band, name) for band in drawn}, name


def test_drawn_plans_keep_to_pins_of_every_kind() -> None:
    seen = set()
    for seed in range(60):
        random = np.random.default_rng(seed)
        instance = draw_instance(random)
        wanted = instance.options.constraints
        if wanted.decides:
            seen |= {key for pin in wanted.tables.values() for key in pin.to_data()}
            seen |= {"keep_together"} if wanted.keep_together else set()
            bands = draw_plan(instance, random)
            assert list(wanted.violations(bands, cost_of(instance, bands))) == []
    assert seen == {"tier", "scope", "device", "never_split", "keep_together"}


@pytest.mark.parametrize("method", CLASSES)
def test_no_plan_of_its_class_is_below_a_certificate(method: str) -> None:
    found = []
    for seed in range(24):
        random = np.random.default_rng(seed)
        found.append(held(method, draw_instance(random), random))
    those = [one for one in found if one is not None]
    assert sum(one.plans for one in those) > 200
    assert sum(one.broken for one in those) == 0
    # Plans are as good as bounds are high. What sca leaves free of fast memory homes fill.
    assert min(one.closest for one in those) < (1.2 if method == "sca" else 1.05)


def test_an_edit_finds_what_was_made_worse() -> None:
    random = np.random.default_rng(3)
    instance = draw_tiny(random)
    plan = planned(instance)
    assert plan is not None
    slow = min(
        (b for b in uniform_plans(instance) if legal_cost(instance, b) is not None),
        key=lambda bands: -cost_of(instance, bands).step_s,
    )
    best = best_edit(instance, slow, random)
    assert best.tried > 30
    assert best.step_s < 0.9 * cost_of(instance, slow).step_s


def test_searching_through_everything_finds_the_best_of_what_is_tried_by_hand() -> None:
    for seed in range(3):
        instance = draw_tiny(np.random.default_rng(seed))
        costs = (legal_cost(instance, bands) for bands in uniform_plans(instance))
        best_s = min(cost.step_s for cost in costs if cost is not None)
        assert best_of_all(instance, best_s * 1.000_001).step_s <= best_s * (1 + 1e-9)


def test_what_bands_ask_adds_up_unless_they_share_sums() -> None:
    for seed in range(12):
        random = np.random.default_rng(seed)
        instance = draw_tiny(random)
        stats = instance.profile.stats[0]
        rows, ways = stats.table.num_embeddings, ways_of(instance, stats)
        cut = int(random.integers(1, rows))
        alone = replace(instance.profile, stats=(stats,))
        for _ in range(10):
            one, other = (ways[int(random.integers(len(ways)))] for _ in range(2))
            both = (
                one.model_copy(update={"stop": cut}),
                other.model_copy(update={"start": cut, "stop": rows}),
            )
            added = total_load(load_of(instance, stats, (band,)) for band in both)
            exact = cost_of(replace(instance, profile=alone), {stats.table.name: both}).step_s
            added_s = float(added.step_s(instance.cluster))
            if "rows" in (one.exchange, other.exchange):
                assert added_s == pytest.approx(exact, rel=1e-9)
            assert added_s >= exact * (1 - 1e-9)


def test_bounds_are_not_above_the_best_plan_of_all() -> None:
    rows = [row for seed in range(6) for row in tiny_row(seed)]
    assert len(rows) >= 5
    assert sum(row["plans"] for row in rows) > 10_000
    assert not any(row["broken"] for row in rows)


def test_a_better_cluster_never_makes_a_plan_slower() -> None:
    compared = 0
    for seed in range(12):
        random = np.random.default_rng(seed)
        instance = draw_instance(random)
        bands = draw_plan(instance, random)
        now_s = cost_of(instance, bands).step_s
        for what, cluster in improved(instance.cluster, 1.5):
            better = replace(instance, cluster=cluster)
            assert cost_of(better, bands).step_s <= now_s * (1 + 1e-12), what
            compared += 1
    assert compared > 60


def test_problems_show_the_same_in_processes() -> None:
    tasks = [("tiny", 0), ("tiny", 1), ("classes", 0)]
    found = dict(in_processes(rows_of, tasks, processes=2, seconds=math.inf))
    assert found == {task: rows_of(task) for task in tasks}


def test_kinds_of_problems_are_evenly_mixed() -> None:
    tasks = mixed({"many": range(40), "few": range(7, 11)})
    assert sorted(tasks) == sorted(
        [*(("many", n) for n in range(40)), *(("few", n) for n in range(7, 11))]
    )
    assert [sum(kind == "few" for kind, _ in tasks[at : at + 11]) for at in (0, 11, 22, 33)] == [
        1
    ] * 4


def test_a_run_without_time_has_no_figures_and_reaches_no_goal() -> None:
    measured = measure(True, processes=1, seconds=0.0)
    assert not measured.finished
    assert measured.figures["problems_left"] == measured.figures["problems_asked"] > 60
    assert measured.figures["edit_gain_max"] is None
    assert set(GOALS) <= set(measured.figures)

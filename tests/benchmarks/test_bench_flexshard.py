from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from flexshard import (
    OURS,
    figures_of,
    joint,
    nominal,
    peak_bytes,
    replayed_bytes,
    sessions_figures,
)
from harness.flexshard.data import Sessions, Zipf, distinct_by_node

import rowtier


def sessions() -> Sessions:
    lengths = np.arange(100) % 4 + 1
    edges = np.concatenate(([0], np.cumsum(lengths)))
    return Sessions("made up", np.arange(edges[-1]) % 37, edges, batch_size=5)


def test_real_sessions_are_trained_on_in_order_and_after_those_that_were_profiled():
    data = sessions()
    ((seen, _),) = data.profiled()
    steps = data.most_steps(2)
    assert steps == 4  # 40 sessions are left, ten a step
    later = [data.batch(rank, 2, step)[0] for step in range(steps) for rank in range(2)]
    assert np.array_equal(np.concatenate([seen, *later]), data.ids)


def test_drawn_batches_are_the_same_every_time_and_differ_by_rank_and_step():
    data = Zipf(1.2, batch_size=4, length=5, rows=1000)
    first, again = data.batch(1, 4, 2), Zipf(1.2, 4, 5, 1000).batch(1, 4, 2)
    assert np.array_equal(first[0], again[0])
    others = [data.batch(0, 4, 2), data.batch(1, 4, 3), *list(data.profiled())[:3]]
    assert not any(np.array_equal(first[0], other[0]) for other in others)


@pytest.mark.parametrize(
    ("batch_size", "rows", "waits"),
    [(256, 20_000, False), (2048, 100_000, True)],  # few bytes are worth no round of latency
)
def test_joint_keeps_to_the_memory_of_row_wise_and_near_the_static_bound(batch_size, rows, waits):
    data = Zipf(1.2, batch_size=batch_size, length=20, rows=rows)
    profile, cluster = data.profile(4), nominal(2, 2, 1e9)
    if not waits:
        at_once = tuple(lv.model_copy(update={"latency_s": 0.0}) for lv in cluster.levels)
        cluster = cluster.model_copy(update={"levels": at_once})
    plain = rowtier.make_plan(profile, cluster, "row-wise")
    plan = joint(profile, plain)
    assert peak_bytes(plan) <= peak_bytes(plain)
    _, rows = replayed_bytes(plan, data, 4, [0])
    bound = 2 * 256 * sum(distinct_by_node(data, 2, 2, 0)) / 2
    assert 0.95 < rows / bound < 1.05
    assert replayed_bytes(plain, data, 4, [0])[1] > 2 * bound


def test_sessions_tell_whether_the_model_knows_the_faster_plan():
    def pair(cluster: str, joint: tuple[float, float], other: tuple[float, float], same: bool):
        times = {"joint": joint, OURS[1]: other}
        return [
            {"cluster": cluster, "mbit_per_s": 1000.0, "data": "diginetica", "contender": name,
             "predicted_ms": predicted, "comm_ms": comm, "step_ms": 2 * comm, "as_joint": same}
            for name, (predicted, comm) in times.items()
        ]  # fmt: skip

    wrong = pair("2x2", (10.0, 20.0), (12.0, 15.0), False)
    alike = pair("4x1", (10.0, 20.0), (10.0, 15.0), True)
    figures = sessions_figures(wrong + alike)
    assert figures["sessions_order_agreement"] == 0.5
    assert figures["sessions_joint_vs_coalesced_min"] == 0.75
    assert sessions_figures(alike)["sessions_joint_vs_coalesced_min"] == 1
    right = pair("2x2", (10.0, 12.0), (12.0, 15.0), False)
    assert sessions_figures(right)["sessions_order_agreement"] == 1
    assert sessions_figures(right)["sessions_step_joint_vs_coalesced_min"] == 1.25


def row(contender: str, measured: float, replay: float | None, comm: float) -> dict[str, object]:
    return {
        "cluster": "2x2", "mbit_per_s": 1000.0, "data": "zipf 1.2", "contender": contender,
        "measured_bytes": measured, "replay_bytes": replay, "row_bytes": replay,
        "bound_bytes": 4e6, "comm_ms": comm, "predicted_ms": None if replay is None else 10.0,
        "profile_ms": None if replay is None else 30.0,
    }  # fmt: skip


def test_figures_tell_large_from_small_and_leave_16_bits_out():
    rows = [
        row("torchrec row_wise", 40e6, None, 100.0),
        row(OURS[0], 40.4e6, 40e6, 8.0),
        row(OURS[1], 1.05e6, 1e6, 20.0),
        row("joint", 4e6, 4e6, 10.0),
        row("joint fp16", 1.0, 2e6, 1.0),
    ]
    figures = figures_of(rows)
    assert figures["bytes_error_max_large"] == pytest.approx(0.01)
    assert figures["bytes_error_max_small"] == pytest.approx(0.05)
    assert figures["time_error_max"] == pytest.approx(0.5)
    assert figures["time_error_median"] == pytest.approx(0.25)
    assert figures["time_error_max_from_profile"] == pytest.approx(2.75)
    assert figures["flexshard_bytes_reduction"] == pytest.approx(0.9)
    assert figures["flexshard_time_ratio"] == pytest.approx(10)
    assert figures["static_bound_excess_max"] == 0
    assert figures["time_ratio_zipf1.2_vs_coalesced"] == 2
    assert figures["bytes_reduction_diginetica_vs_torchrec"] is None
    assert set(figures_of([]).values()) == {None}

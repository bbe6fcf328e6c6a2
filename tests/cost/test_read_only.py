"""Steps that only read: no gradients, nothing written, no copies to keep equal."""

import numpy as np
import pytest
from cost_cases import cases
from cost_naive import Walk
from hypothesis import HealthCheck, given, settings
from test_cost_exact import assert_equal, assert_memory_equal, assert_times_equal

from rowtier import Band, Cluster, Curve, FeatureStats, Plan, Profile, Table, TableStats, predict
from rowtier.cost.options import CostOptions
from rowtier.cost.step import StepCost, step_cost
from rowtier.cost.views import VIEWS, assumptions, objective

SLACK = 1 + 1e-9


def amounts(cost: StepCost) -> dict[str, np.ndarray]:
    """All that a step costs: no entry may be above that of training."""
    time, flows = cost.time, cost.links.flows.items()
    return {
        "read": cost.read_bytes,
        "written": cost.written_bytes,
        "memory_s": time.memory_s,
        "work_s": time.work_s,
        "exchange_s": time.exchange_level_s,
        "sync_s": time.sync_level_s,
        "messages": cost.links.messages,
        "rounds": cost.links.phases.rounds,
        "kept": cost.memory.total,
        "step_s": np.asarray(cost.step_s),
        **{f"{name} {way}": getattr(flow, way) for name, flow in flows for way in vars(flow)},
    }


@given(cases())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_reading_never_costs_more_than_training(case) -> None:
    bands, profile, cluster, options = case
    trained = options.model_copy(update={"training": True})
    training = amounts(step_cost(bands, profile, cluster, options=trained))
    for name, reading in amounts(
        step_cost(bands, profile, cluster, options=options.reading)
    ).items():
        assert (reading <= training[name] * SLACK).all(), name


@given(cases())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_reading_equals_a_walk_over_every_message(case) -> None:
    bands, profile, cluster, options = case
    cost = step_cost(bands, profile, cluster, options=options.reading)
    walk = Walk(bands, profile, cluster, None, options.reading)
    assert_equal(cost, walk)
    assert_memory_equal(cost, walk)
    assert_times_equal(cost, walk)
    assert not cost.written_bytes.any()
    for name in ("backward", "sync", "sync_ids"):
        assert not cost.links.flows[name].sent.any(), name


def two_devices() -> Cluster:
    tiers = [
        {"name": "hbm", "capacity": "1GB", "bandwidth": "1GB/s", "granularity": "32B"},
        {"name": "dram", "capacity": "1GB", "bandwidth": "100MB/s", "granularity": "64B"},
    ]
    node = {"name": "node", "size": 2, "bandwidth": "10MB/s"}
    return Cluster.model_validate({"name": "two", "levels": [node], "device": {"tiers": tiers}})


def three_rows() -> Profile:
    """Rows of 40 bytes, with state of 80; each is looked up once by every sample, which is one."""
    table = Table(
        name="t", num_embeddings=3, embedding_dim=10, optimizer="adam", features=("f",),
        pooling="none",
    )  # fmt: skip
    feature = FeatureStats(name="f", present=10, lookups=30)
    curve = Curve(np.array([3]), np.array([30.0]))
    return Profile(1, (TableStats(table, 10, (feature,), curve),))


BANDS = {
    "t": (
        Band(start=0, stop=1, scope="device", tier="hbm"),
        Band(start=1, stop=2, scope="node", members=(0,), tier="hbm", coalesced=True),
        Band(start=2, stop=3, scope="device", tier="dram"),
    )
}


def test_a_step_of_three_rows_by_hand() -> None:
    """A device needs a row with u = 1 − (2/3)³, either of two devices with v = 1 − (2/3)⁶."""
    u, v = 1 - (2 / 3) ** 3, 1 - (2 / 3) ** 6
    cost = step_cost(BANDS, three_rows(), two_devices(), options=CostOptions().reading)
    # 40 bytes are 64 of either tier; a row of dram is read there and brought to hbm.
    assert cost.read_bytes == pytest.approx(np.array([[2 * u + v, u], [2 * u, u]]) * 64)
    assert cost.links.forward.sent == pytest.approx(np.array([[40 * u], [0.0]]))
    assert cost.links.ids.sent == pytest.approx(np.array([[0.0], [8 * u]]))
    memory_s = (2 * u + v) * 64 / 1e9 + u * 64 / 1e8
    assert cost.step_s == pytest.approx(memory_s + 48 * u / 1e7)
    trained = step_cost(BANDS, three_rows(), two_devices())
    assert trained.written_bytes[0, 0] == pytest.approx(2 * v * 128)
    assert trained.step_s > cost.step_s


def test_it_is_a_view_of_its_own() -> None:
    profile, cluster = three_rows(), two_devices()
    facts = (BANDS, profile, cluster)
    cost = step_cost(*facts, options=CostOptions().reading)
    assert objective("read-only", *facts) == cost.step_s < objective("step", *facts)
    assert VIEWS["read-only"].unit == "s"
    assumed = CostOptions(ids="narrow", dense_s=1.0)
    assert assumptions("read-only", assumed) == assumed.reading
    assert assumptions("step", assumed) == assumed
    assert assumptions("recshard", assumed) == CostOptions()


def test_predict_takes_it_beside_other_options() -> None:
    plan = Plan.build("mine", three_rows(), two_devices(), BANDS)
    narrow = CostOptions(ids="narrow")
    found = predict(plan, narrow, read_only=True)
    assert found.options == narrow.reading
    assert found.to_dict()["read_only"]
    assert not predict(plan, narrow).to_dict()["read_only"]
    assert found.step_s < predict(plan, narrow).step_s

import json
from pathlib import Path

import numpy as np
import pytest
from cost.cost_cases import cases
from hypothesis import given, settings
from strategies import counted

import rowtier
from rowtier import Band, Cluster, Plan, Profile, Table
from rowtier.cost.options import CostOptions
from rowtier.cost.step import step_cost
from rowtier.evaluate.predict import predict


def plan_of(method: str = "row-wise", preset: str = "recshard-16") -> Plan:
    random = np.random.default_rng(3)
    stats = tuple(
        counted(
            Table(name=f"t{i}", num_embeddings=1000, embedding_dim=8, features=(f"f{i}",)),
            random.poisson(3, 1000),
            samples=10**4,
        )
        for i in range(4)
    )
    return rowtier.make_plan(Profile(128, stats), Cluster.preset(preset), method)


def test_predict_is_the_function_and_not_a_module() -> None:
    assert rowtier.predict is predict


def test_a_prediction_says_what_the_cost_model_says() -> None:
    plan = plan_of()
    cost = step_cost(plan.bands, plan.profile, plan.cluster, plan.order)
    found = predict(plan)
    assert found.step_s == cost.step_s
    assert found.to_dict()["holders"] == cost.to_dict()["holders"]
    frame = found.to_frame().to_pydict()
    at = frame["name"].index("step")
    assert frame["predicted"][at] == cost.step_s
    forward = [
        value
        for kind, of, name, value in zip(
            frame["kind"], frame["of"], frame["name"], frame["predicted"], strict=True
        )
        if (kind, name) == ("table", "forward")
    ]
    assert sum(forward) == pytest.approx(cost.links.forward.total.sum())


def test_a_prediction_shows_its_time_when_printed() -> None:
    found = predict(plan_of())
    assert f"{1e3 * found.step_s:.4g} ms a step" in repr(found)


def test_options_and_batch_size_change_the_prediction() -> None:
    plan = plan_of()
    assert predict(plan, CostOptions(training=False)).step_s < predict(plan).step_s
    assert predict(plan, batch_size=256).step_s > predict(plan).step_s
    assert predict(plan, batch_size=128).step_s == predict(plan).step_s


def test_nothing_leaves_the_device_where_all_rows_are_copied() -> None:
    plan = plan_of()
    tier = plan.cluster.device.tiers[0].name
    everywhere = {
        name: (Band(start=0, stop=1000, scope="device", tier=tier),) for name in plan.bands
    }
    copied = Plan.build("copies", plan.profile, plan.cluster, everywhere)
    assert predict(copied).facts.home_samples == pytest.approx(128 * 16)


@settings(max_examples=40, deadline=None)
@given(cases())
def test_every_figure_has_a_label_and_a_finite_value(case: tuple) -> None:
    bands, profile, cluster, options = case
    found = predict(Plan.build("random", profile, cluster, bands), options)
    vector = found.facts.vector()
    assert len(vector) == len(found.labels) == len(set(found.labels))
    assert np.isfinite(vector).all()
    assert (vector >= 0).all()
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_plan_from_a_curve_can_be_predicted(tmp_path: Path) -> None:
    plan = plan_of()
    curve = rowtier.make_plan(plan.profile.to_curve(), plan.cluster, "row-wise")
    curve.save(tmp_path / "plan")
    assert predict(Plan.load(tmp_path / "plan")).step_s > 0

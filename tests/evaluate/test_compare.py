"""Plans side by side: parts that add up, baselines by name, replayed beside predicted."""

from pathlib import Path

import numpy as np
import pytest
from cost.cost_cases import cases
from hypothesis import HealthCheck, given, settings
from report.report_cases import cluster, profile

import rowtier
from rowtier import Plan, Profile, Table, Tables
from rowtier.cost.step import step_cost
from rowtier.evaluate.parts import difference, reasons, step_parts


@given(cases())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_parts_of_a_step_add_up_to_it(case: tuple) -> None:
    bands, profile, cluster, options = case
    cost = step_cost(bands, profile, cluster, options=options)
    parts = step_parts(cost)
    assert sum(parts.values()) == pytest.approx(cost.step_s, rel=1e-12)
    assert min(parts.values()) >= -1e-12 * max(1.0, cost.step_s)


@pytest.fixture(scope="module")
def made() -> dict[str, Plan]:
    of, on = profile("user", "item", "ad", rows=100_000), cluster()
    return {m: rowtier.make_plan(of, on, m) for m in ("joint", "size-lookup", "row-wise")}


def test_the_difference_to_the_best_is_told_to_the_last_second(made: dict[str, Plan]) -> None:
    result = rowtier.compare(made)
    for load in result.loads:
        more = result.difference(load)
        assert sum(more.values()) == pytest.approx(load.step_s - result.best.step_s, abs=1e-15)
    assert result.best.name == "joint"
    assert set(result.difference(result.best).values()) == {0.0}
    assert result.explanation[-1].startswith("row-wise +")
    assert repr(result).startswith("<Comparison: joint takes")


def test_a_balanced_plan_is_told_from_an_uneven_one(made: dict[str, Plan]) -> None:
    loads = {load.name: load for load in rowtier.compare(made).loads}
    assert loads["row-wise"].parts["imbalance"] < loads["size-lookup"].parts["imbalance"]


def test_baselines_by_name_are_planned_on_the_plans_own_profile(made: dict[str, Plan]) -> None:
    result = rowtier.compare({"mine": made["joint"]}, baselines=("row-wise", "size-lookup"))
    loads = {load.name: load.step_s for load in result.loads}
    direct = {load.name: load.step_s for load in rowtier.compare(made).loads}
    assert loads == {"mine": direct["joint"], **{n: direct[n] for n in loads if n != "mine"}}


def test_a_baseline_that_does_not_fit_is_named_and_left_out() -> None:
    of = profile("user", "item", rows=400_000)
    tight = cluster(nodes=1, devices=4, capacity="10MiB")
    device = tight.device.model_copy(update={"tiers": tight.device.tiers[:1]})
    tight = tight.model_copy(update={"device": device})
    plan = rowtier.make_plan(of, tight, "row-wise")
    result = rowtier.compare({"plan": plan}, baselines=("table-wise", "row-wise"))
    assert [load.name for load in result.loads] == ["plan", "row-wise"]
    assert "table-wise" in result.left_out
    assert result.to_dict()["left_out"]["table-wise"]


def test_a_plan_named_like_a_baseline_keeps_its_name(made: dict[str, Plan]) -> None:
    result = rowtier.compare({"row-wise": made["joint"]}, baselines=("row-wise",))
    assert [load.name for load in result.loads] == ["row-wise", "row-wise (baseline)"]


def counted(folder: Path) -> tuple[Profile, Path]:
    random = np.random.default_rng(1)
    ids = {f"f{i}": random.zipf(1.3, 3200) % 80 for i in range(4)}
    np.savez(folder / "data.npz", **ids)
    tables = [
        Table(name=name, num_embeddings=80, embedding_dim=16, features=(name,)) for name in ids
    ]
    early = {name: values[:1600] for name, values in ids.items()}
    return rowtier.make_profile(
        [early], Tables(batch_size=8, tables=tuple(tables))
    ), folder / "data.npz"


def test_replayed_stands_beside_predicted_and_adds_up_too(tmp_path: Path) -> None:
    of, data = counted(tmp_path)
    plans = {m: rowtier.make_plan(of, cluster(), m) for m in ("table-wise", "joint")}
    result = rowtier.compare(plans, data, baselines=("row-wise",), after=0.5, steps=20)
    for load in result.loads:
        assert load.replayed is not None
        assert load.replayed.steps == 20
        assert sum(load.judged_parts.values()) == pytest.approx(load.replayed.step_s, rel=1e-12)
        assert load.replayed.figure("step").predicted == pytest.approx(load.step_s)
        more = sum(result.difference(load).values())
        assert more == pytest.approx(load.judged_s - result.best.judged_s, abs=1e-15)
    assert "on the data" in result.verdict
    frame = result.to_frame()
    assert frame.column_names == ["plan", "name", "unit", "predicted", "replayed"]
    step = frame.filter((np.array(frame["name"].to_pylist()) == "step").tolist())
    assert step["predicted"].to_pylist() == [load.step_s for load in result.loads]
    assert step["replayed"].to_pylist() == [load.judged_s for load in result.loads]


def test_a_cautious_plan_is_measured_by_the_same_expectation(tmp_path: Path) -> None:
    of, _ = counted(tmp_path)
    bold = rowtier.make_plan(of, cluster(), "recshard")
    shy = rowtier.make_plan(of, cluster(), "recshard", rowtier.PlanOptions(confidence=0.9))
    result = rowtier.compare({"shy": shy, "bold": bold})
    assert "what bold expects" in result.notes[0]


def test_replaying_asks_for_data(made: dict[str, Plan]) -> None:
    with pytest.raises(rowtier.UserError, match="give data"):
        rowtier.compare(made, steps=3)


def test_reasons_name_what_matters() -> None:
    one = {"fast memory": 1e-3, "node links": 2e-3, "sync": 0.0}
    other = {"fast memory": 0.5e-3, "node links": 9e-3, "sync": 1e-9}
    assert reasons(difference(one, other)) == "node links +7 ms, fast memory −500 µs"
    assert reasons(difference(one, one)) == "nothing"

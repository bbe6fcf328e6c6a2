"""A plan that serves is predicted, replayed, compared, explained and moved to as one that reads."""

import numpy as np
import pytest
from evaluate.test_replay import SAMPLES, machine, samples, tables

import rowtier
from rowtier import Plan, Profile, compare, diff, explain, predict, replay
from rowtier.cost.options import CostOptions
from rowtier.errors import MismatchError, UserError
from rowtier.plan.options import PlanOptions
from rowtier.report.facts import Facts

SERVE = PlanOptions(serve=True)


@pytest.fixture(scope="module")
def profile() -> Profile:
    return rowtier.make_profile([samples(1)], tables(optimizer="adam"))


@pytest.fixture(scope="module")
def serving(profile: Profile) -> Plan:
    return rowtier.make_plan(profile, machine(), options=SERVE)


@pytest.fixture(scope="module")
def training(profile: Profile) -> Plan:
    return rowtier.make_plan(profile, machine())


@pytest.mark.parametrize("method", ["joint", "row-wise-coalesced"])
def test_what_is_replayed_is_what_was_predicted(profile: Profile, method: str) -> None:
    plan = rowtier.make_plan(profile, machine(), method, SERVE)
    found = replay(plan, [samples(1)], steps=SAMPLES // 50 // 4)
    assert found.to_dict()["read_only"]
    assert found.prediction.options == CostOptions(training=False)
    assert predict(plan).step_s == found.prediction.step_s == predict(plan, read_only=True).step_s
    step = found.figure("step")
    assert step.replayed == pytest.approx(step.predicted, rel=0.03)
    flows = found.prediction.cost.links.flows
    for name in ("backward", "sync", "sync_ids"):
        assert not flows[name].sent.any()
    for figure in found.figures:
        if figure.label.kind == "level" and figure.label.unit == "bytes":
            assert figure.replayed == pytest.approx(figure.predicted, rel=0.05)
    assert not found.prediction.cost.written_bytes.any()
    assert not found.worst.written.any()


def test_replay_counts_as_a_training_plan_does_that_is_read_only(profile: Profile) -> None:
    """The same bands on the same tables: serving is the view and no state, nothing else."""
    plan = rowtier.make_plan(profile, machine(), "row-wise-coalesced", SERVE)
    stateless = rowtier.make_profile([samples(1)], tables(optimizer="sgd"))
    other = Plan.build("other", stateless, machine(), plan.bands)
    mine = replay(plan, [samples(2)], steps=5)
    theirs = replay(other, [samples(2)], steps=5, options=CostOptions(training=False))
    pairs = zip(mine.figures, theirs.figures, strict=True)
    assert all((a.replayed, a.predicted) == (b.replayed, b.predicted) for a, b in pairs)


def test_one_plan_that_serves_makes_a_comparison_read_only(serving: Plan, training: Plan) -> None:
    found = compare({"training": training, "serving": serving}, baselines=["row-wise"])
    assert found.read_only
    assert "serving serves, so all plans are measured without training" in found.notes[0]
    by_name = {load.name: load.step_s for load in found.loads}
    assert by_name["serving"] <= min(by_name.values())
    assert by_name["training"] < predict(training).step_s
    assert not compare({"training": training}).read_only
    with pytest.raises(UserError, match="flexshard makes no plans that serve"):
        compare({"serving": serving}, baselines=["flexshard"])


def test_weights_move_alone_to_a_plan_that_serves(serving: Plan, training: Plan) -> None:
    stateless = rowtier.make_profile([samples(1)], tables(optimizer="sgd"))
    old, new = (Plan.build("x", stateless, machine(), p.bands) for p in (training, serving))
    found, expected = diff(training, serving), diff(old, new)
    assert found.moved_bytes == expected.moved_bytes > 0
    assert found.within_bytes.sum() == expected.within_bytes.sum()
    assert found.tables == expected.tables
    assert diff(serving, serving).moved_bytes == 0
    half = rowtier.make_plan(
        rowtier.make_profile([samples(1)], tables()), machine(),
        options=PlanOptions(serve=True, rows_as="fp16"),
    )  # fmt: skip
    with pytest.raises(MismatchError, match="dtype"):
        diff(training, half)


def test_it_is_explained_and_reported_as_it_is(serving: Plan) -> None:
    found = explain(serving, "ta")
    assert found.cost.step_s == predict(serving).step_s
    assert "in what it minimises" not in found.verdict
    assert any("read-only" in line for line in found.step)
    facts = Facts.of(serving)
    assert facts.load.step_s == predict(serving).step_s
    assert all(b.load is None or b.step_s >= facts.load.step_s * 0.999 for b in facts.baselines)
    again = explain(serving, what_if="levels.node.bandwidth=1GB/s").what_if
    assert again is not None
    assert again.replanned is not None
    assert again.replanned.serves
    assert np.isclose(again.before.step_s, predict(serving).step_s)

"""Coefficients of work are found in times that were made from them."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowtier import Cluster, Device, Level, Tier
from rowtier.calibrate.fit import fit_nonnegative, fit_round
from rowtier.calibrate.probes import SHAPES, plans
from rowtier.calibrate.work import UNITS, StepSample, WorkTimes, _counts, _known_s
from rowtier.cost.step import step_cost
from rowtier.work import UpdateWork, Work

TRUE = Work(
    step_s=3e-4,
    round_s=6e-5,
    table_s=1e-5,
    bundle_s=8e-5,
    band_s=3e-5,
    copied_s=5e-5,
    lookup_s=2e-8,
    distinct_s=5e-8,
    plain_s=4e-8,
    row_s=3e-8,
    sum_s=6e-8,
    buffer_bytes_per_s=4e9,
    output_bytes_per_s=3e9,
    update=UpdateWork(sgd=1e-8, adagrad=4e-8, rowwise_adagrad=5e-8, adam=8e-8),
)


def two_ranks(work: Work = TRUE) -> Cluster:
    ram = Tier(name="ram", capacity_bytes=2**34, bandwidth_bytes_per_s=5e9, granularity_bytes=64)
    level = Level(name="node", size=2, bandwidth_bytes_per_s=2e9, latency_s=5e-5)
    return Cluster(name="two", levels=(level,), device=Device(tiers=(ram,)), work=work)


def times_of(work: Work, noise: Sequence[float] = (1.0,)) -> WorkTimes:
    """Steps as the model says that they take."""
    found = []
    for number, shape in enumerate(SHAPES):
        for plan in plans(shape, two_ranks(work)):
            time_s = step_cost(plan.bands, plan.profile, plan.cluster, plan.order).step_s
            time_s *= noise[(number + len(found)) % len(noise)]
            found.append(StepSample(plan.method, time_s, 0.0, _known_s(plan), _counts(plan)))
    return WorkTimes(tuple(found))


def test_steps_that_follow_the_model_give_its_coefficients_back() -> None:
    found = times_of(TRUE)
    assert found.error < 1e-3
    work = found.work()
    for name in ("step_s", "round_s", "lookup_s", "row_s", "buffer_bytes_per_s"):
        assert getattr(work, name) == pytest.approx(getattr(TRUE, name), rel=0.05), name


def test_noise_of_a_tenth_leaves_predicted_steps_within_a_tenth() -> None:
    found = times_of(TRUE, noise=np.random.default_rng(0).uniform(0.9, 1.1, 67).tolist())
    seconds = np.array(list(found.seconds.values()))
    for step, true in zip(found.steps, times_of(TRUE).steps, strict=True):
        predicted_s = step.known_s + float(np.array(step.counts) @ seconds)
        assert predicted_s == pytest.approx(true.time_s, rel=0.1)


def test_the_model_is_a_sum_of_counts_times_coefficients() -> None:
    unit = {
        "buffer": lambda work: work.byte_s,
        "output": lambda work: work.output_byte_s,
    } | {
        field.alias: lambda work, name=name: getattr(work, name)
        for name, field in Work.model_fields.items()
        if name.endswith("_s") and not name.endswith("per_s")
    }
    unit |= {name: lambda work, name=name: work.update_s(name) for name in UpdateWork.model_fields}
    for plan in (*plans(SHAPES[2], two_ranks()), *plans(SHAPES[4], two_ranks())):
        cost = step_cost(plan.bands, plan.profile, plan.cluster, plan.order)
        seconds = [unit[name](TRUE) for name in UNITS]
        summed_s = float(np.array(_counts(plan)) @ np.array(seconds))
        assert summed_s == pytest.approx(float(cost.time.work_s.max()), rel=1e-9)


def test_work_that_was_not_seen_costs_nothing() -> None:
    work = times_of(Work(step_s=1e-3)).work()
    assert work.step_s == pytest.approx(1e-3, rel=1e-3)
    assert (work.row_s, work.lookup_s, work.byte_s) == pytest.approx((0.0, 0.0, 0.0), abs=1e-15)


def test_halves_that_differ_are_said_to_differ() -> None:
    steady = times_of(TRUE)
    assert steady.agrees
    first = steady.steps[0]
    shaky = StepSample(first.name, first.time_s, 0.3, first.known_s, first.counts)
    assert not WorkTimes((shaky, *steady.steps[1:])).agrees


@given(st.floats(1e-6, 1e-3), st.floats(1e-7, 1e-4), st.floats(1e7, 1e11), st.integers(2, 8))
@settings(max_examples=50, deadline=None)
def test_a_round_is_a_latency_and_something_for_each_peer_and_byte(
    latency_s: float, message_s: float, bandwidth: float, peers: int
) -> None:
    points = [
        (count, float(sent), latency_s + count * message_s + sent / bandwidth)
        for count in (1, peers)
        for sent in (2**10, 2**14, 2**18, 2**22, 2**24)
    ]
    found = fit_round(points)
    for count, sent, time_s in points:
        fitted_s = found.latency_s + count * found.message_s + sent / found.bandwidth_bytes_per_s
        assert fitted_s == pytest.approx(time_s, rel=0.02)


@given(st.lists(st.floats(-5, 5), min_size=12, max_size=12))
@settings(max_examples=30, deadline=None)
def test_no_coefficient_is_negative_and_none_can_be_changed_for_the_better(
    values: list[float],
) -> None:
    counts = np.abs(np.array(values)).reshape(6, 2) + 0.1
    times = [3.0, 1.0, 2.0, 5.0, 1.0, 4.0]
    found = np.array(fit_nonnegative(counts.tolist(), times, [1.0] * 6))
    assert (found >= 0).all()

    def error(at: np.ndarray) -> float:
        return float(((counts @ at - times) ** 2).sum())

    for index in range(2):
        for change in (1e-3, -1e-3):
            other = found.copy()
            other[index] = max(0.0, other[index] + change)
            assert error(other) >= error(found) - 1e-9

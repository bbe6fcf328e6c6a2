"""Placements ranked by the mean over steps instead of by mean loads."""

import numpy as np
import pytest
from pydantic import ValidationError

from rowtier import (
    Band,
    Cluster,
    Curve,
    Device,
    FeatureStats,
    Level,
    Plan,
    PlanOptions,
    Profile,
    Table,
    TableStats,
    Tier,
    make_plan,
)
from rowtier.cost.step import step_cost
from rowtier.plan.joint.make import Candidate, Planning

ROWS, SAMPLES = 100_000, 1000
CLUSTER = Cluster(
    name="two",
    levels=(Level(name="node", size=2, bandwidth_bytes_per_s=1e15),),
    device=Device(tiers=(Tier(name="ram", capacity_bytes=2**40, bandwidth_bytes_per_s=1e9),)),
)
BY_MEAN, BY_STEP = PlanOptions(objective="expected_max"), PlanOptions()


def stats(name: str, dim: int) -> TableStats:
    """One id in every sample, and hardly ever the same."""
    table = Table(name=name, num_embeddings=ROWS, embedding_dim=dim, features=(f"f_{name}",))
    feature = FeatureStats(name=f"f_{name}", present=SAMPLES, lookups=SAMPLES)
    return TableStats(table, SAMPLES, (feature,), Curve(np.array([ROWS]), np.array([1000.0])))


PROFILE = Profile(20, (stats("a", 32), stats("b", 33)))


def candidate(**members: tuple[int, ...] | str) -> Candidate:
    bands = {
        name: (Band(start=0, stop=ROWS, scope="node", tier="ram", coalesced=True, members=held),)
        for name, held in members.items()
    }
    return Candidate(bands, step_cost(bands, PROFILE, CLUSTER))


def test_owners_that_are_equally_busy_in_all_steps_win_over_rows_that_are_even_on_average() -> None:
    spread, owned = candidate(a="all", b="all"), candidate(a=(0,), b=(1,))
    by_step = Planning(PROFILE, CLUSTER, BY_STEP).rank_s
    by_mean = Planning(PROFILE, CLUSTER, BY_MEAN).rank_s
    assert by_step(spread) < by_step(owned)
    assert by_mean(owned) < by_mean(spread)


def expected_s(plan: Plan) -> float:
    return step_cost(plan.bands, plan.profile, plan.cluster, plan.order).spread.expected_s


def test_joint_makes_the_mean_over_steps_short_if_asked() -> None:
    by_step, by_mean = (make_plan(PROFILE, CLUSTER, "joint", o) for o in (BY_STEP, BY_MEAN))
    assert expected_s(by_mean) < 0.99 * expected_s(by_step)
    assert by_mean.certificate is not None
    assert by_step.certificate is not None
    assert by_mean.certificate.bound == by_step.certificate.bound
    assert by_mean.certificate.objective >= by_step.certificate.objective
    assert by_mean.origin["options"] == {"objective": "expected_max"}
    assert PlanOptions.of(by_mean) == BY_MEAN


def test_other_objectives_are_refused() -> None:
    with pytest.raises(ValidationError, match="expected_max"):
        PlanOptions(objective="p99")  # type: ignore[arg-type]

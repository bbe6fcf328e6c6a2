"""Explanations: prices and what-if against fresh plans, cuts against the cost model."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from report.report_cases import cluster, profile, stats

import rowtier
from rowtier import Band, Cluster, Plan, Profile, Table, Tables, UserError
from rowtier.cost.step import step_cost
from rowtier.evaluate.what_if import what_if
from rowtier.plan.binding import rules


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Sixteen tables that fill the fast memory of four devices."""
    tables = [stats(f"t{i}", 40_000 + 1000 * i, pooling=1 + i % 5) for i in range(16)]
    return rowtier.make_plan(Profile(4096, tuple(tables)), cluster(capacity="6MiB"), "joint")


def resized(plan: Plan, capacity: str) -> Plan:
    data = plan.cluster.to_data()
    data["device"]["tiers"][0]["capacity"] = capacity
    return rowtier.make_plan(plan.profile, Cluster.model_validate(data), plan.method)


@pytest.mark.parametrize("capacity", ["5.9MiB", "6.05MiB", "6.25MiB", "6.5MiB"])
def test_prices_agree_with_a_fresh_plan_to_within_the_gaps(plan: Plan, capacity: str) -> None:
    found = what_if(plan, f"tiers.hbm.capacity={_whole(capacity)}")
    fresh = resized(plan, _whole(capacity))
    assert found.after is not None
    assert found.promised_s is not None
    assert found.gap_s is not None
    assert fresh.certificate is not None
    assert found.after.step_s == pytest.approx(fresh.certificate.objective, rel=1e-9)
    assert abs(found.promised_s - fresh.certificate.objective) <= found.gap_s
    assert found.promised_s != found.before.step_s


def _whole(capacity: str) -> str:
    return f"{round(float(capacity.removesuffix('MiB')) * 2**20)}B"


@pytest.mark.parametrize(
    "change",
    ["levels.cluster.bandwidth=26GB/s", "levels.node.bandwidth=200GB/s", "levels.node.latency=6us"],
)
def test_links_that_change_are_predicted_to_within_the_gaps(plan: Plan, change: str) -> None:
    found = what_if(plan, change)
    assert found.after is not None
    assert found.stays_s == found.promised_s
    assert found.stays_s is not None
    assert found.gap_s is not None
    assert abs(found.stays_s - found.after.step_s) <= found.gap_s


def test_the_price_of_a_link_is_what_a_faster_link_saves(plan: Plan) -> None:
    assert plan.certificate is not None
    price = next(p for p in plan.certificate.prices if p.resource == "cluster")
    found = what_if(plan, "levels.cluster.bandwidth=26GB/s")
    assert found.stays_s is not None
    assert found.before.step_s - found.stays_s == pytest.approx(price.saves, rel=1e-6)


def test_several_changes_and_another_batch_size(plan: Plan) -> None:
    found = what_if(plan, ["batch_size=1k", "levels.cluster.size=1", "tiers.hbm.capacity=40GiB"])
    assert found.replanned is not None
    assert found.replanned.profile.batch_size == 1000
    assert found.replanned.cluster.num_devices == 2
    assert found.stays_s is found.promised_s is None
    assert len(found.tables) == 16
    assert "instead of" in found.verdict


def test_a_machine_that_is_too_small_is_told_not_raised(plan: Plan) -> None:
    found = what_if(plan, ["tiers.dram.capacity=1MiB", "tiers.hbm.capacity=1MiB"])
    assert found.replanned is None
    assert "nothing fits" in found.verdict
    assert found.to_dict()["new_step_s"] is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("tiers.hbm.capacity", "write KEY=VALUE"),
        ("tiers.gold.capacity=1GiB", r"accepted keys: tiers\.hbm\.capacity, tiers\.hbm\.bandwidth"),
        ("tiers.hbm.capacity=40", "has no unit"),
        ("levels.node.bandwidth=40GiB", "GB/s"),
        ("levels.node.size=0", "size"),
        ("batch_size=0", "1 or more"),
    ],
)
def test_a_change_that_cannot_be_read_says_what_can(plan: Plan, change: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        what_if(plan, change)


def test_a_plan_by_hand_cannot_be_planned_anew(plan: Plan) -> None:
    with pytest.raises(UserError, match="no method that can plan anew"):
        what_if(replace(plan, method="by-hand"), "batch_size=1")


def test_shares_parts_and_memory_add_up(plan: Plan) -> None:
    found = rowtier.explain(plan)
    assert sum(weight.share for weight in found.tables) == pytest.approx(1)
    assert sum(found.parts.values()) == pytest.approx(found.cost.step_s)
    assert found.memory[0].used_bytes <= found.memory[0].capacity_bytes == 6 * 2**20
    shares = [weight.share for weight in found.tables]
    assert shares == sorted(shares, reverse=True)
    assert "curve" in found.statistics[0]
    assert any("hbm everywhere: at most" in line for line in found.more)
    assert found.to_frame().num_rows == 16
    assert repr(found).startswith("<Explanation: joint takes")


def test_a_table_is_told_from_its_hottest_row_to_its_coldest(plan: Plan) -> None:
    for weight in rowtier.explain(plan).tables[:4]:
        story = rowtier.explain(plan, weight.name).table
        assert story is not None
        assert story.parts[0].start == 0
        assert story.parts[-1].stop == plan.profile[weight.name].table.num_embeddings
        assert all(one.stop == other.start for one, other in pairwise(story.parts))
        assert sum(part.lookups for part in story.parts) == pytest.approx(1)
        assert sum(part.kept_bytes for part in story.parts) == weight.kept_bytes
        assert len(story.edges) == len(story.parts) - 1


def two_bands(rank: int) -> Plan:
    """A table cut between fast and slow memory, everything spread."""
    of, on = profile("user", rows=50_000), cluster()
    rows = of.stats[0].table.num_embeddings
    bands = (
        Band(start=0, stop=rank, scope="cluster", tier="hbm", coalesced=True),
        Band(start=rank, stop=rows, scope="cluster", tier="dram", coalesced=True),
    )
    return Plan.build("by-hand", of, on, {"user": bands})


def test_both_sides_of_a_cut_are_what_moving_it_really_changes() -> None:
    """Where all devices are loaded alike, the step falls by what the rows at the cut save."""
    rank, step = 10_000, 400
    story = rowtier.explain(two_bands(rank), "user").table
    assert story is not None
    (edge,) = story.edges
    assert edge.tier == "hbm"
    assert edge.last_hot >= edge.first_cold > 0
    costs = [_step_s(two_bands(at)) for at in (rank - step, rank, rank + step)]
    table = two_bands(rank).profile["user"].table
    per_device_gb = step * table.stored_row_bytes / 4 / 1e9
    assert (costs[0] - costs[1]) / per_device_gb == pytest.approx(edge.last_hot, rel=0.05)
    assert (costs[1] - costs[2]) / per_device_gb == pytest.approx(edge.first_cold, rel=0.05)


def test_a_cut_that_is_moved_costs_what_the_cost_model_says() -> None:
    for rank in (1, 10_000):
        story = rowtier.explain(two_bands(rank), "user").table
        assert story is not None
        for shift in story.edges[0].shifts:
            moved = two_bands(rank + shift.rows) if rank + shift.rows else None
            if moved is not None:
                expected = _step_s(moved) - _step_s(two_bands(rank))
                assert shift.step_s == pytest.approx(expected, rel=1e-6, abs=1e-15)
                assert shift.fits


def test_another_home_costs_what_the_cost_model_says() -> None:
    made = two_bands(10_000)
    story = rowtier.explain(made, "user").table
    assert story is not None
    other = next(o for o in story.alternatives if o.start == 0 and o.home.endswith(
        "in dram, coalesced"))  # fmt: skip
    hot, cold = made.bands["user"]
    moved = {"user": (hot.model_copy(update={"tier": "dram"}), cold)}
    assert other.home == "one copy, spread, in dram, coalesced"
    assert other.step_s == pytest.approx(
        _step_s(replace(made, bands=moved)) - _step_s(made), rel=1e-6
    )
    too_much = [o for o in story.alternatives if o.start and o.home.startswith("a copy on every")]
    assert {o.lacks_tier for o in too_much if "hbm" in o.home} == {None}


def _step_s(plan: Plan) -> float:
    return step_cost(plan.bands, plan.profile, plan.cluster).step_s


def test_an_unknown_table_is_refused_with_those_that_are_there(plan: Plan) -> None:
    with pytest.raises(UserError, match="no table 't99'; there are t9"):
        rowtier.explain(plan, "t99")


def test_counted_plans_say_what_statistics_and_caution_do() -> None:
    random = np.random.default_rng(5)
    ids = {"f": random.zipf(1.2, 4000) % 500}
    table = Table(name="f", num_embeddings=500, embedding_dim=16, features=("f",))
    of = rowtier.make_profile([ids], Tables(batch_size=8, tables=(table,)))
    bold = rowtier.make_plan(of, cluster(), "joint")
    shy = rowtier.make_plan(of, cluster(), "joint", rowtier.PlanOptions(confidence=0.9))
    assert "low end" in rowtier.explain(bold).statistics[0]
    assert "with 90% confidence" in rowtier.explain(shy).statistics[1]
    plain = rowtier.make_plan(of, cluster(), "row-wise")
    found = rowtier.explain(plain)
    assert "no bound is proved" in found.verdict
    assert "no prices" in found.more[0]
    assert what_if(plain, "tiers.hbm.capacity=1GiB").promised_s is None


def test_a_bound_is_only_said_for_what_the_plan_assumes() -> None:
    plan = rowtier.make_plan(profile("user", rows=5_000), cluster(), "joint")
    assert plan.assuming(0.0).certificate is not None
    other = rowtier.explain(plan.assuming(0.1))
    assert "no bound is proved" in other.verdict
    assert other.binds.startswith(rules(other.cost))

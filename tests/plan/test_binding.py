"""What binds a plan is what is used up, or else the largest part of its step."""

from typing import Any

import numpy as np
import pytest
from strategies import counted

from rowtier import Cluster, Plan, PlanOptions, Profile, Table, explain, make_plan
from rowtier.cost.step import step_cost
from rowtier.plan.binding import FULL, binding, rules, used_share

SLOW = {"size": 4, "bandwidth": "10MB/s"}
FAST = {"size": 4, "bandwidth": "1000GB/s"}


def _profile(rows: int = 2000) -> Profile:
    heat = np.maximum(1, 5000 / np.arange(1, rows + 1)).astype(np.int64)
    tables = [
        Table(name=f"t{i}", num_embeddings=rows, embedding_dim=16, features=(f"f{i}",))
        for i in range(3)
    ]
    return Profile(256, tuple(counted(table, heat, samples=20_000) for table in tables))


def _cluster(capacity: str = "1GiB", level: dict[str, Any] = FAST, **more: Any) -> Cluster:
    tiers = [
        {"name": "hbm", "capacity": capacity, "bandwidth": "1000GB/s"},
        {"name": "dram", "capacity": "4GiB", "bandwidth": "100MB/s"},
    ]
    node = {"name": "node", **level}
    data = {"name": "c", "levels": [node], "device": {"tiers": tiers}, **more}
    return Cluster.model_validate(data)


def _binds(cluster: Cluster, method: str = "joint", **options: Any) -> tuple[Plan, str]:
    plan = make_plan(_profile(), cluster, method, PlanOptions(**options))
    assert plan.certificate is not None
    return plan, plan.certificate.binding


def test_a_memory_that_is_full_is_named() -> None:
    plan, binds = _binds(_cluster("80KiB"))
    assert binds.startswith("capacity of hbm")
    assert used_share(_cost(plan), "hbm") >= FULL


def _cost(plan: Plan) -> Any:
    return step_cost(plan.bands, plan.profile, plan.cluster, plan.order, plan.assumed)


@pytest.mark.parametrize("method", ["joint", "recshard", "flexshard", "sca"])
@pytest.mark.parametrize("capacity", ["60KiB", "100KiB", "200KiB", "1MiB", "1GiB"])
def test_no_method_names_a_memory_that_has_room(method: str, capacity: str) -> None:
    plan, binds = _binds(_cluster(capacity, SLOW), method)
    named = [tier for tier in ("hbm", "dram") if f"capacity of {tier}" in binds]
    named += ["hbm"] if binds in ("hbm of all devices",) or binds.startswith("hbm:") else []
    for tier in named:
        assert used_share(_cost(plan), tier) >= FULL, binds
    assert plan.certificate is not None
    assert plan.certificate.binding in explain(plan).binds


def test_a_memory_with_room_is_not_named_whatever_a_planner_says() -> None:
    plan, _ = _binds(_cluster())
    assert "capacity" not in binding(_cost(plan), "hbm", "capacity of hbm")
    assert binding(_cost(plan), None, "") == rules(_cost(plan))


def test_what_is_reserved_does_not_count_as_room() -> None:
    plan, binds = _binds(_cluster("100KiB"), reserve=0.2)
    assert binds.startswith("capacity of hbm")
    reserved = PlanOptions(reserve=0.2).reserved
    assert used_share(_cost(plan), "hbm", reserved) >= FULL


def test_links_that_rule_are_named() -> None:
    _, binds = _binds(_cluster("60MiB", SLOW), "joint")
    assert binds in ("the node links", "bandwidth of hbm")
    plan = make_plan(_profile(), _cluster("1GiB", SLOW), "row-wise")
    assert rules(_cost(plan)) == "the node links"


@pytest.mark.parametrize(
    ("work", "says"),
    [
        ({"round": "5ms"}, "for rounds, "),
        ({"band": "5ms"}, "for bands, "),
        ({"table": "5ms"}, "for tables, 3 of 5 ms"),
        ({"step": "5ms"}, "for the step"),
        ({"lookup": "50us"}, "for lookups and rows"),
    ],
)
def test_work_that_rules_is_named_with_what_it_is_for(work: dict[str, str], says: str) -> None:
    plan, binds = _binds(_cluster(work=work))
    assert binds.startswith("work: ")
    assert says in binds
    assert "work: " in explain(plan).binds
    assert any(line.startswith("work of ") for line in explain(plan).step)


def test_waiting_that_rules_is_named_with_its_rounds() -> None:
    plan, binds = _binds(_cluster(level={**FAST, "latency": "10ms"}))
    rounds = sum(_cost(plan).phases().values())
    assert binds.startswith(f"waiting: {rounds} rounds, ")
    assert any(line.startswith(f"rounds: {rounds} a step") for line in explain(plan).step)


def test_work_that_rules_comes_before_a_memory_that_is_full() -> None:
    _, binds = _binds(_cluster("80KiB", work={"step": "1s"}))
    assert binds.startswith("work: 1 s of 1 s for the step; capacity of hbm")


def test_a_step_of_no_time_is_bound_by_nothing() -> None:
    table = Table(name="t", num_embeddings=10, embedding_dim=4, features=("f",))
    profile = Profile(1, (counted(table, np.zeros(10, dtype=np.int64)),))
    plan = make_plan(profile, _cluster(), "row-wise")
    assert rules(_cost(plan)) == "nothing: a step takes no time"

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.run import run
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import counted

from rowtier import (
    Band,
    Cluster,
    Constraints,
    InfeasibleError,
    InvalidError,
    Plan,
    PlanOptions,
    Profile,
    Table,
    UserError,
    make_plan,
)
from rowtier.cluster import Server, Tier
from rowtier.cost.memory import used_bytes
from rowtier.cost.step import step_cost
from rowtier.plan.pack import packed
from rowtier.plan.verify import verify


def _profile(rows: tuple[int, ...] = (400, 300, 200, 100), batch: int = 64) -> Profile:
    rng = np.random.default_rng(7)
    stats = []
    for index, count in enumerate(rows):
        heat = rng.permutation(np.maximum(1, 5e3 / np.arange(1, count + 1))).astype(np.int64)
        table = Table(
            name=f"t{index}",
            num_embeddings=count,
            embedding_dim=16,
            features=(f"f{index}",),
            pooling="none" if index == 3 else "sum",
            optimizer="sgd",
        )
        stats.append(counted(table, heat, samples=int(heat.sum()) // 3))
    return Profile(batch, tuple(stats))


def _cluster(fast: int, slow: int) -> Cluster:
    return Cluster.model_validate(
        {
            "name": "four",
            "levels": [
                {"name": "node", "size": 2, "bandwidth": 1e10, "latency": 1e-6},
                {"name": "cluster", "size": 2, "bandwidth": 1e9, "latency": 1e-5},
            ],
            "device": {
                "tiers": [
                    {"name": "hbm", "capacity": fast, "bandwidth": 1e11},
                    {"name": "dram", "capacity": slow, "bandwidth": 1e9},
                ]
            },
        }
    )


def _plan(constraints: dict[str, Any], fast: int = 20_000, slow: int = 60_000) -> Plan:
    options = PlanOptions(constraints=Constraints.model_validate(constraints))
    return make_plan(_profile(), _cluster(fast, slow), "joint", options)


def test_every_kind_of_pin_is_kept() -> None:
    plan = _plan(
        {
            "tables": {
                "t3": {"tier": "hbm"},
                "t0": {"device": 3},
                "t2": {"scope": "node"},
                "t1": {"never_split": True},
            }
        }
    )
    assert {b.tier for b in plan.bands["t3"]} == {"hbm"}
    assert {b.members for b in plan.bands["t0"]} == {(3,)}
    assert {b.scope for b in plan.bands["t2"]} == {"node"}
    assert len({b.members for b in plan.bands["t1"]}) == 1
    assert all(len(b.members) == 1 for b in plan.bands["t1"])
    assert verify(plan).holds


@pytest.mark.parametrize(
    ("scope", "members"), [("node", (1,)), ("device", (0,)), ("cluster", (4,))]
)
def test_a_table_in_one_piece_is_neither_copied_nor_on_a_server(
    scope: str, members: tuple[int, ...]
) -> None:
    profile, cluster = _profile((400,)), _cluster(200_000, 200_000)
    ram = Tier(name="hbm", capacity_bytes=10**6, bandwidth_bytes_per_s=1e9)
    server = Server(name="server", count=1, level="cluster", tiers=(ram,))
    cluster = cluster.model_copy(update={"servers": (server,)})
    whole = Band(start=0, stop=400, scope=scope, members=members, tier="hbm")
    wanted = Constraints.model_validate({"tables": {"t0": {"never_split": True}}})
    cost = step_cost({"t0": (whole,)}, profile, cluster)
    assert list(wanted.violations({"t0": (whole,)}, cost)) == [
        "tables.t0: not all rows are on one device"
    ]


def test_tables_that_are_kept_together_share_a_device_and_follow_a_pin() -> None:
    plan = _plan({"keep_together": [["t0", "t2"]]})
    assert len({b.members for t in ("t0", "t2") for b in plan.bands[t]}) == 1
    pinned = _plan({"keep_together": [["t0", "t2"]], "tables": {"t2": {"device": 1}}})
    assert {b.members for t in ("t0", "t2") for b in pinned.bands[t]} == {(1,)}


@pytest.mark.parametrize("method", ["joint", "size", "recshard", "row-wise", "sca"])
def test_reserved_bytes_stay_free_on_every_device_or_on_one(method: str) -> None:
    reserve = [{"tier": "hbm", "amount": 5000}, {"tier": "hbm", "amount": 9000, "device": 2}]
    options = PlanOptions(constraints=Constraints.model_validate({"reserve": reserve}))
    plan = make_plan(_profile(), _cluster(20_000, 60_000), method, options)
    used = used_bytes(plan.bands, plan.profile, plan.cluster)[:, 0]
    assert (used <= 15_000).all()
    assert used[2] <= 6_000


def test_a_limit_on_a_link_is_kept_and_costs_time() -> None:
    free = _plan({})
    level = step_cost(free.bands, free.profile, free.cluster).links

    def carried(plan: Plan) -> float:
        flows = step_cost(plan.bands, plan.profile, plan.cluster).links.flows.values()
        one_way = [sum(getattr(f, way)[:, 1] for f in flows) for way in ("sent", "received")]
        return float(max(amounts.max() for amounts in one_way))

    assert level.total_bytes[1] > 0
    limit = int(carried(free) * 0.97)
    try:
        plan = _plan({"links": {"cluster": limit}})
    except InfeasibleError as error:
        assert "links.cluster" in str(error)  # noqa: PT017
    else:
        assert carried(plan) <= limit
        assert plan.certificate is not None
        assert free.certificate is not None
        assert plan.certificate.objective >= free.certificate.objective * (1 - 1e-12)
        assert plan.certificate.bound <= plan.certificate.objective
    with pytest.raises(InfeasibleError, match=r"links\.cluster allows 10 B .* is missing"):
        _plan({"links": {"cluster": 10}})


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_a_plan_keeps_to_any_constraints_or_says_why_there_is_none(data: st.DataObject) -> None:
    pins: dict[str, Any] = {}
    for index in range(4):
        kind = data.draw(st.sampled_from(["", "tier", "device", "scope", "never_split"]))
        if kind == "tier":
            pins[f"t{index}"] = {"tier": data.draw(st.sampled_from(["hbm", "dram"]))}
        elif kind == "device":
            pins[f"t{index}"] = {"device": data.draw(st.integers(0, 3))}
        elif kind == "scope":
            pins[f"t{index}"] = {"scope": data.draw(st.sampled_from(["device", "node", "cluster"]))}
        elif kind:
            pins[f"t{index}"] = {"never_split": True}
    fast = data.draw(st.sampled_from([3_000, 10_000, 30_000]))
    slow = data.draw(st.sampled_from([12_000, 20_000, 60_000]))
    try:
        plan = _plan({"tables": pins}, fast, slow)
    except InfeasibleError as error:
        assert "is missing" in str(error) or "no way was found" in str(error)  # noqa: PT017
        return
    assert verify(plan).holds
    assert plan.certificate is not None
    assert plan.certificate.bound <= plan.certificate.objective


def test_what_a_tier_pin_lacks_is_exactly_what_the_error_says() -> None:
    pins = {"tables": {"t0": {"tier": "hbm"}, "t1": {"tier": "hbm"}}}
    needed = 700 * 64
    with pytest.raises(InfeasibleError) as caught:
        _plan(pins, fast=9_000)
    missing = needed - 4 * 9_000
    said = str(caught.value)
    assert "'t0', 't1' must be in hbm of all devices" in said
    assert "drop tables.t1.tier" in said, "the smaller table is enough"
    assert verify(_plan({"tables": {"t0": {"tier": "hbm"}}}, fast=9_000)).holds
    assert verify(_plan(pins, fast=9_000 + -(-missing // 4) + 64)).holds


@pytest.mark.parametrize(
    ("constraints", "said"),
    [
        ({"tables": {"t0": {"device": 1}, "t1": {"device": 1}}}, "must be in device 1"),
        ({"keep_together": [["t0", "t1"]]}, "must be in any one device"),
        ({"tables": {"t0": {"never_split": True}}}, "must be in any one device"),
        ({"tables": {"t0": {"scope": "device"}}}, "copies of 't0' counted"),
        ({"reserve": [{"tier": "dram", "amount": 11_000}]}, "or reserve less"),
    ],
)
def test_each_constraint_that_cannot_be_kept_is_named(
    constraints: dict[str, Any], said: str
) -> None:
    with pytest.raises(InfeasibleError, match=said) as caught:
        _plan(constraints, fast=6_000, slow=12_000)
    assert "is missing" in str(caught.value)


def test_everything_that_fits_by_bytes_is_placed() -> None:
    stored = sum(s.table.stored_bytes for s in _profile().stats)
    tight = _plan({}, fast=64 * 25, slow=-(-stored // 4) - 64 * 20)
    assert verify(tight).holds
    with pytest.raises(InfeasibleError, match="is missing"):
        _plan({}, fast=64 * 25, slow=-(-stored // 4) - 64 * 30)


def test_mistakes_in_constraints_are_listed_together() -> None:
    wrong = {
        "tables": {"zz": {"tier": "tape"}, "t0": {"device": 9}},
        "keep_together": [["t0", "t1"], ["t1"]],
        "links": {"galaxy": 5},
    }
    with pytest.raises(InvalidError) as caught:
        _plan(wrong)
    text = str(caught.value)
    for part in ("zz", "tape", "devices are 0 to 3", "appears twice", "galaxy"):
        assert part in text


def test_a_method_that_knows_no_pins_says_so() -> None:
    options = PlanOptions(constraints=Constraints.model_validate({"tables": {"t0": {"device": 3}}}))
    with pytest.raises(UserError, match=r"row-wise takes no such constraint .* plan with joint"):
        make_plan(_profile(), _cluster(20_000, 60_000), "row-wise", options)


def test_constraints_travel_with_the_plan_and_verify_holds_it_to_them(tmp_path: Path) -> None:
    _profile().save(tmp_path / "profile")
    _cluster(20_000, 60_000).save(tmp_path / "cluster.yaml")
    (tmp_path / "pins.yaml").write_text(
        "tables: {t0: {device: 3}}\nreserve: [{tier: hbm, amount: 1KiB}]\n"
    )
    files = ["--profile", f"{tmp_path}/profile", "--cluster", f"{tmp_path}/cluster.yaml"]
    pins = ["--constraints", f"{tmp_path}/pins.yaml"]
    code, out, error = run("plan", *files, *pins, "-o", f"{tmp_path}/plan")
    assert code == 0, error
    assert "what more would save" in out
    assert run("verify", f"{tmp_path}/plan")[0] == 0
    loaded = Plan.load(tmp_path / "plan")
    assert loaded.constraints is not None
    moved = loaded.constraints.model_copy(
        update={"tables": {"t0": loaded.constraints.pin("t0").model_copy(update={"device": 2})}}
    )
    assert not verify(replace(loaded, constraints=moved)).holds
    assert run("plan", *files, "--constraints", "no.yaml", "-o", f"{tmp_path}/other")[0] == 2
    (tmp_path / "pins.yaml").write_text("tables: {t0: {device: three}}\n")
    code, _, error = run("plan", *files, *pins, "-o", f"{tmp_path}/other")
    assert code == 2
    assert "three" in error


def test_fit_all_leaves_room_for_buffers_and_remap_tables() -> None:
    profile, cluster = _profile(batch=16), _cluster(30_000, 400_000)
    tight = make_plan(profile, cluster, "joint")
    room = make_plan(profile, cluster, "joint", PlanOptions(fit="all"))

    def over(plan: Plan) -> int:
        memory = step_cost(plan.bands, plan.profile, plan.cluster).memory
        return max(used - pool.capacity_bytes for pool, used in memory.in_pools(plan.cluster))

    assert over(room) <= 0 < over(tight)


@pytest.mark.parametrize(("fast", "batch"), [(30_000, 64), (300_000, 512)])
def test_fit_all_says_what_lacks_where_nothing_leaves_room(fast: int, batch: int) -> None:
    with pytest.raises(InfeasibleError, match="do not fit beside rows on 'four': hbm lacks"):
        make_plan(_profile(batch=batch), _cluster(fast, 400_000), "joint", PlanOptions(fit="all"))


def test_prices_tell_what_more_memory_and_bandwidth_save() -> None:
    scarce = _plan({}, fast=4_000).certificate
    assert scarce is not None
    prices = {(p.resource, p.unit): p.saves for p in scarce.prices}
    assert set(prices) == {("hbm", "GB"), ("dram", "GB"), ("node", "GB/s"), ("cluster", "GB/s")}
    assert prices["hbm", "GB"] > 0
    assert prices["cluster", "GB/s"] > 0
    more = _plan({}, fast=4_400).certificate
    assert more is not None
    # The bound falls by no more than the price says: it is convex in capacity.
    assert scarce.bound - more.bound <= prices["hbm", "GB"] * 400 / 1e9 * (1 + 1e-6) + 1e-12


def test_statistics_from_less_data_leave_more_open_and_caution_has_a_price() -> None:
    def thin(parts: int) -> Profile:
        stats = []
        for one in _profile((3000, 2000)).stats:
            assert one.counts is not None
            dense = np.zeros(one.table.num_embeddings, dtype=np.int64)
            dense[one.counts.rows] = one.counts.counts // parts
            stats.append(counted(one.table, dense, samples=max(1, int(dense.sum()) // 3)))
        return Profile(64, tuple(stats))

    cluster = _cluster(20_000, 200_000)
    doubts = []
    for parts in (1, 20):
        plan = make_plan(thin(parts), cluster, "joint")
        assert plan.certificate is not None
        assert plan.certificate.from_statistics is not None
        doubts.append(plan.certificate.from_statistics)
    assert doubts[0] < doubts[1]
    cautious = make_plan(thin(20), cluster, "joint", PlanOptions(confidence=0.9)).certificate
    assert cautious is not None
    assert cautious.caution is not None
    assert cautious.caution.expected >= cautious.caution.expected_without * 0.99
    assert cautious.caution.pessimistic <= cautious.caution.pessimistic_without * 1.01
    assert json.dumps(cautious.to_data())


def test_cold_rows_do_not_fill_fast_memory_while_slow_memory_is_left() -> None:
    """A pinned table fills one device, so that nothing can lie on all devices alike."""
    profile = _profile((1000, 900, 800, 700))
    stored = sum(stats.table.stored_bytes for stats in profile.stats)
    cluster = _cluster(4_000, 70_000)  # the pinned table has 64,000 bytes
    options = PlanOptions(constraints=Constraints.model_validate({"tables": {"t0": {"device": 3}}}))
    bands = packed(profile, cluster, options)
    assert bands is not None
    used = used_bytes(bands, profile, cluster)
    assert used.sum() == stored
    assert used[:, 0].sum() == 0  # 218 kB in 280 kB of slow memory
    assert {band.members for band in bands["t0"]} == {(3,)}
    plan = make_plan(profile, cluster, "joint", options)
    assert verify(plan).holds
    fast, slow = step_cost(plan.bands, profile, cluster).read_bytes[:3].sum(axis=0)
    assert fast > slow  # hot rows are moved there afterwards

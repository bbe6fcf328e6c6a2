from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import counted, plans, profiles

from rowtier import (
    Band,
    Cluster,
    InfeasibleError,
    MismatchError,
    Plan,
    PlanOptions,
    Profile,
    Table,
    UserError,
    make_plan,
)
from rowtier.cost.memory import used_bytes
from rowtier.plan.check import _capacity_mistakes, _rows_by_member, find_mistakes
from rowtier.plan.make import METHODS
from rowtier.plan.verify import verify
from rowtier.plan.watch import Watch

ANY_FOLDER = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None
)


@given(plans())
@ANY_FOLDER
def test_a_valid_plan_survives_saving_and_loading(tmp_path: Path, plan: Plan) -> None:
    plan.save(tmp_path / "plan")
    again = Plan.load(tmp_path / "plan")
    assert again.fingerprint == plan.fingerprint
    assert again.bands == plan.bands
    for stats in plan.profile.stats:
        name = stats.table.name
        assert (again.rows_in_order(name) == plan.rows_in_order(name)).all()


@given(plans(), st.data())
@settings(max_examples=60, deadline=None)
def test_dropping_or_doubling_any_band_is_caught(plan: Plan, data: st.DataObject) -> None:
    assert not list(find_mistakes(plan))
    name = data.draw(st.sampled_from(sorted(plan.bands)))
    index = data.draw(st.integers(0, len(plan.bands[name]) - 1))
    band = plan.bands[name][index]
    without = (*plan.bands[name][:index], *plan.bands[name][index + 1 :])
    for bands in (without, (*plan.bands[name], band)):
        broken = Plan("x", {**plan.bands, name: bands}, plan.cluster, plan.profile, plan.made_for)
        assert any(name in m.key for m in find_mistakes(broken))


@given(plans())
@settings(max_examples=60, deadline=None)
def test_the_checker_and_the_cost_model_count_the_same_bytes(plan: Plan) -> None:
    used = used_bytes(plan.bands, plan.profile, plan.cluster)
    for stats in plan.profile.stats:
        for band in plan.bands[stats.table.name]:
            members = band.member_list(plan.cluster.group_size(plan.cluster.level_of(band.scope)))
            for whole in (np.int64, object):
                assert int(_rows_by_member(band, len(members), whole).sum()) == band.rows
    full = used.max()
    tables = {s.table.name: s.table for s in plan.profile.stats}
    for capacity, count in ((full, 0), (full - 1, 1)):
        if capacity < 1:
            continue
        tiers = [t.model_copy(update={"capacity_bytes": int(capacity)}) for t in
                 plan.cluster.device.tiers]  # fmt: skip
        device = plan.cluster.device.model_copy(update={"tiers": tuple(tiers)})
        cluster = plan.cluster.model_copy(update={"device": device})
        tight = Plan("x", plan.bands, cluster, plan.profile, plan.made_for)
        assert min(1, len(list(_capacity_mistakes(tight, tables)))) == count


@given(plans())
@settings(max_examples=60, deadline=None)
def test_members_of_a_band_hold_every_rank_once(plan: Plan) -> None:
    for bands in plan.bands.values():
        for band in bands:
            members = band.member_list(plan.cluster.group_size(plan.cluster.level_of(band.scope)))
            ranks = np.arange(band.rows)
            if band.order == "spread":
                owner = (ranks + band.offset) % len(members)
            else:
                owner = ranks // -(-band.rows // len(members))
            held = Counter(owner.tolist())
            count = len(members)
            assert [held[i] for i in range(count)] == list(band.rows_per_member(count))


@pytest.mark.parametrize("method", METHODS)
@given(profile=profiles(max_tables=6))
@settings(max_examples=15, deadline=None)
def test_baselines_make_valid_and_repeatable_plans(method: str, profile: Profile) -> None:
    for preset in ("recshard-16", "parameter-server", "dgx-h100-2", "local"):
        plan = make_plan(profile, Cluster.preset(preset), method)
        assert not list(find_mistakes(plan))
        assert plan.fingerprint == make_plan(profile, Cluster.preset(preset), method).fingerprint


def _profile(rows: list[int], dim: int = 4, pooling: str = "sum") -> Profile:
    stats = [
        counted(
            Table(name=f"t{i}", num_embeddings=n, embedding_dim=dim, features=(f"f{i}",),
                  pooling=pooling, optimizer="sgd"),
            np.full(n, i + 1),
        )
        for i, n in enumerate(rows)
    ]  # fmt: skip
    return Profile(16, tuple(stats))


def _cluster(fast_bytes: int, slow_bytes: int) -> Cluster:
    return Cluster.model_validate(
        {
            "name": "two",
            "levels": [{"name": "node", "size": 2, "bandwidth": 1e9}],
            "device": {
                "tiers": [
                    {"name": "fast", "capacity": fast_bytes, "bandwidth": 1e9},
                    {"name": "slow", "capacity": slow_bytes, "bandwidth": 1e8},
                ]
            },
        }
    )


def test_row_wise_cuts_every_table_into_blocks_and_sends_sums_if_pooled() -> None:
    pooled = make_plan(_profile([10]), _cluster(1000, 1000), "row-wise")
    (band,) = pooled.bands["t0"]
    assert (band.order, band.members, band.scope, band.exchange) == (
        "blocks",
        "all",
        "node",
        "sums",
    )
    sequence = make_plan(_profile([10], pooling="none"), _cluster(1000, 1000), "row-wise")
    assert sequence.bands["t0"][0].exchange == "rows"


@pytest.mark.parametrize("pooling", ["sum", "none"])
def test_row_wise_coalesced_has_the_blocks_of_row_wise_and_fetches_rows_once(pooling: str) -> None:
    profile, cluster = _profile([10, 60, 20], pooling=pooling), _cluster(600, 2000)
    plain, coalesced = (make_plan(profile, cluster, m) for m in METHODS if m.startswith("row-wise"))
    once = {"exchange": "rows", "coalesced": True}
    assert coalesced.method == "row-wise-coalesced"
    assert {band.tier for bands in plain.bands.values() for band in bands} == {"fast", "slow"}
    assert coalesced.bands == {
        name: tuple(band.model_copy(update=once) for band in bands)
        for name, bands in plain.bands.items()
    }


def test_size_gives_the_largest_table_a_device_of_its_own() -> None:
    plan = make_plan(_profile([10, 60, 20, 30]), _cluster(10**6, 10**6), "size")
    members = {name: bands[0].members for name, bands in plan.bands.items()}
    assert members["t1"] not in (members["t0"], members["t2"], members["t3"])
    assert members["t0"] == members["t2"] == members["t3"]


def test_whole_tables_go_to_slow_memory_once_fast_memory_is_full() -> None:
    plan = make_plan(_profile([60, 60, 60]), _cluster(1000, 1000), "size")
    assert sorted(bands[0].tier for bands in plan.bands.values()) == ["fast", "fast", "slow"]


@pytest.mark.parametrize("method", METHODS)
def test_what_does_not_fit_is_infeasible_and_says_how_much_is_missing(method: str) -> None:
    with pytest.raises(InfeasibleError, match=r"needs? 1\.[67] KiB") as caught:
        make_plan(_profile([10, 100]), _cluster(400, 400), method)
    assert caught.value.exit_code == 3
    assert "add " in str(caught.value)


def test_reserved_memory_stays_free() -> None:
    profile, cluster = _profile([60, 60]), _cluster(1000, 2000)
    assert make_plan(profile, cluster, "size").bands["t0"][0].tier == "fast"
    spared = make_plan(profile, cluster, "size", PlanOptions(reserve=0.1))
    assert spared.bands["t0"][0].tier == "slow"


def test_shared_memory_is_counted_once_for_its_group() -> None:
    base = _cluster(1000, 1500).model_dump(by_alias=True)
    base["device"]["tiers"][1]["shared_by"] = "node"
    shared = Cluster.model_validate(base)
    make_plan(_profile([60, 60, 60]), shared, "size")
    with pytest.raises(InfeasibleError):
        make_plan(_profile([60, 60, 60, 60]), shared, "size")


def test_a_plan_knows_what_it_was_made_for() -> None:
    profile, cluster = _profile([10]), _cluster(1000, 1000)
    plan = make_plan(profile, cluster, "size")
    plan.check_made_for(profile=profile, cluster=cluster)
    other = _profile([11])
    with pytest.raises(MismatchError) as caught:
        plan.check_made_for(profile=other)
    assert profile.fingerprint in str(caught.value)
    assert other.fingerprint in str(caught.value)
    with pytest.raises(MismatchError, match=r"'two'.*'local'"):
        plan.check_made_for(cluster=Cluster.preset("local"))


@pytest.mark.parametrize(
    ("method", "measure"),
    {
        "recshard": "memory time of the slowest device",
        "flexshard": "time of all links",
        "sca": "bytes on all links of a forward pass",
        "joint": "time of a step",
    }.items(),
)
def test_a_certificate_says_which_plans_its_bound_covers_also_in_its_file(
    method: str, measure: str, tmp_path: Path
) -> None:
    plan = make_plan(_profile([10, 60], pooling="none"), _cluster(1000, 1000), method)
    assert plan.certificate is not None
    assert plan.certificate.covers.startswith("plans ")
    assert plan.certificate.covers.endswith(f"by {measure}")
    plan.save(tmp_path / "plan")
    assert Plan.load(tmp_path / "plan").certificate == plan.certificate
    assert verify(plan).to_dict()["covers"] == plan.certificate.covers


def test_a_plan_file_that_does_not_say_what_its_bound_covers_is_read(tmp_path: Path) -> None:
    plan = make_plan(_profile([10]), _cluster(1000, 1000), "recshard")
    assert plan.certificate is not None
    old = replace(plan, certificate=plan.certificate.model_copy(update={"covers": ""}))
    old.save(tmp_path / "plan")
    assert '"covers"' not in (tmp_path / "plan" / "plan.json").read_text()
    assert Plan.load(tmp_path / "plan").fingerprint == old.fingerprint


def test_a_plan_from_a_curve_has_no_row_order() -> None:
    plan = make_plan(_profile([10]).to_curve(), _cluster(1000, 1000), "size")
    with pytest.raises(UserError, match="counted profile"):
        plan.rows_in_order("t0")


def test_a_plan_and_a_profile_show_themselves_in_a_line() -> None:
    profile = _profile([100, 100])
    plan = make_plan(profile, _cluster(10**6, 10**6), "joint")
    assert repr(profile).startswith("<Profile: 2 tables (counted), ")
    assert repr(plan).startswith("<Plan: joint, 2 tables in ")
    assert repr(plan).endswith(f"gap {plan.certificate.gap:.2%}>")  # type: ignore[union-attr]
    assert max(len(repr(profile)), len(repr(plan))) <= 100


def test_an_unknown_method_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="row-wise, row-wise-coalesced, table-wise, size"):
        make_plan(_profile([10]), _cluster(1000, 1000), "best")


def test_a_band_needs_a_row_and_a_column() -> None:
    with pytest.raises(ValueError, match="greater than start"):
        Band(start=5, stop=5, scope="device", tier="hbm")
    with pytest.raises(ValueError, match="rising from 0"):
        Band(start=0, stop=5, scope="device", tier="hbm", columns=(3, 3))


def _small_profile() -> Profile:
    table = Table(name="item", num_embeddings=40, embedding_dim=8, features=("item",))
    return Profile(64, (counted(table, np.arange(40)),))


def _all_in_one_band(profile: Profile, cluster: Cluster, options: PlanOptions) -> Plan:  # noqa: ARG001
    tier = cluster.device.tiers[0].name
    bands = {
        s.table.name: (
            Band(
                start=0, stop=s.table.num_embeddings, scope=cluster.top, tier=tier, coalesced=True
            ),
        )
        for s in profile.stats
    }
    return Plan.build("mine", profile, cluster, bands)


def test_a_planner_can_be_passed_instead_of_a_name() -> None:
    profile, cluster = _small_profile(), Cluster.local(2)
    plan = make_plan(profile, cluster, _all_in_one_band)
    assert plan.method == "mine"
    assert plan.made_for.profile == profile.fingerprint


def test_a_passed_planner_with_a_watch_is_told_of_progress_and_stop() -> None:
    profile, cluster = _small_profile(), Cluster.local(2)
    told: list[float] = []

    def watched(profile: Profile, cluster: Cluster, options: PlanOptions, watch: Watch) -> Plan:
        watch.progress(0.5)
        assert watch.stop()
        return _all_in_one_band(profile, cluster, options)

    make_plan(profile, cluster, watched, progress=told.append, stop=lambda: True)
    assert told == [0.5]


def test_a_passed_planner_must_return_a_plan() -> None:
    profile, cluster = _small_profile(), Cluster.local(2)
    with pytest.raises(UserError, match="forgetful returned a NoneType; a planner returns a Plan"):

        def forgetful(profile: Profile, cluster: Cluster, options: PlanOptions) -> None:
            pass

        make_plan(profile, cluster, forgetful)  # type: ignore[arg-type]

"""Plans that serve: certified under the read-only view, never worse than what training leads to."""

from dataclasses import replace

import numpy as np
import pytest
from cost.cost_cases import rich_bands, rich_clusters, rich_profiles
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import counted

from rowtier import Band, Cluster, Plan, Profile, Table, UserError, make_plan
from rowtier.cost.options import CostOptions
from rowtier.cost.step import step_cost
from rowtier.plan.options import PlanOptions
from rowtier.plan.serving import TRAINING_ONLY, served
from rowtier.plan.verify import verify

SERVE = PlanOptions(serve=True)
READS = CostOptions(training=False)
SLACK = 1 + 1e-9


def everywhere(profile: Profile, cluster: Cluster) -> dict[str, tuple[Band, ...]]:
    """A copy of every table on every device, in its fastest memory."""
    tier = cluster.device.tiers[0].name
    return {
        s.table.name: (Band(start=0, stop=s.table.num_embeddings, scope="device", tier=tier),)
        for s in profile.stats
    }


@given(st.data(), rich_clusters(), rich_profiles())
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_placement_reads_faster_than_the_bound_says(
    data: st.DataObject, cluster: Cluster, profile: Profile
) -> None:
    plan = make_plan(profile, cluster, "joint", SERVE)
    assert plan.certificate is not None
    assert plan.certificate.view == "read-only"
    verdict = verify(plan, profile, cluster)
    assert verdict.holds, verdict.mistakes
    assert verdict.proved == pytest.approx(max(0.0, plan.certificate.bound), rel=1e-2, abs=1e-9)
    assert not plan.certificate.rounds or all(r.kind != "copies" for r in plan.certificate.rounds)
    found = [data.draw(st.fixed_dictionaries({
        s.table.name: rich_bands(s.table, cluster) for s in profile.stats
    })) for _ in range(5)]  # fmt: skip
    tables = plan.profile
    for bands in (*found, everywhere(profile, cluster)):
        cost = step_cost(bands, tables, cluster, options=READS)
        assert plan.certificate.bound <= cost.step_s * SLACK


@given(rich_clusters(), rich_profiles())
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_it_is_never_slower_than_other_plans_that_fit(cluster: Cluster, profile: Profile) -> None:
    plan = make_plan(profile, cluster, "joint", SERVE)
    assert plan.certificate is not None
    others = [make_plan(profile, cluster).bands, everywhere(profile, cluster)]
    others += [
        make_plan(profile, cluster, method, SERVE).bands for method in ("row-wise", "table-wise")
    ]
    for bands in others:
        cost = step_cost(bands, plan.profile, cluster, options=READS)
        # A plan with a few bands less is taken if it is hardly slower.
        assert plan.certificate.objective <= cost.step_s * (1 + 1e-4)


def two_nodes(hbm: str) -> Cluster:
    tiers = [
        {"name": "hbm", "capacity": hbm, "bandwidth": "100GB/s"},
        {"name": "dram", "capacity": "1GB", "bandwidth": "1GB/s"},
    ]
    levels = [
        {"name": "node", "size": 2, "bandwidth": "10GB/s"},
        {"name": "rack", "size": 2, "bandwidth": "100MB/s", "latency": "10us"},
    ]
    return Cluster.model_validate({"name": "four", "levels": levels, "device": {"tiers": tiers}})


def zipf(rows: int = 2000, optimizer: str = "adam") -> Profile:
    tables = [
        Table(name=name, num_embeddings=rows, embedding_dim=8, features=(name,), pooling=pooling,
              optimizer=optimizer)
        for name, pooling in (("a", "sum"), ("b", "none"))
    ]  # fmt: skip
    counts = (100_000 / np.arange(1, rows + 1)).astype(np.int64)
    return Profile(32, tuple(counted(table, counts) for table in tables))


def test_memory_holds_weights_alone_and_copies_cost_nothing_but_it() -> None:
    profile, cluster = zipf(), two_nodes("128kB")  # all weights of both tables: 128,000 bytes
    plan = make_plan(profile, cluster, options=SERVE)
    cost = step_cost(plan.bands, plan.profile, cluster, options=plan.assumed)
    assert not cost.memory.state.any()
    assert {b.scope for mine in plan.bands.values() for b in mine} == {"device"}
    assert {b.tier for mine in plan.bands.values() for b in mine} == {"hbm"}
    assert cost.links.total_bytes.sum() == 0
    trained = make_plan(profile, cluster)
    assert step_cost(trained.bands, profile, cluster).memory.state.any()
    assert trained.bands != plan.bands


def test_scarce_memory_holds_the_hottest_rows_of_the_served_form() -> None:
    profile, cluster = zipf(500), two_nodes("10kB")
    objectives = {}
    for rows_as in ("fp32", "fp16"):
        plan = make_plan(profile, cluster, options=PlanOptions(serve=True, rows_as=rows_as))
        assert plan.certificate is not None
        assert {table.dtype for table, _ in plan} == {rows_as}
        assert verify(plan, profile, cluster).holds
        objectives[rows_as] = plan.certificate.objective
    assert objectives["fp16"] < objectives["fp32"]


@pytest.mark.parametrize("method", ["joint", "recshard", "row-wise", "size-lookup"])
def test_the_folder_says_that_it_serves(method: str, tmp_path) -> None:
    profile, cluster = zipf(60), two_nodes("1MB")
    make_plan(profile, cluster, method, SERVE).save(tmp_path / "plan")
    plan = Plan.load(tmp_path / "plan")
    assert plan.serves
    assert not plan.assumed.training
    plan.check_made_for(profile=profile, cluster=cluster)
    verdict = verify(tmp_path / "plan", profile, cluster)
    assert verdict.holds, verdict.mistakes
    assert "a cluster that only reads" in verdict.assumes


def test_a_forged_flag_is_found() -> None:
    profile, cluster = zipf(60), two_nodes("1MB")
    serving, training = make_plan(profile, cluster, options=SERVE), make_plan(profile, cluster)
    assert not verify(replace(serving, origin={}), profile, cluster).holds
    assert not verify(replace(serving, origin={})).holds
    forged = replace(training, origin={"options": {"serve": True}})
    assert not verify(forged, profile, cluster).holds
    assert not verify(forged).holds


def test_training_plans_are_as_they_were() -> None:
    """The two facts of serving are set in one place each: nothing else may depend on the field."""
    profile, cluster = zipf(60), two_nodes("1MB")
    plan = make_plan(profile, cluster)
    assert not plan.serves
    assert plan.profile.tables == profile.tables
    assert plan.origin == {}
    assert plan.certificate is not None
    assert plan.certificate.view == "step"
    assert served(served(profile)).tables == served(profile).tables != profile.tables


@pytest.mark.parametrize("method", [m for m in TRAINING_ONLY if m != "torchrec"])
def test_methods_about_training_are_refused_by_name(method: str) -> None:
    with pytest.raises(UserError, match=f"{method} makes no plans that serve.*plan with joint"):
        make_plan(zipf(60), two_nodes("1MB"), method, SERVE)


def test_wishes_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ValueError, match="a plan that serves has none"):
        PlanOptions(serve=True, dense_s=1e-3)
    with pytest.raises(ValueError, match="is for plans that serve"):
        PlanOptions(rows_as="fp16")
    with pytest.raises(ValueError, match="rows_as"):
        PlanOptions(serve=True, rows_as="int4")  # type: ignore[arg-type]

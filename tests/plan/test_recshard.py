"""RecShard's problem: optimal where it can be tried, within its bound everywhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from recshard_models import (
    curve_table,
    flat_cluster,
    objective_of,
    skewed_model,
    small_table,
    total_bytes,
)
from strategies import counted

from rowtier import (
    Cluster,
    InfeasibleError,
    PlanOptions,
    Profile,
    make_plan,
)
from rowtier.cost.memory import used_bytes
from rowtier.plan.recshard.make import RecShardProblem, recshard_time_s
from rowtier.plan.verify import Verdict, verify
from rowtier.profile.curve import MAX_BUCKETS
from rowtier.synth.rm import rm_profile

SPLIT = PlanOptions(split=True)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("split", [False, True])
def test_memory_holds_what_it_is_given_and_the_reserve_stays_free(seed: int, split: bool) -> None:
    random = np.random.default_rng(seed)
    profile = skewed_model(random, 30)
    total = total_bytes(profile)
    cluster = flat_cluster(4, (total // 16, 1e12), (total // 2, 1e10))
    options = PlanOptions(split=split, reserve=0.1)
    plan = make_plan(profile, cluster, "recshard", options)
    used = used_bytes(plan.bands, plan.profile, cluster)
    room = [tier.capacity_bytes * 0.9 for tier in cluster.device.tiers]
    assert (used <= room).all()
    assert used[:, 0].min() > 0.8 * room[0]  # fast memory is scarce, so all of it is used
    assert plan.certificate is not None
    assert plan.certificate.gap < (0.001 if split else 0.05)
    assert objective_of(plan) == recshard_time_s(plan).max()


def test_hot_rows_fill_fast_memory_before_cold_ones() -> None:
    profile = skewed_model(
        np.random.default_rng(4), 20, dims=[32]
    )  # no small row to fill a last gap
    total = total_bytes(profile)
    cluster = flat_cluster(2, (total // 8, 1e12), (total, 1e10))
    plan = make_plan(profile, cluster, "recshard")
    for device in range(2):
        hottest_slow, coldest_fast = 0.0, np.inf
        for table, bands in plan:
            stats = plan.profile[table.name]
            read = stats.lookups * table.row_bytes / table.stored_row_bytes
            heat = stats.curve.probabilities * read
            for band in bands:
                if band.members != (device,):
                    continue
                first = int(np.searchsorted(stats.curve.stops, band.start, side="right"))
                last = int(np.searchsorted(stats.curve.stops, band.stop))
                if band.tier == "m0":
                    coldest_fast = min(coldest_fast, heat[min(last, len(heat) - 1)])
                elif first < len(heat):
                    hottest_slow = max(hottest_slow, heat[first])
        assert 0 < hottest_slow <= coldest_fast * (1 + 1e-9)


@pytest.mark.parametrize("split", [False, True])
def test_equal_inputs_give_equal_plans(split: bool) -> None:
    profile = skewed_model(np.random.default_rng(7), 40)
    cluster = flat_cluster(8, (total_bytes(profile) // 40, 1e12), (total_bytes(profile), 1e10))
    options = PlanOptions(split=split, tolerance=1e-6, seed=3)
    first, second = (make_plan(profile, cluster, "recshard", options) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    assert first.bands == second.bands


@pytest.mark.parametrize("seed", range(8))
def test_cutting_tables_is_never_worse_than_leaving_them_whole(seed: int) -> None:
    random = np.random.default_rng(seed)
    profile = skewed_model(random, int(random.integers(3, 60)), rows=1e4)
    total, devices = total_bytes(profile), int(random.integers(2, 12))
    cluster = flat_cluster(
        devices, (int(total * random.uniform(0.1, 0.6)) // devices, 1e12), (total, 2e10)
    )
    whole = make_plan(profile, cluster, "recshard")
    cut = make_plan(profile, cluster, "recshard", SPLIT)
    assert objective_of(cut) <= objective_of(whole) * (1 + 1e-12)
    assert whole.certificate is not None
    assert cut.certificate is not None
    assert cut.certificate.bound <= whole.certificate.bound * (1 + 1e-12)


@pytest.mark.parametrize("split", [False, True])
def test_three_tiers_are_all_used_and_beat_two(split: bool) -> None:
    profile = skewed_model(np.random.default_rng(5), 40)
    total, options = total_bytes(profile), PlanOptions(split=split)
    fast, middle, slow = (total // 40, 1e12), (total // 20, 5e10), (total, 2e9)
    two = make_plan(profile, flat_cluster(4, fast, slow), "recshard", options)
    three = make_plan(profile, flat_cluster(4, fast, middle, slow), "recshard", options)
    assert three.certificate is not None
    assert three.certificate.gap < 0.005
    assert objective_of(three) < objective_of(two)
    used = used_bytes(three.bands, three.profile, three.cluster)
    assert (used.sum(axis=0) > 0).all()


def test_tiers_may_be_listed_in_any_order() -> None:
    profile = skewed_model(np.random.default_rng(5), 12)
    total = total_bytes(profile)
    tiers = (total // 10, 1e12), (total, 1e10)
    one = make_plan(profile, flat_cluster(2, *tiers), "recshard")
    other = make_plan(profile, flat_cluster(2, *tiers[::-1]), "recshard")
    assert objective_of(one) == pytest.approx(objective_of(other))


def test_one_tier_is_enough() -> None:
    profile = skewed_model(np.random.default_rng(6), 30)
    cluster = flat_cluster(3, (total_bytes(profile), 1e12))
    for options in (PlanOptions(), SPLIT):
        plan = make_plan(profile, cluster, "recshard", options)
        assert plan.certificate is not None
        assert plan.certificate.gap < 0.002
        assert plan.certificate.binding.startswith("bandwidth of m0")


def test_a_shared_tier_is_divided_evenly_and_counted_once() -> None:
    profile = skewed_model(np.random.default_rng(8), 30)
    total = total_bytes(profile)
    cluster = flat_cluster(4, (total // 20, 1e12), (total, 1e10), shared="node")
    plan = make_plan(profile, cluster, "recshard", SPLIT)
    used = used_bytes(plan.bands, plan.profile, cluster)
    assert used[:, 1].max() <= total // 4
    assert used[:, 1].sum() <= total
    with pytest.raises(InfeasibleError, match="equal parts of m1"):
        make_plan(
            profile, flat_cluster(4, (10, 1e12), (total // 2, 1e10), shared="node"), "recshard"
        )


def test_a_row_that_burdens_a_device_alone_is_cut_by_columns() -> None:
    heat = np.ones(2000, dtype=np.int64)
    heat[3] = 10**6
    profile = Profile(16, (counted(small_table(0, 2000, dim=64), heat, samples=10**7),))
    cluster = flat_cluster(4, (10**5, 1e9), (10**7, 1e8))
    whole = make_plan(profile, cluster, "recshard")
    cut = make_plan(profile, cluster, "recshard", SPLIT)
    hottest = [band for band in cut.bands["t0"] if band.start == 0]
    assert len(hottest) >= 4
    assert all(band.width(64) % 8 == 0 for band in hottest)
    assert len({band.members for band in hottest}) == 4
    assert objective_of(cut) < 0.3 * objective_of(whole)
    assert cut.certificate is not None
    assert cut.certificate.gap < 0.01


def test_sequence_tables_send_rows_and_pooled_ones_sums() -> None:
    stats = [
        counted(small_table(0, 20), np.arange(20)),
        counted(small_table(1, 20, pooling="none"), np.arange(20)),
    ]
    plan = make_plan(Profile(4, tuple(stats)), flat_cluster(2, (10**6, 1e9)), "recshard")
    assert [plan.bands[name][0].exchange for name in ("t0", "t1")] == ["sums", "rows"]


def test_tables_that_nobody_reads_need_room_but_no_time() -> None:
    stats = [counted(small_table(i, 10), np.zeros(10, dtype=np.int64)) for i in range(3)]
    for options in (PlanOptions(), SPLIT):
        cluster = flat_cluster(2, (100, 1e9), (400, 1e8))
        plan = make_plan(Profile(4, tuple(stats)), cluster, "recshard", options)
        assert objective_of(plan) == 0
        assert plan.certificate is not None
        assert plan.certificate.gap == 0


@pytest.mark.parametrize("method", ["recshard", "recshard-milp"])
def test_what_cannot_fit_is_said_with_names_and_bytes(method: str) -> None:
    stats = [
        counted(small_table(i, 10 * 10**i), np.ones(10 * 10**i, dtype=np.int64)) for i in range(2)
    ]
    profile = Profile(4, tuple(stats))  # 160 and 1600 bytes
    with pytest.raises(InfeasibleError, match=r"need 1\.7 KiB and the 2 devices of 'test' have "
                       r"1\.2 KiB: 576 B is missing"):  # fmt: skip
        make_plan(profile, flat_cluster(2, (100, 1e9), (492, 1e8)), method)
    with pytest.raises(InfeasibleError, match=r"table 't1' needs 1\.6 KiB on one device and each"):
        make_plan(profile, flat_cluster(2, (512, 1e9), (512, 1e8)), method)
    with pytest.raises(InfeasibleError, match="50% reserved"):
        make_plan(
            profile, flat_cluster(2, (800, 1e9), (800, 1e8)), method, PlanOptions(reserve=0.5)
        )


def test_cut_tables_fit_where_whole_ones_do_not() -> None:
    stats = [
        counted(small_table(0, 100), np.arange(100) + 1),
        counted(small_table(1, 30), np.arange(30) + 1),
    ]
    profile, cluster = Profile(4, tuple(stats)), flat_cluster(3, (200, 1e9), (600, 1e8))
    with pytest.raises(InfeasibleError, match=r"\(--split\)"):
        make_plan(profile, cluster, "recshard")
    plan = make_plan(profile, cluster, "recshard", SPLIT)
    assert len({member for band in plan.bands["t0"] for member in band.members}) > 1


def test_whole_tables_that_do_not_pack_are_infeasible() -> None:
    stats = [counted(small_table(i, 60), np.ones(60, dtype=np.int64)) for i in range(3)]
    profile, cluster = Profile(4, tuple(stats)), flat_cluster(2, (500, 1e9), (1000, 1e8))
    with pytest.raises(InfeasibleError, match=r"no way was found to pack 3 tables of 2\.8 KiB"):
        make_plan(profile, cluster, "recshard")
    make_plan(profile, cluster, "recshard", SPLIT)


def test_the_number_of_rows_does_not_matter() -> None:
    sizes = []
    for rows in (10**6, 10**9, 10**12):
        profile = skewed_model(np.random.default_rng(3), 25, rows)
        total = total_bytes(profile)
        cluster = flat_cluster(8, (total // 80, 1e12), (total, 1e10))
        problem = RecShardProblem.of(profile, cluster, SPLIT)
        assert len(problem.heat.stops) <= 25 * (MAX_BUCKETS + 1)
        plan = make_plan(profile, cluster, "recshard", SPLIT)
        assert plan.certificate is not None
        assert plan.certificate.gap <= 1e-3
        sizes.append(sum(len(bands) for bands in plan.bands.values()))
    assert max(sizes) <= 1.5 * min(sizes)


def test_what_binds_is_named() -> None:
    random = np.random.default_rng(1)
    many = skewed_model(random, 60)
    total = total_bytes(many)
    scarce = make_plan(many, flat_cluster(4, (total // 40, 1e12), (total, 1e10)), "recshard", SPLIT)
    assert scarce.certificate is not None
    assert scarce.certificate.binding == "m0 of all devices"
    large = curve_table(99, 10**7, 64, 50.0, 0.2)
    one = Profile(64, (*many.stats, large))
    alone = make_plan(one, flat_cluster(8, (10**8, 1e12), (10**10, 1e10)), "recshard")
    assert alone.certificate is not None
    assert alone.certificate.binding == "table 't99' cannot be split"


# ------------------------------------------------------------------------------------ HiGHS


@pytest.mark.parametrize("reserve", [0.0, 0.3])
def test_the_bound_of_cut_tables_is_recomputed_without_the_solver(reserve: float) -> None:
    profile, cluster = rm_profile("rm2", seed=1), Cluster.preset("recshard-16")
    plan = make_plan(profile, cluster, "recshard", PlanOptions(split=True, reserve=reserve))
    verdict = verify(plan)
    assert verdict.holds
    assert verdict.bound == pytest.approx(verdict.proved, rel=1e-6)
    assert plan.certificate is not None
    higher = (plan.certificate.bound + plan.certificate.objective) / 2
    raised = replace(plan, certificate=plan.certificate.model_copy(update={"bound": higher}))
    found = verify(raised)
    assert (not found.holds) == (higher > plan.certificate.bound * (1 + 1e-6))


def test_a_bound_of_nothing_for_a_plan_that_costs_nothing_is_no_gap() -> None:
    verdict = Verdict((), "sca", 0.0, 0.0, 0.0, "", None, 1e-3)
    assert verdict.gap == 0
    assert Verdict((), "sca", 1.0, 1.0, 0.0, "", None, 1e-3).gap is None


@pytest.mark.parametrize("overlap", [[], [["m0", "m1"]]])
def test_shared_memory_is_read_at_its_part_of_the_bandwidth(overlap: list[list[str]]) -> None:
    many = skewed_model(np.random.default_rng(2), 20)
    total = total_bytes(many)
    shared = flat_cluster(4, (total // 20, 1e12), (4 * total, 1e10), shared="node")
    shared = shared.model_copy(update={"overlap": tuple(map(tuple, overlap))})
    plan = make_plan(many, shared, "recshard", SPLIT)
    assert plan.certificate is not None
    assert plan.certificate.bound <= plan.certificate.objective <= 1.1 * plan.certificate.bound
    assert not verify(plan).mistakes

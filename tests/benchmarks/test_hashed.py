from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import rowtier

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from harness.hashed_model import DIM, LARGEST_SHARE, HashedModel
from harness.partial_profiles import TOLD, flattened

MIB = 2**20
SAMPLES = 20_000


@pytest.fixture(scope="module")
def model():
    return HashedModel(seed=0, alpha=1.05, total_bytes=8 * MIB)


@pytest.fixture(scope="module")
def profile(model):
    return model.profile(512, SAMPLES)


def test_tables_take_the_bytes_asked_for_and_none_takes_too_many(model):
    sizes = np.array([table.rows * DIM * 4 for table in model.tables])
    assert sizes.sum() == pytest.approx(8 * MIB, rel=0.01)
    assert sizes.max() <= 1.001 * LARGEST_SHARE * 8 * MIB


def test_hashing_leaves_many_rows_unused(model):
    used = sum(len(np.unique(table.rows_of_values)) for table in model.tables)
    assert 0.3 < used / sum(table.rows for table in model.tables) < 0.65


def test_batches_are_the_same_for_all_who_ask_and_differ_by_number_and_rank(model):
    def ids(number, rank):
        fresh = HashedModel(model.seed, model.alpha, model.total_bytes)
        batch = fresh.batch(number, rank, 64)
        return np.concatenate([found for found, _ in batch.values()])

    assert np.array_equal(ids(3, 1), ids(3, 1))
    assert not np.array_equal(ids(3, 1)[:100], ids(3, 0)[:100])
    assert not np.array_equal(ids(3, 1)[:100], ids(4, 1)[:100])


def test_lengths_say_how_many_ids_each_sample_has(model):
    for table in model.tables:
        ids, lengths = model.batch(0, 0, 64)[table.feature]
        assert len(lengths) == 64
        assert lengths.sum() == len(ids)
        assert set(lengths) <= {0, int(table.ids_per_sample), int(table.ids_per_sample) + 1}
        assert not len(ids) or 0 <= ids.min() <= ids.max() < table.rows


def test_exponents_change_popularity_and_nothing_else(model):
    steep = HashedModel(model.seed, 1.2, model.total_bytes)
    for mine, other in zip(model.tables, steep.tables, strict=True):
        assert np.array_equal(mine.rows_of_values, other.rows_of_values)
        assert (mine.coverage, mine.ids_per_sample) == (other.coverage, other.ids_per_sample)
        assert len(mine.popularity) == 1 or other.popularity[0] > mine.popularity[0]


def test_profiles_hold_together(profile):
    assert [mistake for stats in profile.stats for mistake in stats.mistakes()] == []


def test_profiles_say_what_batches_do(model, profile):
    batch = model.batch(0, 0, SAMPLES)
    for table, stats in zip(model.tables, profile.stats, strict=True):
        ids, lengths = batch[table.feature]
        assert stats.coverage == pytest.approx((lengths > 0).mean(), abs=0.02)
        assert stats.lookups == pytest.approx(len(ids), rel=0.2)
        hot = stats.counts.rows[: max(1, table.rows // 10)]
        claimed = stats.counts.counts[: len(hot)].sum() / stats.lookups
        assert np.isin(ids, hot).mean() == pytest.approx(claimed, abs=0.06)


def test_what_is_not_told_is_the_same_for_all_tables(profile):
    def spread(told):
        given = flattened(profile, told)
        found = np.array([[s.coverage, s.pooling] for s in given.stats])
        return (found.std(axis=0) > 0.01 * found.mean(axis=0)).tolist()

    assert [spread(told) for told in TOLD] == [
        [False, False], [True, False], [False, True], [True, True],
    ]  # fmt: skip


def test_told_everything_a_profile_is_what_it_was_but_for_its_rows(profile):
    told = flattened(profile, "all")
    assert [mistake for stats in told.stats for mistake in stats.mistakes()] == []
    for mine, other in zip(told.stats, profile.stats, strict=True):
        assert mine.lookups_per_sample == pytest.approx(other.lookups_per_sample, rel=1e-3)
        assert np.allclose(mine.curve.probabilities, other.curve.probabilities, rtol=1e-3)


def test_hotness_of_rows_is_always_told(profile):
    for mine, other in zip(flattened(profile, "frequency").stats, profile.stats, strict=True):
        assert np.allclose(mine.curve.probabilities, other.curve.probabilities)


def test_greedy_plans_place_tables_alike_in_both_orders(profile):
    from harness.contenders import BY_HEAT, GREEDY, first_alike, greedy_plans

    from rowtier import Cluster, Device, Tier

    ram = Tier(name="ram", capacity_bytes=2 * MIB, bandwidth_bytes_per_s=5e9)
    ssd = Tier(name="ssd", capacity_bytes=64 * MIB, bandwidth_bytes_per_s=5e8)
    cluster = Cluster(name="one", device=Device(tiers=(ram, ssd)))
    plans = greedy_plans(profile, cluster)
    for method in GREEDY:
        for name, (band,) in plans[method].bands.items():
            (hot,) = plans[f"{method}{BY_HEAT}"].bands[name]
            assert (band.tier, band.order, hot.order) == (hot.tier, "blocks", "spread")
    alike = first_alike({"other": plans[f"size{BY_HEAT}"]} | plans | {"twin": plans["size"]})
    assert alike["twin"] == "size"
    assert alike[f"size{BY_HEAT}"] == "other"
    assert alike["size"] == "size"


def test_ratios_compare_with_the_fastest_greedy_in_id_order():
    pytest.importorskip("torch")
    from recshard_trained import balances, ratios

    def row(samples_per_s, slow_reads, imbalance=0.5):
        return {
            "samples_per_s": samples_per_s, "slow_reads": slow_reads, "imbalance": imbalance,
            "waiting_ms": 10 * imbalance,
        }  # fmt: skip

    rows = {
        "size": row(10, 500), "lookup": row(20, 400), "size-lookup": row(15, 300),
        "size, hotness order": row(50, 500), "lookup, hotness order": row(40, 400),
        "size-lookup, hotness order": row(30, 300), "joint": row(100, 10, 0.05),
    }  # fmt: skip
    found = ratios(rows, "joint")
    assert found["throughput_ratio"] == 5
    assert found["throughput_ratio_hotness_order"] == 2
    assert found["slow_ratio"] == 30
    found = balances(rows, "joint")
    assert found["throughput_ratio_two_ranks"] == 5
    assert found["balance_ratio"] == pytest.approx(10)
    assert found["waiting_ratio"] == pytest.approx(10)


@pytest.mark.xdist_group("tiers")
def test_two_ranks_train_and_count_the_lookups_of_what_lies_on_disk(model, profile, tmp_path):
    pytest.importorskip("torch")
    from harness.contenders import Field
    from harness.trainer import machine

    batches = [[model.batch(number, rank, 32) for number in range(3)] for rank in range(2)]
    profile = rowtier.Profile(32, profile.stats)
    plan = rowtier.make_plan(profile, machine(2, 2 * MIB), "lookup")
    with Field(2, 512 * MIB, tmp_path, shared=True) as field:
        found = field.race({"lookup": plan}, batches, rounds=2, warm=1)["lookup"]
    on_disk = [
        s.table.features[0] for s in profile.stats if plan.bands[s.table.name][0].tier == "ssd"
    ]
    counted = [batch[name][0] for rank in batches for batch in rank[1:] for name in on_disk]
    assert on_disk
    assert found.counts["slow_reads"] == sum(map(len, counted)) / 2
    assert len(found.turns) == 2
    assert all(len(turn) == 2 for turn in found.turns)
    assert all(rank.step_s > 0 for turn in found.turns for rank in turn)
    per_step = [
        sum(
            len(np.unique(np.concatenate([rank[number][name][0] for rank in batches])))
            for name in on_disk
        )
        for number in (1, 2)
    ]
    assert sum(found.counts["slow_rows_by_position"]) == sum(per_step) / 2


@pytest.mark.xdist_group("tiers")
def test_a_rank_that_fails_ends_the_call_with_its_message(tmp_path):
    pytest.importorskip("torch")
    from harness.bounded_memory import Team
    from harness.trainer import Trainer

    team = Team(1, Trainer, 1, str(tmp_path), str(tmp_path / "store"))
    try:
        with pytest.raises(RuntimeError, match="no-such-plan"):
            team.call("make", [str(tmp_path / "no-such-plan")])
        team.call("ready")
    finally:
        team.stop()

"""Plans on newer data: rows priced where they are, and what moving them is worth."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluate.drifting import at_once, heat, machine, planned, profile, table
from evaluate.test_diff import homes, pairs
from hypothesis import given, settings

import rowtier
from rowtier import MismatchError, Plan, Profile, Tables, UserError, diff, replay
from rowtier.cost.lookups import served_lookups
from rowtier.cost.step import step_cost
from rowtier.evaluate.drift import PlanDrift, drift
from rowtier.plan.carried import carried, check_same_tables
from rowtier.profile.arranged import by_heat
from rowtier.profile.profile import TableStats
from rowtier.units import show_bytes


def moved_on(plan: Plan, seen: Profile, **options: Any) -> PlanDrift:
    return drift(plan, seen, stop=at_once, **options)


def row_heat(stats: TableStats) -> np.ndarray:
    """Expected lookups by row id, one by one; rows that were never seen share what is theirs."""
    curve, counts = stats.curve, stats.counts
    assert counts is not None
    by_rank = np.repeat(curve.lookups / curve.widths, curve.widths)
    by_rank = np.append(by_rank, np.zeros(stats.table.num_embeddings - len(by_rank)))
    found = np.full(stats.table.num_embeddings, by_rank[stats.touched :].sum())
    found /= max(stats.untouched, 1)
    found[counts.rows] = by_rank[: stats.touched]
    return found


@settings(deadline=None, max_examples=40)
@given(pairs())
def test_rows_are_priced_where_the_old_plan_has_them(both: tuple[Plan, Plan]) -> None:
    old, new = both
    # What the second plan was made from, with its rows.
    stats = []
    for facts, _ in new:
        counts = np.zeros(facts.num_embeddings, dtype=np.int64)
        assert new.order is not None
        order = new.order[facts.name]
        counts[order] = np.arange(len(order), 0, -1)
        stats.append(_counted(facts, counts))
    seen = Profile(old.profile.batch_size, tuple(stats))
    kept = carried(old, seen)
    assert diff(old, kept).verdict == "nothing moves: every row stays where it is"
    wanted = np.zeros((old.cluster.num_holders, len(old.cluster.tier_names)))
    names = {old.cluster.holder_name(h): h for h in range(old.cluster.num_holders)}
    for one in seen.stats:
        share = row_heat(one) / max(one.curve.total, 1e-300)
        found = homes(old, one.table.name)
        for band in old.bands[one.table.name]:
            level = old.cluster.level_of(band.scope)
            group = old.cluster.group_size(level) * seen.lookups_per_step(one)
            column = (band.columns or (0, 0))[0]
            rows = old.rows_in_order(one.table.name)[band.start : band.stop]
            for row in rows.tolist():
                for name, tier in found[row, column].items():
                    at = names[name], old.cluster.tier_names.index(tier)
                    wanted[at] += share[row] * group
    served = served_lookups(kept.bands, kept.profile, kept.cluster, kept.order)
    np.testing.assert_allclose(served, wanted, rtol=1e-9, atol=1e-9)


def _counted(facts: rowtier.Table, counts: np.ndarray) -> TableStats:
    found = rowtier.RowCounts.from_dense(counts)
    total = int(counts.sum())
    feature = rowtier.FeatureStats(name=facts.features[0], present=total, lookups=total)
    return TableStats.counted(facts, total, (feature,), found)


@pytest.mark.parametrize("method", ["joint", "row-wise", "row-wise-coalesced", "table-wise"])
def test_a_plan_on_its_own_profile_costs_what_it_did(method: str) -> None:
    made = planned(profile(0, 0), machine(), method)
    kept = carried(made, profile(0, 0))
    again, before = (step_cost(p.bands, p.profile, p.cluster, p.order).step_s for p in (kept, made))
    assert again == before


@pytest.mark.parametrize("method", ["joint", "row-wise"])
def test_a_kept_plan_is_written_and_read(method: str, tmp_path: Path) -> None:
    made = planned(profile(0, 0, unseen=50), machine(), method)
    kept = carried(made, profile(150, 20))
    kept.save(tmp_path / "kept")
    again = Plan.load(tmp_path / "kept")
    assert again.fingerprint == kept.fingerprint
    costs = [step_cost(p.bands, p.profile, p.cluster, p.order).step_s for p in (again, kept)]
    assert costs[0] == costs[1]


def samples_of(counts: np.ndarray, samples: int, seed: int) -> np.ndarray:
    p = counts / counts.sum()
    return np.random.default_rng(seed).choice(len(p), samples, p=p)


@pytest.mark.parametrize("method", ["joint", "row-wise"])
def test_what_is_predicted_is_what_a_replay_counts(method: str) -> None:
    rows, samples = 3000, 12_000
    tables = Tables(batch_size=32, tables=(table("t0", rows),))
    before, after, later = (
        {"t0": samples_of(heat(rows, shift), samples, seed)}
        for shift, seed in ((0, 1), (700, 2), (700, 3))
    )
    cluster = machine("48KiB")
    plan = planned(rowtier.make_profile([before], tables), cluster, method)
    found = moved_on(plan, rowtier.make_profile([after], tables), method="joint")
    counted = replay(plan, [later])
    assert found.step.low_s * 0.97 <= counted.step_s <= found.step.high_s * 1.03
    assert found.step.seconds == pytest.approx(counted.step_s, rel=0.1)
    assert found.pays
    moved = counted.step_s - replay(found.best, [later]).step_s
    assert moved > 0
    assert found.saving.seconds == pytest.approx(moved, rel=0.3)


def test_without_drift_the_plan_is_kept() -> None:
    found = moved_on(planned(profile(0, 0), machine()), profile(0, 0))
    assert found.verdict.startswith("keep the plan: a step takes")
    assert not found.pays
    assert found.break_even_steps == math.inf
    assert found.to_dict()["break_even_steps"] is None
    assert found.saving.seconds == 0
    assert "no table's hot set changed" in found.says


def test_hot_rows_that_moved_are_told_by_table() -> None:
    plan = planned(profile(0, 0), machine())
    found = moved_on(plan, profile(0, 200))
    assert found.pays
    assert found.saving.seconds == pytest.approx(found.step.seconds - found.best_step.seconds)
    assert found.break_even_steps == found.move_s / found.saving.seconds
    assert f"moving {show_bytes(found.move.moved_bytes + int(found.move.within_bytes.sum()))}" in (
        found.verdict
    )
    first, last = found.tables[0], found.tables[-1]
    assert (first.name, last.name) == ("t1", "t0")
    assert first.now < first.before - 0.1
    assert first.best > first.now + 0.1
    assert last.now == pytest.approx(last.before, abs=1e-6)
    assert any(said.startswith("t1: fast memory and copies served") for said in found.says)
    assert found.best.fingerprint == planned(profile(0, 200), machine()).fingerprint
    assert len(found.to_frame()) == 2


def test_a_better_plan_may_be_given() -> None:
    plan, newer = planned(profile(0), machine()), profile(200)
    given = planned(newer, machine(), "row-wise-coalesced")
    found = moved_on(plan, newer, best=given)
    assert found.best is given
    cost = step_cost(given.bands, given.profile, given.cluster, given.order)
    assert found.best_step.seconds == pytest.approx(cost.step_s, rel=1e-12)


def test_rows_that_nobody_saw_are_counted() -> None:
    plan = planned(profile(0, unseen=200), machine())
    newer = profile(0)
    (found,) = moved_on(plan, newer).tables
    counts = newer.stats[0].counts
    assert plan.order is not None
    assert counts is not None
    new = ~np.isin(counts.rows, plan.order["t0"])
    assert found.unseen == counts.counts[new].sum() / counts.counts.sum() > 0


def test_batches_and_clusters_that_differ_are_told() -> None:
    plan = planned(profile(0), machine())
    found = moved_on(plan, profile(100, batch=32), cluster=machine("32KiB"))
    assert len(found.notes) == 2
    assert "batches of 64 samples and the profile is for 32" in found.notes[0]
    assert found.best.cluster == machine("32KiB")
    with pytest.raises(MismatchError, match="cannot stay as it is on cluster 'm'"):
        moved_on(plan, profile(100), cluster=machine("1KiB"))


def test_what_is_not_comparable_is_refused() -> None:
    plan = planned(profile(0), machine())
    with pytest.raises(MismatchError, match=r"'t1' is only in the profile.*same tables\.yaml"):
        moved_on(plan, profile(0, 0))
    with pytest.raises(MismatchError, match="has num_embeddings 400 in the plan and 500 in the"):
        moved_on(plan, profile(0, rows=500))
    with pytest.raises(UserError, match="is a curve and does not know its rows"):
        moved_on(plan, profile(0).to_curve())
    with pytest.raises(UserError, match="the plan has no row order"):
        moved_on(planned(profile(0).to_curve(), machine()), profile(0))
    with pytest.raises(UserError, match="the plan has no row order"):
        check_same_tables(replace(plan, order=None), profile(0))


def test_arranged_statistics_by_heat_are_a_curve_again() -> None:
    plan, newer = planned(profile(0), machine()), profile(200)
    kept = carried(plan, newer).profile
    assert kept.stats[0].arranged
    falling = by_heat(kept)
    assert not list(falling.stats[0].mistakes())
    np.testing.assert_allclose(
        falling.stats[0].curve.share(100), newer.stats[0].curve.share(100), rtol=1e-6
    )
    best, anew = planned(kept, machine()), planned(newer, machine())
    assert best.certificate is not None
    assert anew.certificate is not None
    assert best.certificate.objective == pytest.approx(anew.certificate.objective, rel=0.02)

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import counted, profiles

from rowtier import Curve, FeatureStats, InvalidError, Profile, RowCounts, Table
from rowtier.profile.curve import MAX_BUCKETS, bucket_stops
from rowtier.profile.order import rows_by_position

ANY_FOLDER = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None
)


@given(profiles())
@ANY_FOLDER
def test_a_counted_profile_survives_saving_and_loading(tmp_path: Path, profile: Profile) -> None:
    profile.save(tmp_path / "profile")
    again = Profile.load(tmp_path / "profile")
    assert again.form == "counted"
    assert again.fingerprint == profile.fingerprint
    for ours, theirs in zip(profile.stats, again.stats, strict=True):
        assert ours.table == theirs.table
        assert ours.counts is not None
        assert theirs.counts is not None
        assert (ours.counts.rows == theirs.counts.rows).all()


@given(profiles())
@ANY_FOLDER
def test_a_curve_keeps_the_statistics_and_forgets_the_rows(
    tmp_path: Path, profile: Profile
) -> None:
    curve = profile.to_curve()
    curve.save(tmp_path / "curve")
    again = Profile.load(tmp_path / "curve")
    assert again.form == "curve"
    assert again.fingerprint == curve.fingerprint != profile.fingerprint
    for ours, theirs in zip(profile.stats, again.stats, strict=True):
        assert theirs.counts is None
        assert theirs.touched == ours.touched
        assert theirs.lookups_per_sample == ours.lookups_per_sample


@given(st.lists(st.integers(0, 50), min_size=1, max_size=300))
def test_hotness_order_is_count_then_row_then_untouched(heat: list[int]) -> None:
    counts = RowCounts.from_dense(np.array(heat))
    order = rows_by_position(counts.rows, len(heat))
    assert list(order) == sorted(range(len(heat)), key=lambda row: (-heat[row], row))
    assert not list(counts.mistakes(len(heat)))


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=3000))
def test_buckets_keep_every_lookup(heat: list[int]) -> None:
    counts = np.sort(np.array(heat))[::-1]
    curve = Curve.from_counts(counts)
    assert curve.total == counts.sum()
    assert curve.positions == len(counts)
    assert not list(curve.mistakes(len(counts)))
    edges = curve.stops
    assert curve.share(edges) == pytest.approx(np.cumsum(counts)[edges - 1] / counts.sum())


@pytest.mark.parametrize("rows", [0, 1, 499, 501, 10**6, 10**12])
def test_buckets_are_few_and_end_at_the_last_row(rows: int) -> None:
    stops = bucket_stops(rows)
    assert len(stops) <= MAX_BUCKETS
    assert (np.diff(stops) > 0).all()
    assert list(stops[-1:]) == ([rows] if rows else [])


def test_a_length_distribution_must_add_up() -> None:
    FeatureStats(name="f", present=3, lookups=7, lengths=((1, 1), (3, 2)))
    with pytest.raises(ValueError, match="add up to lookups"):
        FeatureStats(name="f", present=3, lookups=8, lengths=((1, 1), (3, 2)))


def test_statistics_of_a_table(tmp_path: Path) -> None:
    table = Table(name="a/b c", num_embeddings=5, embedding_dim=2, features=("f",))
    stats = counted(table, np.array([0, 7, 1, 7, 0]), samples=30)
    assert stats.untouched == 2
    assert stats.lookups == 15
    assert stats.lookups_per_sample == 0.5
    profile = Profile(8, (stats,))
    assert profile.lookups_per_step(stats) == 4.0
    profile.save(tmp_path / "p")
    assert Profile.load(tmp_path / "p")["a/b c"].lookups == 15


def test_all_mistakes_of_a_profile_come_in_one_error(tmp_path: Path) -> None:
    table = Table(name="t", num_embeddings=5, embedding_dim=2, features=("f",))
    Profile(8, (counted(table, np.ones(5, dtype=int)),)).save(tmp_path / "p")
    text = (tmp_path / "p/profile.json").read_text()
    text = text.replace('"batch_size": 8', '"batch_size": -8').replace('"samples": 1000', '"x": 1')
    (tmp_path / "p/profile.json").write_text(text)
    with pytest.raises(InvalidError) as caught:
        Profile.load(tmp_path / "p")
    assert {mistake.key for mistake in caught.value.mistakes} == {
        "batch_size",
        "statistics.t.samples",
        "statistics.t.x",
    }

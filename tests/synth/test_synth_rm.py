"""rm1–rm3: totals, used rows, and curves that hold against a simulation."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rowtier.errors import UserError
from rowtier.profile.profile import Profile
from rowtier.synth.make import make_workload
from rowtier.synth.rm import SAMPLES, _capped, hashed_curve, rm_profile, used_rows
from rowtier.synth.zipf import ZipfMass

GIB = 2**30
TOTALS = {"rm1": 318, "rm2": 635, "rm3": 1269}


@pytest.fixture(scope="module")
def profiles():
    return {(n, fat): rm_profile(n, fat=fat) for n in TOTALS for fat in (False, True)}


def rows_of(profile):
    return np.array([stats.table.num_embeddings for stats in profile.stats])


def used_of(profile):
    return np.array([stats.curve.positions for stats in profile.stats])


@pytest.mark.parametrize("seed", [0, 1, 7])
@pytest.mark.parametrize("name", TOTALS)
def test_models_have_the_published_size(name, seed):
    profile = rm_profile(name, seed=seed)
    sizes = [stats.table.weight_bytes for stats in profile.stats]
    assert len(sizes) == 397
    assert sum(sizes) == pytest.approx(TOTALS[name] * GIB, rel=1e-3)
    assert max(sizes) < 120 * GIB
    assert profile.batch_size == 16384


def test_models_load_as_valid_profiles(profiles, tmp_path):
    for (name, fat), profile in profiles.items():
        folder = tmp_path / f"{name}{fat}"
        written = make_workload(name, folder, fat=fat)
        loaded = Profile.load(folder)
        assert loaded.fingerprint == profile.fingerprint
        assert loaded.form == "curve"
        names = ["curves.parquet", "manifest.json", "profile.json"]
        assert sorted(p.name for p in folder.iterdir()) == names
        assert (written.files, written.tables, written.samples) == (3, 397, SAMPLES)
        assert written.bytes == sum(p.stat().st_size for p in folder.iterdir())


def test_another_seed_is_another_model(profiles):
    assert rm_profile("rm1", seed=0).fingerprint == profiles["rm1", False].fingerprint
    assert rm_profile("rm1", seed=1).fingerprint != profiles["rm1", False].fingerprint


def test_only_hash_sizes_grow_from_rm1_to_rm3(profiles):
    one, three = profiles["rm1", False], profiles["rm3", False]
    assert rows_of(three) / rows_of(one) == pytest.approx(1269 / 318, rel=1e-3)
    for a, b in zip(one.stats, three.stats, strict=True):
        assert a.features == b.features
        assert a.table.embedding_dim == b.table.embedding_dim


def test_used_rows_follow_from_the_values_that_all_three_share(profiles):
    one, three = profiles["rm1", False], profiles["rm3", False]
    rows, used = rows_of(one), used_of(one)
    known = used < 0.99 * rows  # where the formula can be turned around
    values = -rows * np.log1p(-np.minimum(used / rows, 0.999))
    expected = -rows_of(three) * np.expm1(-values / rows_of(three))
    assert known.sum() > 300
    assert used_of(three)[known] == pytest.approx(expected[known], rel=0.01)


def test_fewer_rows_are_used_as_tables_grow_unless_fat(profiles):
    shares = [used_of(profiles[n, False]).sum() / rows_of(profiles[n, False]).sum() for n in TOTALS]
    assert 0.45 < shares[0] < 0.75
    assert shares[0] > 1.3 * shares[1] > 1.6 * shares[2]
    fat = profiles["rm3", True]
    assert used_of(fat).sum() > 0.99 * rows_of(fat).sum()


@pytest.mark.parametrize(("fat", "share"), [(False, 0.25), (True, 0.45)])
def test_some_tables_are_near_uniform(profiles, fat, share):
    hot = [
        float(stats.curve.share(stats.curve.positions * 0.01))
        for stats in profiles["rm1", fat].stats
    ]
    flat = np.mean(np.array(hot) < 0.035)
    assert flat == pytest.approx(share, abs=0.06 if not fat else 0.12)


def test_features_are_read_as_described(profiles):
    stats = profiles["rm1", False].stats
    pooling = np.array([s.pooling for s in stats])
    coverage = np.array([s.coverage for s in stats])
    assert pooling.min() >= 1 - 1e-6
    assert pooling.max() <= 200.01
    assert np.median(pooling) < 6 < pooling.mean() < 20
    assert coverage.min() >= 0.05 - 1e-6
    assert coverage.max() <= 1
    dims = [s.table.embedding_dim for s in stats]
    assert set(dims) == {32, 64, 128, 256}
    assert dims.count(64) > len(dims) / 2
    assert all(s.table.optimizer == "rowwise_adagrad" for s in stats)
    assert all(s.table.pooling == "sum" and len(s.features) == 1 for s in stats)


def test_an_unknown_model_is_refused():
    with pytest.raises(UserError, match=r"'rm4'.*rm1, rm2, rm3"):
        rm_profile("rm4")


@example(rows=588_967_464, values=2_347_955_430, exponent=2.5, shift=0.0)  # mass lost in rounding
@settings(max_examples=100, deadline=None)
@given(
    rows=st.integers(1, 10**10),
    values=st.integers(1, 10**11),
    exponent=st.floats(0, 2.5),
    shift=st.floats(0, 1000),
)
def test_every_hashed_curve_is_valid(rows, values, exponent, shift):
    curve = hashed_curve(rows, ZipfMass(values, exponent, shift), 10**9)
    assert list(curve.mistakes(rows)) == []
    assert curve.total == pytest.approx(1e9)
    assert curve.positions == used_rows(rows, values)


@settings(max_examples=200, deadline=None)
@given(rows=st.integers(1, 10**10), values=st.integers(1, 10**12))
def test_used_rows_are_at_most_rows_and_values(rows, values):
    assert 1 <= used_rows(rows, values) <= min(rows, values)


def test_hashing_as_many_values_as_rows_uses_all_but_one_in_e():
    assert used_rows(10**8, 10**8) == pytest.approx(1e8 * (1 - 1 / np.e), rel=1e-6)


@pytest.mark.parametrize(("exponent", "shift"), [(0.1, 5.0), (0.6, 1.0), (1.0, 20.0), (1.4, 3.0)])
@pytest.mark.parametrize("values_per_row", [0.25, 1.0, 20.0])
def test_hashed_curves_match_a_simulation(exponent, shift, values_per_row):
    rows = 20_000
    values = int(rows * values_per_row)
    law = (np.arange(1, values + 1) + shift) ** -exponent
    random = np.random.default_rng(0)
    heat = np.bincount(random.integers(0, rows, values), law / law.sum(), rows)
    used = int((heat > 0).sum())
    reached = np.cumsum(np.sort(heat)[::-1])
    curve = hashed_curve(rows, ZipfMass(values, exponent, shift), 10**9)
    assert curve.positions == pytest.approx(used, rel=0.02)
    for share in (0.001, 0.01, 0.1, 0.5):
        k = int(share * used)
        # Never hotter than it is; a row that is hot because it is crowded is not seen.
        assert float(curve.share(k)) <= reached[k - 1] + 0.01
        assert float(curve.share(k)) >= reached[k - 1] - (0.035 if exponent >= 0.6 else 0.11)


@pytest.mark.parametrize("exponent", [0.0, 0.05, 0.6, 1.0, 1.0 + 1e-9, 1.4])
@pytest.mark.parametrize("shift", [0.0, 1.0, 80.0])
def test_closed_form_mass_equals_the_sum(exponent, shift):
    n = 200_000
    law = (np.arange(1, n + 1) + shift) ** -exponent
    ranks = np.array([1, 2, 700, 1023, 1024, 1025, 5000, 199_999, 200_000])
    expected = (np.cumsum(law) / law.sum())[ranks - 1]
    assert ZipfMass(n, exponent, shift).share(ranks) == pytest.approx(expected, rel=1e-9)


def test_caps_pass_what_they_cut_to_the_others():
    shares = _capped(np.array([100.0, 50.0, 1.0, 1.0, 1.0, 1.0]), 0.3)
    assert shares == pytest.approx([0.3, 0.3, 0.1, 0.1, 0.1, 0.1])

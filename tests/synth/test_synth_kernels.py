"""The samplers: in range, distributed as asked, and independent of how they are cut up."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowtier.synth import kernels
from rowtier.synth.columns import Column, Fixed, Rounded, Scattered, Sessions, Steps, Zipf
from rowtier.synth.seed import generator, key_of


def zipf_ranks(n, exponent, shift=0.0, count=200_000, seed=0):
    return Zipf(n, exponent, key_of(seed, "test"), shift).draw(0, np.arange(count + 1))


def deviations(seen, expected):
    """How many standard deviations chi-square lies above what chance gives."""
    chi_square = ((seen - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    return (chi_square - freedom) / np.sqrt(2 * freedom)


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(1, 10**12),
    exponent=st.one_of(st.floats(0, 10), st.sampled_from([0.0, 1.0, 1 + 1e-12, 1 - 1e-9])),
    shift=st.floats(0, 1e6),
    seed=st.integers(0, 2**64),
)
def test_zipf_ranks_stay_inside_the_table(n, exponent, shift, seed):
    ranks = zipf_ranks(n, exponent, shift, count=500, seed=seed)
    assert ranks.min() >= 0
    assert ranks.max() < n


@pytest.mark.parametrize("exponent", [0.0, 0.05, 0.6, 0.9999, 1.0, 1.0001, 1.4, 3.0])
@pytest.mark.parametrize("shift", [0.0, 2.7, 100.0])
@pytest.mark.parametrize("n", [2, 60])
def test_zipf_ranks_follow_the_law(n, exponent, shift):
    seen = np.bincount(zipf_ranks(n, exponent, shift), minlength=n)
    law = (np.arange(1, n + 1) + shift) ** -exponent
    expected = 200_000 * law / law.sum()
    often = expected >= 10
    assert deviations(seen[often], expected[often]) < 4


def test_zipf_tail_follows_the_law_in_a_large_table():
    n, count = 10**9, 400_000
    ranks = zipf_ranks(n, 1.0, count=count)
    edges = np.concatenate(([0], 10 ** np.arange(0, 10)))
    seen = np.histogram(ranks, edges)[0]
    harmonic = np.log(edges[1:] + 0.5) + 0.5772156649 + 1 / (24 * (edges[1:] + 0.5) ** 2)
    share = np.diff(harmonic, prepend=0.0) / harmonic[-1]
    assert deviations(seen, count * share) < 4


def test_another_key_gives_other_ranks():
    a, b = zipf_ranks(10**6, 0.5, seed=1), zipf_ranks(10**6, 0.5, seed=2)
    assert (a == b).mean() < 0.01


def test_ids_of_neighbouring_samples_are_independent():
    ranks = zipf_ranks(8, 0.0)
    pairs = np.bincount(ranks[::2] * 8 + ranks[1::2], minlength=64)
    assert deviations(pairs, np.full(64, 100_000 / 64)) < 4


@settings(max_examples=150, deadline=None)
@given(n=st.integers(1, 5000), seed=st.integers(0, 2**64))
def test_scattering_is_a_bijection(n, seed):
    rows = np.arange(n)
    kernels.scatter(rows, n, key_of(seed))
    assert np.array_equal(np.sort(rows), np.arange(n))


@pytest.mark.parametrize("n", [1_000_000, 2**20, 2**20 + 1])
def test_large_tables_are_scattered_one_to_one(n):
    rows = np.arange(n)
    kernels.scatter(rows, n, key_of(0))
    assert np.bincount(rows, minlength=n).max() == 1


@pytest.mark.parametrize("n", [2_000, 100_000])
def test_hot_rows_clump_in_blocks_as_random_ones_do(n):
    blocks, hot, trials = 50, n // 10, 200

    def unevenness(rows):
        return np.bincount(rows * blocks // n, minlength=blocks).var()

    found, random = [], []
    for trial in range(trials):
        rows = np.arange(hot)
        kernels.scatter(rows, n, key_of(trial))
        found.append(unevenness(rows))
        random.append(unevenness(np.random.default_rng(trial).permutation(n)[:hot]))
    # Each mean is known to 1.5 %; an affine map would reach a few percent of it.
    assert np.mean(found) == pytest.approx(np.mean(random), rel=0.08)


def test_scattered_neighbours_do_not_stay_neighbours():
    rows = np.arange(100_000)
    kernels.scatter(rows, len(rows), key_of(3))
    steps = np.diff(rows) % len(rows)
    assert np.bincount(steps, minlength=len(rows)).max() < 15


def test_hashing_as_many_values_as_rows_leaves_one_in_e_untouched():
    n = 200_000
    rows = np.arange(n)
    kernels.hash_rows(rows, n, key_of(0))
    assert rows.min() >= 0
    assert rows.max() < n
    assert 1 - len(np.unique(rows)) / n == pytest.approx(1 / np.e, abs=0.004)


@pytest.mark.parametrize(("mean", "spread", "longest"), [(50, 0.8, 200), (3, 1.5, 1000), (1, 1, 9)])
def test_session_lengths_have_the_asked_mean(mean, spread, longest):
    lengths = Sessions(mean, spread, longest, key_of(0)).draw(0, 300_000)
    assert lengths.min() >= 1
    assert lengths.max() <= longest
    assert lengths.mean() == pytest.approx(mean, rel=0.01)


def test_session_lengths_are_log_normal():
    sessions = Sessions(500, 0.8, 10**6, key_of(0))
    logs = np.log(sessions.draw(0, 200_000))
    z = (logs - sessions.mu) / 0.8
    shares = [(z < edge).mean() for edge in (-2, -1, 0, 1, 2)]
    assert shares == pytest.approx([0.0228, 0.1587, 0.5, 0.8413, 0.9772], abs=0.005)


def test_sessions_at_the_limits_have_one_length():
    assert set(Sessions(7, 0.8, 7, key_of(0)).draw(0, 1000)) == {7}
    assert set(Sessions(4, 0.0, 9, key_of(0)).draw(0, 1000)) == {4}


@pytest.mark.parametrize("mean", [0.0, 0.008, 1.0, 2.3])
def test_rounded_lengths_have_the_asked_mean(mean):
    lengths = Rounded(mean, key_of(0)).draw(0, 400_000)
    assert set(lengths) <= {int(mean), int(mean) + 1}
    assert lengths.mean() == pytest.approx(mean, abs=0.004)


def test_steps_share_lookups_by_rate_and_evenly_inside_a_bucket():
    rates, widths = np.array([8.0, 5.0, 1.0]), np.array([2, 0, 16])
    ranks = Steps.from_rates(rates, widths, key_of(0)).draw(0, np.arange(160_001))
    seen = np.bincount(ranks, minlength=18)
    assert deviations(seen, 160_000 * np.repeat([8 / 32, 1 / 32], [2, 16])) < 4


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 400), max_size=5), seed=st.integers(0, 100))
def test_a_column_does_not_depend_on_how_it_is_cut(cuts, seed):
    column = Column(
        "x",
        Sessions(3, 1.0, 20, key_of(seed, "length")),
        Zipf(1000, 1.05, key_of(seed, "ranks")),
        Scattered(1000, key_of(seed, "rows")),
    )
    edges = [0, *sorted(cuts), 400]
    whole = column.draw(0, 400)[1]
    pieces = [column.draw(a, b)[1] for a, b in itertools.pairwise(edges)]
    assert np.array_equal(np.concatenate(pieces), whole)


def test_only_one_id_per_sample_makes_a_plain_column():
    zipf, rows = Zipf(9, 1.0, key_of(0)), Scattered(9, key_of(0))
    assert not Column("x", Fixed(1), zipf, rows).is_list
    assert Column("x", Fixed(2), zipf, rows).is_list
    assert Column("x", Rounded(1.0, key_of(0)), zipf, rows).is_list


def test_every_purpose_has_its_own_key():
    keys = {
        key_of(0),
        key_of(1),
        key_of(0, "a"),
        key_of(0, "a", "b"),
        key_of(0, "ab"),
        key_of(0, 1),
    }
    assert len(keys) == 6
    assert generator(0, "a").random() != generator(0, "b").random()

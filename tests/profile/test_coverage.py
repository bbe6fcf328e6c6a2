from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rowtier.profile.coverage import (
    coverage_curve,
    drift_overlap,
    enough,
    estimate,
    smoothed_curve,
)
from rowtier.profile.drift import COVERAGE, Drift, combined
from rowtier.profile.slices import Slices
from rowtier.profile.tally import CountGroups, leave_one_out
from rowtier.synth.columns import Drifting, Zipf
from rowtier.synth.seed import key_of

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

EVERY = settings(max_examples=100, deadline=None)

small_counts = st.lists(st.integers(0, 6), min_size=2, max_size=12).filter(any)


def tally_of(counts: Ints) -> CountGroups:
    return CountGroups.of_counts(counts[counts > 0], len(counts))


def drift_of(slices: list[Ints] | Ints) -> Drift:
    """Drift of a table whose rows were counted slice by slice, 1,024 samples each."""
    seen = np.stack(slices, axis=1)
    rows = np.flatnonzero(seen.any(axis=1))
    samples = np.full(seen.shape[1], 1024)
    return Drift(Slices(10, 0, 0, samples, rows, seen[rows]), len(seen))


def zipf_heat(rows: int, exponent: float, seed: int = 0) -> Floats:
    heat = np.arange(1.0, rows + 1) ** -exponent
    return np.random.default_rng(seed).permutation(heat / heat.sum())


def future_shares(counts: Ints, heat: Floats) -> Floats:
    """What the hottest 1, 2, … rows really take."""
    return np.cumsum(heat[np.argsort(-counts, kind="stable")]) / heat.sum()


def chance_of_being_in(counts: list[int], row: int, rank: int) -> float:
    """Probability that a row is among the hottest, ties by lot."""
    above = sum(count > counts[row] for count in counts)
    tied = sum(count == counts[row] for count in counts)
    return min(max((rank - above) / tied, 0.0), 1.0)


# --- leave one out ------------------------------------------------------------------------


@given(small_counts)
@EVERY
def test_leave_one_out_is_what_taking_away_every_lookup_in_turn_gives(counts: list[int]) -> None:
    ranks = np.arange(1, len(counts))
    share, _ = leave_one_out(tally_of(np.array(counts)), ranks, neighbours=0)
    for rank, found in zip(ranks, share, strict=True):
        covered = 0.0
        for row, count in enumerate(counts):
            without = [*counts]
            without[row] -= 1
            covered += count * chance_of_being_in(without, row, rank) if count else 0.0
        assert found == pytest.approx(covered / sum(counts), abs=1e-12)


def test_at_the_touched_rows_it_is_good_turing() -> None:
    counts = np.random.default_rng(1).poisson(3000 * zipf_heat(100_000, 1.0))
    touched, once, lookups = np.count_nonzero(counts), np.sum(counts == 1), counts.sum()
    share, variance = leave_one_out(tally_of(counts), np.array([touched]))
    unseen = len(counts) - touched
    assert share[0] == pytest.approx(1 - once / lookups, abs=1.01 / unseen)
    twice = np.sum(counts == 2)  # Esty's variance of Good–Turing's estimate
    esty = (once * (1 - once / lookups) + 2 * twice) / lookups**2
    assert variance[0] == pytest.approx(esty, rel=1e-3)


def test_leave_one_out_has_no_bias_and_says_how_far_it_is_off() -> None:
    heat, ranks = zipf_heat(2000, 1.05), np.array([5, 50, 300, 800, 1500])
    random = np.random.default_rng(2)
    errors, variances = [], []
    for _ in range(400):
        counts = random.multinomial(5000, heat)
        share, variance = leave_one_out(tally_of(counts), ranks)
        errors.append(share - future_shares(counts, heat)[ranks - 1])
        variances.append(variance)
    errors_by_rank, claimed = np.array(errors), np.mean(variances, axis=0)
    assert (abs(errors_by_rank.mean(axis=0)) < 0.25 * np.sqrt(claimed)).all()
    assert (abs(np.mean(errors_by_rank**2, axis=0) / claimed - 1) < 0.3).all()


def test_few_equal_rows_do_not_make_the_estimate_jump() -> None:
    share, _ = leave_one_out(tally_of(np.array([1000, 1000, 999])), np.array([1, 2]))
    assert share == pytest.approx([1 / 3, 2 / 3], abs=0.03)


# --- intervals ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "lookups", "exponent"),
    [(1000, 2000, 1.05), (20_000, 200_000, 1.05), (200_000, 2000, 0.8), (100, 10_000, 0.5)],
)
def test_the_interval_holds_the_truth_as_often_as_it_says(
    rows: int, lookups: int, exponent: float
) -> None:
    heat, random = zipf_heat(rows, exponent), np.random.default_rng(3)
    ranks = [rank for rank in (5, 50, 400, rows // 2, rows * 9 // 10) if rank < rows]
    hits = []
    for _ in range(60):
        slices = [random.multinomial(lookups // 12, heat) for _ in range(12)]
        counts = np.sum(slices, axis=0)
        touched, truth = counts > 0, future_shares(counts, heat)
        curve = coverage_curve(counts[touched], drift_of(slices), rows)
        for rank in ranks:
            share, low, high = curve.at(rank)
            assert 0 <= low <= share <= high <= 1
            hits.append(low <= truth[rank - 1] <= high)
    assert np.mean(hits) >= 0.84


def test_more_confidence_and_less_data_make_wider_intervals() -> None:
    counts = np.random.default_rng(4).poisson(10_000 * zipf_heat(1000, 1.0))
    touched = counts[counts > 0]

    def width(times: int, confidence: float) -> float:
        _, low, high = coverage_curve(times * touched, None, 1000, confidence).at(100)
        return high - low

    assert width(1, 0.5) < width(1, 0.9) < width(1, 0.99)
    assert width(100, 0.9) < 0.2 * width(1, 0.9)


# --- drift --------------------------------------------------------------------------------


def drifting_counts(
    rate: float, rows: int = 20_000, ids: int = 200_000
) -> tuple[Ints, list[Ints], Ints]:
    """Counts, those of slices, and counts of as much data that follows, over which it drifts on."""
    total = 2 * ids
    offsets = np.arange(total + 1)
    stream = Zipf(rows, 1.05, key_of(5, "ranks")).draw(0, offsets)
    Drifting(rows, rate / ids, key_of(5, "rows")).apply(stream, 0, offsets)
    parts = np.split(stream, [*(ids * part // 12 for part in range(1, 12)), ids])
    *slices, future = (np.bincount(part, minlength=rows) for part in parts)
    return np.sum(slices, axis=0), slices, future


def test_drifting_data_are_not_flattered() -> None:
    counts, slices, future = drifting_counts(rate=0.6)
    truth = future_shares(counts, future / future.sum())
    own = np.cumsum(np.sort(counts)[::-1]) / counts.sum()
    curve = coverage_curve(counts[counts > 0], drift_of(slices), len(counts))
    for rank in (100, 1000, 5000):
        share, low, high = curve.at(rank)
        flattered = own[rank - 1] - truth[rank - 1]
        assert flattered > 0.1
        assert abs(share - truth[rank - 1]) < 0.8 * flattered
        # Drift that goes on evenly doubles with the horizon; real data seldom does.
        assert low - 0.5 * flattered <= truth[rank - 1] <= high


def test_stationary_data_are_not_penalised_for_drift() -> None:
    heat, random = zipf_heat(5000, 1.05), np.random.default_rng(6)
    ranks, errors, shifts = np.array([10, 100, 1000, 3000]), [], []
    for _ in range(60):
        slices = [random.multinomial(20_000, heat) for _ in range(12)]
        counts = np.sum(slices, axis=0)
        found = estimate(tally_of(counts), drift_of(slices), ranks)
        shifts.append(found.drift.mean)
        errors.append(found.share - future_shares(counts, heat)[ranks - 1])
    assert (abs(np.mean(shifts, axis=0)) < 5e-4).all()
    assert (abs(np.array(errors)) < 0.01).all()


def test_repetition_within_sessions_is_no_coverage() -> None:
    heat, random = zipf_heat(50_000, 0.8), np.random.default_rng(7)
    slices = [2 * random.multinomial(3333, heat) for _ in range(12)]  # every id twice
    counts, rank = np.sum(slices, axis=0), 20_000
    truth, touched = future_shares(counts, heat)[rank - 1], counts > 0
    blind = coverage_curve(counts[touched], None, 50_000).at(rank)[0]
    share, low, high = coverage_curve(counts[touched], drift_of(slices), 50_000).at(rank)
    assert blind - truth > 0.1
    assert abs(share - truth) < 0.7 * (blind - truth)
    assert low <= truth <= high


def test_overlap_of_stationary_halves_is_what_chance_gives() -> None:
    random, heat = np.random.default_rng(8), zipf_heat(5000, 1.0)
    early, late = (random.multinomial(20_000, heat) for _ in range(2))
    found = drift_overlap(early, late, 300)
    assert found.overlap < 0.9
    assert found.overlap == pytest.approx(found.expected, abs=3 * found.spread)
    assert found.change == 0


def test_overlap_of_drifting_halves_is_less_than_chance_gives() -> None:
    _, slices, _ = drifting_counts(rate=1.0)
    early, late = np.sum(slices[:6], axis=0), np.sum(slices[6:], axis=0)
    found = drift_overlap(early, late, 300)
    assert found.change > 0.2
    assert found == drift_overlap(early, late, 300)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30))
@EVERY
def test_overlap_breaks_ties_by_row(seen: list[tuple[int, int]]) -> None:
    early, late = np.array(seen).T
    most = min(np.count_nonzero(early), np.count_nonzero(late))
    for rank in range(1, most + 1):
        hot = [set(np.argsort(-half, kind="stable")[:rank]) for half in (early, late)]
        found = drift_overlap(early, late, rank)
        assert found.overlap == len(hot[0] & hot[1]) / rank


def test_slices_that_share_nothing_drift_by_all_they_cover() -> None:
    slices = [np.roll(np.repeat([100, 0], [10, 110]), 10 * at) for at in range(12)]
    assert drift_of(slices).coverage(np.array([119]), 120).mean == pytest.approx([1.0], abs=0.02)


def test_a_change_that_scatters_or_grows_leaves_more_open() -> None:
    steady = np.full((9, 1), 0.1)
    none = np.zeros_like(steady)

    def reach(long: Floats, short: Floats) -> float:
        return float(combined(long, short, none, none, COVERAGE, 1.0).reach[0])

    scattered = steady + np.linspace(-0.1, 0.1, 9)[:, None]
    assert reach(steady[:1], scattered) > reach(steady[:1], steady)
    assert reach(2 * steady[:1], steady) > reach(steady[:1], steady) > reach(none[:1], none)
    noisy = combined(steady[:1], steady, steady[:1] ** 2, steady**2, COVERAGE, 1.0)
    assert noisy.mean[0] == 0  # chance explains it


def test_too_few_slices_are_said_to_be_too_few() -> None:
    few = drift_of([np.array([5, 3, 1])] * 7)
    assert "7 time slices" in str(few.unknown)
    far = replace(drift_of([np.array([50, 30, 10])] * 12), horizon=40.0)
    assert "--horizon" in str(far.unknown)


# --- the curve to plan with ---------------------------------------------------------------


@st.composite
def tables(draw: st.DrawFn) -> tuple[Ints, Drift | None, int]:
    """Counts, drift or none, and rows; counts may be huge and tables nearly empty."""
    largest = draw(st.sampled_from([1, 3, 100, 10**6, 10**12]))
    counts = draw(st.lists(st.integers(1, largest), min_size=1, max_size=60))
    counts = sorted(counts * draw(st.sampled_from([1, 1, 30])), reverse=True)
    unseen = draw(st.sampled_from([0, 1, 50, 10**6, 10**12]))
    drift = None
    if draw(st.booleans()):
        random = np.random.default_rng(draw(st.integers(0, 9)))
        slices = random.multinomial(counts, np.full(12, 1 / 12))
        kept = Slices(10, 0, 0, np.full(12, 1024), np.arange(len(counts)), slices)
        drift = Drift(kept, len(counts) + unseen)
    return np.array(counts), drift, len(counts) + unseen


@given(tables(), st.sampled_from([None, 0.5, 0.9, 0.999]))
@EVERY
def test_the_curve_rises_bends_down_and_gives_every_row_something(
    table: tuple[Ints, Drift | None, int], confidence: float | None
) -> None:
    counts, drift, rows = table
    curve = smoothed_curve(counts, drift, rows, confidence)
    assert not list(curve.mistakes(rows))
    assert curve.positions == rows
    assert (curve.probabilities > 0).all()
    assert curve.total == pytest.approx(counts.sum(), rel=1e-9)
    again = smoothed_curve(counts, drift, rows, confidence)
    assert (again.lookups == curve.lookups).all()


@given(tables())
@EVERY
def test_coverage_curves_keep_their_promises(table: tuple[Ints, Drift | None, int]) -> None:
    counts, drift, rows = table
    curve = coverage_curve(counts, drift, rows)
    assert curve.stops[-1] == rows
    assert curve.share[-1] == curve.low[-1] == curve.high[-1] == pytest.approx(1)
    assert len(counts) in curve.stops
    for ends in (curve.low, curve.share, curve.high):
        assert all(b >= a for a, b in pairwise(ends))
    assert (curve.low <= curve.share).all()
    assert (curve.share <= curve.high).all()
    shuffled = np.random.default_rng(0).permutation(len(counts))
    assert np.allclose(coverage_curve(counts[shuffled], drift, rows).share, curve.share, atol=1e-9)


def test_hot_rows_take_less_at_more_confidence() -> None:
    counts = np.sort(np.random.default_rng(9).poisson(3000 * zipf_heat(5000, 1.0)))[::-1]
    counts = counts[counts > 0]
    shares = [
        float(smoothed_curve(counts, None, 5000, confidence).share(200))
        for confidence in (None, 0.5, 0.9, 0.99)
    ]
    assert all(a > b for a, b in pairwise(shares))
    low = coverage_curve(counts, None, 5000, 0.9).at(200)[1]
    assert shares[2] == pytest.approx(low, abs=0.005)


def test_unseen_rows_share_the_missing_mass_evenly() -> None:
    counts = np.array([50, 20, 10, 1, 1, 1, 1])
    curve = smoothed_curve(counts, None, 1007)
    assert 1 - curve.share(7) == pytest.approx(4 / 84, abs=0.01)
    assert curve.stops[-2:].tolist() == [7, 1007]


def test_the_curve_comes_near_the_true_heat_where_counts_do_not() -> None:
    heat = zipf_heat(50_000, 1.05)
    counts = np.random.default_rng(10).multinomial(50_000, heat)
    truth, touched = future_shares(counts, heat), counts[counts > 0]
    curve = smoothed_curve(touched, None, 50_000)
    own = np.cumsum(np.sort(touched)[::-1]) / touched.sum()
    for rank in (100, 1000, 10_000):
        assert curve.share(rank) == pytest.approx(truth[rank - 1], abs=0.01)
    assert own[9_999] - truth[9_999] > 0.1


def test_edge_cases_of_a_table() -> None:
    none = np.empty(0, dtype=np.int64)
    assert smoothed_curve(none, None, 100).total == 0
    assert coverage_curve(none, None, 100).at(5) == (0.0, 0.0, 1.0)
    assert smoothed_curve(np.array([7]), drift_of([np.array([1])] * 7), 1).lookups.tolist() == [7.0]
    assert coverage_curve(np.array([7]), None, 1).at(1) == (1.0, 1.0, 1.0)
    once = coverage_curve(np.array([1]), None, 10)
    assert once.at(1)[0] == pytest.approx(0.1)
    assert once.at(1)[2] > 0.5
    lonely = smoothed_curve(np.array([10**12]), None, 10**12)
    assert lonely.probabilities[0] > 1 - 1e-9
    assert 0 < lonely.probabilities[1] < 1e-20
    few, counts = drift_of([np.array([1, 0, 0])] * 3), np.array([5, 3, 1])
    assert coverage_curve(counts, few, 9).at(2) == coverage_curve(counts, None, 9).at(2)


# --- in words -----------------------------------------------------------------------------


def test_enough_data_is_called_enough() -> None:
    counts = np.random.default_rng(11).poisson(10**6 * zipf_heat(1000, 1.0))
    said = enough(counts[counts > 0], None, 1000, 100)
    assert said.enough
    assert said.more_data == 1
    assert str(said).startswith("the hottest 100 rows take 69.")
    assert str(said).endswith("of lookups: enough data")


def test_too_little_data_says_how_much_is_needed() -> None:
    heat = zipf_heat(1000, 1.0)
    counts = np.random.default_rng(12).multinomial(300, heat)
    said = enough(counts[counts > 0], None, 1000, 10)
    assert not said.enough
    assert "as much data to bring it to ± 2%" in str(said)
    more = np.random.default_rng(12).multinomial(int(1.5 * 300 * said.more_data), heat)
    assert enough(more[more > 0], None, 1000, 10).enough


def test_a_cut_among_rows_seen_once_is_left_to_chance() -> None:
    counts = np.random.default_rng(13).poisson(50_000 * zipf_heat(10**6, 1.0))
    said = enough(counts[counts > 0], None, 10**6, 20_000)
    assert said.seen == 1
    assert "seen once or never" in str(said)
    assert f"cut at {np.sum(counts >= 2) / 1000:.3g} k rows" in str(said)


def test_drift_beyond_noise_is_said() -> None:
    counts, slices, _ = drifting_counts(rate=1.0)
    said = enough(counts[counts > 0], drift_of(slices), len(counts), 1000)
    assert said.drift > 0.05
    assert "hot rows change over time" in str(said)


def test_without_lookups_nothing_is_known() -> None:
    none = np.empty(0, dtype=np.int64)
    said = enough(none, None, 100, 10)
    assert not said.enough
    assert "nothing is known of the hottest 10 rows" in str(said)

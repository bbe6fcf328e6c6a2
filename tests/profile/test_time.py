"""Slices and windows are what a naive count gives, however the data is cut."""

from __future__ import annotations

import os
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowtier import Profile, ProfileOptions, Table, Tables, UserError, make_profile
from rowtier.profile import counters as counters_module
from rowtier.profile import slices as slices_module
from rowtier.profile.bits import bit_length
from rowtier.profile.counters import RowCounters, SampleLookups
from rowtier.profile.slices import Slices, bits_for, merge_slices, thin, thinning_of
from rowtier.profile.windows import TOP_BITS, Windows, merge_windows

Bags = list[list[int]]
EVERY = settings(max_examples=60, deadline=None)
ROWS = 12
DATA = Path(os.environ.get("ROWTIER_DATA", Path(__file__).parents[2] / "../shared/data"))

bags = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=4), min_size=1, max_size=70)
# Where the data begins: at the start, and around the edges of windows of the largest size.
firsts = st.one_of(st.just(0), st.integers(0, 100), st.integers(2**TOP_BITS - 60, 2**TOP_BITS + 10))


def lookups_of(samples: Bags) -> SampleLookups:
    lengths = np.array([len(bag) for bag in samples], dtype=np.int64)
    rows = np.array([row for bag in samples for row in bag], dtype=np.int64)
    return SampleLookups(rows, lengths, len(samples))


def counted(samples: Bags, first: int, bits: int = 0) -> tuple[Slices, Windows]:
    counters = RowCounters(0, ROWS, bits)
    counters.add(lookups_of(samples), first)
    slices, windows = counters.finish()
    assert windows is not None
    return slices, windows


def same(one: Slices | Windows, other: Slices | Windows) -> bool:
    pairs = zip(one.arrays(), other.arrays(), strict=True)
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in pairs)


@given(bags, firsts)
@EVERY
def test_slices_are_what_a_naive_count_gives(samples: Bags, first: int) -> None:
    slices, _ = counted(samples, first)
    assert slices.bits == bits_for(first, first + len(samples))
    assert len(slices.samples) <= 16
    expected = Counter(
        (row, (first + at) >> slices.bits) for at, bag in enumerate(samples) for row in bag
    )
    found = {
        (int(row), slices.first + at): int(count)
        for row, line in zip(slices.rows, slices.counts, strict=True)
        for at, count in enumerate(line)
        if count
    }
    assert found == dict(expected)
    assert slices.samples.sum() == len(samples)
    assert not list(slices.mistakes(ROWS))


@given(bags, firsts, st.integers(0, 7))
@EVERY
def test_windows_are_what_a_naive_count_gives(samples: Bags, first: int, bits: int) -> None:
    _, windows = counted(samples, first)
    seen: dict[int, set[int]] = {}
    for at, bag in enumerate(samples):
        seen.setdefault((first + at) >> bits, set()).update(bag)
    whole = [
        len(rows)
        for number, rows in seen.items()
        if number << bits >= first and (number + 1) << bits <= first + len(samples)
    ]
    rows, count = windows.distinct(bits)
    assert count == len(whole)
    assert rows == pytest.approx(np.mean(whole) if whole else 0.0)
    assert not list(windows.mistakes(ROWS))


@given(bags, firsts, st.data())
@EVERY
def test_parts_in_any_order_and_grouping_make_the_whole(
    samples: Bags, first: int, data: st.DataObject
) -> None:
    slices, windows = counted(samples, first)
    edges = data.draw(st.lists(st.integers(0, len(samples)), max_size=5))
    parts = [
        counted(samples[a:b], first + a) for a, b in pairwise(sorted({0, len(samples), *edges}))
    ]
    parts = data.draw(st.permutations(parts))
    cut = data.draw(st.integers(0, len(parts) - 1))
    groups = [group for group in (parts[:cut], parts[cut:]) if group]
    merged = merge_slices([merge_slices([part for part, _ in group]) for group in groups])
    assert same(merged, slices)
    met = [merge_windows([one.coarsened(merged.bits) for _, one in group]) for group in groups]
    assert same(merge_windows(met), windows)


@given(bags, st.integers(1, 9))
@EVERY
def test_chunks_change_nothing(samples: Bags, size: int) -> None:
    counters = RowCounters(0, ROWS, 0)
    for start in range(0, len(samples), size):
        counters.add(lookups_of(samples[start : start + size]), start)
    slices, windows = counters.finish()
    whole = counted(samples, 0)
    assert windows is not None
    assert same(slices, whole[0])
    assert same(windows, whole[1])


def test_a_base_that_moves_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    random, at = np.random.default_rng(0), 2**TOP_BITS - 3000
    rows = random.integers(0, ROWS, 9000)
    whole = RowCounters(0, ROWS, 10)
    whole.add(SampleLookups(rows, None, len(rows)), at)
    monkeypatch.setattr(counters_module, "_FARTHEST", 2**TOP_BITS + 1000)
    moved = RowCounters(0, ROWS, 10)
    for start in range(0, len(rows), 500):
        moved.add(SampleLookups(rows[start : start + 500], None, 500), at + start)
    for ours, theirs in zip(moved.finish(), whole.finish(), strict=True):
        assert ours is not None
        assert theirs is not None
        assert same(ours, theirs)


def test_rows_are_thinned_by_their_hash_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (slices_module, counters_module):
        monkeypatch.setattr(module, "MOST_ROWS", 50)
    rows = np.random.default_rng(1).permutation(400)
    whole = RowCounters(0, 400, 0)
    whole.add(SampleLookups(rows, None, 400), 0)
    slices, _ = whole.finish()
    assert slices.thinning == thinning_of(np.arange(400), 0) > 0
    assert slices.rows.tolist() == np.flatnonzero(thin(np.arange(400), slices.thinning)).tolist()
    assert len(slices.rows) <= 50 < np.count_nonzero(thin(np.arange(400), slices.thinning - 1))
    parts = []
    for start in range(0, 400, 80):
        part = RowCounters(0, 400, 0)
        part.add(SampleLookups(rows[start : start + 80], None, 80), start)
        parts.append(part.finish()[0])
    assert same(merge_slices(parts[::-1]), slices)


def test_bits_of_numbers() -> None:
    for number in (0, 1, 2, 3, 4, 255, 256, 2**31, 2**32 - 1):
        assert bit_length(np.uint32(number)) == number.bit_length()


def table(**changes: Any) -> Tables:
    one = Table(name="t", num_embeddings=1000, embedding_dim=4, features=("f",), **changes)
    return Tables(batch_size=8, tables=(one,))


def profile_of(ids: Any, **options: Any) -> Profile:
    return make_profile([{"f": np.asarray(ids)}], table(), ProfileOptions(**options))


def test_neighbours_that_agree_are_seen_and_shuffled_ones_are_not_blamed() -> None:
    random = np.random.default_rng(2)
    ids = np.repeat(random.integers(0, 1000, 2000), 16)  # sixteen in a row are the same
    found = profile_of(ids)
    shuffled = found.distinct("t", 256).value
    truth = np.mean([len(np.unique(random.choice(ids, 256))) for _ in range(300)])
    assert shuffled == pytest.approx(truth, rel=0.02)
    in_order = found.distinct("t", 256, batches="in_time_order").value
    runs = [len(np.unique(ids[i : i + 256])) for i in range(0, len(ids), 256)]
    assert in_order == pytest.approx(np.mean(runs), rel=0.05)


def test_a_sample_knows_no_neighbours() -> None:
    found = profile_of(np.arange(4000) % 1000, sample=0.5)
    assert found["t"].windows is None
    assert found["t"].slices is not None
    with pytest.raises(UserError, match="without --sample"):
        found.distinct("t", 16, batches="in_time_order")


def test_what_the_data_cannot_tell_is_said_in_words() -> None:
    few = profile_of([1, 2, 3, 4, 5])
    assert few.coverage("t", 3).low is None
    assert "time slices" in few.coverage("t", 3).unknown
    assert few.distinct("t", 4).high is None
    enough = profile_of(np.random.default_rng(3).integers(0, 900, 20_000))
    assert enough.coverage("t", 100).low is not None
    assert "profile more" in enough.distinct("t", 30_000).unknown
    curve = enough.to_curve()  # which still knows
    assert curve.distinct("t", 512) == enough.distinct("t", 512)
    assert curve.unseen("t").high == enough.unseen("t").high


def test_a_horizon_beyond_the_data_is_refused_and_a_near_one_sees_less_drift() -> None:
    random = np.random.default_rng(4)
    drifting = (random.integers(0, 300, 40_000) + np.arange(40_000) // 400) % 1000
    shares = {
        horizon: profile_of(drifting, horizon=horizon).coverage("t", 100) for horizon in (0.25, 1.0)
    }
    assert shares[0.25].share > shares[1.0].share + 0.01  # less of it has moved on
    with pytest.raises(UserError, match=r"horizon 50: .*time slices do not have"):
        profile_of(drifting, horizon=50.0)
    with pytest.raises(UserError, match=r"horizon 0.5: .*3 samples in 3 time slices"):
        profile_of([1, 2, 3], horizon=0.5)


@given(st.integers(0, 5), st.sampled_from([0.4, 1.0, 1.4]))
@settings(max_examples=8, deadline=None)
def test_stationary_data_are_forecast_as_they_are(seed: int, exponent: float) -> None:
    heat = np.arange(1.0, 1001) ** -exponent
    random = np.random.default_rng(seed)
    ids = random.choice(1000, 60_000, p=heat / heat.sum())
    found = profile_of(ids[:30_000])
    for samples in (64, 1024, 8192):
        drawn = [random.choice(ids[30_000:], samples, replace=False) for _ in range(40)]
        truth = np.mean([len(np.unique(batch)) for batch in drawn])
        assert found.distinct("t", samples).value == pytest.approx(truth, rel=0.04)


@pytest.mark.parametrize("name", ["diginetica", "nowplaying"])
def test_real_sessions_are_forecast(name: str) -> None:
    path = DATA / f"{name}.parquet"
    if not path.exists():
        pytest.skip(f"no {path.name}: set ROWTIER_DATA to the folder that holds it")
    described = Tables(
        batch_size=256,
        tables=(
            Table(
                name="item",
                num_embeddings=60_416,
                embedding_dim=8,
                features=("item",),
                pooling="mean",
            ),
        ),
    )
    early = make_profile(path, described, ProfileOptions(before="50%"))
    late = make_profile(path, described, ProfileOptions(after="50%"))
    whole = make_profile(path, described)
    assert early.merge(late).fingerprint == whole.fingerprint
    assert early.distinct("item", 2048).value == pytest.approx(
        late.distinct("item", 2048).value, rel=0.1
    )
    assert late["item"].counts is not None
    assert early["item"].counts is not None
    hot = set(early["item"].counts.rows[:3000].tolist())
    counts = late["item"].counts
    served = sum(int(n) for r, n in zip(counts.rows, counts.counts, strict=True) if int(r) in hot)
    found = early.coverage("item", 3000)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= served / late["item"].lookups <= found.high

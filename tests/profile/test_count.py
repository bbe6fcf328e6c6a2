"""Counting is exact, however the work is divided."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rowtier import MismatchError, Profile, Table, Tables, UserError
from rowtier.plan.bags import Bags
from rowtier.profile import make as make_module
from rowtier.profile.count import touched_rows
from rowtier.profile.counters import RowCounters, SampleLookups
from rowtier.profile.distinct import LIMIT, DistinctCounter, DistinctIds
from rowtier.profile.ids import hash_ints
from rowtier.profile.make import ProfileOptions, make_profile

Rows = list[tuple[int, list[int] | None]]
ANY_FOLDER = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None
)


def tables(**changes: Any) -> Tables:
    one = Table(name="one", num_embeddings=20, embedding_dim=4, features=("a",), **changes)
    two = Table(name="two", num_embeddings=30, embedding_dim=4, features=("b", "a"), pooling="none")
    return Tables(batch_size=8, tables=(one, two))


samples = st.lists(
    st.tuples(st.integers(0, 19), st.one_of(st.none(), st.lists(st.integers(0, 29), max_size=5))),
    min_size=1,
    max_size=60,
)


def write(folder: Path, rows: Rows, files: int = 2, group: int = 7) -> Path:
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.parquet"):
        old.unlink()
    for index, part in enumerate(np.array_split(np.arange(len(rows)), files)):
        mine = [rows[i] for i in part]
        columns = {
            "a": pa.array([a for a, _ in mine], pa.int64()),
            "b": pa.array([b for _, b in mine], pa.list_(pa.int64())),
        }
        pq.write_table(pa.table(columns), folder / f"{index}.parquet", row_group_size=group)
    return folder


def batches(rows: Rows) -> list[dict[str, Any]]:
    return [
        {
            "a": (np.array([a]), np.array([1])),
            "b": (np.array(b or [], dtype=np.int64), np.array([len(b or [])])),
        }
        for a, b in rows
    ]


@given(samples)
@ANY_FOLDER
def test_a_profile_equals_a_naive_count(tmp_path: Path, rows: Rows) -> None:
    profile = make_profile(write(tmp_path / "data", rows), tables())
    one, two = Counter(a for a, _ in rows), Counter(i for _, b in rows for i in b or [])
    two.update(a for a, _ in rows)
    for stats, expected in zip(profile.stats, (one, two), strict=True):
        assert stats.counts is not None
        found = dict(zip(stats.counts.rows.tolist(), stats.counts.counts.tolist(), strict=True))
        assert found == dict(expected)
        assert not list(stats.mistakes())
        assert stats.samples == len(rows)
    holding = Counter(row for a, b in rows for row in {a, *(b or [])})
    counts = profile["two"].counts
    assert counts is not None
    assert dict(zip(counts.rows.tolist(), counts.samples.tolist(), strict=True)) == dict(holding)
    b = profile["two"].features[0]
    assert b.present == sum(bool(b) for _, b in rows)
    assert dict(b.lengths) == dict(Counter(len(b) for _, b in rows if b))


@given(samples, st.data())
@ANY_FOLDER
def test_the_merge_of_any_partition_is_the_profile_of_the_whole(
    rows: Rows, data: st.DataObject
) -> None:
    described = tables(ids="hash")
    whole = make_profile(batches(rows), described).fingerprint
    edges = data.draw(st.lists(st.integers(0, len(rows)), max_size=4))
    parts = [
        make_profile(batches(rows[a:b]), described, ProfileOptions(first_sample=a))
        for a, b in pairwise(sorted({0, len(rows), *edges}))
    ]
    parts = data.draw(st.permutations(parts))
    assert parts[0].merge(*parts[1:]).fingerprint == whole
    if len(parts) > 2:  # in another grouping
        paired = parts[0].merge(parts[1])
        assert parts[2].merge(*parts[3:]).merge(paired).fingerprint == whole


@given(samples, st.integers(0, 60), st.integers(0, 60))
@ANY_FOLDER
def test_the_profile_of_a_window_is_that_of_its_samples(
    tmp_path: Path, rows: Rows, one: int, two: int
) -> None:
    first, stop = sorted((one % len(rows), 1 + two % len(rows)))
    if first == stop:
        return
    shares = {"after": first / len(rows), "before": stop / len(rows)}
    data = write(tmp_path / "data", rows, files=2, group=5)
    found = make_profile(data, tables(), ProfileOptions(**shares))
    alone = make_profile(batches(rows[first:stop]), tables(), ProfileOptions(first_sample=first))
    assert found.fingerprint == alone.fingerprint


def test_a_first_sample_below_zero_is_refused() -> None:
    with pytest.raises(UserError, match="first_sample -1: give a whole number, 0 or more"):
        make_profile(batches([(1, None)]), tables(), ProfileOptions(first_sample=-1))


def test_weights_do_not_change_a_profile() -> None:
    plain = [{"a": ([1, 2], [1, 1]), "b": ([3, 4, 5], [1, 2])}]
    weighted = [{name: (*pair, np.ones(len(pair[0]))) for name, pair in plain[0].items()}]
    bags = [{name: Bags(ids, offsets=np.cumsum([0, *n])) for name, (ids, n) in plain[0].items()}]
    profiles = [make_profile(data, tables()) for data in (plain, weighted, bags)]
    assert len({profile.fingerprint for profile in profiles}) == 1


@given(samples)
@ANY_FOLDER
def test_legs_shards_and_workers_change_nothing(tmp_path: Path, rows: Rows) -> None:
    data = write(tmp_path / "data", rows, files=3, group=4)
    whole = make_profile(data, tables())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make_module, "LEG_BYTES", 1)
        many_legs = make_profile(data, tables())
    shards = make_profile(data, tables(), ProfileOptions(memory_bytes=40))
    assert whole.fingerprint == many_legs.fingerprint == shards.fingerprint
    for stats in shards.stats:
        assert not list(stats.mistakes())


def test_several_processes_give_the_same_profile(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rows: Rows = [(int(rng.integers(20)), rng.integers(0, 30, 3).tolist()) for _ in range(500)]
    data = write(tmp_path / "data", rows, files=4, group=20)
    one = make_profile(data, tables(ids="hash"))
    two = make_profile(data, tables(ids="hash"), ProfileOptions(workers=2))
    assert one.fingerprint == two.fingerprint


def test_dask_gives_the_same_profile(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="needs Dask: pip install rowtier[dask]")
    rng = np.random.default_rng(6)
    rows: Rows = [(int(rng.integers(20)), rng.integers(0, 30, 3).tolist()) for _ in range(300)]
    data = write(tmp_path / "data", rows, files=3, group=10)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address
        dask = make_profile(data, tables(ids="hash"), ProfileOptions(dask=address))
    assert dask.fingerprint == make_profile(data, tables(ids="hash")).fingerprint


def test_hashes_are_those_of_the_library() -> None:
    values = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 300)
    for seed in (0, 7, 2**63):
        found = hash_ints(values, np.uint64(seed))
        for value, ours in zip(values.tolist(), found.tolist(), strict=True):
            raw = int(value).to_bytes(8, "little", signed=True)
            assert ours == xxhash.xxh64_intdigest(raw, seed)


def test_strings_are_hashed_and_counted_with_their_collisions(tmp_path: Path) -> None:
    words = [f"user-{i % 50}" for i in range(200)]
    pq.write_table(pa.table({"w": words}), tmp_path / "w.parquet")
    table = Table(name="t", num_embeddings=40, embedding_dim=2, features=("w",), ids="hash")
    stats = make_profile(tmp_path / "w.parquet", Tables(batch_size=1, tables=(table,)))["t"]
    rows = {xxhash.xxh64_intdigest(f"user-{i}".encode(), 0) % 40 for i in range(50)}
    assert stats.touched == len(rows)
    assert stats.distinct_ids is not None
    assert (stats.distinct_ids.count, stats.distinct_ids.exact) == (50, True)
    wrong = table.model_copy(update={"ids": "as_is"})
    with pytest.raises(UserError, match=r"'w' holds strings such as 'user-0'.*ids: hash"):
        make_profile(tmp_path / "w.parquet", Tables(batch_size=1, tables=(wrong,)))


@pytest.mark.parametrize("policy", ["error", "clip", "drop", "hash"])
def test_ids_out_of_range(policy: Any) -> None:
    data = [{"f": (np.array([1, 2, 99, -4]), np.array([1, 0, 2, 1]))}]
    table = Table(name="t", num_embeddings=10, embedding_dim=2, features=("f",))
    described = Tables(batch_size=1, tables=(table,))
    options = ProfileOptions(on_out_of_range=policy)
    if policy == "error":
        with pytest.raises(UserError, match=r"feature 'f' has id 99 in sample 2.*rows 0 to 9"):
            make_profile(data, described, options)
        return
    stats = make_profile(data, described, options)["t"]
    assert stats.counts is not None
    found = dict(zip(stats.counts.rows.tolist(), stats.counts.counts.tolist(), strict=True))
    raw = [int(v).to_bytes(8, "little", signed=True) for v in (99, -4)]
    expected = {
        "clip": Counter([1, 2, 9, 0]),
        "drop": Counter([1, 2]),
        "hash": Counter([1, 2, *(xxhash.xxh64_intdigest(r, 0) % 10 for r in raw)]),
    }[policy]
    assert found == dict(expected)
    assert not list(stats.mistakes())
    assert stats.features[0].present == (2 if policy == "drop" else 3)


def test_modulo_folds_ids_and_counts_the_collisions() -> None:
    table = Table(name="t", num_embeddings=10, embedding_dim=2, features=("f",), ids="modulo")
    data = [{"f": np.array([3, 13, 23, 4])}]
    stats = make_profile(data, Tables(batch_size=1, tables=(table,)))["t"]
    assert (stats.touched, stats.distinct_ids and stats.distinct_ids.count) == (2, 4)


def test_distinct_ids_are_exact_when_few_and_sketched_when_many() -> None:
    many = hash_ints(np.arange(3 * LIMIT), np.uint64(1))
    counter = DistinctCounter()
    counter.add(many)
    found = counter.finish()
    assert not found.exact
    assert abs(found.count / (3 * LIMIT) - 1) < 0.03
    parts = [DistinctIds.of(piece) for piece in np.array_split(many, 5)]
    merged = parts[3]
    for index in (0, 4, 1, 2):
        merged = merged.merge(parts[index])
    assert merged.registers is not None
    assert found.registers is not None
    assert (merged.registers == found.registers).all()


@given(st.lists(st.integers(0, 2**64 - 1), max_size=200))
def test_distinct_ids_equal_a_set(hashes: list[int]) -> None:
    counter = DistinctCounter()
    counter.add(np.array([0, *hashes], dtype=np.uint64))
    found = counter.finish().hashes
    assert found is not None
    assert found.tolist() == sorted({0, *hashes})


@given(st.lists(st.tuples(st.integers(0, 70_000), st.integers(0, 600)), max_size=40))
@settings(max_examples=40, deadline=None)
def test_touched_rows_are_ordered_by_heat_then_row(pairs: list[tuple[int, int]]) -> None:
    counters = RowCounters(5, 5 + len(pairs), 0)
    once, repeated = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    rows = np.arange(len(pairs)) + 5
    alone = np.repeat(rows, once)
    counters.add(SampleLookups(alone, None, len(alone)), 0)
    counters.add(SampleLookups(np.repeat(rows, repeated), repeated, len(rows)), len(alone))
    found = touched_rows(counters.lookups, counters.repeats, first_row=5)
    totals = [sum(pair) for pair in pairs]
    expected = sorted((i for i in range(len(pairs)) if totals[i]), key=lambda i: (-totals[i], i))
    assert found.rows.tolist() == [i + 5 for i in expected]
    assert found.counts.tolist() == [totals[i] for i in expected]
    assert found.samples.tolist() == [pairs[i][0] + (pairs[i][1] > 0) for i in expected]


def test_data_without_samples_is_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "data", [])
    with pytest.raises(UserError, match=f"{data}: the data holds no samples"):
        make_profile(data, tables())


def test_data_that_can_be_read_once_needs_its_counters_in_memory() -> None:
    with pytest.raises(UserError, match="read only once"):
        make_profile(iter(batches([(1, [2])])), tables(), ProfileOptions(memory_bytes=16))


def test_profiles_of_other_tables_are_not_merged() -> None:
    rows: Rows = [(1, [2]), (3, None)]
    first = make_profile(batches(rows), tables())
    second = make_profile(batches(rows), tables(ids="modulo"))
    with pytest.raises(MismatchError, match=first.fingerprint):
        first.merge(second)
    with pytest.raises(UserError, match=r"samples 0 to 1 are in two.*--first-sample 2"):
        first.merge(first)
    with pytest.raises(UserError, match="does not know its rows"):
        first.to_curve().merge(first.to_curve())


def test_a_counted_profile_with_hashed_ids_survives_saving(tmp_path: Path) -> None:
    rows: Rows = [(i % 20, [i % 30]) for i in range(100)]
    profile = make_profile(batches(rows), tables(ids="hash"))
    profile.save(tmp_path / "p")
    assert Profile.load(tmp_path / "p").fingerprint == profile.fingerprint
    facts = json.loads((tmp_path / "p/profile.json").read_text())["statistics"]["one"]
    assert facts["distinct_ids"] == 20

"""The share of ids that share their row with another id, and how it is shown."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from rowtier import Table, Tables, make_profile
from rowtier.profile.collisions import sharing_by_chance, sharing_by_rows
from rowtier.profile.distinct import DistinctIds
from rowtier.profile.look import alerts, look_at


def stats_of(column: Any, rows: int, **changes: Any) -> Any:
    base = {"name": "t", "num_embeddings": rows, "embedding_dim": 2, "features": ("f",)}
    table = Table.model_validate({**base, **changes})
    return make_profile([{"f": column}], Tables(batch_size=1, tables=(table,)))["t"]


def sharing(rows: list[int]) -> int:
    return sum(count for count in Counter(rows).values() if count > 1)


def test_hashed_ids_that_share_a_row_are_all_counted() -> None:
    words = [f"user-{i}" for i in range(300)]
    rows = [xxhash.xxh64_intdigest(word.encode()) % 400 for word in words]
    look = look_at(stats_of(words * 2, 400, ids="hash"))
    assert look.collisions == sharing(rows)
    said = " ".join(alerts(look))
    assert f"{sharing(rows) / 300:.0%} of the ids of 't' share a row with another id" in said
    hashes = np.array([xxhash.xxh64_intdigest(word.encode()) for word in words], dtype=np.uint64)
    assert look_at(stats_of(hashes, 400, ids="hashed")).collisions == sharing(rows)


@pytest.mark.parametrize(("ids", "rows"), [(100, 1000), (1000, 1000), (5000, 1000)])
def test_estimates_are_near_what_chance_gives(ids: int, rows: int) -> None:
    rng = np.random.default_rng(0)
    drawn = [rng.integers(0, rows, ids).tolist() for _ in range(50)]
    mean = np.mean([sharing(found) for found in drawn])
    assert sharing_by_chance(ids, rows) == pytest.approx(mean, rel=0.1, abs=2)
    estimates = [sharing_by_rows(ids, len(set(found))) for found in drawn]
    assert np.mean(estimates) == pytest.approx(mean, rel=0.1, abs=2)


@given(st.integers(0, 10**9), st.integers(0, 10**6))
def test_estimates_from_touched_rows_stay_in_their_bounds(more: int, touched: int) -> None:
    ids = touched + more if touched else 0
    found = sharing_by_rows(ids, touched)
    assert ids - touched <= found <= min(ids, 2 * (ids - touched))


def test_few_ids_and_few_rows() -> None:
    assert sharing_by_chance(0, 5) == sharing_by_chance(1, 1) == sharing_by_chance(3, 0) == 0
    assert sharing_by_chance(3, 1) == 3
    assert sharing_by_rows(0, 0) == 0


def test_a_sketch_of_ids_gives_the_estimate() -> None:
    stats = stats_of(np.arange(200_000), 100_000, ids="hash")
    registers = DistinctIds.of(stats.distinct_ids.hashes)._sketch()
    object.__setattr__(stats, "distinct_ids", DistinctIds(None, registers))
    assert look_at(stats).collisions == pytest.approx(200_000 * (1 - np.exp(-2)), rel=0.05)


def test_ids_of_a_vocabulary_share_only_the_shared_rows() -> None:
    words = [f"w{i}" for i in range(20)] + ["w0", "w1"]
    assert look_at(stats_of(words, 12, ids="vocabulary", num_shared=2)).collisions == 10
    dropped = stats_of(words, 10, ids="vocabulary", num_shared=0, on_out_of_range="drop")
    assert look_at(dropped).collisions == 0


def test_modulo_is_estimated_from_touched_rows() -> None:
    assert look_at(stats_of(np.array([3, 13, 23, 4]), 10, ids="modulo")).collisions in (2, 3, 4)
    assert look_at(stats_of(np.arange(10), 10, ids="modulo")).collisions == 0


def test_what_is_almost_all_is_not_shown_as_all() -> None:
    (said,) = alerts(look_at(stats_of(np.tile(np.arange(30), 90), 10**6)))
    assert said.startswith("99.997% of 't' is never touched")

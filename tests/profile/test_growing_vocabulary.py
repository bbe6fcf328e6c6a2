import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_growth import NaiveGrowth

from rowtier.errors import UserError
from rowtier.profile.growing import GrowingTable, GrowingVocabulary, IdFeature
from rowtier.profile.ids import Where, flat_ids
from rowtier.profile.vocabulary import Vocabulary
from rowtier.tables import Table


def growing(rows: int = 8, **given: object) -> Table:
    given = {"num_shared": 2, "features": ("a", "b"), "ids": "grow", **given}
    return Table(name="t", num_embeddings=rows, embedding_dim=4, **given)  # type: ignore[arg-type]


def features_of(samples: list[list[list[object]]], strings: bool) -> list[IdFeature]:
    found = []
    for at, name in enumerate("ab"):
        bags = [sample[at] for sample in samples]
        ids = [str(key) if strings else key for bag in bags for key in bag]
        edges = np.concatenate(([0], np.cumsum([len(bag) for bag in bags]))).astype(np.int64)
        values = pa.array(ids, pa.large_string()) if strings else np.array(ids, dtype=np.int64)
        found.append(IdFeature(name, values, edges))
    return found


ids = st.lists(st.integers(-3, 12), max_size=4)
batches = st.lists(st.lists(st.tuples(ids, ids).map(list), max_size=4), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    batches,
    st.sampled_from(["lru", "lfu", "never"]),
    st.sampled_from([1, 3]),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 2),
)
def test_a_growing_vocabulary_is_that_of_a_dict(
    batches: list[list[list[list[int]]]],
    evict: str,
    admit_after: int,
    known: int,
    strings: bool,
    waiting: int,
) -> None:
    table = growing(evict=evict, admit_after=admit_after)
    first = [str(key) if strings else key for key in range(known)]
    start = Vocabulary(flat_ids(first, Where())[0], np.arange(known, 0, -1))
    words = GrowingVocabulary.of(table, start if known or not strings else None)
    if words.strings != strings:
        return  # without any ids nobody knows that they are strings
    real = GrowingTable.of(words)

    def shared(key: object) -> int:
        return int(words.shared(words.keys_of(flat_ids([key], Where())[0]))[0])

    naive = NaiveGrowth(
        table.num_own, admit_after=admit_after, evict=evict, start=first,
        start_counts=list(range(known, 0, -1)), shared=shared,
    )  # fmt: skip
    for clock, samples in enumerate(batches, start=1):
        oldest = max(1, clock - waiting)
        features = features_of(samples, strings)
        rows = real.resolve(features, clock, oldest)
        spelled = [[[str(k) if strings else k for k in bag] for bag in s] for s in samples]
        wanted = naive.batch(spelled, oldest)
        for at in range(2):
            assert rows[at].tolist() == [row for sample in wanted for row in sample[at]]
    assert words.size == len(naive.rows)
    for key, row in naive.rows.items():
        assert words.find(words.keys_of(flat_ids([key], Where())[0])).tolist() == [row]


def test_a_sketch_counts_close_and_forgets() -> None:
    table = growing(1000, admit_after=3, features=("a",))
    real = GrowingTable.of(GrowingVocabulary.of(table))
    once = np.arange(3000, dtype=np.int64)
    for clock, ids in enumerate((once, once + 10_000, once + 20_000), start=1):
        edges = np.arange(len(ids) + 1)
        rows = real.resolve([IdFeature("a", ids, edges)], clock, clock)[0]
        assert (rows >= table.num_own).mean() > 0.99
    for _ in range(20):
        clock += 1
        fresh = 100_000 * clock + np.arange(9000)
        real.resolve([IdFeature("a", fresh, np.arange(9001))], clock, clock)
    assert real.vocabulary.size < 900  # of 189 000 ids that came once


def test_ids_of_another_kind_are_refused() -> None:
    real = GrowingTable.of(GrowingVocabulary.of(growing()))
    values = pa.array(["x"], pa.large_string())
    with pytest.raises(UserError, match="'a' holds strings, and the vocabulary of table 't'"):
        real.resolve([IdFeature("a", values, np.array([0, 1]))], 1, 1)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"num_shared": 0}, "num_shared: 0: must be 1 or more"),
        ({"num_shared": 8}, "num_shared: 8: must be less than num_embeddings, 8"),
        ({"capacity": 9}, "capacity is the same as num_embeddings"),
        ({"min_count": 2}, "min_count: 2: is for a vocabulary"),
        ({"ids": "vocabulary", "evict": "lru"}, "evict: 'lru': is for a vocabulary.*`ids: grow`"),
        ({"ids": "hash", "admit_after": 2}, "admit_after: 2: is for a vocabulary"),
        ({"admit_after": 70_000}, "admit_after"),
    ],
)
def test_a_growing_table_is_checked(given: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        growing(**{"ids": "grow", **given})  # type: ignore[arg-type]


def test_rows_may_be_called_a_capacity() -> None:
    data = {"name": "t", "capacity": 8, "embedding_dim": 4, "features": ["a"], "ids": "grow"}
    assert Table.model_validate(data).num_embeddings == 8

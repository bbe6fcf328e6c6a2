"""Ids become rows in one way, wherever that happens: here against a naive twin, id by id."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import rowtier
from rowtier import ProfileOptions, Table, Tables, UserError, Vocabulary, make_profile, rows_of
from rowtier.evaluate.batches import StepSamples, StepWindow, bags_of
from rowtier.profile.count_ids import IdCounter
from rowtier.profile.readers.base import Chunk, Ids

Id = int | str | None
MAPPINGS = ("as_is", "modulo", "hash", "hashed", "vocabulary")
INTS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 14)
LARGE = st.integers(0, 2**64 - 1) | st.integers(2**63, 2**64 - 1)
WORDS = st.text("aé😀b", max_size=3) | st.text(max_size=40)


def table_of(**changes: Any) -> Table:
    base = {"name": "t", "num_embeddings": 10, "embedding_dim": 2, "features": ("f",)}
    return Table.model_validate({**base, **changes})


@st.composite
def tables(draw: st.DrawFn, strings: bool = False) -> Table:
    """A table of any kind that can take such ids."""
    ids = draw(st.sampled_from(("hash", "vocabulary") if strings else MAPPINGS))
    policies = ["drop", "hash"] + (["clip"] if ids != "vocabulary" else [])
    changes: dict[str, Any] = {"ids": ids, "on_out_of_range": draw(st.sampled_from(policies))}
    changes["num_embeddings"] = draw(st.integers(4, 20))
    changes["hash_seed"] = draw(st.sampled_from([0, 7]))
    if ids == "vocabulary":
        changes["num_shared"] = draw(st.integers(0, 3))
        changes["min_count"] = draw(st.integers(1, 3))
    return table_of(**changes)


@st.composite
def columns(draw: st.DrawFn) -> tuple[Table, list[Id]]:
    """A table and a column of ids for it, with nulls."""
    kind = draw(st.sampled_from([INTS, LARGE, WORDS]))
    table = draw(tables(strings=kind is WORDS))
    few: st.SearchStrategy[Any] = st.none() | st.sampled_from(draw(st.lists(kind, min_size=1)))
    return table, draw(st.lists(few, max_size=40))


def naive_hash(value: int | str, seed: int) -> int:
    if isinstance(value, str):
        return xxhash.xxh64_intdigest(value.encode(), seed)
    return xxhash.xxh64_intdigest((value % 2**64).to_bytes(8, "little"), seed)


def naive_vocabulary(table: Table, ids: list[Id]) -> list[int | str]:
    counts = Counter(value for value in ids if value is not None)
    often = [value for value, count in counts.items() if count >= table.min_count]

    def key(value: int | str) -> tuple[int, Any]:
        return -counts[value], value.encode() if isinstance(value, str) else value

    return sorted(often, key=key)[: table.num_embeddings - table.num_shared]


def naive_row(table: Table, value: Id, known: list[int | str]) -> int:
    """The row of one id; −1 is no lookup."""
    rows, seed = table.num_embeddings, table.hash_seed
    if value is None:
        return -1
    if table.ids == "hash":
        return naive_hash(value, seed) % rows
    if table.ids == "vocabulary":
        if value in known:
            return known.index(value)
        if table.num_shared:
            return rows - table.num_shared + naive_hash(value, seed) % table.num_shared
    else:
        assert isinstance(value, int)
        if table.ids == "hashed":
            return value % 2**64 % rows
        if table.ids == "modulo" or 0 <= value < rows:
            return value % rows
    if table.on_out_of_range == "drop":
        return -1
    if table.on_out_of_range == "hash":
        return naive_hash(value, seed) % rows
    assert isinstance(value, int)
    return min(max(value, 0), rows - 1)


def vocabulary_of(table: Table, ids: list[Id]) -> Vocabulary | None:
    if table.ids != "vocabulary":
        return None
    counter = IdCounter(table)
    counter.add(column(ids).values, "f", "data")
    return counter.finish()


def column(ids: list[Id]) -> Ids:
    """Ids as readers give them."""
    there = [value for value in ids if value is not None]
    lengths = np.array([value is not None for value in ids], dtype=np.int64)
    if there and isinstance(there[0], str):
        return Ids(pa.array(there, pa.large_string()), lengths)
    wide = any(isinstance(value, int) and value >= 2**63 for value in there)
    return Ids(np.array(there, dtype=np.uint64 if wide else np.int64), lengths)


def forms(ids: list[Id]) -> list[Any]:
    """The same column in all types that can hold it."""
    found: list[Any] = [ids, np.array([*ids, None], dtype=object)[:-1]]
    there = [value for value in ids if value is not None]
    if all(isinstance(value, str) for value in there):
        found += [pa.array(ids, pa.string()), pa.array(ids, pa.large_string())]
        found.append(pa.array(ids, pa.string()).dictionary_encode())
        found.append(pa.chunked_array([ids[:3], ids[3:]], pa.string()))
        if len(there) == len(ids):
            found.append(np.array(ids, dtype=str))
    else:
        wide = any(isinstance(value, int) and value >= 2**63 for value in there)
        found.append(pa.array(ids, pa.uint64() if wide else pa.int64()))
        if len(there) == len(ids):
            found.append(np.array(ids, dtype=np.uint64 if wide else np.int64))
    return found


@settings(deadline=None)  # the first call compiles
@given(columns())
def test_rows_are_those_of_the_naive_twin_for_every_form_of_a_column(
    drawn: tuple[Table, list[Id]],
) -> None:
    table, ids = drawn
    vocabulary = vocabulary_of(table, ids)
    known = naive_vocabulary(table, ids)
    if vocabulary is not None:
        listed = vocabulary.ids.tolist() if not vocabulary.strings else vocabulary.ids.to_pylist()
        assert listed == known
    expected = [naive_row(table, value, known) for value in ids]
    for form in forms(ids):
        assert rows_of(table, form, vocabulary).tolist() == expected


@settings(deadline=None)  # the first call compiles
@given(columns())
def test_profile_and_replay_take_the_same_rows(drawn: tuple[Table, list[Id]]) -> None:
    table, ids = drawn
    vocabulary = vocabulary_of(table, ids)
    rows = rows_of(table, ids, vocabulary)
    chunk = Chunk(len(ids), {"f": column(ids)})
    window = StepWindow(chunk, "data", 0, (StepSamples(0, 0, len(ids), 0),), 1.0)
    bags = bags_of(table, "f", window, vocabulary)
    assert bags.rows.tolist() == rows[rows >= 0].tolist()
    assert bags.lengths.tolist() == (rows >= 0).astype(int).tolist()
    if not any(value is not None for value in ids):
        return
    profile = make_profile([{"f": ids}], Tables(batch_size=1, tables=(table,)))
    counts = profile["t"].counts
    assert counts is not None
    found = dict(zip(counts.rows.tolist(), counts.counts.tolist(), strict=True))
    assert found == dict(Counter(rows[rows >= 0].tolist()))
    assert not list(profile["t"].mistakes())
    if vocabulary is not None:
        kept = profile["t"].vocabulary
        assert kept is not None
        assert kept.fingerprint == vocabulary.fingerprint


@settings(deadline=None)  # the first call compiles
@given(st.lists(WORDS), st.sampled_from([0, 3, 2**62]))
def test_hashed_ids_are_not_hashed_again(words: list[str], seed: int) -> None:
    hashes = np.array([naive_hash(word, seed) for word in words], dtype=np.uint64)
    by_word = rows_of(table_of(ids="hash", hash_seed=seed), words)
    for form in (hashes, hashes.view(np.int64)):
        assert rows_of(table_of(ids="hashed"), form).tolist() == by_word.tolist()


@pytest.mark.parametrize("width", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("mapping", ["as_is", "modulo", "hash", "hashed"])
def test_ids_of_any_width_give_the_same_rows(width: str, mapping: Any) -> None:
    ids = np.array([[0, 5], [9, 120]])
    table = table_of(num_embeddings=1000, ids=mapping)
    found = rows_of(table, ids.astype(width))
    assert found.dtype == np.int64
    assert found.tolist() == rows_of(table, ids).tolist()


def test_an_id_above_63_bits_does_not_wrap() -> None:
    ids = np.array([3, 2**63 + 5], dtype=np.uint64)
    with pytest.raises(UserError, match=rf"id {2**63 + 5} in sample 1 .*rows 0 to 9"):
        rows_of(table_of(), ids)
    assert rows_of(table_of(on_out_of_range="clip"), ids).tolist() == [3, 9]
    assert rows_of(table_of(on_out_of_range="drop"), ids).tolist() == [3, -1]
    assert rows_of(table_of(ids="modulo"), ids).tolist() == [3, (2**63 + 5) % 10]
    with pytest.raises(UserError, match=str(2**63 + 5)):
        make_profile([{"f": ids}], Tables(batch_size=1, tables=(table_of(),)))


@pytest.mark.parametrize("mapping", ["as_is", "modulo", "hashed"])
def test_strings_are_refused_by_tables_that_cannot_take_them(mapping: Any) -> None:
    with pytest.raises(UserError, match=r"column 'f' holds strings such as 'x'.*`ids: hash`"):
        rows_of(table_of(ids=mapping), ["x", "y"])


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([1.5], "double"),
        ([1, "a"], "no id"),
        (np.array([0.5]), "float64"),
        (pa.array([b"x"]), "binary"),
        ([-1, 2**63], "no id"),
    ],
)
def test_what_is_no_id_is_named(ids: Any, words: str) -> None:
    with pytest.raises(UserError, match=rf"column 'f' holds .*{words}.*whole numbers .*strings"):
        rows_of(table_of(ids="hash"), ids)


def test_lists_are_refused_where_one_id_a_sample_is_expected() -> None:
    with pytest.raises(UserError, match="holds lists; give the ids of all samples"):
        rows_of(table_of(ids="hash"), [["a"], ["b", "c"]])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"min_count": 2}, "min_count: 2: is for a vocabulary.*`ids: vocabulary`"),
        ({"ids": "hash", "num_shared": 4}, "num_shared: 4: is for a vocabulary"),
        ({"ids": "vocabulary", "num_shared": 10}, "num_shared: 10: must be less than num_emb"),
        ({"ids": "vocabulary", "num_embeddings": 1}, "num_shared: 1: must be less than"),
        ({"ids": "vocabulary", "on_out_of_range": "clip"}, "no nearest row; write error, drop"),
        ({"ids": "vocabulary", "min_count": 0}, "min_count"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        table_of(**changes)


def test_an_option_for_all_tables_is_kept_in_the_profile() -> None:
    data = [{"f": np.array([1, 50])}]
    tables = Tables(batch_size=1, tables=(table_of(),))
    profile = make_profile(data, tables, ProfileOptions(on_out_of_range="drop"))
    assert profile["t"].table.on_out_of_range == "drop"
    assert profile.tables == tables.with_policy("drop")
    words = Tables(batch_size=1, tables=(table_of(ids="vocabulary"),))
    with pytest.raises(UserError, match=r"table 't'.*no nearest row"):
        make_profile(data, words, ProfileOptions(on_out_of_range="clip"))


def test_an_id_that_a_vocabulary_without_shared_rows_lacks_is_named() -> None:
    table = table_of(ids="vocabulary", num_shared=0, min_count=2)
    tables = Tables(batch_size=1, tables=(table,))
    data = [{"f": ["a", "a", None, "b"]}]
    with pytest.raises(UserError, match=r"batches: feature 'f' has id 'b' in sample 3.*num_shared"):
        make_profile(data, tables)
    dropped = make_profile(data, tables, ProfileOptions(on_out_of_range="drop"))
    assert dropped["t"].lookups == 2


def test_numbers_and_strings_do_not_mix_in_a_vocabulary() -> None:
    table = table_of(ids="vocabulary", features=("f", "g"))
    tables = Tables(batch_size=1, tables=(table,))
    with pytest.raises(UserError, match=r"'g' holds strings.*holds whole numbers"):
        make_profile([{"f": [1], "g": ["a"]}], tables)
    words = Vocabulary(["a", "b"], np.array([2, 1]))
    with pytest.raises(UserError, match=r"holds whole numbers, and the vocabulary .* strings"):
        rows_of(table, [1, 2], words)
    with pytest.raises(UserError, match=r"takes ids by a vocabulary, and there is none"):
        rows_of(table, [1, 2])
    with pytest.raises(UserError, match="below 0 and ids above"):
        make_profile([{"f": [-1], "g": np.array([2**63], np.uint64)}], tables)


def test_rows_of_a_plan_are_those_of_its_table() -> None:
    table = table_of(ids="vocabulary")
    profile = make_profile([{"f": ["a", "b", "a"]}], Tables(batch_size=1, tables=(table,)))
    tier = rowtier.Tier(name="ram", capacity_bytes=2**30, bandwidth_bytes_per_s=1e9)
    cluster = rowtier.Cluster(name="one", device=rowtier.Device(tiers=(tier,)))
    plan = rowtier.make_plan(profile, cluster, "row-wise")
    assert plan.rows_of("t", ["b", "a", None, "new"]).tolist() == [1, 0, -1, 9]
    with pytest.raises(UserError, match="no table 'u'; it has t"):
        plan.rows_of("u", ["a"])

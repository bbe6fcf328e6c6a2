from __future__ import annotations

import json
import os
import pickle
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reader_helpers import chunks_of, lists_of, numbers_of, plain, refused, samples_of

from rowtier.errors import InvalidError, UserError
from rowtier.profile.readers import Columns, DataPart, open_source
from rowtier.profile.readers.arrays import from_arrow

NUMBERS = st.integers(0, 100)
WORDS = st.sampled_from(["", "a", "bc", "ß", "x" * 20])


LISTS = st.none() | st.lists(st.none() | NUMBERS, max_size=4)
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.none() | NUMBERS),
    (pa.uint16(), st.none() | NUMBERS),
    (pa.int32(), NUMBERS),
    (pa.int64(), st.none() | NUMBERS),
    (pa.int64(), NUMBERS),
    (pa.uint64(), st.none() | NUMBERS),
    (pa.list_(pa.int64()), LISTS),
    (pa.list_(pa.int64()), st.lists(NUMBERS, max_size=4)),
    (pa.large_list(pa.int32()), LISTS),
    (pa.list_(pa.int64(), 2), st.none() | st.lists(NUMBERS, min_size=2, max_size=2)),
    (pa.list_(pa.int64(), 1), st.lists(NUMBERS, min_size=1, max_size=1)),
    (pa.string(), st.none() | WORDS),
    (pa.large_string(), WORDS),
    (pa.string_view(), st.none() | WORDS),
    (pa.dictionary(pa.int8(), pa.string()), st.none() | WORDS),
    (pa.list_(pa.string()), st.none() | st.lists(st.none() | WORDS, max_size=3)),
    (pa.null(), st.none()),
]


def array_of(entries: list[Any], kind: pa.DataType) -> pa.Array:
    plain_kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.array(entries, plain_kind).cast(kind)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Columns of any kind that can hold ids, all of the same length."""
    samples = draw(st.integers(0, 12))
    found = {}
    for index in range(draw(st.integers(1, 3))):
        kind, entry = draw(st.sampled_from(KINDS))
        entries = draw(st.lists(entry, min_size=samples, max_size=samples))
        found[f"f{index}"] = array_of(entries, kind)
    return pa.table(found)


@settings(max_examples=150, deadline=None)
@given(tables(), st.data())
def test_any_columns_in_any_row_groups_read_as_plain_python_does(
    tmp_path_factory: pytest.TempPathFactory, table: pa.Table, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("any")
    cuts = data.draw(st.lists(st.integers(0, len(table)), max_size=2).map(sorted))
    bounds = [0, *cuts, len(table)]
    for number, (start, stop) in enumerate(pairwise(bounds)):
        size = data.draw(st.integers(1, 6))
        pq.write_table(table[start:stop], folder / f"{number}.parquet", row_group_size=size)
    wanted = table.column_names[: data.draw(st.integers(1, 3))]

    source = open_source(folder, wanted)

    assert source.samples == len(table)
    assert source.ordered
    expected = {name: [plain(v) for v in table[name].to_pylist()] for name in wanted}
    assert samples_of(source, wanted) == expected
    assert numbers_of(source, wanted) == list(range(len(table)))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(KINDS), st.data())
def test_slices_and_chunks_of_arrow_arrays_give_only_their_own_ids(
    made: tuple[pa.DataType, st.SearchStrategy[Any]], data: st.DataObject
) -> None:
    kind, entry = made
    entries = data.draw(st.lists(entry, max_size=9))
    array = array_of(entries, kind)
    start = data.draw(st.integers(0, len(array)))
    middle = data.draw(st.integers(start, len(array)))
    stop = data.draw(st.integers(middle, len(array)))
    column = pa.chunked_array([array[start:middle], array[middle:stop]], kind)

    found = lists_of(from_arrow(column, "memory", "f"))

    assert found == [plain(value) for value in entries[start:stop]]


def test_null_lists_that_cover_values_do_not_count_them() -> None:
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 2, 4, 5], pa.int32()),
        pa.array([1, 2, 3, 4, 5]),
        mask=pa.array([False, True, False]),
    )
    found = from_arrow(pa.chunked_array([hidden]), "memory", "f")
    assert lists_of(found) == [[1, 2], [], [5]]


def test_a_null_inside_a_dictionary_is_a_missing_value() -> None:
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None]))
    assert lists_of(from_arrow(pa.chunked_array([encoded]), "memory", "f")) == [["a"], [], []]


def test_plain_integers_are_not_copied() -> None:
    array = pa.array(np.arange(1000))
    found = from_arrow(pa.chunked_array([array]), "memory", "f")
    assert found.lengths is None
    assert found.values.__array_interface__["data"][0] == array.buffers()[1].address


def write(path: Path, table: dict[str, Any] | pa.Table, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = table if isinstance(table, pa.Table) else pa.table(table)
    pq.write_table(table, path, **options)
    return path


def test_hive_folders_are_read_in_order_and_their_keys_are_features(tmp_path: Path) -> None:
    nowhere = "country=__HIVE_DEFAULT_PARTITION__"
    for day, country, ids in (
        (1, "country=de", [1, 2]),
        (1, "country=new%20zealand", [3]),
        (2, nowhere, [4, 5]),
    ):
        write(tmp_path / f"day={day}" / country / "part-0.parquet", {"item": ids})
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".crc").write_text("x")
    (tmp_path / "README.md").write_text("what this is")

    source = open_source(tmp_path, ["item", "day", "country"])

    assert set(source.features) == {"item", "day", "country"}
    assert samples_of(source, ["item", "day", "country"]) == {
        "item": [[1], [2], [3], [4], [5]],
        "day": [[1], [1], [1], [2], [2]],
        "country": [["de"], ["de"], ["new zealand"], [], []],
    }
    assert numbers_of(source, ["item"]) == list(range(5))


def test_patterns_and_lists_of_paths(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write(tmp_path / "x" / f"{name}.parquet", {"f": [ord(name)]})
    both = [[ord("a")], [ord("b")]]
    assert samples_of(open_source(f"{tmp_path}/**/[ab].parquet", ["f"]), ["f"])["f"] == both
    listed = [tmp_path / "x" / "b.parquet", str(tmp_path / "x" / "a.parquet")]
    assert samples_of(open_source(listed, ["f"]), ["f"])["f"] == both


def test_parquet_is_known_by_its_content_too(tmp_path: Path) -> None:
    write(tmp_path / "000000_0", {"f": [1, 2]})
    assert samples_of(open_source(tmp_path, ["f"]), ["f"])["f"] == [[1], [2]]


def test_parts_are_row_groups_and_survive_json(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"f": list(range(10))}, row_group_size=4)
    write(tmp_path / "b.parquet", {"f": list(range(3))})
    source = open_source(tmp_path, ["f"])
    assert [(p.piece, p.first_sample, p.samples) for p in source.parts] == [
        (0, 0, 4),
        (1, 4, 4),
        (2, 8, 2),
        (0, 10, 3),
    ]
    assert all(part.weight_bytes > 0 for part in source.parts)
    assert (
        tuple(DataPart(**json.loads(json.dumps(asdict(p)))) for p in source.parts) == source.parts
    )


def test_a_source_can_be_pickled_before_and_after_reading(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"f": [1, 2]})
    source = open_source(tmp_path, ["f"])
    for _ in range(2):
        copy = pickle.loads(pickle.dumps(source))
        assert samples_of(copy, ["f"])["f"] == [[1], [2]]
        samples_of(source, ["f"])


def test_threads_may_share_a_source(tmp_path: Path) -> None:
    for name in "abcd":
        write(tmp_path / f"{name}.parquet", {"f": list(range(5000))}, row_group_size=100)
    source = open_source(tmp_path, ["f"])

    def total(part: DataPart) -> int:
        return sum(int(chunk.features["f"].values.sum()) for chunk in source.read(part, ["f"]))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(total, source.parts)) == 4 * sum(range(5000))


def test_only_asked_columns_are_decoded_and_each_one_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.parquet", {"f": [1, 2, 3], "g": [4, 5, 6], "unused": [0, 0, 0]})
    decoded = []
    real = pq.ParquetFile.read_row_group

    def spy(self: Any, group: int, columns: list[str], **options: Any) -> Any:
        decoded.extend(columns)
        return real(self, group, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", spy)
    source = open_source(tmp_path, ["f", "g"])
    chunks = chunks_of(source, ["f", "g"])
    assert decoded == []
    assert [lists_of(chunk.features["f"]) for chunk in chunks] == [[[1], [2], [3]]]
    assert [lists_of(chunk.features["g"]) for chunk in chunks] == [[[4], [5], [6]]]
    assert decoded == ["f", "g"]
    cut = chunks[0].cut(1, 3)
    assert decoded == ["f", "g"]
    assert lists_of(cut.features["f"]) == [[2], [3]]
    assert (cut.first_sample, cut.samples) == (1, 2)


def test_columns_know_their_names() -> None:
    columns = Columns(["a"], lambda name: pytest.fail(name))
    assert (len(columns), list(columns), "a" in list(columns)) == (1, ["a"], True)
    with pytest.raises(KeyError):
        columns["b"]


def test_names_with_dots_are_single_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"a": [1], "a.b": [2]})
    assert samples_of(open_source(path, ["a", "a.b"]), ["a", "a.b"]) == {"a": [[1]], "a.b": [[2]]}


def test_files_without_rows_have_no_parts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"f": pa.array([], pa.int64())})
    source = open_source(path, ["f"])
    assert (source.parts, source.samples) == ((), 0)


def test_a_missing_column_names_its_neighbours(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"user_id": [1], "item_id": [1]})
    refused(path, ["user", "Item_ID"], str(path), "2 mistakes", "user", "did you mean 'user_id'?")
    refused(path, ["zzzz"], "there are user_id, item_id")
    other = write(tmp_path / "b.parquet", {"user_id": [1]})
    refused(tmp_path, ["item_id"], str(other), "item_id")


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1.5]),
        pa.array([True]),
        pa.array([{"a": 1}]),
        pa.array([[[1]]]),
        pa.array([b"x"]),
        pa.array([[1.5]]),
        pa.array([[1]], pa.list_view(pa.int64())),
    ],
    ids=lambda array: str(array.type),
)
def test_a_column_that_cannot_hold_ids_is_refused(tmp_path: Path, array: pa.Array) -> None:
    path = write(tmp_path / "a.parquet", pa.table({"f": array}))
    refused(path, ["f"], str(path), "f", str(array.type)[:4], "int8 to uint64", "cast")


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["f", "f"])
    refused(write(tmp_path / "a.parquet", table), ["f"], "two columns", "rename")


def test_a_feature_is_of_one_kind_in_all_files(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"f": [1]})
    second = write(tmp_path / "b.parquet", {"f": ["x"]})
    refused(tmp_path, ["f"], str(second), "string", "is int in", "a.parquet")
    write(tmp_path / "b.parquet", pa.table({"f": pa.nulls(2)}))
    assert samples_of(open_source(tmp_path, ["f"]), ["f"])["f"] == [[1], [], []]


def test_ids_above_63_bits_keep_their_value(tmp_path: Path) -> None:
    big = pa.chunked_array([[1, 2], [2**63, None], [2**64 - 1]], pa.uint64())
    path = write(tmp_path / "a.parquet", {"f": big})
    found = samples_of(open_source(path, ["f"]), ["f"])["f"]
    assert found == [[1], [2], [2**63], [], [2**64 - 1]]
    assert from_arrow(big, path, "f").values.dtype == np.uint64


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"f": list(range(1000))})
    whole = path.read_bytes()
    for size in (0, 3, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        refused(path, ["f"], str(path), "cut off or damaged", "write it anew")


def test_damaged_pages_name_file_column_and_row_group(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet",
        {"f": np.arange(2000)},
        row_group_size=1000,
        compression="zstd",
        use_dictionary=False,
    )
    at = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    raw = bytearray(path.read_bytes())
    raw[at : at + 200] = bytes(200)
    path.write_bytes(raw)
    refused(path, ["f"], str(path), "f in row group 1", "damaged")


def test_a_file_that_vanishes_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"f": [1]})
    source = open_source(path, ["f"])
    path.unlink()
    with pytest.raises(UserError, match=r"a\.parquet: the file vanished"):
        samples_of(source, ["f"])


def test_a_file_that_vanishes_between_two_row_groups_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"f": [1, 2]}, row_group_size=1)
    source = open_source(path, ["f"])
    list(source.read(source.parts[0], ["f"]))
    path.unlink()
    with pytest.raises(UserError, match="vanished"):
        list(source.read(source.parts[1], ["f"]))


def test_a_file_that_changes_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"f": [1, 2]}, row_group_size=1)
    source = open_source(path, ["f"])
    write(path, {"f": [1, 2, 3]})
    with pytest.raises(UserError, match=r"a\.parquet: the file changed"):
        samples_of(source, ["f"])


def test_a_part_that_does_not_fit_the_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"f": [1, 2]}, row_group_size=1)
    source = open_source(path, ["f"])
    for strange in ({"piece": 2}, {"samples": 5}):
        part = DataPart(**{**asdict(source.parts[0]), **strange})
        with pytest.raises(UserError, match="changed"):
            list(source.read(part, ["f"]))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root to be someone else")
def test_a_file_without_permission_is_named_to_others_than_root() -> None:
    folder = Path(tempfile.mkdtemp())  # unlike tmp_path, in a folder that anyone may enter
    folder.chmod(0o755)
    path = write(folder / "a.parquet", {"f": [1]})
    source = open_source(path, ["f"])
    path.chmod(0)
    os.seteuid(65534)
    try:
        with pytest.raises(UserError, match="no permission"):
            open_source(path, ["f"])
        with pytest.raises(UserError, match="no permission"):
            samples_of(source, ["f"])
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"f": [1]})
    path.chmod(0)
    refused(path, ["f"], str(path), "no permission", "chmod")


def test_all_mistakes_of_a_file_are_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"f": [1.5], "g": [1]})
    with pytest.raises(InvalidError) as caught:
        open_source(path, ["f", "h"])
    assert [mistake.key for mistake in caught.value.mistakes] == ["f", "h"]

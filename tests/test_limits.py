"""Files that nobody vouches for: refused quickly, by file and key, in little memory."""

import json
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from bad_entries import CLUSTER, TABLES
from cli.run import run

import rowtier
from rowtier import fields, reading
from rowtier.cluster import Cluster
from rowtier.errors import InvalidError, UserError
from rowtier.profile.columns import read_columns
from rowtier.profile.make import ProfileOptions, make_profile
from rowtier.reading import read_mapping
from rowtier.tables import Tables

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("laughs.yaml", LAUGHS, "aliases expanded"),
        ("itself.yaml", "a: &a [1, *a]", "line 1: the alias 'a' holds itself"),
        ("tag.yaml", "a: 1\nb: !!python/object/apply:os.system [ls]", "line 2: the tag"),
        ("bool.yaml", "a: !!bool maybe", "the tag"),
        ("set.yaml", "a: !!set {b}", "the tag"),
        ("deep.yaml", "a: " + "[" * 100_000, "more than 64 levels"),
        ("deep.json", '{"a": ' + "[" * 100_000, "recursion"),
        ("deeper.json", '{"a": ' + "[" * 70 + "]" * 70 + "}", "more than 64 levels"),
        ("long.yaml", "a: " + "x" * 70_000, "more than 65536 characters"),
        ("long.json", json.dumps({"a": ["x" * 70_000]}), "more than 65536 characters"),
        ("digits.yaml", "a: " + "9" * 5000, "more than 400 digits"),
        ("digits.json", '{"a": ' + "9" * 5000 + "}", "more than 64 bits"),
        ("bits.json", '{"a": 18446744073709551616}', "more than 64 bits"),
        ("nan.json", '{"a": NaN}', "NaN is no finite number"),
        ("infinite.json", '{"a": -Infinity}', "-Infinity is no finite number"),
        ("float.json", '{"a": 1e999}', "1e999 is no finite number"),
        ("half.json", '{"a": ["\\ud800"]}', "half a character"),
        ("twice.json", '{"a": 1, "a": 2}', "'a' is there twice"),
        ("documents.yaml", "a: 1\n---\nb: 2", "single document"),
        ("values.json", '{"a": [' + "1," * (reading.MOST_JSON_VALUES + 1) + "1]}", "is the most"),
    ],
)
def test_text_that_is_not_plain_data_is_refused(
    name: str, text: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    start = time.monotonic()
    with pytest.raises(InvalidError, match="mistake") as caught:
        read_mapping(tmp_path / name)
    assert says in str(caught.value)
    assert name in str(caught.value)
    assert time.monotonic() - start < 5  # it takes milliseconds; machines are busy


def test_values_up_to_64_bits_whole_characters_and_dates_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": [18446744073709551615, -9223372036854775808, 1e308]}')
    assert read_mapping(tmp_path / "a.json") == {"a": [2**64 - 1, -(2**63), 1e308]}
    (tmp_path / "b.json").write_text('{"a": "\\ud83d\\ude00"}')
    assert read_mapping(tmp_path / "b.json") == {"a": "\U0001f600"}
    (tmp_path / "c.yaml").write_text("a: &x [1, 2]\nb: *x\nc: 2016-01-31\nd: !!str 5")
    assert read_mapping(tmp_path / "c.yaml") == {
        "a": [1, 2], "b": [1, 2], "c": "2016-01-31", "d": "5",
    }  # fmt: skip


def test_a_file_without_an_end_is_refused() -> None:
    with pytest.raises(UserError, match="is a device where a file was expected"):
        read_mapping("/dev/zero")


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    with large.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(InvalidError, match="larger than 16 MiB"):
        read_mapping(large)


def test_the_plan_of_many_tables_on_many_devices_is_far_below_the_limits() -> None:
    band = {"start": 0, "stop": 100_000, "scope": "cluster", "tier": "hbm", "members": [1023]}
    text = json.dumps({f"table_{i}": [band, band] for i in range(5000)})
    values = text.count(",") + text.count("[") + text.count("{")
    assert 100 * values < reading.MOST_JSON_VALUES * 2
    assert 100 * len(text) < reading.MOST_JSON_BYTES


def test_a_table_of_more_bytes_than_can_be_added_up_is_refused() -> None:
    with pytest.raises(ValueError, match=f"{fields.MOST_BYTES} is the most"):
        rowtier.Table(name="t", num_embeddings=2**46, embedding_dim=2**14, features=("t",))


def _changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    data = json.loads(json.dumps(data))
    inside = data
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("noun", "path", "value", "limit"),
    [
        (Tables, ("batch_size",), 2**62, fields.MOST_BATCH),
        (Tables, ("tables", 0, "num_embeddings"), 4_600_000_000_000_000_000, fields.MOST_ROWS),
        (Tables, ("tables", 0, "num_embeddings"), "999P", fields.MOST_ROWS),
        (Tables, ("tables", 0, "embedding_dim"), 2**40, fields.MOST_COLUMNS),
        (Tables, ("tables", 0, "features"), [f"f{i}" for i in range(5000)], fields.MOST_FEATURES),
        (Cluster, ("levels", 0, "size"), 10**12, fields.MOST_DEVICES),
        (Cluster, ("levels", 0, "size"), fields.MOST_DEVICES, fields.MOST_DEVICES),  # with 2 nodes
        (Cluster, ("device", "tiers", 0, "granularity"), "1e30B", 2**63 - 1),
        (Cluster, ("device", "tiers", 0, "granularity"), "2GiB", fields.MOST_GRANULARITY_BYTES),
        (Cluster, ("device", "tiers", 0, "capacity"), "2048PiB", fields.MOST_BYTES),
        (Cluster, ("levels", 0, "latency"), "2000000000s", int(fields.MOST_SECONDS)),
        (Cluster, ("device", "tiers"), CLUSTER["device"]["tiers"] * 9, fields.MOST_TIERS),
    ],
)
def test_what_is_beyond_a_limit_is_refused_with_it(
    noun: Any, path: tuple[Any, ...], value: Any, limit: int, tmp_path: Path
) -> None:
    base = TABLES if noun is Tables else CLUSTER
    (tmp_path / "file.yaml").write_text(yaml.safe_dump(_changed(base, path, value)))
    with pytest.raises(InvalidError) as caught:
        noun.load(tmp_path / "file.yaml")
    assert str(path[0]) in str(caught.value)
    assert str(limit) in str(caught.value)


def test_servers_by_the_billion_are_refused_with_the_limit(tmp_path: Path) -> None:
    server = {"name": "s", "level": "node", "count": 2**16, "tiers": CLUSTER["device"]["tiers"][:1]}
    (tmp_path / "many.yaml").write_text(yaml.safe_dump({**CLUSTER, "servers": [server]}))
    with pytest.raises(InvalidError, match=r"servers: 131072: servers in all, and 65536"):
        Cluster.load(tmp_path / "many.yaml")
    server["count"] = 10**9
    (tmp_path / "billion.yaml").write_text(yaml.safe_dump({**CLUSTER, "servers": [server]}))
    with pytest.raises(InvalidError, match=r"servers\[0\].count"):
        Cluster.load(tmp_path / "billion.yaml")


@pytest.mark.parametrize("name", ["a\u2028b", "a\x85b", "\x1b[31m", "x" * 201, ""])
def test_names_are_one_line_without_control_characters(name: str, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(_changed(TABLES, ("tables", 0, "name"), name)))
    with pytest.raises(InvalidError, match=r"tables\[0\].name"):
        Tables.load(tmp_path / "t.yaml")


def test_more_passes_than_make_sense_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"history": [1, 2]}), tmp_path / "d.parquet")
    table = rowtier.Table(name="t", num_embeddings=2**40, embedding_dim=4, features=("history",))
    tables = Tables(batch_size=1, tables=(table,))
    with pytest.raises(UserError, match=r"passes over the data.*allow at least"):
        make_profile(tmp_path / "d.parquet", tables, ProfileOptions(memory_bytes=2**20))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"first_sample": 10**30}, "first_sample"),
        ({"horizon": 1e300}, "horizon 1e+300: give a number above 0 and at most 1e+06"),
        ({"memory_bytes": 0}, "memory 0"),
    ],
)
def test_options_of_profiles_have_limits(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        ProfileOptions(**options)
    assert says in str(caught.value)


@pytest.mark.parametrize("samples", ["1000000000000000000", "0"])
def test_a_workload_of_too_many_samples_is_refused(samples: str, tmp_path: Path) -> None:
    code, _, errors = run("synth", "criteo", "--samples", samples, "-o", str(tmp_path / "out"))
    assert code == 2
    assert "samples" in errors


def _npz(path: Path, header: str) -> Path:
    padded = header.encode().ljust(117) + b"\n"
    raw = b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + bytes(80)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("history.npy", raw)
    return path


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<i8', 'fortran_order': False, 'shape': (1125899906842624,), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (10, 1125899906842624), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (-10,), }",
        "{'descr': '|V9000000000', 'fortran_order': False, 'shape': (10,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (10,), }",
    ],
)
def test_an_array_whose_size_lies_is_refused(header: str, tmp_path: Path) -> None:
    table = rowtier.Table(name="t", num_embeddings=9, embedding_dim=4, features=("history",))
    data = _npz(tmp_path / "d.npz", header)
    with pytest.raises(UserError, match="history"):
        make_profile(data, Tables(batch_size=1, tables=(table,)))


def test_a_time_that_is_an_array_of_objects_is_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    times = np.array([Trap(), Trap()], dtype=object)
    np.savez(tmp_path / "d.npz", history=np.array([1, 2]), time=times)
    table = rowtier.Table(name="t", num_embeddings=9, embedding_dim=4, features=("history",))
    options = ProfileOptions(before="2020-01-01", time="time")
    with pytest.raises(UserError, match="time"):
        make_profile(tmp_path / "d.npz", Tables(batch_size=1, tables=(table,)), options)
    assert not (tmp_path / "sprung").exists()


def test_a_small_parquet_file_of_very_many_rows_is_not_read(tmp_path: Path) -> None:
    rows = pa.table({"row": pa.array(np.zeros(2**22, dtype=np.int64))})
    pq.write_table(rows, tmp_path / "bomb.parquet", compression="zstd", row_group_size=2**22)
    assert (tmp_path / "bomb.parquet").stat().st_size < 2**15
    with pytest.raises(InvalidError, match="there can be at most"):
        read_columns(tmp_path / "bomb.parquet", {"row": pa.int64()})
    with pytest.raises(InvalidError, match="there can be at most 40"):
        read_columns(tmp_path / "bomb.parquet", {"row": pa.int64()}, most_rows=40)


@pytest.mark.parametrize("batch_size", [0, 2**62])
def test_a_prediction_for_a_batch_beyond_the_limit_is_refused(batch_size: int) -> None:
    with pytest.raises(UserError, match=f"at most {fields.MOST_BATCH}"):
        fields.check_batch_size(batch_size)

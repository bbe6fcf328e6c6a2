from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reader_helpers import chunks_of, numbers_of, refused, samples_of

from rowtier.errors import UserError
from rowtier.profile.readers import criteo, open_source

ALL = list(criteo.FEATURES)


def line(**given: str) -> str:
    fields = {"label": "0", **given}
    return "\t".join(fields.get(name, "") for name in criteo.COLUMNS)


FIELDS = st.fixed_dictionaries(
    {
        "label": st.sampled_from(["0", "1", "0.5", ""]),
        "I1": st.sampled_from(["", "0", "17", "-2", "+3"]),
        "C1": st.just("") | st.integers(0, 2**32 - 1).map(lambda v: f"{v:08x}"),
        "C2": st.just("") | st.integers(0, 2**63 - 1).map(lambda v: f"{v:X}"),
        "C26": st.just("") | st.integers(0, 255).map(lambda v: f"{v:x}"),
    }
)


def plain(lines: list[dict[str, str]], name: str) -> list[list[int]]:
    base = 10 if name.startswith("I") else 16
    return [[int(text, base)] if (text := fields.get(name, "")) else [] for fields in lines]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(FIELDS, max_size=30),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
    st.booleans(),
    st.integers(1, 4000),
    st.integers(1, 4000),
    st.booleans(),
)
def test_any_parts_and_blocks_give_every_line_once(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[dict[str, str]],
    ending: str,
    ends: bool,
    part_bytes: int,
    block_bytes: int,
    packed: bool,
) -> None:
    text = ending.join(line(**fields) for fields in lines) + (ending if ends and lines else "")
    path = tmp_path_factory.mktemp("criteo") / ("a.tsv.gz" if packed else "a.tsv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    wanted = ["C26", "I1", "C1", "C2", "C3"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(criteo, "PART_BYTES", part_bytes)
        patch.setattr(criteo, "BLOCK_BYTES", block_bytes)
        source = open_source(path, wanted)
        found = samples_of(source, wanted)
        numbers = numbers_of(source, wanted)
        counted = source.count_samples()
    assert found == {name: plain(lines, name) for name in wanted}
    assert numbers == list(range(len(lines)))
    assert counted == len(lines)
    assert source.samples == (len(lines) if len(source.parts) > 1 else None)


def test_the_lines_of_several_files_are_counted_first(tmp_path: Path) -> None:
    one = line(C1="a", C2="b") + "\n"
    (tmp_path / "day_0").write_text(one * 6)
    (tmp_path / "day_1").write_text(one * 4)
    source = open_source(tmp_path, ["C1"])
    assert [(p.first_sample, p.samples) for p in source.parts] == [(0, 6), (6, 4)]
    assert numbers_of(source, ["C1"]) == list(range(10))
    (tmp_path / "day_2.gz").write_bytes(gzip.compress((one * 3 + "\r\n\n" + one[:-1]).encode()))
    packed = open_source(tmp_path, ["C1"])
    assert [(p.first_sample, p.samples) for p in packed.parts] == [(0, 6), (6, 4), (10, 4)]
    assert packed.samples == 14
    assert sum(part.weight_bytes for part in source.parts) == len(one) * 10
    assert samples_of(pickle.loads(pickle.dumps(source)), ["C1"])["C1"] == [[10]] * 10


def test_one_gzipped_file_is_read_once_from_end_to_end(tmp_path: Path) -> None:
    lines = [line(C1=f"{i * 2654435761 % 2**32:x}", C2=f"{i:x}") for i in range(20_000)]
    path = tmp_path / "day_0.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    source = open_source(path, ["C1", "C2"])
    assert len(source.parts) == 1
    assert source.samples is None
    assert numbers_of(source, ["C1"]) == list(range(20_000))
    chunks = chunks_of(source, ["C1"])
    assert len(chunks) > 3
    assert chunks[-1].done == 1.0


def test_a_feature_in_every_line_needs_no_lengths(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(line(C1="a") + "\n" + line(C1="b", C2="c") + "\n")
    for chunk in chunks_of(open_source(path, ["C1", "C2"]), ["C1", "C2"]):
        assert chunk.features["C1"].lengths is None


def test_wrong_lines_are_named_by_file_line_column_and_value(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    good = line(C1="ab", I3="5") + "\n"
    for bad, wanted, words in [
        ("0\t1\n", ["C1"], ["line 8", "2 fields", "40"]),
        (line(C1="ab") + "\t7\n", ["C1"], ["line 8", "41 fields"]),
        (line(C1="xyz") + "\n", ["C1"], ["line 8, C1", "'xyz'", "hexadecimal"]),
        (line(C26="xyz") + "\n", ["C26"], ["line 8, C26", "'xyz'", "hexadecimal"]),
        (line(C5="a b") + "\n", ["C5"], ["line 8, C5", "'a b'"]),
        (line(C5="é") + "\n", ["C5"], ["line 8, C5", "'é'"]),
        (line(C5="a\rb") + "\n", ["C5"], ["line 8, C5"]),
        (line(I3="1.5") + "\n", ["I3"], ["line 8, I3", "'1.5'", "whole number"]),
        (line(I3="-") + "\n", ["I3"], ["line 8, I3", "'-'"]),
        (line(C1="8" + "0" * 15) + "\n", ["C1"], ["line 8, C1", "63 bits"]),
        (line(C1="0" * 17) + "\n", ["C1"], ["line 8, C1", "63 bits"]),
        (line(I1="9" * 19) + "\n", ["I1"], ["line 8, I1", "63 bits"]),
    ]:
        path.write_text(good * 7 + bad + good * 20, encoding="utf-8", newline="")
        message = refused(path, wanted, str(path), *words)
        path.with_suffix(".tsv.gz").write_bytes(gzip.compress(path.read_bytes()))
        packed = path.rename(tmp_path / "plain")
        assert message.replace("a.tsv", "") == refused(
            tmp_path / "a.tsv.gz", wanted, *words
        ).replace("a.tsv.gz", "")
        packed.unlink()


def test_line_numbers_count_from_the_start_of_the_file_not_of_the_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(criteo, "PART_BYTES", 300)
    monkeypatch.setattr(criteo, "BLOCK_BYTES", 100)
    path = tmp_path / "a.tsv"
    good = line(C1="ab") + "\n"
    path.write_text(good * 50 + "\n" + line(C1="zz") + "\n" + good * 5)
    assert len(open_source(path, ["C1"]).parts) > 5
    refused(path, ["C1"], "line 52, C1", "'zz'")


def test_a_header_is_not_taken_for_ids(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("\t".join(criteo.COLUMNS) + "\n" + line(C1="ab") + "\n")
    refused(path, ["C1"], "line 1, label", "'label'", "header")


def test_text_without_lines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criteo, "LONGEST_LINE", 5000)
    monkeypatch.setattr(criteo, "BLOCK_BYTES", 1000)
    path = tmp_path / "a.tsv"
    path.write_text("\t1" * 20_000)
    refused(path, ["C1"], str(path), "longer than 5000")
    packed = tmp_path / "b.tsv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    refused(packed, ["C1"], str(packed), "longer than 5000")


def test_unknown_features_are_refused_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(line(C1="ab") + "\n")
    with pytest.raises(UserError, match="C27"):
        open_source(path, ["C1", "C27"])
    refused(path, ["label"], str(path), "I1 to I13 and C1 to C26")


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-20], lambda raw: raw[:60] + bytes(40) + raw[100:]]
)
def test_damaged_gzip_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "a.tsv.gz"
    lines = "\n".join(line(C1=f"{i * 7919:x}") for i in range(500)) + "\n"
    path.write_bytes(damage(gzip.compress(lines.encode())))
    refused(path, ["C1"], str(path))
    assert "damaged" in refused(path, ["C1"]) or "fields" in refused(path, ["C1"])


def test_text_that_vanishes_or_changes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(line(C1="ab") + "\n")
    source = open_source(path, ["C1"])
    path.write_text(line(C1="ab") + "\n" + line(C1="ab") + "\n")
    with pytest.raises(UserError, match="changed"):
        samples_of(source, ["C1"])
    path.unlink()
    with pytest.raises(UserError, match="vanished"):
        samples_of(source, ["C1"])


def test_an_empty_file_has_no_samples(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").touch()
    assert samples_of(open_source(tmp_path, ["C1"]), ["C1"]) == {"C1": []}


@pytest.mark.parametrize("packed", [True, False])
def test_files_of_test_data_have_no_label(tmp_path: Path, packed: bool) -> None:
    lines = [line(C1=f"{i:x}", I1=f"-{i + 1}", C26="ff").split("\t", 1)[1] for i in range(50)]
    path = tmp_path / "test.tsv"
    text = "\r\n".join(["", *lines]).encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(criteo, "PART_BYTES", 300)
        found = samples_of(open_source(path, ALL), ALL)
    assert found["C1"] == [[i] for i in range(50)]
    assert found["I1"] == [[-i - 1] for i in range(50)]
    assert found["C26"] == [[255]] * 50
    assert found["C2"] == [[]] * 50


def test_lines_with_and_without_label_are_not_mixed_in_a_file(tmp_path: Path) -> None:
    full = line(C1="ab")
    path = tmp_path / "a.tsv"
    for first, other in ((full, full[2:]), (full[2:], full)):
        path.write_text(first + "\n" + other + "\n")
        count = other.count("\t") + 1
        refused(
            path, ["C1"], "line 2", f"{count} fields", f"first line of the file has {79 - count}"
        )
    path.write_text("\t".join(criteo.FEATURES) + "\n" + full[2:] + "\n")
    refused(path, ["C1"], "line 1, I1", "'I1'", "header")
    (tmp_path / "b.tsv").write_text(full[2:] + "\n")
    path.write_text(full + "\n")
    assert samples_of(open_source(tmp_path, ["C1"]), ["C1"])["C1"] == [[171]] * 2  # file by file

"""`rowtier export --rows-as`: rows for serving, by id, as safetensors and as Parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

torch = pytest.importorskip("torch", reason="torch is not installed")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

import pyarrow.parquet as pq  # noqa: E402
import xxhash  # noqa: E402
from cli.run import run  # noqa: E402
from runtime.checkpoint.test_export import TABLES, Model  # noqa: E402

import rowtier  # noqa: E402
from rowtier import Plan, Table, Tables, UserError, read_export  # noqa: E402
from rowtier.runtime.checkpoint import export_tables  # noqa: E402
from rowtier.runtime.checkpoint.export import export  # noqa: E402
from rowtier.runtime.checkpoint.row_forms import read_rows, stored_rows  # noqa: E402
from rowtier.runtime.deltas.delta import positions_in  # noqa: E402
from rowtier.torch import ShardedEmbeddings, save_checkpoint  # noqa: E402

FORMATS = ("safetensors", "parquet")
STORED = {"int8": "I8", "fp16": "F16", "fp32": "F32"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A checkpoint, and its weights as fp32."""
    folder = tmp_path_factory.mktemp("export") / "run"
    model = Model().embeddings
    save_checkpoint(folder, model=model)
    return folder, {name: t.float().numpy() for name, t in model.state_dict().items()}


def place(folder: Path, to: str) -> Path:
    return folder / ("tables.safetensors" if to == "safetensors" else "tables")


def asked(checkpoint: Path, output: Path, to: str, *more: str) -> tuple[int, str, str]:
    return run("export", str(checkpoint), "-o", str(output), "--format", to, *more)


def test_without_it_the_file_is_what_it_always_was(
    saved: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Every byte, written here once more from the words of the format."""
    file = tmp_path / "tables.safetensors"
    assert run("export", str(saved[0]), "-o", str(file))[0] == 0
    widths = {"fp32": (4, "F32", "float32"), "fp16": (2, "F16", "float16"), "bf16": (2, "BF16", "")}
    content: dict[str, Any] = {"__metadata__": {"format": "pt", "xxh3": "0" * 16}}
    data, listed, positions = b"", {}, positions_in(file)  # what a save calls its weights is drawn
    for table in sorted(TABLES, key=lambda table: -widths[table.dtype][0]):
        kind = "embeddings" if table.pooling == "none" else "embedding_bags"
        name, (_, stored, dtype) = f"{kind}.{table.name}.weight", widths[table.dtype]
        rows = saved[1][name]
        raw = (
            rows.astype(dtype).tobytes()
            if dtype
            else (rows.view("u4") >> 16).astype("u2").tobytes()
        )
        content["__metadata__"][f"xxh3 of {name}"] = xxhash.xxh3_64_hexdigest(raw)
        content["__metadata__"][f"position of {name}"] = str(positions[name])
        offsets = [len(data), len(data) + len(raw)]
        listed[name] = {"dtype": stored, "shape": list(rows.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(content | listed, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    sealed = xxhash.xxh3_64_hexdigest(head).encode()
    assert file.read_bytes() == head.replace(b"0" * 16, sealed, 1) + data
    assert run("validate", str(file))[0] == 0


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("rows_as", ["int8", "fp16", "fp32", None])
def test_rows_come_back_as_they_were_asked_for(
    saved: tuple[Path, dict[str, Any]], tmp_path: Path, rows_as: str | None, to: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(export_tables, "PART_BYTES", 4 * 3 * 2)  # two rows, or one
    output = place(tmp_path, to)
    code, out, errors = asked(saved[0], output, to, *(["--rows-as", rows_as] if rows_as else []))
    assert (code, errors) == (0, "")
    found = read_export(output)
    assert found.keys() == saved[1].keys()
    for name, expected in saved[1].items():
        table = found[name]
        if rows_as is not None:
            assert table.dtype == STORED[rows_as]
        assert table.table in name
        assert len(table) == len(expected)
        rows = table[:]
        assert rows.dtype == np.float32
        if rows_as == "int8":
            assert (np.abs(rows - expected) <= np.asarray(table.scales)[:, None] / 2 + 1e-9).all()
            assert np.abs(rows - expected).max() > 0
        else:
            want = expected.astype(np.float16) if rows_as == "fp16" else expected
            assert (rows == want.astype(np.float32)).all()
        assert (table[[2, 0]] == rows[[2, 0]]).all()
        assert (table[1:3] == rows[1:3]).all()
    code, out, _ = run("validate", str(output))
    assert code == 0
    assert "valid export (tables 4" in " ".join(out.split())
    left = [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")]
    assert left == [output.name]


def test_any_reader_takes_them(saved: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    export(saved[0], tmp_path / "t.safetensors", rows_as="int8")
    found = safetensors.load_file(tmp_path / "t.safetensors")
    name = "embedding_bags.item.id"
    rows = found[f"{name}.weight"].float() * found[f"{name}.scale"][:, None]
    assert found[f"{name}.weight"].dtype == torch.int8
    assert found[f"{name}.scale"].dtype == torch.float32
    np.testing.assert_allclose(rows.numpy(), saved[1][f"{name}.weight"], atol=0.01)
    facts = {
        t.table: t.to_dict() for t in export(saved[0], tmp_path / "p", rows_as="int8", to="parquet")
    }
    assert facts["item.id"]["bytes"] == 7 * 3 + 7 * 4
    assert facts["item.id"]["beside"] == [f"{name}.scale"]
    columns = pq.read_table(tmp_path / "p" / "item.id.parquet")
    assert columns.column_names == ["row", "scale", "weights"]
    assert columns["row"].to_pylist() == list(range(7))
    assert columns["weights"].to_pylist() == found[f"{name}.weight"].tolist()


FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=FINITE))
@settings(max_examples=200, deadline=None)
def test_int8_is_off_by_half_a_scale_at_most(rows: np.ndarray) -> None:
    weights, scales = stored_rows(rows, "int8", "t", 0)
    assert scales is not None
    assert np.isfinite(scales).all()
    most = np.abs(rows).max(axis=1)
    assert ((scales == 0) == (most == 0)).all()
    assert (np.abs(weights.astype(int)) <= 127).all()
    exact = weights.astype(np.float64) * scales.astype(np.float64)[:, None]
    half = scales.astype(np.float64)[:, None] / 2
    assert (np.abs(exact - rows) <= half * (1 + 1e-12)).all()
    normal = most > 1e-36  # below, a scale has few bits
    assert np.allclose(scales[normal], most[normal] / 127, rtol=1e-6)
    read = read_rows(weights, scales, "I8")
    assert np.isfinite(read).all()
    # fp32 rounds the product once more.
    assert (
        np.abs(read.astype(np.float64) - rows) <= half * (1 + 1e-12) + np.abs(exact) * 2**-23
    ).all()


@pytest.mark.parametrize(
    ("rows_as", "value", "said"),
    [
        ("int8", float("nan"), "row 5 has nan in column 2, and rows as int8 must be finite"),
        ("int8", float("-inf"), "row 5 has -inf in column 2, and rows as int8 must be finite"),
        ("fp16", float("inf"), "rows as fp16 must be finite: export with --rows-as fp32"),
        ("fp16", 70000.0, "fp16 ends at 65504: export with --rows-as int8 or --rows-as fp32"),
    ],
)
@pytest.mark.parametrize("to", FORMATS)
def test_numbers_that_a_form_does_not_have_are_refused_by_row(
    tmp_path: Path, rows_as: str, value: float, said: str, to: str
) -> None:
    model = Model().embeddings
    name = "embedding_bags.item.id.weight"
    weights = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    weights[name][5, 2] = value
    model.load_state_dict(weights)
    save_checkpoint(tmp_path / "run", model=model)
    output = place(tmp_path / "out", to)
    code, out, errors = asked(tmp_path / "run", output, to, "--rows-as", rows_as)
    assert (code, out) == (2, "")
    assert "table 'item.id': row 5" in " ".join(errors.split())
    assert said in " ".join(errors.split())
    assert not output.exists()
    assert asked(tmp_path / "run", output, to, "--rows-as", "fp32")[0] == 0
    assert np.array_equal(read_export(output)[name][:][5, 2], np.float32(value), equal_nan=True)


def vocabulary_plan(ids: Any) -> Plan:
    """A table whose six rows stand for four ids, or are shared."""
    table = Table(
        name="words", num_embeddings=6, embedding_dim=2, features=("w",), ids="vocabulary",
        num_shared=2,
    )  # fmt: skip
    profile = rowtier.make_profile([{"w": ids}], Tables(batch_size=2, tables=(table,)))
    tier = {"name": "ram", "capacity": "1GB", "bandwidth": "1GB/s"}
    level = {"name": "node", "size": 1, "bandwidth": "1GB/s"}
    cluster = rowtier.Cluster.model_validate(
        {"name": "one", "levels": [level], "device": {"tiers": [tier]}}
    )
    return rowtier.make_plan(profile, cluster, "row-wise")


STRINGS = np.array(["ä", "b", "ä", "c", "", "ä", "b", "b", "c", "ä"])
NUMBERS = np.array([2**40, -7, 2**40, 9, 5, 2**40, -7, -7, 9, 2**40])


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("ids", [STRINGS, NUMBERS], ids=["strings", "numbers"])
def test_rows_of_a_vocabulary_bring_their_ids(tmp_path: Path, ids: Any, to: str) -> None:
    plan = vocabulary_plan(ids)
    plan.save(tmp_path / "plan")
    model = ShardedEmbeddings(plan)
    save_checkpoint(tmp_path / "run", model=model)
    output = place(tmp_path, to)
    code, _, errors = asked(tmp_path / "run", output, to, "--rows-as", "int8")
    assert code == 2
    assert "give the plan that was trained, --plan PLAN" in " ".join(errors.split())
    other = vocabulary_plan(ids[:8])
    other.save(tmp_path / "other")
    code, _, errors = asked(
        tmp_path / "run", output, to, "--rows-as", "int8", "--plan", str(tmp_path / "other")
    )
    assert code == 2
    assert "was trained with vocabulary" in " ".join(errors.split())
    more = ("--rows-as", "fp32", "--plan", str(tmp_path / "plan"))
    assert asked(tmp_path / "run", output, to, *more)[0] == 0
    (table,) = read_export(output).values()
    assert table.ids is not None
    known = list(table.ids)
    assert sorted(known) == sorted(set(ids.tolist()))
    weights = model.state_dict()["embedding_bags.words.weight"].numpy()
    for row, one in enumerate(known):
        assert plan.rows_of("words", [one]).tolist() == [row]
        assert (table[row] == weights[row]).all()
    if to == "parquet":
        column = pq.read_table(output / "words.parquet")["id"].to_pylist()
        assert column == [*known, None, None]


def test_a_changed_bit_of_parquet_is_found(
    saved: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    export(saved[0], tmp_path / "t", rows_as="fp16", to="parquet")
    file = tmp_path / "t" / "list.parquet"
    raw = bytearray(file.read_bytes())
    raw[40] ^= 1
    file.write_bytes(raw)
    with pytest.raises(UserError, match="of table 'list', changed after it was written"):
        read_export(tmp_path / "t")
    assert run("validate", str(tmp_path / "t"))[0] == 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--rows-as", "int4"], "rows_as 'int4': accepted are int8, fp16, fp32"),
        (["--format", "csv"], "--format 'csv': accepted are safetensors and parquet"),
        (["--format", "parquet"], "--format parquet writes a folder; give one"),
        (["--rows-as", "int8", "--plan", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_end_with_code_2_and_leave_no_file(
    saved: tuple[Path, dict[str, Any]], tmp_path: Path, more: list[str], said: str
) -> None:
    file = tmp_path / "tables.safetensors"
    code, out, errors = run("export", str(saved[0]), "-o", str(file), *more)
    assert (code, out) == (2, "")
    assert said in " ".join(errors.split())
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_without_tables_is_refused_in_every_form(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "run", step=1)
    for to in FORMATS:
        code, _, errors = asked(tmp_path / "run", place(tmp_path, to), to, "--rows-as", "int8")
        assert code == 2
        assert "no part of the checkpoint has embedding tables" in " ".join(errors.split())


def test_a_folder_of_something_else_is_left_alone(
    saved: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    code, _, errors = asked(saved[0], tmp_path / "mine", "parquet", "--rows-as", "fp16")
    assert code == 2
    assert "left alone" in " ".join(errors.split())
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    with pytest.raises(UserError, match=r"holds no export\.json"):
        read_export(tmp_path / "mine")

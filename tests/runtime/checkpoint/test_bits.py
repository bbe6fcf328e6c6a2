"""Bits of checkpoints and exports: what changed after it was written is refused by name."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

from cli.run import run  # noqa: E402

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
from fault_kinds import flips  # noqa: E402
from fault_kinds.small_model import load, plan_of, save  # noqa: E402

from rowtier import RowtierError, UserError  # noqa: E402
from rowtier.runtime.checkpoint import about, checksums, saves, shards  # noqa: E402
from rowtier.torch import ShardedEmbeddings, load_checkpoint, save_checkpoint  # noqa: E402


@pytest.fixture(scope="module")
def embeddings() -> Any:
    return ShardedEmbeddings(plan_of(300, 8))


@pytest.fixture(scope="module")
def saved(embeddings: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "run"
    save(folder, embeddings, 5)
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "run"))


def refused(folder: Path, embeddings: Any) -> str:
    """What is said of a checkpoint that must not be loaded; it leaves the tables alone."""
    for shard in embeddings.engine.shards.values():
        shard.weights[:] = 3
    with pytest.raises(RowtierError) as caught:
        load_checkpoint(folder, model=embeddings, rows=embeddings.optimizer, number=0)
    assert all((s.weights == 3).all() for s in embeddings.engine.shards.values())
    return str(caught.value)


def test_faults_of_all_kinds_are_found_in_every_file() -> None:
    found = flips.run(100, seed=int(os.environ.get("ROWTIER_TEST_SEED", "3")))
    assert found["undetected_by_kind"] == {}
    assert found["flips_undetected"] == 0
    assert set(found["flips_by_kind"]) >= {
        "checkpoint of one", "checkpoint of two", "export", "pages",
    }  # fmt: skip


@pytest.mark.parametrize("what", ["model.embedding_bags.b.weight", "rows.state"])
def test_an_error_names_file_bytes_and_table(copy: Path, embeddings: Any, what: str) -> None:
    path, at = copy / "save-000001" / "__0_0.distcp", 0
    for item in saves.about(path.parent).files[path.name].items:
        if what in item.name and ".b." in item.name and item.size_bytes > 5000:
            break
        at += item.size_bytes
    raw = bytearray(path.read_bytes())
    raw[at + 3000] ^= 4
    path.write_bytes(raw)
    said = refused(copy, embeddings)
    assert f"{path}: bytes {at}-{at + item.size_bytes} of table 'b' ({item.name}) differ" in said
    code, _, errors = run("validate", str(copy))
    assert code == 2
    assert "of table 'b'" in " ".join(errors.split())
    code, _, errors = run("export", str(copy), "-o", str(copy / "tables.safetensors"))
    assert code == (2 if "model" in what else 0)  # state is no part of an export


def test_a_large_tensor_is_named_by_the_block_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (checksums, about):
        monkeypatch.setattr(module, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(checksums, "_WORTH_A_THREAD_BYTES", 500)
    path = save_checkpoint(tmp_path, value=torch.arange(5000)) / "__0_0.distcp"
    raw = bytearray(path.read_bytes())
    raw[20_000] ^= 1
    path.write_bytes(raw)
    with pytest.raises(UserError, match=r"bytes (\d+)-(\d+) \(value\.\) differ") as caught:
        load_checkpoint(tmp_path, value=None)
    first, last = map(int, str(caught.value).split("bytes ")[1].split(" ")[0].split("-"))
    assert first <= 20_000 < last == first + 1000


def test_checksums_are_the_same_if_torch_never_asks_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = {"a": torch.arange(50), "b": torch.arange(70)}
    usual = saves.about(save_checkpoint(tmp_path / "usual", value=value))
    runs = shards.SummingStream.runs
    whole = lambda stream: (checksums.SummedRun(0, runs(stream)[-1].stop, ("?",)),)  # noqa: E731
    monkeypatch.setattr(shards.SummingStream, "runs", whole)
    other = saves.about(save_checkpoint(tmp_path / "other", value=value))
    assert other.files["__0_0.distcp"] == usual.files["__0_0.distcp"]


def test_files_that_are_cut_or_gone_are_named(copy: Path, embeddings: Any) -> None:
    save = copy / "save-000001"
    shard = save / "__0_0.distcp"
    raw = shard.read_bytes()
    shard.write_bytes(raw[:-1])
    assert f"{shard}: has {len(raw) - 1} bytes, and {len(raw)} were saved" in refused(
        copy, embeddings
    )
    shard.unlink()
    assert f"{shard}: cannot be read (No such file" in refused(copy, embeddings)
    shard.write_bytes(raw)
    (save / ".metadata").unlink()
    assert f"{save / '.metadata'}: cannot be read" in refused(copy, embeddings)
    (save / "rowtier.json").unlink()
    assert f"{save / 'rowtier.json'}: there is no such file" in refused(copy, embeddings)
    shutil.rmtree(save)
    assert "names save-000001 as the current save" in refused(copy, embeddings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("[]", "holds a list"),
        ("{}", "saves: this key is required"),
        ('{"saves": "save-000001"}', "saves: 'save-000001': a list is needed"),
        ('{"saves": [1]}', "saves[0]: 1: a word is needed"),
        ('{"saves": ["../x"]}', "saves[0]: '../x': must be the name of a save"),
        ('{"saves": ["save-000001/../../x"]}', "must be the name of a save"),
        ('{"saves": ["save-000001"], "more": 1}', "more: 1: unknown key"),
        ('{"saves": ["save-000009"]}', "save-000009/rowtier.json: there is no such file"),
        ('{"saves": ["save-000001"], "fingerprint": "0"}', "fingerprint: '0': the content has"),
        ('{"saves": []}', "holds no whole save"),
    ],
)
def test_a_current_json_that_is_wrong_is_named_by_key(
    copy: Path, embeddings: Any, text: str, said: str
) -> None:
    (copy / "current.json").write_text(text)
    assert said in refused(copy, embeddings)


def change(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads(path.read_text())
    del data["fingerprint"]
    edit(data)
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda d: d.pop("parts"), "the save was never completed"),
        (lambda d: d.update(parts=3), "parts: 3: a list is needed"),
        (lambda d: d.update(tables=[]), "tables: []: keys with values are needed"),
        (lambda d: d["tables"].update(x={}), "tables.x.name: this key is required"),
        (lambda d: d.update(files=3), "files: 3: keys with values are needed"),
        (lambda d: d["files"].update({"../x": d["files"][".metadata"]}), "must be the name of"),
        (lambda d: d["files"].pop("__0_0.distcp"), "outside of the save's files"),
        (lambda d: d["files"].pop(".metadata"), ".metadata: is no file of this save"),
        (lambda d: d["files"][".metadata"].update(bytes="1"), "files..metadata.bytes: '1'"),
        (lambda d: d["files"][".metadata"]["items"][0].update(bytes=0), "must add up"),
        (lambda d: d["files"][".metadata"]["items"][0].update(xxh3=[]), "must add up"),
    ],
)
def test_a_rowtier_json_that_is_wrong_is_named_by_key(
    copy: Path, embeddings: Any, edit: Any, said: str
) -> None:
    change(copy / "save-000001" / "rowtier.json", edit)
    assert said in refused(copy, embeddings)


def test_white_space_is_sealed_too(copy: Path, embeddings: Any) -> None:
    path = copy / "save-000001" / "rowtier.json"
    path.write_text(path.read_text().rstrip("\n"))
    assert f"{path}: 1 mistake\n  the file changed after it was written" in refused(
        copy, embeddings
    )


def test_a_save_of_an_older_rowtier_loads_with_a_warning(copy: Path, embeddings: Any) -> None:
    change(copy / "save-000001" / "rowtier.json", lambda d: (d.pop("files"), d.pop("save")))
    change(copy / "current.json", lambda _: None)
    with pytest.warns(UserWarning, match="without checksums"):
        assert load(copy, embeddings) == 5
    save(copy, embeddings, 6)
    assert [path.name for path in copy.glob("save-*")] == ["save-000002"]
    assert load(copy, embeddings) == 6


class Evil:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def reseal(save: Path, name: str, raw: bytes) -> None:
    """Put other content into a save, with the checksums that belong to it."""
    (save / name).write_bytes(raw)
    old = about.read_sealed(about.About, save / "rowtier.json")
    sums = about.file_of(len(raw), name, (checksums.xxh3(raw),))
    files = {**old.files, name: sums}
    text = about.sealed_text(old.model_copy(update={"files": files}))
    (save / "rowtier.json").write_text(text)


def test_a_pickle_that_asks_for_more_than_data_is_not_run(
    copy: Path, embeddings: Any, tmp_path: Path
) -> None:
    save, trap = copy / "save-000001", tmp_path / "trap"
    reseal(save, ".metadata", pickle.dumps(Evil(trap)))
    assert f"asks for {os.mkdir.__module__}.mkdir" in refused(copy, embeddings)
    assert not trap.exists()
    output = tmp_path / "tables.safetensors"
    code, _, errors = run("export", str(copy), "-o", str(output))
    assert code == 2
    assert ".metadata" in errors
    assert not trap.exists()
    assert not output.exists()
    pickle.loads(pickle.dumps(Evil(trap)))  # it would have
    assert trap.exists()


def test_a_tensor_that_is_another_pickle_is_not_run(
    copy: Path, embeddings: Any, tmp_path: Path
) -> None:
    save, trap = copy / "save-000001", tmp_path / "trap"
    shard, keys = save / "__0_0.distcp", saves.about(save).tables
    raw, at = bytearray(shard.read_bytes()), 0
    for item in saves.about(save).files[shard.name].items:
        if item.name in keys:
            evil = pickle.dumps(Evil(trap))
            raw[at : at + len(evil)] = evil
        at += item.size_bytes
    reseal(save, shard.name, bytes(raw))
    output = tmp_path / "tables.safetensors"
    code, _, errors = run("export", str(copy), "-o", str(output))
    assert code == 2
    assert "__0_0.distcp: cannot be read" in " ".join(errors.split())
    assert "__0_0.distcp: cannot be read" in refused(copy, embeddings)
    assert not trap.exists()
    assert not list(tmp_path.glob("*safetensors*"))


@pytest.mark.parametrize(
    "raw",
    [b"", b"not a pickle", pickle.dumps(3), pickle.dumps({"a": 1}), b"\x80\x04]\x94h\x00a."],
)
def test_a_metadata_file_of_anything_else_is_refused(
    copy: Path, embeddings: Any, raw: bytes
) -> None:
    if raw:
        reseal(copy / "save-000001", ".metadata", raw)
    else:
        (copy / "save-000001" / ".metadata").write_bytes(raw)
    assert ".metadata" in refused(copy, embeddings)


def test_a_checkpoint_and_an_export_are_validated(saved: Path, tmp_path: Path) -> None:
    code, out, _ = run("validate", str(saved))
    assert code == 0
    assert "valid checkpoint (saves 1, bytes " in " ".join(out.split())
    output = tmp_path / "tables.safetensors"
    assert run("export", str(saved), "-o", str(output))[0] == 0
    code, out, _ = run("validate", str(output))
    assert code == 0
    assert "valid export (tables 2, bytes 19200)" in " ".join(out.split())
    raw = bytearray(output.read_bytes())
    raw[-1] ^= 1
    output.write_bytes(raw)
    code, _, errors = run("validate", str(output))
    assert code == 2
    assert "of table 'b' (embedding_bags.b.weight) differ" in " ".join(errors.split())


@pytest.mark.parametrize(
    "raw", [b"", b"\xff" * 100, b"\x02\0\0\0\0\0\0\0{}", b"\x02\0\0\0\0\0\0\0[]"]
)
def test_a_safetensors_file_of_others_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    code, _, errors = run("validate", str(path))
    assert code == 2
    assert "has no header with checksums" in " ".join(errors.split())


def test_an_export_replaces_what_a_killed_one_left(saved: Path, tmp_path: Path) -> None:
    left = tmp_path / ".tables.safetensors.rowtier-export-abcdefgh"
    left.touch()
    assert run("export", str(saved), "-o", str(tmp_path / "tables.safetensors"))[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["tables.safetensors"]


def test_an_export_without_room_is_an_error_and_no_crash(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full)
    code, _, errors = run("export", str(saved), "-o", str(tmp_path / "tables.safetensors"))
    assert code == 2
    assert "No space left" in errors
    assert not list(tmp_path.iterdir())


def test_errors_can_be_told_to_other_ranks() -> None:
    from rowtier.errors import InvalidError, Mistake, UnitError

    for error in (InvalidError("f", [Mistake("k", 1, "w")]), UnitError("x", "why")):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_no_warning_is_left_over(copy: Path, embeddings: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(copy, embeddings) == 5

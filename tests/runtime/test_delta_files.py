"""Deltas, saves of what changed, and saves behind training, in one process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from plans import plan_for  # noqa: E402
from runtime.delta_cases import TABLES, Trained, equal, loaded, run  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from rowtier import Delta, MismatchError, RowtierError, Table, UserError  # noqa: E402
from rowtier.runtime.checkpoint import row_parts, save_writing, saves  # noqa: E402
from rowtier.torch import (  # noqa: E402
    ShardedEmbeddings,
    SparseAdam,
    load_checkpoint,
    save_checkpoint,
)


def test_a_base_and_its_deltas_are_the_export_of_the_same_moment(tmp_path: Path) -> None:
    trained = Trained()
    trained.step()
    base = trained.export(tmp_path / "run")
    folders = []
    for number in range(3):
        trained.step()
        if number == 1:
            between = trained.export(tmp_path / "run")  # saves do not disturb the deltas
            trained.step()
        folders.append(trained.rows.delta(tmp_path / f"delta-{number}"))
    expected = load_file(trained.export(tmp_path / "run"))
    out = tmp_path / "out.safetensors"
    assert run("apply", base, *folders, "-o", out)[0] == 0
    equal(load_file(out), expected)
    assert run("validate", out)[0] == 0
    code, said, _ = run("validate", folders[0], "--json")
    facts = json.loads(said)
    assert (code, facts["kind"], facts["sequence"]) == (0, "delta", 1)
    assert run("apply", between, *folders[1:], "-o", between)[0] == 0  # in its own place
    equal(load_file(between), expected)


def test_a_delta_has_only_what_changed_and_little_beside_it(tmp_path: Path) -> None:
    wide = Table(name="w", num_embeddings=4000, embedding_dim=64, features=("w",), optimizer="adam")
    trained = Trained(wide)
    trained.save(tmp_path / "run")
    trained.step(40)
    delta = Delta.load(trained.rows.delta(tmp_path / "delta"))
    assert 150 < delta.changed_rows <= 240
    size = sum(path.stat().st_size for path in (tmp_path / "delta").iterdir())
    assert size <= 1.1 * delta.changed_rows * (64 * 4 + 8)


def test_a_delta_is_applied_to_arrays_and_tensors_in_memory_with_state(tmp_path: Path) -> None:
    trained = Trained()
    trained.save(tmp_path / "run")
    before = trained.values()
    trained.step(2)
    delta = Delta.load(trained.rows.delta(tmp_path / "delta", state=True))
    expected = trained.values()
    name = "embedding_bags.{}.weight".format
    fields = {"a": before[name("a")].numpy(), "b": before[name("b")].view(torch.uint16).numpy()}
    fields["a.exp_avg"] = before[name("a") + ".exp_avg"]
    fields["b.sum"] = before[name("b") + ".sum"]
    assert delta.apply(fields) is fields
    assert np.array_equal(fields["a"], expected[name("a")].numpy())
    assert np.array_equal(fields["b"], expected[name("b")].view(torch.uint16).numpy())
    assert torch.equal(fields["a.exp_avg"], expected[name("a") + ".exp_avg"])
    assert torch.equal(fields["b.sum"], expected[name("b") + ".sum"])


def test_the_first_delta_has_every_row_unless_there_is_a_save(tmp_path: Path) -> None:
    trained = Trained()
    first = Delta.load(trained.rows.delta(tmp_path / "first"))
    assert first.index.is_whole
    trained.step()
    second = Delta.load(trained.rows.delta(tmp_path / "second"))
    weights = {
        f"embedding_bags.{name}.weight": torch.zeros(rows, 4, dtype=dtype)
        for name, rows, dtype in (("a", 200, torch.float32), ("b", 300, torch.bfloat16))
    }
    first.apply(weights)
    second.apply(weights, after=first)
    equal(weights, dict(trained.rows.state_dict()))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export, and three deltas after it."""
    folder = tmp_path_factory.mktemp("written")
    trained = Trained()
    trained.export(folder / "run").rename(folder / "base.safetensors")
    for number in (1, 2, 3):
        trained.step()
        trained.rows.delta(folder / f"d{number}")
    return folder


def of_another_run(folder: Path) -> list[Path]:
    other = Trained()
    other.save(folder / "other-run")
    other.step()
    return [other.rows.delta(folder / "other")]


def of_another_shape(folder: Path) -> list[Path]:
    other = Trained(TABLES[0].model_copy(update={"num_embeddings": 201}), TABLES[1])
    return [other.rows.delta(folder / "shape")]


def of_another_table(folder: Path) -> list[Path]:
    other = Trained(TABLES[0].model_copy(update={"name": "c"}))
    return [other.rows.delta(folder / "table")]


def with_a_flipped_byte(folder: Path) -> list[Path]:
    shutil.copytree(folder / "d1", folder / "flipped")
    path = folder / "flipped" / "rows-00000.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)
    return [folder / "flipped"]


@pytest.mark.parametrize(
    ("deltas", "says"),
    [
        (lambda folder: [folder / "d2"], ["does not follow", "apply 1 first"]),
        (lambda folder: [folder / "d3"], ["does not follow", "apply 1 to 2 first"]),
        (lambda folder: [folder / "d1", folder / "d1"], ["already in it"]),
        (lambda f: [f / "d1", f / "d2", f / "d1"], ["is delta 1", "older than the base"]),
        (of_another_run, ["does not follow", "of another run"]),
        (of_another_shape, ["has shape [201, 4]", "has [200, 4]", "another model"]),
        (of_another_table, ["rows of embedding_bags.c.weight", "no such table"]),
        (with_a_flipped_byte, ["rows-00000.safetensors", "changed after it was written"]),
        (lambda folder: [folder / "run"], ["holds no delta.json"]),
    ],
)
def test_a_delta_that_does_not_fit_is_refused_by_name(
    written: Path, tmp_path: Path, deltas: Callable[[Path], list[Path]], says: list[str]
) -> None:
    base, out = written / "base.safetensors", tmp_path / "out.safetensors"
    code, _, errors = run("apply", base, *deltas(written), "-o", out)
    assert code == 2
    assert all(word in " ".join(errors.split()) for word in says), errors
    assert not out.exists()


def test_deltas_need_marks(tmp_path: Path) -> None:
    plain = ShardedEmbeddings(plan_for(TABLES[0]), SparseAdam())
    with pytest.raises(UserError, match=r"deltas=True"):
        plain.delta(tmp_path / "delta")
    with pytest.raises(UserError, match=r"delta_of: nobody marked.*deltas=True"):
        save_checkpoint(tmp_path / "run", delta_of=True, model=plain)
    with pytest.raises(UserError, match=r"delta_of: no part has rows"):
        save_checkpoint(tmp_path / "run", delta_of=True, step=1)


def test_after_a_load_deltas_go_onto_the_save_and_not_onto_what_was_lost(tmp_path: Path) -> None:
    trained = Trained()
    trained.step()
    base = trained.export(tmp_path / "run")
    trained.step()
    lost = trained.rows.delta(tmp_path / "lost")  # then the process dies
    again = Trained()
    again.steps = load_checkpoint(tmp_path / "run", **again.parts)["steps"] + 7
    again.step()
    one = Delta.load(again.rows.delta(tmp_path / "one"))
    assert one.changed_rows < 20
    out = tmp_path / "out.safetensors"
    assert run("apply", base, tmp_path / "one", "-o", out)[0] == 0
    equal(load_file(out), dict(again.rows.state_dict()))
    code, _, errors = run("apply", base, lost, tmp_path / "one", "-o", out)
    assert code == 2
    assert "older than the base" in " ".join(errors.split())


@pytest.mark.parametrize("wait", [True, False])
def test_saves_of_what_changed_are_small_and_load_as_a_whole(tmp_path: Path, wait: bool) -> None:
    trained, folder = Trained(), tmp_path / "run"
    trained.save(folder)
    sizes = []
    for _ in range(3):
        trained.step()
        save = trained.save(folder, delta_of=True, wait=wait)
        save = save if wait else save.wait()
        sizes.append((save / "rows-00000.safetensors").stat().st_size)
        equal(loaded(folder), trained.values())
    assert max(sizes) < 3000
    names = ["save-000001", "save-000002", "save-000003", "save-000004"]
    assert saves.whole(folder) == names  # keep=1, and all of them are needed
    assert run("validate", folder)[0] == 0
    expected = dict(trained.rows.state_dict())
    assert run("export", folder, "-o", tmp_path / "out.safetensors")[0] == 0
    equal(load_file(tmp_path / "out.safetensors"), expected)
    last = trained.save(folder)
    assert saves.whole(folder) == [last.name]
    assert sorted(path.name for path in folder.iterdir()) == ["current.json", last.name]


def test_a_save_goes_on_from_a_save_that_was_loaded(tmp_path: Path) -> None:
    trained = Trained()
    trained.save(tmp_path)
    again = Trained(seed=3)
    load_checkpoint(tmp_path, **again.parts)
    again.step()
    save = again.save(tmp_path, delta_of=True)
    assert saves.about(save).chain == 1
    equal(loaded(tmp_path), again.values())
    weights = Trained(seed=4)  # of which only a part is loaded
    load_checkpoint(tmp_path, model=weights.rows)
    assert saves.about(weights.save(tmp_path, delta_of=True)).chain == 0


def test_a_full_save_is_written_when_the_chain_is_long_or_most_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_parts, "LONGEST_CHAIN", 2)
    trained, chains = Trained(), []
    for _ in range(5):
        trained.step()
        chains.append(saves.about(trained.save(tmp_path, delta_of=True)).chain)
    assert chains == [0, 1, 2, 0, 1]
    trained.rows.load_state_dict(trained.rows.state_dict())
    assert saves.about(trained.save(tmp_path, delta_of=True)).chain == 0
    trained.save(tmp_path / "elsewhere")
    assert saves.about(trained.save(tmp_path, delta_of=True)).chain == 0
    equal(loaded(tmp_path), trained.values())


def test_what_a_save_cannot_follow_is_refused_by_name(tmp_path: Path) -> None:
    trained, folder = Trained(), tmp_path / "run"
    with pytest.raises(UserError, match=r"delta_of save-000009: there is no such save"):
        trained.save(folder, delta_of="save-000009")
    first = trained.save(folder, keep=3)
    with pytest.raises(UserError, match=r"nothing was saved or loaded yet"):
        Trained().save(folder, delta_of=first)
    second = trained.save(folder, keep=3)
    with pytest.raises(UserError, match=r"changed since .*save-000002, the last save"):
        trained.save(folder, delta_of="save-000001")
    third = trained.save(folder, delta_of=second, keep=3)
    shutil.rmtree(second)
    with pytest.raises(UserError, match=r"save-000003: holds the rows that changed since save-00"):
        loaded(folder)
    with pytest.raises(UserError, match=r"there is no such save beside it"):
        trained.save(folder, delta_of=third)
    shutil.copytree(first, second)
    with pytest.raises(UserError, match=r"save-000002 is another one now"):
        loaded(folder)
    assert saves.about(trained.save(folder, delta_of=True)).chain == 0  # nothing was named


def test_a_byte_that_flipped_in_rows_of_a_chain_is_found(tmp_path: Path) -> None:
    trained = Trained()
    trained.save(tmp_path)
    for _ in range(2):
        trained.step()
        trained.save(tmp_path, delta_of=True)
    path = tmp_path / "save-000002" / "rows-00000.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)
    with pytest.raises(UserError, match=r"save-000002/rows-.*differ from what was saved"):
        loaded(tmp_path)


def test_a_save_behind_training_is_of_the_moment_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    trained = Trained()
    dense = torch.nn.Linear(2, 2)
    expected, weight = trained.values(), dense.weight.detach().clone()
    pending = save_checkpoint(tmp_path, wait=False, dense=dense, **trained.parts)
    trained.step(3)
    dense.weight.data += 1
    assert not pending.done
    assert saves.whole(tmp_path) == []
    gate.open()
    assert pending.wait() == tmp_path / "save-000001"
    assert pending.done
    equal(loaded(tmp_path), expected)
    assert run("export", tmp_path, "-o", tmp_path.parent / "behind.safetensors")[0] == 0
    weights = {name: v for name, v in expected.items() if name.endswith(".weight")}
    equal(load_file(tmp_path.parent / "behind.safetensors"), weights)
    load_checkpoint(tmp_path, dense=dense)
    assert torch.equal(dense.weight, weight)
    trained.save(tmp_path, delta_of=True)  # has what changed behind the first save
    equal(loaded(tmp_path), trained.values())


class Gate:
    """Writes wait until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None):
        import threading

        self._event, self._error = threading.Event(), error
        original = save_writing.SaveWriting._write_rows
        gate = self

        def write(writing: Any) -> Any:
            assert gate._event.wait(30)
            if gate._error is not None:
                raise gate._error
            return original(writing)

        monkeypatch.setattr(save_writing.SaveWriting, "_write_rows", write)

    def open(self) -> None:
        """Let them go on."""
        self._event.set()


def test_a_second_save_waits_for_the_first(tmp_path: Path) -> None:
    trained = Trained()
    first = trained.save(tmp_path, wait=False, keep=2)
    trained.step()
    second = trained.save(tmp_path, wait=False, keep=2, delta_of=True)
    assert first.done
    trained.step()
    assert second.wait().name == "save-000002"
    trained.save(tmp_path, keep=2, delta_of=True)
    equal(loaded(tmp_path), trained.values())


def test_an_error_behind_training_is_raised_by_wait_and_by_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Trained()
    trained.save(tmp_path)
    expected = trained.values()
    trained.step()
    with monkeypatch.context() as patched:
        Gate(patched, OSError(28, "No space left on device")).open()
        for finish in (lambda pending: pending.wait(), lambda _: trained.save(tmp_path)):
            pending = trained.save(tmp_path, delta_of=True, wait=False)
            with pytest.raises(RowtierError, match=r"before it is whole.*No space left"):
                finish(pending)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current.json", "save-000001"]
    equal(loaded(tmp_path), expected)
    trained.step()
    save = trained.save(tmp_path, delta_of=True)  # what the lost saves had is still marked
    assert saves.about(save).chain == 1
    equal(loaded(tmp_path), trained.values())


def test_python_ends_after_the_save_behind_it(tmp_path: Path) -> None:
    code = (
        "import sys, torch; from rowtier.torch import save_checkpoint\n"
        "save_checkpoint(sys.argv[1], wait=False, big=torch.ones(1_000_000), step=7)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    found = load_checkpoint(tmp_path, step=0, big=None)
    assert found["step"] == 7
    assert bool((found["big"] == 1).all())


def test_a_delta_of_other_types_is_refused_in_memory(written: Path) -> None:
    delta = Delta.load(written / "d1")
    weights = {"a": np.zeros((200, 4), dtype=np.float64)}
    with pytest.raises(MismatchError, match=r"type F32, and a has \[200, 4\] and float64"):
        delta.apply(weights)
    with pytest.raises(MismatchError, match=r"rows of embedding_bags.b.weight"):
        delta.apply({"a": np.zeros((200, 4), dtype=np.float32)})
    with pytest.raises(MismatchError, match=r"does not follow"):
        Delta.load(written / "d2").apply({}, after=written / "base.safetensors")


def test_rows_on_a_disk_are_in_deltas_and_saves(tmp_path: Path) -> None:
    trained = Trained(tiers={"ram": tmp_path / "pages"})
    trained.save(tmp_path / "run", wait=False).wait()
    before = dict(trained.rows.state_dict())
    trained.step(2)
    delta = Delta.load(trained.rows.delta(tmp_path / "delta"))
    assert delta.changed_rows < 30
    equal(dict(delta.apply(before)), dict(trained.rows.state_dict()))
    save = trained.save(tmp_path / "run", wait=False, delta_of=True).wait()
    assert saves.about(save).chain == 1
    equal(loaded(tmp_path / "run"), trained.values())

"""Checkpoints of one process: crashes, what is kept, what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rowtier import MismatchError, RowtierError, UserError  # noqa: E402
from rowtier.runtime.checkpoint import saves  # noqa: E402
from rowtier.torch import load_checkpoint, save_checkpoint  # noqa: E402

KILLS = int(os.environ.get("ROWTIER_TEST_KILLS", "30"))  # of whole, delta and pending saves


def test_killing_a_save_leaves_the_old_or_the_new_checkpoint_whole(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "benchmarks" / "fault_kinds" / "checkpoint_kills.py"
    done = subprocess.run(
        [sys.executable, str(script), str(KILLS), "7"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    print(found)
    assert found["kills"] == KILLS
    assert found["old"] + found["new"] == KILLS
    assert found["kills_lost"] == found["leftovers_after_next_run"] == 0
    assert found["halves_beside"] > 0, "no kill came while a save was written"


def test_keep_says_how_many_saves_stay(tmp_path: Path) -> None:
    saved = [save_checkpoint(tmp_path / "run", keep=2, step=step) for step in range(4)]
    assert [path.exists() for path in saved] == [False, False, True, True]
    assert load_checkpoint(tmp_path / "run", step=0) == {"step": 3}
    assert load_checkpoint(saved[2], step=0) == {"step": 2}  # an older one by its own folder


def test_what_a_crash_left_is_removed_and_its_number_not_used_again(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, step=1)
    half = saves.begin(tmp_path)
    (half / "__0_0.distcp").write_bytes(b"half")
    assert load_checkpoint(tmp_path, step=0) == {"step": 1}
    assert save_checkpoint(tmp_path, step=2).name == "save-000003"
    assert not half.exists()


def test_a_failed_write_keeps_the_checkpoint_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, step=1)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch.distributed.checkpoint.FileSystemWriter, "write_data", full)
    with pytest.raises(RowtierError, match=r"the checkpoint before it is whole.*No space left"):
        save_checkpoint(tmp_path, step=2)
    assert load_checkpoint(tmp_path, step=0) == {"step": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current.json", "save-000001"]


def test_any_nesting_of_values_and_tensors_comes_back(tmp_path: Path) -> None:
    value = {
        1: torch.arange(3),
        "one": [torch.ones(()), {"deep": (torch.zeros(0, 2), "text", None)}],
        "empty": {},
    }
    save_checkpoint(tmp_path, value=value, bare=torch.tensor([2.0]))
    found = load_checkpoint(tmp_path, value=None, bare=None)
    assert torch.equal(found["bare"], torch.tensor([2.0]))
    assert torch.equal(found["value"][1], torch.arange(3))
    assert found["value"]["one"][0] == 1
    assert found["value"]["one"][1]["deep"][0].shape == (0, 2)
    assert found["value"]["one"][1]["deep"][1:] == ("text", None)
    assert found["value"]["empty"] == {}


def test_an_ordinary_optimizer_gets_its_state_before_its_first_step(tmp_path: Path) -> None:
    def made() -> tuple[Any, Any]:
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 2)
        return layer, torch.optim.AdamW(layer.parameters())

    layer, adam = made()
    layer(torch.ones(1, 3)).sum().backward()
    adam.step()
    save_checkpoint(tmp_path, layer=layer, adam=adam)
    other, fresh = made()
    load_checkpoint(tmp_path, layer=other, adam=fresh)
    assert torch.equal(other.weight, layer.weight)
    for mine, theirs in zip(adam.state.values(), fresh.state.values(), strict=True):
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_mistakes_are_named(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "run", step=1)
    with pytest.raises(MismatchError, match=r"no part 'model'; it has step"):
        load_checkpoint(tmp_path / "run", model=torch.nn.Linear(1, 1))
    with pytest.raises(UserError, match="there is no such folder"):
        load_checkpoint(tmp_path / "nowhere", step=0)
    with pytest.raises(UserError, match="holds no whole save"):
        load_checkpoint(tmp_path, step=0)
    with pytest.raises(UserError, match="at least 1"):
        save_checkpoint(tmp_path / "run", keep=0, step=1)
    with pytest.raises(UserError, match="no parts"):
        save_checkpoint(tmp_path / "run")
    with pytest.raises(UserError, match=r"not empty and holds no current\.json"):
        save_checkpoint(tmp_path, step=1)


def test_folders_that_save_checkpoint_did_not_make_stay(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, step=1)
    for name in ("save-best", "save-000007"):
        shutil.copytree(tmp_path / "save-000001", tmp_path / name)  # copies, by hand
    (tmp_path / "save-000003").mkdir()
    (tmp_path / "save-000003" / "notes.txt").touch()
    (tmp_path / "save-latest").symlink_to("save-000001")
    for step in (2, 3):
        save_checkpoint(tmp_path, step=step)
    assert {path.name for path in tmp_path.iterdir()} == {
        "current.json", "save-best", "save-latest", "save-000003", "save-000007", "save-000009",
    }  # fmt: skip
    assert load_checkpoint(tmp_path / "save-best", step=0) == {"step": 1}
    assert load_checkpoint(tmp_path, step=0) == {"step": 3}


def test_a_file_that_somebody_put_into_a_save_outlives_it(tmp_path: Path) -> None:
    save = save_checkpoint(tmp_path, step=1)
    (save / "metrics.csv").write_text("1,2")
    save_checkpoint(tmp_path, step=2)
    assert [path.name for path in save.iterdir()] == ["metrics.csv"]


def test_without_current_json_whole_saves_are_found_and_kept(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, step=1)
    (tmp_path / "current.json").unlink()
    saves.begin(tmp_path)
    assert load_checkpoint(tmp_path, step=0) == {"step": 1}
    save_checkpoint(tmp_path, keep=2, step=2)
    assert saves.whole(tmp_path) == ["save-000001", "save-000003"]


def test_a_second_process_that_saves_meanwhile_is_refused_by_its_number(tmp_path: Path) -> None:
    holder = (
        "import sys, time; from pathlib import Path; from rowtier.runtime.checkpoint import saves\n"
        "with saves.only_writer(Path(sys.argv[1])): print('in', flush=True); sys.stdin.read()"
    )
    save_checkpoint(tmp_path, step=1)
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        with pytest.raises(UserError, match=rf"process {other.pid}\b.*is writing it"):
            save_checkpoint(tmp_path, step=2)
        assert load_checkpoint(tmp_path, step=0) == {"step": 1}
        other.kill()
    save_checkpoint(tmp_path, step=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current.json", "save-000002"]

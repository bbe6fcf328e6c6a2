"""The examples are run as users run them: alone, and under torchrun."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(__file__).parents[2]
ALONE = (sys.executable,)
TWO = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
DLRM = ("--samples", "12000", "--scale", "0.0002", "--batch-size", "64", "--replay")
SEQUENCE = ("--samples", "6000", "--rows", "300", "--batch-size", "32", "--embedding-dim", "16")


def run(launcher: tuple[str, ...], script: Path, *arguments: str) -> str:
    done = subprocess.run(
        [*launcher, str(script), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def facts_of(launcher: tuple[str, ...], name: str, *arguments: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(
        run(launcher, ROOT / "examples" / name, *arguments, "--json")
    )
    return facts


def falls(losses: list[float]) -> bool:
    tenth = len(losses) // 10
    return bool(np.mean(losses[-tenth:]) < 0.9 * np.mean(losses[:tenth]))


@pytest.fixture(scope="module")
def demo() -> Any:
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_dlrm_learns_in_one_process() -> None:
    facts = facts_of(ALONE, "dlrm.py", *DLRM)
    assert falls(facts["loss"])
    assert facts["auc"] > 0.6
    assert not facts["replay"]["differences"]
    assert not any(any(by_level.values()) for by_level in facts["bytes_per_step"].values())


def test_the_demo_trains_alike_under_both_plans_and_counts_what_replay_counts(demo: Any) -> None:
    runs = [demo.train(method, *DLRM) for method in demo.TRAINED]
    for facts in runs:
        assert facts["processes"] == 2
        assert falls(facts["loss"])
        assert facts["auc"] > 0.6
        assert facts["replay"] == {"counters": 30, "differences": []}
    shown = demo.side_by_side(runs)
    assert shown.startswith("joint trains to the same loss as row-wise")
    assert "all 60 counters of rows and bytes equal rowtier.replay" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_the_demo_says_where_a_counter_differs(demo: Any) -> None:
    flows = {"forward": {"node": 8.0}}
    run = {"loss": [1.0], "auc": 0.5, "step_s": 0.1, "bytes_per_step": flows}
    wrong = {"counters": 30, "differences": ["ids sent of device 0 node: counted 4, replayed 8"]}
    right = {"counters": 30, "differences": []}
    shown = demo.side_by_side(
        [run | {"method": "row-wise", "replay": right}, run | {"method": "joint", "replay": wrong}]
    )
    assert "joint: ids sent of device 0 node: counted 4, replayed 8" in shown


def test_the_demo_goes_without_torch(
    demo: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda _: None)
    demo.training(tmp_path)
    assert "torch is not installed" in capsys.readouterr().out


@pytest.mark.parametrize("launcher", [ALONE, TWO], ids=["alone", "two processes"])
def test_sequence_beats_popularity(launcher: tuple[str, ...]) -> None:
    facts = facts_of(launcher, "sequence.py", *SEQUENCE)
    assert facts["processes"] == (1 if launcher is ALONE else 2)
    assert falls(facts["loss"])
    assert facts["hit_rate_20"] > facts["popular_hit_rate_20"]


def test_training_from_files_goes_on_where_it_stopped(tmp_path: Path) -> None:
    script = ROOT / "examples" / "train_from_files.py"
    common = ("--samples", "4000", "--save-every", "10", "--json", "--data", str(tmp_path / "data"))

    def losses(name: str, *arguments: str) -> list[float]:
        found = run(ALONE, script, *common, "--checkpoints", str(tmp_path / name), *arguments)
        values: list[float] = json.loads(found)
        return values

    whole = losses("one")
    assert len(whole) == 80
    assert falls(whole)
    assert losses("two", "--steps", "55", "--workers", "0") == whole[:55]
    assert losses("two", "--workers", "2") == whole[50:]
    assert losses("two") == []


def test_training_from_files_learns_under_torchrun(tmp_path: Path) -> None:
    folders = ("--data", str(tmp_path / "data"), "--checkpoints", str(tmp_path / "run"))
    script = ROOT / "examples" / "train_from_files.py"
    losses = json.loads(run(TWO, script, *folders, "--samples", "8000", "--json"))
    assert len(losses) == 80
    assert falls(losses)


def test_the_script_of_the_docs_runs_under_torchrun(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "training.md").read_text()
    script = tmp_path / "first.py"
    script.write_text(re.findall(r"```python\n(.*?)```", text, re.S)[0])
    run(TWO, script)


def test_a_file_in_another_format_is_refused_by_line(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("1\t2\t3\n")
    command = [*ALONE, str(ROOT / "examples" / "dlrm.py"), "--data", str(tmp_path / "train.txt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "line 1: 3 fields, and Criteo's format has 40" in done.stderr

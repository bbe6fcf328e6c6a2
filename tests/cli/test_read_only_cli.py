"""`--read-only`: what a plan costs a model that serves, told wherever it counts."""

import json
from pathlib import Path

import pytest
from cli.run import run
from cli.test_replay_cli import make, width

SAID = "read-only: no gradients return, no row is written, copies are not kept equal"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("read-only")
    make(path, 4, method="joint")
    return path


def asked(folder: Path, command: str) -> list[str]:
    data = [str(folder / "data.npz")] if command == "replay" else []
    return [command, str(folder / "plan"), *data]


@pytest.mark.parametrize("command", ["predict", "compare", "replay"])
def test_it_is_said_and_nothing_is_written(folder: Path, command: str) -> None:
    code, text, errors = run(*asked(folder, command), "--read-only")
    assert (code, errors) == (0, "")
    assert SAID in " ".join(text.split())
    assert width(text) <= 100
    assert "read-only" not in run(*asked(folder, command))[1]


@pytest.mark.parametrize("command", ["predict", "compare", "replay"])
def test_machines_are_told_too(folder: Path, command: str) -> None:
    reading = json.loads(run(*asked(folder, command), "--read-only", "--json")[1])
    training = json.loads(run(*asked(folder, command), "--json")[1])
    assert (reading["read_only"], training["read_only"]) == (True, False)

    def step_s(facts: dict) -> float:
        return facts["plans"][0]["step_s"] if command == "compare" else facts["step_s"]

    assert 0 < step_s(reading) < step_s(training)


def test_predicted_bytes_are_read_only(folder: Path) -> None:
    facts = json.loads(run(*asked(folder, "predict"), "--read-only", "--json")[1])
    assert not any(sum(holder["written_bytes"]) for holder in facts["holders"])
    assert not any(level["backward_bytes"] + level["sync_bytes"] for level in facts["levels"])
    assert "gradients" not in facts["phases"]

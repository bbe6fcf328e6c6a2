"""`--dense`: the time of the rest of the model, kept in a plan and told wherever it counts."""

import json
from pathlib import Path

import pytest
import yaml
from cli.run import run
from cli.test_replay_cli import make, width

from rowtier import Plan
from rowtier.report.html import make_report

ASSUMES = "assumes 12 ms of other work a step, 50% of which hides sync"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plans for a cluster that hides half of the rest of the model, with and without it."""
    path = tmp_path_factory.mktemp("dense")
    make(path, 4, method="joint")
    plan = Plan.load(path / "plan")
    plan.profile.save(path / "profile")
    data = plan.cluster.to_data()
    data["work"] = {"step": "1us", "round": "2us", "hidden": 0.5}
    data.pop("fingerprint", None)
    (path / "cluster.yaml").write_text(yaml.safe_dump(data))
    for name, more in (("with", ["--dense", "12ms"]), ("without", [])):
        out = ["-o", str(path / name), *more]
        facts = ["--profile", str(path / "profile"), "--cluster", str(path / "cluster.yaml")]
        code, text, errors = run("plan", *facts, *out)
        assert (code, errors) == (0, "")
        assert (ASSUMES in text) == (name == "with")
        assert "work " in text
    return path


def test_a_plan_keeps_what_it_assumes(folder: Path) -> None:
    assert Plan.load(folder / "with").assumed.dense_s == 0.012
    assert Plan.load(folder / "without").assumed.dense_s == 0.0
    assert run("verify", str(folder / "with"))[0] == 0


@pytest.mark.parametrize("command", ["predict", "explain"])
def test_the_assumption_is_told_and_can_be_overridden(folder: Path, command: str) -> None:
    text = run(command, str(folder / "with"))[1]
    assert ASSUMES in text
    assert "rounds: " in text
    assert "work of " in text
    assert width(text) <= 100
    assert ASSUMES in run(command, str(folder / "without"), "--dense", "12ms")[1]
    assert "assumes" not in run(command, str(folder / "with"), "--dense", "0s")[1]
    code, _, errors = run(command, str(folder / "with"), "--dense", "12")
    assert code == 2
    assert "5us" in errors


def test_predictions_for_machines_have_work_and_rounds(folder: Path) -> None:
    facts = json.loads(run("predict", str(folder / "with"), "--json")[1])
    assert facts["work_s"] > 0
    assert facts["work_parts_s"]["the step"] == pytest.approx(1e-6)
    assert sum(facts["phases"].values()) > 0
    assert all(holder["work_s"] > 0 for holder in facts["holders"])
    told = json.loads(run("explain", str(folder / "with"), "--json")[1])
    assert told["phases"] == facts["phases"]
    assert told["dense_s"] == 0.012
    assert told["parts_s"]["work"] == pytest.approx(facts["work_s"])


def test_comparisons_show_work(folder: Path) -> None:
    plans = [str(folder / "with"), str(folder / "without")]
    text = run("compare", *plans, "--dense", "12ms")[1]
    assert "work" in text
    assert width(text) <= 100
    loads = json.loads(run("compare", *plans, "--json")[1])["plans"]
    assert all(load["work_s"] > 0 for load in loads)


def test_a_report_says_what_is_assumed_and_how_to_plan_so_again(folder: Path) -> None:
    html = make_report(Plan.load(folder / "with"), baselines=False).html
    assert ASSUMES in html
    assert "--dense 12ms" in html
    assert "rounds: " in html
    assert "work of " in html

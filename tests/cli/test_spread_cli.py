"""What steps take on average and at their percentiles is told wherever a step is."""

import json
from pathlib import Path

import pytest
from cli.run import run
from cli.test_replay_cli import make

from rowtier import Plan, PlanOptions
from rowtier.report.html import make_report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("spread")
    make(made, 3, 6400)
    Plan.load(made / "plan").profile.save(made / "profile")
    return made


def test_every_command_says_how_steps_differ(folder: Path) -> None:
    plan, data = str(folder / "plan"), str(folder / "data.npz")
    spread = json.loads(run("predict", plan, "--json")[1])["spread"]
    assert 0 < spread["p50_s"] < spread["p99_s"]
    assert json.loads(run("explain", plan, "--json")[1])["spread"] == spread
    replayed = json.loads(run("replay", plan, data, "--after", "50%", "--json")[1])
    assert replayed["predicted_spread"] == spread
    compared = json.loads(run("compare", plan, "table-wise", "--json")[1])
    assert spread in [load["spread"] for load in compared["plans"]]
    for command in (["predict", plan], ["explain", plan], ["replay", plan, data]):
        text = run(*command)[1]
        assert "from step to step: " in text
        assert "p99" in text
    assert "slowest of a hundred steps" in make_report(Plan.load(plan), baselines=False).html


def test_the_objective_is_kept_in_the_plan_and_others_are_refused(folder: Path) -> None:
    facts = ["--profile", str(folder / "profile"), "--cluster", "recshard-16"]
    out = folder / "by_mean"
    assert run("plan", *facts, "-o", str(out), "--objective", "expected_max")[0] == 0
    assert PlanOptions.of(Plan.load(out)).objective == "expected_max"
    code, _, said = run("plan", *facts, "-o", str(folder / "none"), "--objective", "p99")
    assert code != 0
    assert "--objective 'p99': accepted are step and expected_max" in said

"""`rowtier drift` and `rowtier plan --from --move-budget`, for people and machines."""

import json
from pathlib import Path

import numpy as np
import pytest
from cli.run import run
from cli.test_replay_cli import make, width
from evaluate.drifting import machine, planned, profile

import rowtier


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("drift")
    cluster = machine("6KiB")
    planned(profile(0, 0), cluster).save(made / "plan")
    profile(150, 0).save(made / "new")
    (made / "cluster.yaml").write_text(json.dumps(cluster.to_data()))
    return made


@pytest.mark.parametrize("tables", [3, 40])
def test_text_fits_however_many_tables_there_are(tables: int, tmp_path: Path) -> None:
    make(tmp_path, tables, samples=512, method="table-wise")
    data = np.load(tmp_path / "data.npz")
    later = {name: (data[name][256:] * 7 + 3) % (50 + i) for i, name in enumerate(data)}
    seen = rowtier.Plan.load(tmp_path / "plan").profile.tables
    rowtier.make_profile([later], seen).save(tmp_path / "new")
    for full in ([], ["--full"]):
        code, text, errors = run("drift", str(tmp_path / "plan"), str(tmp_path / "new"), *full)
        assert (code, errors) == (0, "")
        assert "a step takes" in text.splitlines()[0]
        assert width(text) <= 100
    assert f"table_{tables - 1} " in text


def test_machines_get_all_figures_and_the_best_plan(folder: Path, tmp_path: Path) -> None:
    best = str(tmp_path / "best")
    arguments = ("drift", str(folder / "plan"), str(folder / "new"), "--time-limit", "1e-9")
    code, text, _ = run(*arguments, "-o", best, "--json")
    facts = json.loads(text)
    assert code == 0
    assert facts["plan"] == best
    assert facts["pays"]
    assert facts["break_even_steps"] == pytest.approx(
        facts["move_s"] / facts["saving"]["seconds"], rel=1e-12
    )
    assert [table["name"] for table in facts["tables"]] == ["t0", "t1"]
    assert rowtier.Plan.load(best).made_for.profile == profile(150, 0).fingerprint
    assert (
        facts["moved_bytes"]
        == rowtier.diff(rowtier.Plan.load(folder / "plan"), rowtier.Plan.load(best)).moved_bytes
    )
    code, text, _ = run(*arguments, "-o", best)
    assert "has paid after" in " ".join(text.split())
    assert text.splitlines()[-1] == f"written to {best}"


def test_what_is_not_comparable_is_refused(folder: Path, tmp_path: Path) -> None:
    plan, new = str(folder / "plan"), str(folder / "new")
    profile(0).save(tmp_path / "other")
    profile(0, 0).to_curve().save(tmp_path / "curve")
    for wrong, said in (
        ((plan, str(tmp_path / "other")), "'t1' is only in the plan"),
        ((plan, str(tmp_path / "curve")), "is a curve and does not know its rows"),
        ((plan, new, "--method", "best"), "no method 'best'"),
        ((plan, new, "--time-limit", "0"), "give seconds above 0"),
        ((plan, str(tmp_path / "none")), "no such profile folder"),
    ):
        code, _, errors = run("drift", *wrong)
        assert code == 2
        assert said in " ".join(errors.split())


def plan_within(folder: Path, output: Path, *more: str) -> tuple[int, str, str]:
    inputs = ("--profile", str(folder / "new"), "--cluster", str(folder / "cluster.yaml"))
    return run("plan", *inputs, "-o", str(output), "--time-limit", "1e-9", *more)


def test_a_plan_within_a_budget_moves_no_more(folder: Path, tmp_path: Path) -> None:
    old = str(folder / "plan")
    code, text, _ = plan_within(folder, tmp_path / "kept", "--from", old, "--move-budget", "0")
    assert code == 0
    assert "0 B of at most 0 B move from" in text
    said = run("diff", old, str(tmp_path / "kept"))[1]
    assert said == "nothing moves: every row stays where it is\n"
    more = ("--from", old, "--move-budget", "4KiB", "--json")
    code, text, _ = plan_within(folder, tmp_path / "some", *more)
    facts = json.loads(text)
    assert facts["moved"]["moved_bytes"] <= facts["moved"]["budget_bytes"] == 4096
    inputs = ("--profile", str(folder / "new"), "--cluster", str(folder / "cluster.yaml"))
    code, text, _ = run("verify", str(tmp_path / "some"), *inputs)
    assert code == 0
    assert "however many bytes they would move" in " ".join(text.split())


def test_options_that_need_each_other_are_named(folder: Path, tmp_path: Path) -> None:
    old, out = str(folder / "plan"), tmp_path / "out"
    for wrong in (
        ("--from", old),
        ("--move-budget", "1GiB"),
        ("--from", old, "--move-budget", "0", "--method", "torchrec"),
    ):
        code, _, errors = plan_within(folder, out, *wrong)
        assert code == 2
        assert "--from PLAN and --move-budget BYTES go together" in " ".join(errors.split())
    code, _, errors = plan_within(folder, out, "--from", old, "--move-budget", "3 parsecs")
    assert code == 2
    assert not out.exists()

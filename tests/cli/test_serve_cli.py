"""`rowtier plan --serve`: said in the folder, and taken from there by every other command."""

import json
from pathlib import Path

import pytest
from cli.run import run
from cli.test_read_only_cli import SAID
from cli.test_replay_cli import make, width

from rowtier import Plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, a profile, a plan that trains, and one that serves."""
    path = tmp_path_factory.mktemp("serve")
    make(path, 3, method="row-wise")
    tables = path / "tables.yaml"
    trained = Plan.load(path / "plan")
    trained.profile.tables.save(tables)
    code, _, errors = run(
        "profile", str(path / "data.npz"), "--tables", str(tables), "-o", str(path / "profile")
    )
    assert (code, errors) == (0, "")
    code, out, errors = planned(path, "--serve", "-o", str(path / "serving"))
    assert (code, errors) == (0, "")
    assert SAID in " ".join(out.split())
    assert "without optimizer state" in " ".join(out.split())
    assert width(out) <= 100
    return path


def planned(path: Path, *options: str) -> tuple[int, str, str]:
    return run("plan", "--profile", str(path / "profile"), "--cluster", "recshard-16", *options)


@pytest.mark.parametrize("command", ["predict", "compare", "replay", "explain"])
def test_every_command_reads_it_from_the_plan(folder: Path, command: str) -> None:
    data = [str(folder / "data.npz")] if command == "replay" else []
    code, text, errors = run(command, str(folder / "serving"), *data)
    assert (code, errors) == (0, "")
    assert SAID in " ".join(text.split())


def test_machines_are_told_too(folder: Path) -> None:
    serving = str(folder / "serving")
    assert json.loads((folder / "serving" / "plan.json").read_text())["origin"]["options"] == {
        "serve": True
    }
    assert json.loads(run("predict", serving, "--json")[1])["read_only"]
    verdict = json.loads(run("verify", serving, "--json")[1])
    assert (verdict["holds"], verdict["view"]) == (True, "read-only")
    both = ["--profile", str(folder / "profile"), "--cluster", "recshard-16"]
    assert json.loads(run("verify", serving, *both, "--json")[1])["gap_is"] == "proved"
    report = folder / "report.html"
    code, _, errors = run("report", serving, "-o", str(report))
    assert (code, errors) == (0, "")
    assert "without optimizer state" in report.read_text()
    assert "--method joint --serve" in report.read_text()


def test_other_work_hides_nothing_of_it(folder: Path) -> None:
    code, out, errors = run("explain", str(folder / "serving"), "--dense", "3ms")
    assert (code, out) == (2, "")
    assert "the plan serves, so there is no sync for other work to hide" in " ".join(errors.split())


def test_rows_of_half_the_size_are_planned_for(folder: Path) -> None:
    code, _, errors = planned(folder, "--serve", "--rows-as", "fp16", "-o", str(folder / "half"))
    assert (code, errors) == (0, "")
    plan = Plan.load(folder / "half")
    assert {table.dtype for table, _ in plan} == {"fp16"}
    text = " ".join(run("compare", str(folder / "serving"), str(folder / "half"))[1].split())
    assert "the plans expect different types of rows" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--serve", "--rows-as", "int4"], "--rows-as 'int4': accepted are fp32 and fp16"),
        (["--serve", "--rows-as", "int8"], "plan with --rows-as fp16"),
        (["--rows-as", "fp16"], "add --serve, or set dtype in tables.yaml"),
        (["--serve", "--dense", "3ms"], "a plan that serves has none; drop one of them"),
        (["--serve", "--method", "flexshard"], "flexshard makes no plans that serve"),
        (["--serve", "--method", "sca"], "plan with joint"),
        (["--serve", "--method", "torchrec"], "torchrec makes no plans that serve"),
    ],
)
def test_wishes_that_do_not_go_together_are_refused(
    folder: Path, options: list[str], said: str
) -> None:
    code, out, errors = planned(folder, *options, "-o", str(folder / "nowhere"))
    assert (code, out) == (2, "")
    assert said in " ".join(errors.split())
    assert not (folder / "nowhere").exists()

"""`rowtier diff`: few and very many tables, people and machines."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cli.run import run
from cli.test_replay_cli import make, width

import rowtier


def both(folder: Path, tables: int, method: str) -> tuple[str, str]:
    """A plan, and another one for the same tables."""
    make(folder, tables, samples=256, method="table-wise")
    old = rowtier.Plan.load(folder / "plan")
    made = rowtier.make_plan(old.profile, old.cluster, method)
    replace(made, order=old.order, made_for=old.made_for).save(folder / "new")
    return str(folder / "plan"), str(folder / "new")


@pytest.mark.parametrize("tables", [26, 397, 1935])
def test_text_fits_however_many_tables_there_are(tables: int, tmp_path: Path) -> None:
    plans = both(tmp_path, tables, "row-wise")
    for full in ([], ["--full"]):
        code, text, errors = run("diff", *plans, *full)
        assert (code, errors) == (0, "")
        assert " move (" in text.splitlines()[0]
        assert width(text) <= 100
    assert f"table_{tables - 1} " in text


def test_machines_get_all_figures(tmp_path: Path) -> None:
    plans = both(tmp_path, 5, "row-wise")
    facts = json.loads(run("diff", *plans, "--json")[1])
    assert len(facts["tables"]) == 5
    assert len(facts["holders"]) == 16
    assert facts["moved_bytes"] == sum(h["received_bytes"] for h in facts["holders"])
    assert facts["move_s"] == pytest.approx(facts["links_s"] + facts["memory_s"] + facts["work_s"])


def test_the_same_plan_says_that_nothing_moves(tmp_path: Path) -> None:
    plan, _ = both(tmp_path, 2, "row-wise")
    assert run("diff", plan, plan)[1] == "nothing moves: every row stays where it is\n"


def test_plans_of_different_models_are_refused(tmp_path: Path) -> None:
    for name, tables in (("one", 2), ("two", 3)):
        (tmp_path / name).mkdir()
        make(tmp_path / name, tables)
    code, _, errors = run("diff", str(tmp_path / "one" / "plan"), str(tmp_path / "two" / "plan"))
    assert code == 2
    assert "'table_2' is only in the new plan" in " ".join(errors.split())

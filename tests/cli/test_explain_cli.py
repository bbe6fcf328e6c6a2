"""`rowtier explain`: few and very many tables, one table, another machine."""

import json
from pathlib import Path

import pytest
from cli.run import run
from cli.test_replay_cli import make, width


@pytest.mark.parametrize("tables", [26, 397, 1935])
def test_text_fits_however_many_tables_there_are(tables: int, tmp_path: Path) -> None:
    make(tmp_path, tables, samples=256, method="size-lookup")
    plan = str(tmp_path / "plan")
    for arguments in ([], ["table_3"], ["--what-if", "levels.node.bandwidth=100GB/s"]):
        code, text, errors = run("explain", plan, *arguments)
        assert (code, errors) == (0, "")
        assert width(text) <= 100
        assert len(text.splitlines()) < 80
    code, text, _ = run("explain", plan, "--full")
    assert width(text) <= 100
    assert f"table_{tables - 1} " in text


def test_a_plan_its_tables_and_a_change_for_machines(tmp_path: Path) -> None:
    make(tmp_path, 4, method="joint")
    change = ["--what-if", "tiers.hbm.capacity=1GiB", "--what-if", "batch_size=8"]
    code, text, _ = run("explain", str(tmp_path / "plan"), "table_0", *change, "--json")
    facts = json.loads(text)
    assert code == 0
    assert facts["table"]["name"] == "table_0"
    assert facts["what_if"]["changes"] == ["tiers.hbm.capacity=1GiB", "batch_size=8"]
    assert len(facts["tables"]) == 4
    assert facts["certificate"]["gap"] >= 0


def test_what_is_shown_answers_the_questions(tmp_path: Path) -> None:
    make(tmp_path, 4, method="joint")
    plan = str(tmp_path / "plan")
    text = run("explain", plan)[1]
    for part in (
        "bound is about",
        "what binds:",
        "memory:",
        "with more of it:",
        "the statistics:",
        "matter most",
    ):
        assert part in text
    text = run("explain", plan, "table_1", "--full")[1]
    assert "elsewhere" in text
    text = run("explain", plan, "--what-if", "levels.cluster.size=1")[1]
    assert "instead of" in text
    assert "tables would be placed otherwise" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nobody"], "the plan has no table 'nobody'"),
        (["--what-if", "gold=1"], "accepted keys: tiers.hbm.capacity"),
        (["--what-if", "tiers.hbm.capacity=1"], "such as 24GiB"),
    ],
)
def test_what_explain_refuses_says_the_way_out(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    make(tmp_path, 2)
    code, _, errors = run("explain", str(tmp_path / "plan"), *arguments)
    assert code == 2
    assert says in " ".join(errors.split())

"""Names of others through every command: shown in full or nearly so, never obeyed."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
from cli.run import run
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from fault_kinds.environments import try_names
from fault_kinds.foreign_names import NAMES, Ran, accepted, faults_of

from rowtier import Cluster
from rowtier.cli import show
from rowtier.foreign import shown

SOME = ("a[/b]", "emb[user]", ":heart:", "表" * 28, "bidi\u202eelbat", "__proto__", "a" * 200)


def test_all_commands_show_foreign_names() -> None:
    pytest.importorskip("vl_convert", reason="charts need rowtier[report]")
    printed, wrong = try_names(SOME)
    assert wrong == []
    assert printed >= 30


def test_most_names_are_accepted() -> None:
    assert len(accepted(NAMES)) >= 35


LETTERS = st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"))


@settings(max_examples=15, deadline=None)
@given(st.text(LETTERS, min_size=1, max_size=200), st.text(LETTERS, min_size=1, max_size=40))
def test_any_name_that_is_accepted_fits(first: str, second: str) -> None:
    for name in accepted([first, second]):
        data = Cluster.preset("local").model_copy(update={"name": name})
        with tempfile.TemporaryDirectory() as folder:
            data.save(Path(folder) / "cluster.yaml")
            ran = Ran(*run("validate", f"{folder}/cluster.yaml"))
        assert faults_of(ran) == []
        assert shown(name).strip()[:5].strip() in ran.out


def test_tables_of_wide_letters_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    show.table(["table", "表" * 10, "[/b]"], [["表" * 60, "1", "[b]"], ["a", "2", "x\x1b[2J"]])
    out = capsys.readouterr().out
    assert faults_of(Ran(0, out, "")) == []
    ends = {show.width_of(line) for line in out.splitlines() if line.strip()}
    assert len(ends) == 1
    assert "[b]" in out
    assert r"x\x1b[2J" in out


@pytest.mark.parametrize("argument", ["x\x1b[2J[/b]", "表" * 60, "\ud800", "x\0y"], ids=range(4))
def test_arguments_are_shown_safely(argument: str) -> None:
    wrong = (["validate", argument], ["plan", f"--{argument}"], ["explain", argument, "t"])
    for command in wrong:
        for as_json in ([], ["--json"]):
            ran = Ran(*run(*command, *as_json))
            assert faults_of(ran, 2, as_json=bool(as_json)) == []

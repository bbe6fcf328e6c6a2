import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

pytest.importorskip("torch", reason="torch is not installed")

from harness.form import Measured  # noqa: E402
from harness.living.settled import settled_s  # noqa: E402
from living import GOALS, PARTS, measure  # noqa: E402


def test_every_part_can_be_run() -> None:
    for part in PARTS:
        assert callable(importlib.import_module(f"harness.living.{part}").measure)


def test_pairs_that_cannot_be_drawn_are_an_error_and_none_that_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = importlib.import_module("harness.living.exact")
    path, _, name = exact.TEST.partition("::")
    assert f"def {name}(" in (exact.ROOT / path).read_text()
    monkeypatch.setattr(exact, "TEST", "tests/nothing.py::test_nothing")
    with pytest.raises(RuntimeError, match=r"could not run tests/nothing.py"):
        exact.measure(quick=True)


def test_parts_are_told_apart_and_their_figures_come_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def part(figure: str) -> Any:
        return lambda quick: Measured([{"quick": quick}], {figure: 0.5})

    for name, figure in (("counts", "counts_overhead"), ("migration", "migrate_time_error")):
        module = importlib.import_module(f"harness.living.{name}")
        monkeypatch.setattr(module, "measure", part(figure))
    found = measure(quick=True, only="counts,migration")
    assert found.rows == [
        {"part": "counts", "found": {"quick": True}},
        {"part": "migration", "found": {"quick": True}},
    ]
    seconds = {"counts_seconds", "migration_seconds"}
    assert found.figures.keys() == {"counts_overhead", "migrate_time_error"} | seconds


def test_single_steps_that_were_stopped_do_not_count_and_slow_times_do() -> None:
    usual, slow = [1.0] * 19 + [100.0], [3.0] * 20
    assert settled_s([*usual, *slow, 3.0], 20) == 20 + 60 + 3


def test_three_contenders_train_a_stream_that_drifts_and_one_decides_at_checks() -> None:
    contenders = importlib.import_module("harness.living.contenders")
    found = contenders.measure(quick=True)
    assert found.figures.keys() < GOALS.keys()
    assert all(figure > 0 for figure in found.figures.values())
    (drift,) = found.rows
    assert drift["data"] == "drift"
    assert drift["steps"] == 120  # of 125: whole turns
    assert [decision["step"] for decision in drift["decisions"]] == [40, 80]

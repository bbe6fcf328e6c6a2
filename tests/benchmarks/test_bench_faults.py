import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from faults import FAILURES, GOALS, KINDS, added, measure  # noqa: E402


def test_every_kind_of_fault_can_be_run() -> None:
    for kind in KINDS.values():
        assert callable(importlib.import_module(f"fault_kinds.{kind.module}").run)


def test_every_count_of_failures_must_be_zero() -> None:
    assert all(GOALS[failure] == ("<=", 0) for failure in FAILURES)


def test_counts_of_the_same_name_add_up_and_details_are_left_out() -> None:
    first = added({}, {"kills": 3, "kills_lost": 0, "by_writer": {"plan": 3}})
    both = added(first, {"kills": 4, "kills_lost": 1, "overhead": 0.5})
    assert both == {"kills": 7, "kills_lost": 1, "overhead": 0.5}


def test_a_failure_of_a_kind_is_a_failure_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = importlib.import_module("fault_kinds.pairs")
    monkeypatch.setattr(pairs, "run", lambda count, _seed: {"pairs": count, "mixed_profiles": 2})
    measured = measure(quick=True, only="pairs", scale=1.0, seed=0)
    assert measured.rows[0]["failures"] == 2
    assert measured.figures == {"pairs": 20, "mixed_profiles": 2}

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from first_step import PAGE, figures_of, first_script  # noqa: E402


def test_the_script_is_that_of_the_page_with_one_step() -> None:
    script = first_script(PAGE.read_text())
    assert "for _ in range(1):" in script
    assert script.replace("range(1):", "range(10):") in PAGE.read_text()


def test_a_page_without_ten_steps_is_noticed() -> None:
    with pytest.raises(AssertionError, match="no loop of ten steps"):
        first_script("```python\nprint()\n```")


def test_what_was_not_run_is_not_a_figure() -> None:
    seconds = {"import torch": 2.0, "one rank, cold": 12.0, "one rank, warm": 4.0}
    found = figures_of(seconds)
    assert found["cold_over_warm"] == 3.0
    assert found["cold_2_ranks_s"] is None

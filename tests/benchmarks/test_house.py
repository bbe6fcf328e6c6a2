import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from house import GOALS, house  # noqa: E402

LONG_FUNCTION = "def long():\n" + "    print()\n" * 60


def figures_of(root: Path, files: dict[str, str]) -> tuple[dict[str, float | None], list[str]]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    measured = house(root)
    return dict(measured.figures), [str(row["where"]) for row in measured.rows]


def test_a_tidy_tree_reaches_every_goal(tmp_path: Path) -> None:
    figures, rows = figures_of(
        tmp_path,
        {
            "src/p/a.py": "from p.b import f\nclass A: ...\n",
            "src/p/b.py": "f = 1\nclass B: ...\n" + LONG_FUNCTION.replace("    print()\n", "", 1),
            "benchmarks/__init__.py": "",
            "examples/one.py": "print()\n" * 150,
            "coverage.json": json.dumps(
                {"totals": {"missing_lines": 8, "num_statements": 100}, "files": {}}
            ),
        },
    )
    assert set(figures) == set(GOALS)
    assert figures.pop("uncovered_share") == 0.08
    assert figures.pop("longest_example_lines") == 150
    assert not any(figures.values())
    assert rows == []


def test_what_is_over_is_counted_and_named(tmp_path: Path) -> None:
    figures, rows = figures_of(
        tmp_path,
        {
            "src/p/a.py": "class Part: ...\n",
            "src/p/b.py": "class Outer:\n    class Part: ...\n",
            "src/p/c.py": LONG_FUNCTION,
            "benchmarks/_help.py": "",
            "examples/one.py": "\n" * 151,
            "tests/test_long.py": "\n" * 401,
        },
    )
    assert figures == {
        "repeated_class_names": 1, "module_cycles": 0, "functions_over_60": 1, "files_over_400": 1,
        "underscore_benchmarks": 1, "longest_example_lines": 151, "uncovered_share": None,
    }  # fmt: skip
    assert rows == [
        "Part: src/p/a.py src/p/b.py",
        "src/p/c.py long 61",
        "tests/test_long.py 401",
        "benchmarks/_help.py",
        "examples/one.py 151",
    ]


@pytest.mark.parametrize(
    ("back", "cycles"),
    [
        ("from p import a", 1),
        ("import p.a", 1),
        ("def f():\n    from p.a import g", 1),
        ("import_module('p.a')", 1),
        ("import q.inner", 1),  # by way of another module
        ("import_module(f'q.r.{name}')", 1),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import g", 0),
        ("'what p.a does'", 0),
        ("from p.b import h", 0),  # itself
    ],
)
def test_cycles_of_modules_are_found_however_they_import(
    tmp_path: Path, back: str, cycles: int
) -> None:
    files = {"src/p/a.py": "from p.b import h\n", "src/p/b.py": back + "\n"}
    files |= {"src/q/inner.py": "import p.a\n", "src/q/r/planner.py": "import p.a\n"}
    figures, rows = figures_of(tmp_path, files)
    assert figures["module_cycles"] == cycles
    assert len(rows) == cycles


def test_the_files_with_most_lines_not_covered_come_first(tmp_path: Path) -> None:
    files = {name: {"summary": {"missing_lines": n}} for name, n in (("a", 1), ("b", 5), ("c", 0))}
    data = {"totals": {"missing_lines": 6, "num_statements": 12}, "files": files}
    figures, rows = figures_of(tmp_path, {"coverage.json": json.dumps(data)})
    assert figures["uncovered_share"] == 0.5
    assert rows == ["b 5", "a 1"]

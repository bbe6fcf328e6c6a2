"""The one form of every benchmark: a table for people, or one JSON object for programs.

A benchmark is a function that measures, handed to `run`:

    def measure(quick: bool) -> Measured: ...

    if __name__ == "__main__":
        run("synth", measure, goals={"ids_per_s": (">=", 5e6)})

One that takes options of its own names them as `options`, and gets them by those names.
`--json` prints {"benchmark", "versions", "rows", "figures"} and nothing else on stdout.
A figure that falls short is reported, never an error: the exit code is 0. A figure that
could not be measured is None.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import math
import operator
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Goal = tuple[Literal["<=", ">="], float]
Option = tuple[float | str, str]  # what it is by default, and what it says
PACKAGES = ("numpy", "rowtier", "numba", "pyarrow")


@dataclass(frozen=True)
class Measured:
    """What was seen (one entry per run or setting) and the figures that follow from it.

    Figures of a run that was not finished reach no goal, they only fall short of it.
    """

    rows: Sequence[Mapping[str, object]]
    figures: Mapping[str, float | None]
    finished: bool = True


def run(
    name: str,
    measure: Callable[..., Measured],
    *,
    goals: Mapping[str, Goal] | None = None,
    options: Mapping[str, Option] | None = None,
    arguments: Sequence[str] | None = None,
) -> None:
    """Read the command line, measure, and print; `measure` is told whether to be quick."""
    more = options or {}
    parser = argparse.ArgumentParser(prog=f"benchmarks/{name}.py")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="smaller and rougher")
    for option, (default, said) in more.items():
        parser.add_argument(f"--{option}", type=type(default), default=default, help=said)
    asked = parser.parse_args(arguments)
    with contextlib.redirect_stdout(sys.stderr):
        measured = measure(asked.quick, **{option: getattr(asked, option) for option in more})
    if asked.json:
        print(json.dumps(to_data(name, measured), default=_plain, allow_nan=False))
    else:
        _show(name, measured, goals or {})


def to_data(name: str, measured: Measured) -> dict[str, object]:
    """The JSON object of a benchmark; numbers that JSON does not know become null."""
    return {
        "benchmark": name,
        "versions": versions(),
        "rows": [{key: _finite(value) for key, value in row.items()} for row in measured.rows],
        "figures": {key: _finite(value) for key, value in measured.figures.items()},
    }


def versions() -> dict[str, str | int]:
    """What the figures were measured with."""
    found: dict[str, str | int] = {"python": platform.python_version()}
    found |= {package: importlib.metadata.version(package) for package in PACKAGES}
    return found | {"cpus": len(os.sched_getaffinity(0))}


def meets(value: float | None, goal: Goal) -> bool:
    """Whether a figure reaches its goal; one that could not be measured does not."""
    compare = {"<=": operator.le, ">=": operator.ge}[goal[0]]
    return value is not None and bool(compare(value, goal[1]))


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: object) -> object:
    """numpy's numbers as Python's."""
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"{value!r} does not go into JSON")
    return _finite(item())


def _show(name: str, measured: Measured, goals: Mapping[str, Goal]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if measured.rows:
        rows = Table(title=name)
        for key in measured.rows[0]:
            rows.add_column(key, justify="right")
        for row in measured.rows:
            rows.add_row(*(_short(value) for value in row.values()))
        console.print(rows)
    figures = Table("figure", "value", "goal", "", title=f"{name}: figures")
    for key, value in measured.figures.items():
        goal = goals.get(key)
        wanted = f"{goal[0]} {_short(goal[1])}" if goal else ""
        reached = "reached" if measured.finished else "so far"
        verdict = (reached if meets(value, goal) else "short") if goal else ""
        figures.add_row(key, _short(value), wanted, verdict)
    console.print(figures)


def _short(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"

"""Benchmarks run one after the other, each in a process of its own; results kept safely."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.folders import RESULTS

GRACE_S = 30.0  # for a benchmark that is told to stop to take down what it set up

Data = Mapping[str, Any]
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b")


@dataclass(frozen=True)
class Outcome:
    """What became of one benchmark: its JSON, or why there is none."""

    name: str
    seconds: float
    data: Data | None = None
    error: str = ""

    @property
    def skipped(self) -> bool:
        """Whether it ran and could measure nothing here: it has figures, and all are None."""
        figures = self.data["figures"] if self.data is not None else {}
        return bool(figures) and all(value is None for value in figures.values())


def run_benchmark(script: Path, *, quick: bool = False, limit_s: float | None = None) -> Outcome:
    """Run one benchmark with `--json`; what it prints on stderr is passed on."""
    command = [sys.executable, str(script), "--json", *(["--quick"] if quick else [])]
    began = time.monotonic()
    reading, writing = os.pipe()
    late, printed = "", ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=writing, text=True, start_new_session=True
    ) as process:
        os.close(writing)
        echo = _Echo(reading)
        try:
            printed, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            late = f"not done after {limit_s:g} s"
        finally:
            _end(process)
    echo.join(5)
    seconds = time.monotonic() - began
    if late or process.returncode:
        error = late or echo.error or echo.last or f"exit code {process.returncode}"
        return Outcome(script.stem, seconds, error=error)
    try:
        return Outcome(script.stem, seconds, data=_checked(json.loads(printed)))
    except ValueError as error:
        return Outcome(script.stem, seconds, error=f"printed no result: {error}")


class _Echo(threading.Thread):
    """Passes on what a benchmark prints on stderr while it runs, and keeps the last line.

    And the last that names an exception: what ends a process may have more to say after it.
    """

    def __init__(self, reading: int):
        super().__init__(daemon=True)
        self.reading, self.last, self.error = reading, "", ""
        self.start()

    def run(self) -> None:
        with os.fdopen(self.reading, errors="replace") as lines:
            for line in lines:
                sys.stderr.write(line)
                self.last = line.strip() or self.last
                if _EXCEPTION.match(line):
                    self.error = line.strip()


def keep(name: str, data: Data, folder: Path = RESULTS) -> None:
    """Write a result beside its place and rename it, so that half a file is never seen."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    beside = path.with_suffix(".json.new")
    beside.write_text(json.dumps(data) + "\n")
    beside.replace(path)


def load_results(folder: Path = RESULTS) -> dict[str, Data]:
    """Every result in a folder by the benchmark's name; other JSON is left out."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(ValueError):
            found[path.stem] = _checked(json.loads(path.read_text()))
    return found


def constant(script: Path, name: str) -> Any:
    """A plain constant of a benchmark without importing it, which may need torch; else None."""
    if not script.exists():
        return None
    for node in ast.parse(script.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            assert isinstance(node, (ast.Assign, ast.AnnAssign))
            return _value(node.value)
    return None


def goals_of(script: Path) -> dict[str, Any]:
    """The goals of a benchmark: its constant GOALS, or what it hands to `run`."""
    found = constant(script, "GOALS")
    if found is None and script.exists():
        calls = (n for n in ast.walk(ast.parse(script.read_text())) if isinstance(n, ast.Call))
        given = (word.value for call in calls for word in call.keywords if word.arg == "goals")
        found = next((_value(node) for node in given if isinstance(node, ast.Dict)), None)
    return found or {}


def _value(node: ast.expr | None) -> Any:
    """What an expression of literals and arithmetic is worth; None if it needs names."""
    if node is None or any(isinstance(part, (ast.Name, ast.Call)) for part in ast.walk(node)):
        return None
    return eval(compile(ast.Expression(node), "constant", "eval"), {"__builtins__": {}})


def _checked(data: Any) -> Data:
    if not isinstance(data, dict) or not {"figures", "rows", "versions"} <= data.keys():
        raise ValueError("not the form of a benchmark")
    return data


def _end(process: subprocess.Popen[str]) -> None:
    """Interrupt a benchmark that still runs and all that it started; kill what stays."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

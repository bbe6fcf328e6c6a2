"""Results as Markdown: numbers with units that suit them, tables, and what is folded away."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.claims.results import Data
from harness.form import Goal

FOLD = 16  # a table with more rows is folded away
_BYTES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
_SHARES = ("reduction", "error", "gap", "excess")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + [
        "| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows
    ]


def rows_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows of a benchmark as they are; parts get a table each, without empty columns."""
    lines: list[str] = []
    for part in _alike(rows):
        fields = [name for name in part[0] if any(row[name] is not None for row in part)]
        body = [[cell(field, row.get(field)) for field in fields] for row in part]
        lines += [*table([_title(field) for field in fields], body), ""]
    return lines[:-1]


def folded(title: str, lines: Sequence[str], size: int) -> list[str]:
    """A long table, closed until someone opens it."""
    if size <= FOLD:
        return [f"{title}:", "", *lines]
    return ["<details>", f"<summary>{title}: {size} rows</summary>", "", *lines, "", "</details>"]


def cell(field: str, value: Any) -> str:
    """A value in the unit that the name of its field carries."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return str(value)
    if field.endswith("_bytes"):
        return amount_bytes(value)
    if field.endswith(("_s", "seconds")) and not field.endswith("per_s"):
        return amount(value, "s")
    if any(part in field for part in _SHARES):
        return amount(value, "%")
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def amount(value: float | None, form: str) -> str:
    """A figure in the form it has: a ratio, a share, seconds or plain."""
    if value is None:
        return "not measured"
    if form == "%":
        value = value if abs(value) >= 5e-7 else 0.0
        return f"{100 * value:.3g} %" if abs(value) < 0.995 else f"{100 * value:.4g} %"
    if not form:
        return f"{value:.2g}"
    if form == "s":
        return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"
    if value >= 10_000:  # a baseline's count over one or none of ours
        return "over 10,000×"
    return f"{value:,.0f}×" if value >= 1000 else f"{value:.3g}×"


def amount_bytes(value: float) -> str:
    """Bytes in the largest unit that leaves at least one."""
    unit, size = next((u for u in _BYTES if abs(value) >= u[1]), _BYTES[-1])
    return f"{value / size:.4g} {unit}"


def goal_text(goal: Goal | None, form: str) -> str:
    """A goal as people write it."""
    if goal is None:
        return "–"
    return f"{'≥' if goal[0] == '>=' else '≤'} {amount(goal[1], form)}"


def verdict(reached: bool | None) -> str:
    """Whether a bar was reached; nothing where there is none."""
    return {True: "reached", False: "**missed**", None: "–"}[reached]


def spread(values: Sequence[float], form: str = "×") -> str:
    """The median of several values and their range."""
    if not values:
        return "–"
    low, high = amount(min(values), form), amount(max(values), form)
    return f"{amount(statistics.median(values), form)} ({low} to {high})"


def model_table(data: Data) -> list[str]:
    """Speed-ups of benchmarks/recshard.py, over seeds, a line per model and method."""
    rows, lines = data["rows"], []
    fields = [key for key in rows[0] if key.endswith(" (recshard)")]
    for model in dict.fromkeys(row["model"] for row in rows):
        for field in fields:
            method = field.removesuffix(" (recshard)")
            mine = [[row[name] for row in rows if row["model"] == model and name in row]
                    for name in (field, f"{method} (step)")]  # fmt: skip
            lines.append([model, method, *(spread(values) for values in mine)])
    return table(["model", "method", "memory time of the slowest device", "whole step"], lines)


def traffic_table(data: Data) -> list[str]:
    """What is saved between nodes by the model, over seeds, two nodes of eight devices."""
    kinds = dict.fromkeys((row["kind"], row["zipf"]) for row in data["rows"])
    methods = dict.fromkeys(row["method"] for row in data["rows"] if row["method"] != "rows plain")
    body = []
    for kind, zipf in kinds:
        line = [kind, f"{zipf:g}"]
        for method in methods:
            found = [row["reduction"] for row in data["rows"]
                     if (row["kind"], row["zipf"], row["method"]) == (kind, zipf, method)
                     and row["cluster"] == "2x8" and row["budget"] in (None, 0.0)]  # fmt: skip
            line.append(amount(statistics.median(found), "%") if found else "–")
        body.append(line)
    return table(["tables", "Zipf", *methods], body)


def expected_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Expectations of benchmarks/sca.py against what was drawn, cells of one kind together."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["part"], row["data"]), []).append(row)
    body = []
    for (part, data), cells in groups.items():
        errors = [abs(row["error"]) for row in cells if row["error"] is not None]
        largest = amount(max(errors), "%") if errors else "–"
        often = [abs(row["error"]) for row in cells
                 if row["error"] is not None and (row["counted"] or 0) >= 1e5]  # fmt: skip
        sure = amount(max(often), "%") if often else "–"
        body.append([part, data, str(len(cells)), sure, largest])
    head = ["part", "data", "cells", "largest error, 10⁵ or more counted", "largest error of all"]
    return table(head, body)


def _alike(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    parts: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        parts.setdefault((*row, str(row.get("part"))), []).append(row)
    return list(parts.values())


def _title(field: str) -> str:
    ending = next((e for e in ("_bytes_per_s", "_per_s", "_bytes", "_s") if field.endswith(e)), "")
    named = {"_per_s": " per s", "_bytes": " bytes", "_s": "", "_bytes_per_s": " bytes per s"}
    return field.removesuffix(ending).replace("_", " ") + named.get(ending, "")

"""The figures of `step_truth.py`, from one entry for every cell and plan.

A cell is a number of ranks, a workload and a batch size. Plans with equal bands were run once.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

Row = Mapping[str, Any]
APART = 1.1  # times as long: the order of two plans counts if they differ by more


def figures_of(rows: Sequence[Row], cores: int) -> dict[str, float | None]:
    """What follows from all cells; more ranks than cores are told apart."""
    fitting = [row for row in rows if row["ranks"] <= cores]
    crowded = [row for row in rows if row["ranks"] > cores]
    errors, crowded_errors = step_errors(fitting), step_errors(crowded)
    before = step_errors(fitting, "predicted_before_ms")
    spreads = {size: spreads_of(rows, size) for size in sorted({row["ranks"] for row in rows})}
    fitting_spreads = [one for size, found in spreads.items() if size <= cores for one in found]
    return {
        "step_error_median": statistics.median(errors) if errors else None,
        "step_error_p90": float(np.quantile(errors, 0.9)) if errors else None,
        "step_error_max": max(errors, default=None),
        "order_agreement": order_agreement(fitting),
        "joint_measured_min": min(joint_ratios(fitting), default=None),
        **paired_figures(fitting),
        "calibrate_spread": max(fitting_spreads, default=None),
        "calibrate_spread_median": statistics.median(fitting_spreads) if fitting_spreads else None,
        **{f"calibrate_spread_{size}_ranks": max(found) for size, found in spreads.items()},
        "before_step_error_median": statistics.median(before) if before else None,
        "before_step_error_p90": float(np.quantile(before, 0.9)) if before else None,
        "before_order_agreement": order_agreement(fitting, "predicted_before_ms"),
        "oversubscribed_step_error_median": (
            statistics.median(crowded_errors) if crowded_errors else None
        ),
        "oversubscribed_order_agreement": order_agreement(crowded),
    }


def cells(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each cell."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((row["ranks"], row["data"], row["batch"]), []).append(row)
    return list(found.values())


def run_once(rows: Sequence[Row]) -> list[Row]:
    """The rows of plans that were run; others have the bands of one of these."""
    return [row for row in rows if row["same as"] is None]


def step_errors(rows: Sequence[Row], predicted: str = "predicted_ms") -> list[float]:
    """|predicted / measured − 1|."""
    return [abs(row[predicted] / row["measured_ms"] - 1) for row in run_once(rows)]


def order_agreement(rows: Sequence[Row], predicted: str = "predicted_ms") -> float | None:
    """Of pairs of plans in a cell that differ clearly, the share that the model orders so too."""
    agreed = [
        (one["measured_ms"] < other["measured_ms"]) == (one[predicted] < other[predicted])
        for one, other in _clear_pairs(rows)
    ]
    return sum(agreed) / len(agreed) if agreed else None


def _clear_pairs(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    for cell in cells(rows):
        for one, other in combinations(run_once(cell), 2):
            both = one["measured_ms"], other["measured_ms"]
            if max(both) > APART * min(both):
                yield one, other


def joint_ratios(rows: Sequence[Row]) -> list[float]:
    """Per cell the best other plan's measured time over joint's; 1 if their bands are equal."""
    ratios = []
    for cell in cells(rows):
        joint = next(row for row in cell if row["plan"] == "joint")
        best = min((row for row in cell if row is not joint), key=lambda row: row["measured_ms"])
        alike = best["same as"] == "joint"
        ratios.append(1.0 if alike else best["measured_ms"] / joint["measured_ms"])
    return ratios


def paired_figures(rows: Sequence[Row]) -> dict[str, float | None]:
    """The same from times of the same rounds, and what a second module of joint's plan gives."""
    others = [row for row in run_once(rows) if row["plan"] != "joint" and "over_joint" in row]
    least = min(others, key=lambda row: row["over_joint"], default=None)
    again = [row["over_joint"] for row in rows if row["plan"] == "joint" and "over_joint" in row]
    return {
        "joint_paired_min": min(least["over_joint"], 1.0) if least else None,
        "joint_paired_min_high": min(least["over_joint_high"], 1.0) if least else None,
        "equal_plans_paired_min": min([min(one, 1 / one) for one in again], default=None),
    }


def spreads_of(rows: Sequence[Row], size: int) -> list[float]:
    """By how much each predicted step differs between two calibrations of so many ranks."""
    return [
        difference(row["predicted_before_ms"], row["predicted_again_ms"])
        for row in rows
        if row["ranks"] == size
    ]


def difference(one: float, other: float) -> float:
    """How much larger the larger is."""
    low, high = sorted((abs(one), abs(other)))
    return 0.0 if high == low else high / low - 1 if low else float("inf")


def coefficient_spreads(one: Any, other: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number of two nested structures of the same form by which they differ."""
    if isinstance(one, Mapping):
        label = str(one.get("name", ""))
        inner = ".".join(filter(None, (name, label)))
        for key in one:
            yield from coefficient_spreads(
                one[key], other[key], ".".join(filter(None, (inner, key)))
            )
    elif isinstance(one, (list, tuple)):
        for here, there in zip(one, other, strict=True):
            yield from coefficient_spreads(here, there, name)
    elif isinstance(one, (int, float)) and isinstance(other, (int, float)) and one != other:
        yield name, difference(one, other)

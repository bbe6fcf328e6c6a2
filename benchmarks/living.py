"""Plans that live: what following the data gains, and what counting, saving and moving cost.

Every part is a module of harness.living/, which says in its docstring what it does:

    contenders  autopilot_vs_static_drift, autopilot_vs_static_min, autopilot_vs_oracle
    counts      counts_overhead: counting one step in 64 over the time of steps
    saves       async_save_stall, delta_bytes_over_changed_rows
    migration   migrate_time_error: seconds of a migration over those predicted, less 1
    exact       migrate_exact: drawn pairs of plans, bit for bit as through a checkpoint

`--only counts,saves` runs some of them. Contenders take turns step by step in the same processes,
and so do steps with and without a save, so that a busy machine disturbs their ratios little; run
`migration` when nothing else does.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

from harness.form import Goal, Measured, run

PARTS = ("contenders", "counts", "saves", "migration", "exact")
GOALS: dict[str, Goal] = {
    "autopilot_vs_static_drift": (">=", 1.2),
    "autopilot_vs_static_min": (">=", 0.97),
    "autopilot_vs_oracle": (">=", 0.85),
    "counts_overhead": ("<=", 0.01),
    "async_save_stall": ("<=", 0.2),
    "delta_bytes_over_changed_rows": ("<=", 1.1),
    "migrate_time_error": ("<=", 0.3),
    "migrate_exact": (">=", 1.0),
}


def measure(quick: bool, only: str) -> Measured:
    """Run parts one after the other."""
    rows: list[dict[str, Any]] = []
    figures: dict[str, float | None] = {}
    for part in only.split(",") if only else PARTS:
        began = time.monotonic()
        found = importlib.import_module(f"harness.living.{part}").measure(quick)
        seconds = time.monotonic() - began
        rows += [{"part": part, "found": row} for row in found.rows]
        figures |= {**found.figures, f"{part}_seconds": seconds}
        print(f"{part}: {seconds:.0f} s: {dict(found.figures)}", file=sys.stderr, flush=True)
    return Measured(rows, figures)


if __name__ == "__main__":
    run(
        "living",
        measure,
        goals=GOALS,
        options={"only": ("", "parts, with commas between: " + ", ".join(PARTS))},
    )

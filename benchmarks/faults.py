"""What goes wrong on real machines, tried on purpose: is anything lost, mixed or believed?

Every kind of fault is a module of fault_kinds/, which says in its docstring what it does and what
counts as a failure. A figure that counts failures must be 0.

    fuzz_cases, fuzz_failures               mutated files and options: wrong exception, traceback,
                                            hang over 5 s, more than 1 GiB
    kills, kills_lost,                      writers killed at random moments; results that are
    leftovers_after_next_run                neither the old nor the new one; files left behind
    checkpoint_flips, flips_undetected      bits flipped, files cut, pages zeroed, then loaded
    disagreements, disagreements_undetected ranks that differ in a plan, an option, a number
    forgeries, false_certificates           edited plans that `rowtier verify` believes
    pairs, mixed_profiles                   two runs of `profile` into one folder
    environments, environment_failures      full disks, closed pipes, odd terminals, odd names
    checksum_save_overhead                  a save with checksums over one without, less 1
    agreement_step_overhead                 a step with agreement over one without, less 1

`--only fuzz,kills` runs some of them, `--scale .1` a tenth of the cases.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.form import Goal, Measured, run

QUICK = 0.1  # of the cases
FAILURES = (
    "fuzz_failures",
    "kills_lost",
    "leftovers_after_next_run",
    "flips_undetected",
    "disagreements_undetected",
    "false_certificates",
    "mixed_profiles",
    "environment_failures",
    "orphans",  # workers that outlive a killed parent
    "wrong_exit_codes",
    "leftovers",  # of a refused run
    "crashes",  # of `verify`
)
GOALS: dict[str, Goal] = {
    "fuzz_cases": (">=", 50_000),
    "kills": (">=", 2_000),
    "checkpoint_flips": (">=", 1_000),
    "disagreements": (">=", 12),
    "forgeries": (">=", 30),
    "pairs": (">=", 200),
    "checksum_save_overhead": ("<=", 0.02),
    "agreement_step_overhead": ("<=", 0.01),
    **dict.fromkeys(FAILURES, ("<=", 0)),
}


@dataclass(frozen=True)
class FaultKind:
    """A module of fault_kinds/ and how many cases of it the whole benchmark tries."""

    module: str
    cases: int


KINDS = {
    "fuzz": FaultKind("fuzz", 50_000),
    "kills": FaultKind("kills", 2_000),
    "checkpoint-kills": FaultKind("checkpoint_kills", 200),
    "flips": FaultKind("flips", 2_400),
    "disagreements": FaultKind("disagreements", 76),
    "forgeries": FaultKind("forgeries", 400),
    "pairs": FaultKind("pairs", 200),
    "environments": FaultKind("environments", 60),
    "save-overhead": FaultKind("save_overhead", 20),
    "step-overhead": FaultKind("step_overhead", 1_200),
}


def measure(quick: bool, only: str, scale: float, seed: int) -> Measured:
    """Try kinds one after the other; counts of the same name add up."""
    rows: list[dict[str, object]] = []
    figures: dict[str, float] = {}
    for name in only.split(",") if only else KINDS:
        kind = KINDS[name]
        cases = max(1, round(kind.cases * scale * (QUICK if quick else 1.0)))
        begun = time.monotonic()
        found = importlib.import_module(f"fault_kinds.{kind.module}").run(cases, seed)
        seconds = time.monotonic() - begun
        figures = added(figures, found)
        failed = sum(found.get(failure, 0) for failure in FAILURES)
        rows.append({"faults": name, "cases": cases, "failures": failed, "seconds": seconds})
        print(f"{name}: {failed} failures, {seconds:.0f} s: {found}", file=sys.stderr, flush=True)
    return Measured(rows, figures)


def added(figures: Mapping[str, float], found: Mapping[str, Any]) -> dict[str, float]:
    """Figures with those of one kind: numbers alone, its details were printed."""
    numbers = {key: value for key, value in found.items() if isinstance(value, (int, float))}
    both = {key: figures[key] + numbers[key] for key in figures.keys() & numbers.keys()}
    return {**figures, **numbers, **both}


if __name__ == "__main__":
    run(
        "faults",
        measure,
        goals=GOALS,
        options={
            "only": ("", "kinds, with commas between: " + ", ".join(KINDS)),
            "scale": (1.0, "times so many cases"),
            "seed": (0, "of everything that is drawn"),
        },
    )

"""A fuzzer of everything that rowtier reads: files, folders, texts and options.

corpus   small good inputs, made by rowtier
draw     random changes, as plain data
changes  what a change does to a folder
targets  what users do next with each kind of input
judge    one case: done, refused, or a bug
run      many cases, in processes that may die
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def run(
    count: int, seed: int = 0, progress: Callable[[float], None] = lambda _: None
) -> dict[str, Any]:
    """Try so many mutated inputs, and count what came of them."""
    from fault_kinds.fuzz.processes import Drawn, run_cases

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    tally = run_cases(Drawn(seed, count), min(2, cores), progress)
    return {
        "fuzz_cases": tally.cases,
        "fuzz_failures": len(tally.failures),
        "outcomes": dict(sorted(tally.outcomes.items())),
        "kinds": dict(sorted(tally.bases.items())),
        "worst_s": round(tally.worst_s, 2),
        "worst_mib": round(tally.worst_mib, 1),
        "failed": [f"case {n}, {c.base}: {o.what}: {o.detail}" for n, c, o in tally.failures],
    }

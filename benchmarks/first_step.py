"""How long a newcomer waits: the first script of docs/training.md, from its start to its end.

The page's first Python block is run in a new process, with one step instead of ten, as often as
`--rounds` says; seconds are medians. Before every cold run the folder of machine code is empty, as
on a machine that has never run rowtier; a warm run follows it.

    cold_first_step_s       one rank, nothing compiled yet
    warm_first_step_s       the same, all of it compiled
    cold_over_warm          one over the other
    cold_alone_s            cold, without helper processes (ROWTIER_HELPERS=0)
    cold_2_ranks_s          the same script under torchrun, two ranks
    warm_2_ranks_s

Of a warm run most is importing torch: `import_torch_s` is a process that does nothing else.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.form import Measured, run

PAGE = Path(__file__).parents[1] / "docs" / "training.md"
STEPS = "for _ in range(10):"
GOALS: dict[str, Any] = {"cold_first_step_s": ("<=", 12.0)}
ALONE = {"ROWTIER_HELPERS": "0"}


def first_script(page: str) -> str:
    """The first Python block of a page, with one step."""
    block = re.findall(r"```python\n(.*?)```", page, re.S)[0]
    assert STEPS in block, f"{PAGE.name}: the first script has no loop of ten steps"
    return str(block).replace(STEPS, "for _ in range(1):")


def measure(quick: bool, rounds: int) -> Measured:
    """Cold and warm in turns; quick: once, on one rank."""
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "first_script.py"
        script.write_text(first_script(PAGE.read_text()))
        for _ in range(1 if quick else rounds):
            one = [str(script)]
            runs = {"import torch": seconds_of(["-c", "import torch"], {})}
            runs |= cold_and_warm("one rank", one)
            if not quick:
                runs["alone, cold"] = cold_and_warm("alone", one, ALONE)["alone, cold"]
                runs |= cold_and_warm("two ranks", [*TORCHRUN, *one])
            for name, value in runs.items():
                seconds.setdefault(name, []).append(value)
    rows = [
        {"run": name, "seconds": statistics.median(some), "least": min(some), "most": max(some)}
        for name, some in seconds.items()
    ]
    return Measured(rows, figures_of({name: statistics.median(s) for name, s in seconds.items()}))


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def cold_and_warm(
    name: str, arguments: list[str], settings: Mapping[str, str] | None = None
) -> dict[str, float]:
    """A run with nothing compiled, and one with what the first kept."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        set_to = {"NUMBA_CACHE_DIR": cache, **(settings or {})}
        return {f"{name}, {kind}": seconds_of(arguments, set_to) for kind in ("cold", "warm")}


def seconds_of(arguments: list[str], settings: Mapping[str, str]) -> float:
    """How long a Python process takes, from its start to its end."""
    began = time.perf_counter()
    command = [sys.executable, *arguments]
    subprocess.run(command, check=True, stdout=sys.stderr, env={**os.environ, **settings})
    return time.perf_counter() - began


def figures_of(seconds: Mapping[str, float]) -> dict[str, float | None]:
    """The figures of medians by run."""
    cold, warm = seconds["one rank, cold"], seconds["one rank, warm"]
    return {
        "cold_first_step_s": cold,
        "warm_first_step_s": warm,
        "cold_over_warm": cold / warm,
        "import_torch_s": seconds["import torch"],
        "cold_alone_s": seconds.get("alone, cold"),
        "cold_2_ranks_s": seconds.get("two ranks, cold"),
        "warm_2_ranks_s": seconds.get("two ranks, warm"),
    }


if __name__ == "__main__":
    options = {"rounds": (3, "times that everything is measured")}
    run("first_step", measure, goals=GOALS, options=options)

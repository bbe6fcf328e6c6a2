"""The path from a workload to placements: what `make demo` runs.

Each step is one command; the same in Python is in README.md.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

METHODS = ("row-wise", "table-wise", "size", "lookup", "size-lookup", "recshard", "joint")


def rowtier(*arguments: str) -> str:
    """Run a rowtier command as a user would, show it, and give back what it printed."""
    print(f"\n$ rowtier {shlex.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "rowtier", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="", flush=True)
    return done.stdout


def main() -> None:
    """Make a workload, place it seven ways, verify and report the last, and compare."""
    folder = Path("demo")
    rowtier("synth", "rm2", "-o", str(folder / "rm2"))
    for method in METHODS:
        # The one that is to be run leaves room for exchange buffers and remap tables too.
        fit = ("--fit", "all" if method == METHODS[-1] else "rows")
        rowtier(
            *("plan", "--profile", str(folder / "rm2"), "--cluster", "recshard-16"),
            *("--method", method, *fit, "-o", str(folder / method)),
        )
    best = str(folder / METHODS[-1])
    rowtier("verify", best)
    rowtier("report", best, "-o", str(folder / "report.html"))
    outcome = rowtier("compare", *(str(folder / method) for method in METHODS))
    (folder / "outcome.txt").write_text(outcome)
    print(f"\nThe plans and this table are in {folder}/: open {folder}/report.html in a browser")


if __name__ == "__main__":
    main()

"""Run every benchmark and keep its JSON in benchmarks/results/."""

from __future__ import annotations

import sys

from harness.claims.results import keep, run_benchmark
from harness.folders import BENCHMARKS

# claims.py runs others, gated_plans.py among them; installs.py has `make package`
NOT_BENCHMARKS = {"run_all.py", "claims.py", "gated_plans.py", "installs.py"}


def main() -> None:
    """Run them in the order of their names; one that fails does not stop the rest."""
    failed = []
    for script in sorted(BENCHMARKS.glob("*.py")):
        if script.name in NOT_BENCHMARKS:
            continue
        print(f"{script.stem} …", flush=True)
        outcome = run_benchmark(script)
        if outcome.data is None:
            failed.append(f"{script.name} ({outcome.error})")
        elif not outcome.skipped:
            keep(script.stem, outcome.data)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

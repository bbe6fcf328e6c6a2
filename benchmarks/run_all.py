"""Run every benchmark and keep its JSON in benchmarks/results/."""

from __future__ import annotations

import sys

from _claims_run import HERE, keep, run_benchmark

# claims.py runs others; installs.py has a target of its own, `make package`
NOT_BENCHMARKS = {"run_all.py", "claims.py", "installs.py"}


def main() -> None:
    """Run them in the order of their names; one that fails does not stop the rest."""
    failed = []
    for script in sorted(HERE.glob("[!_]*.py")):
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

"""Run every benchmark and keep its JSON in benchmarks/results/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NOT_BENCHMARKS = {"run_all.py"}


def main() -> None:
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    failed = []
    for script in sorted(HERE.glob("[!_]*.py")):
        if script.name in NOT_BENCHMARKS:
            continue
        print(f"{script.stem} …", flush=True)
        command = [sys.executable, str(script), "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode == 0:
            (results / f"{script.stem}.json").write_text(done.stdout)
        else:
            failed.append(script.name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

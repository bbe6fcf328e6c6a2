"""The papers' claims: run what measures them, and say of each whether it is reached.

Runs the claim benchmarks one after the other (progress on stderr) and collects their figures and
one row per claim. Claims by the cost model alone (RM1 to RM3, memory) are read from the results
that are kept. A full run keeps every result in benchmarks/results/; `--quick` keeps them in
benchmarks/results/quick/, which is for `--gate` and `--accept` and not for figures. A benchmark
that fails is named, the rest still run, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.claims.gate import (
    ACCEPTED,
    Counts,
    compare,
    counts_of,
    load_counts,
    report,
    save_counts,
)
from harness.claims.papers import FIGURES, figures_of, judge_all
from harness.claims.results import Data, Outcome, keep, load_results, run_benchmark
from harness.folders import BENCHMARKS, RESULTS
from harness.form import PACKAGES, Measured, run, to_data

# Their counts are gated too; how they take part in claims is read from the results kept.
GATED_TOO = ("gated_plans",)
LIMIT_S = {True: 300.0, False: 2400.0}  # by quick


def main(
    arguments: Sequence[str] | None = None, *, folder: Path = BENCHMARKS, results: Path = RESULTS
) -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="benchmarks/claims.py")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="smaller and rougher")
    parser.add_argument("--gate", action="store_true", help="with --quick: no count may be worse")
    parser.add_argument("--accept", action="store_true", help="take the last quick run's counts")
    asked = parser.parse_args(arguments)
    if asked.gate and not asked.quick:
        parser.error("--gate goes with --quick: counts are those of quick runs")
    if asked.accept:
        sys.exit(accept(folder, results))
    if asked.quick:  # what is accepted later comes from one run
        for old in (results / "quick").glob("*.json"):
            old.unlink()
    outcomes = run_all([*FIGURES, *(GATED_TOO if asked.quick else ())], asked.quick, folder)
    store(outcomes, results / "quick" if asked.quick else results)
    collected = collect(outcomes, load_results(results))
    bad = [f"{outcome.name} failed: {outcome.error}" for outcome in outcomes if outcome.error]
    if not asked.quick and not bad:
        keep("claims", collected, results)
    if asked.json:
        print(json.dumps(collected))
    else:
        show(collected)
    if asked.gate and not gate(outcomes, folder, results):
        bad.append("counts are worse, see above")
    sys.exit("\n".join(bad) if bad else 0)


def run_all(names: Sequence[str], quick: bool, folder: Path) -> list[Outcome]:
    """Run benchmarks one after the other, and say on stderr how they fare."""
    outcomes = []
    for name in names:
        say(f"{name} …")
        outcome = run_benchmark(folder / f"{name}.py", quick=quick, limit_s=LIMIT_S[quick])
        if outcome.error:
            said = f"failed: {outcome.error}"
        else:
            said = "skipped: it cannot run here" if outcome.skipped else "done"
        say(f"{name} {said} ({outcome.seconds:.0f} s)")
        outcomes.append(outcome)
    return outcomes


def store(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Keep what was measured; a benchmark that failed or was skipped leaves the last result."""
    for outcome in outcomes:
        if outcome.data is not None and not outcome.skipped:
            keep(outcome.name, outcome.data, folder)


def collect(outcomes: Sequence[Outcome], kept: Mapping[str, Data]) -> Data:
    """One JSON object of all claims: from this run, and by the cost model from what is kept."""
    results = {name: data for name, data in kept.items() if name not in FIGURES}
    results |= {outcome.name: outcome.data for outcome in outcomes if outcome.data is not None}
    errors = {outcome.name: outcome.error for outcome in outcomes if outcome.error}
    rows = []
    for judged in judge_all(results):
        row = judged.row()
        if judged.claim.benchmark in errors:
            row["where it does not hold"] = f"failed: {errors[judged.claim.benchmark]}"
        rows.append(row)
    data = to_data("claims", Measured(rows, figures_of(results)))
    return data | {"versions": data["versions"] | machine()}  # type: ignore[operator]


def gate(outcomes: Sequence[Outcome], folder: Path, results: Path) -> bool:
    """Whether no count of this run is worse than the accepted one; says which are."""
    now: Counts = {
        outcome.name: counts_of(outcome.name, outcome.data, folder)
        for outcome in outcomes
        if outcome.data is not None and not outcome.skipped
    }
    before = load_counts(results / ACCEPTED)
    good, text = report(compare(before, now), sorted(before.keys() - now.keys()))
    say(text)
    return good


def accept(folder: Path, results: Path) -> str | int:
    """Take the counts of the last quick run; those of benchmarks it could not run stay."""
    last = load_results(results / "quick")
    if not last:
        return "there is no quick run to accept: make results-quick"
    counts: Counts = {name: counts_of(name, data, folder) for name, data in last.items()}
    save_counts({**load_counts(results / ACCEPTED), **counts}, results / ACCEPTED)
    newest = max(file.stat().st_mtime for file in (results / "quick").glob("*.json"))
    ended = time.strftime("%Y-%m-%d %H:%M", time.localtime(newest))
    settings = sum(len(found) for found in counts.values())
    say(f"accepted the counts of {settings} settings, from the run that ended {ended}")
    return 0


def show(collected: Data) -> None:
    """The claims for people: a narrow table, then where each does not hold."""
    columns = ("paper", "claim", "paper's figure", "ours", "reached")
    rows = [{name: row[name] for name in columns} for row in collected["rows"]]
    run("claims", lambda _: Measured(rows, collected["figures"]), arguments=[])
    for row in collected["rows"]:
        print(f"{row['paper']}, {row['claim']}: {row['where it does not hold']}")


def machine() -> dict[str, str | int | float]:
    """What the figures were measured on: no name, no address."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    found: dict[str, str | int | float] = {
        "memory_gib": round(pages * size / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
    }
    import importlib.metadata as metadata

    for package in ("torch", "torchrec", "fbgemm-gpu-cpu"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    assert not found.keys() & set(PACKAGES)
    return found


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

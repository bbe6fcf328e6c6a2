"""The path from a workload to placements, and a training run on two: what `make demo` runs.

Each step is one command; the same in Python is in README.md and docs/training.md.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from rowtier.units import show_bytes

METHODS = (
    "row-wise", "row-wise-coalesced", "table-wise", "size", "lookup", "size-lookup", "recshard",
    "joint",
)  # fmt: skip
TRAINED = ("row-wise", "joint")
PROCESSES = 2
SAME_LOSS = 1e-4  # as far as sums of fp32 in another order lead apart in so few steps
SIZES = ("--samples", "60000", "--embedding-dim", "32", "--batch-size", "1024")


def rowtier(*arguments: str) -> str:
    """Run a rowtier command as a user would, show it, and give back what it printed."""
    print(f"\n$ rowtier {shlex.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "rowtier", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="", flush=True)
    return done.stdout


def train(method: str, *sizes: str) -> dict[str, Any]:
    """Train examples/dlrm.py under a method's plan in real processes; its figures."""
    example = os.path.relpath(Path(__file__).with_name("dlrm.py"))
    arguments = [
        *("--standalone", "--nproc-per-node", str(PROCESSES), example),
        *("--method", method, *sizes, "--replay", "--json"),
    ]
    print(f"\n$ torchrun {shlex.join(arguments)}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        # torchrun sets it too, but not without a warning.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def side_by_side(runs: list[dict[str, Any]]) -> str:
    """Two training runs on the same data: verdict first, then figure by figure."""
    base, best = runs
    apart = max(abs(a - b) for a, b in zip(base["loss"], best["loss"], strict=True))
    outcome = "trains to the same loss as" if apart <= SAME_LOSS else "does not train like"
    share = _sent(best) / _sent(base)
    lines = [
        f"{best['method']} {outcome} {base['method']}, with {share:.0%} of its bytes",
        f"  losses of the same step differ by {apart:.1g} at most, in {len(best['loss'])} steps",
        f"  {_counters(runs)}",
        "",
        _line("", [run["method"] for run in runs]),
        _line("loss, first step", [f"{run['loss'][0]:.5f}" for run in runs]),
        _line("loss, last step", [f"{run['loss'][-1]:.5f}" for run in runs]),
        _line("AUC, later data", [f"{run['auc']:.5f}" for run in runs]),
        _line("step, median", [f"{1e3 * run['step_s']:.1f} ms" for run in runs]),
        _line("sent a step", [show_bytes(round(_sent(run))) for run in runs]),
    ]
    for flow in base["bytes_per_step"]:
        sent = [_sent(run, flow) for run in runs]
        if any(sent):
            lines.append(_line(f"  {flow}", [show_bytes(round(amount)) for amount in sent]))
    return "\n".join(lines) + "\n"


def _sent(run: dict[str, Any], only: str | None = None) -> float:
    """Bytes that all processes send in a step, of one flow or all."""
    flows = run["bytes_per_step"].items()
    return float(sum(sum(levels.values()) for flow, levels in flows if only in (None, flow)))


def _counters(runs: list[dict[str, Any]]) -> str:
    """Whether the processes counted what `rowtier.replay` counts on the same batches."""
    wrong = [f"{run['method']}: {text}" for run in runs for text in run["replay"]["differences"]]
    if wrong:
        return "the counters differ from rowtier.replay on the same batches:\n    " + "\n    ".join(
            wrong
        )
    count = sum(run["replay"]["counters"] for run in runs)
    return f"all {count} counters of rows and bytes equal rowtier.replay on the same batches"


def _line(name: str, values: list[str]) -> str:
    return f" {name:18}" + "".join(f"{value:>14}" for value in values)


def training(folder: Path) -> None:
    """Train under both plans and show them side by side; say so if torch is not there."""
    if importlib.util.find_spec("torch") is None:
        print("\nThe training run is left out: torch is not installed; pip install torch adds it")
        return
    runs = [train(method, *SIZES) for method in TRAINED]
    outcome = side_by_side(runs)
    (folder / "training.txt").write_text(outcome)
    print(f"\n{outcome}", end="")
    if any(run["replay"]["differences"] for run in runs):
        sys.exit(1)


def main() -> None:
    """Make a workload, place it eight ways, verify and report the last, compare, and train."""
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
    training(folder)
    print(f"\nThe plans and both tables are in {folder}/: open {folder}/report.html in a browser")


if __name__ == "__main__":
    main()

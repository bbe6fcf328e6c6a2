"""Generated workloads: how fast they are written, and whether they are what was asked for."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from harness.form import Measured, run
from numpy.typing import NDArray

from rowtier.synth.make import make_workload

GOALS: dict[str, Any] = {
    "ids_per_s": (">=", 5e6),
    "zipf_error": ("<=", 0.05),
    "untouched_error": ("<=", 0.01),
    "memory_growth_mib": ("<=", 16.0),
}


def measure(quick: bool) -> Measured:
    """All four figures."""
    size = 4 if quick else 1
    rows: list[dict[str, object]] = []
    speeds = [ids_per_cpu_second(1_000_000 // size) for _ in range(1 if quick else 3)]
    rows += [_row("criteo, ids per CPU second", "", speed) for speed in speeds]
    exponents = {a: fitted_exponent(a, 2_000_000 // size) for a in (0.6, 0.8, 1.0, 1.2)}
    rows += [_row("zipf exponent", asked, found) for asked, found in exponents.items()]
    shares = untouched_shares(1_000_000 // size)
    rows += [_row("untouched rows", 1 / math.e, share) for share in shares]
    # Below 700,000 samples row groups are smaller than they ever get above.
    peaks = [peak_mib(samples) for samples in (700_000, 2_800_000)]
    rows += [_row("peak memory at 1× and 4×, MiB", "", peak) for peak in peaks]
    figures = {
        "ids_per_s": statistics.median(speeds),
        "zipf_error": max(abs(found - asked) for asked, found in exponents.items()),
        "untouched_error": max(abs(share - 1 / math.e) for share in shares),
        "memory_growth_mib": peaks[1] - peaks[0],
    }
    return Measured(rows, figures)


def _row(what: str, asked: object, measured: float) -> dict[str, object]:
    return {"what": what, "asked": asked, "measured": measured}


def ids_per_cpu_second(samples: int) -> float:
    """Ids of Criteo at 1 % scale, drawn and written, per CPU second of all threads."""
    with tempfile.TemporaryDirectory() as folder:
        make_workload("criteo", Path(folder) / "warm", samples=1000)  # compiles
        before = time.process_time()
        written = make_workload("criteo", Path(folder) / "data", samples=samples)
        return written.ids / (time.process_time() - before)


def fitted_exponent(asked: float, samples: int) -> float:
    """The exponent seen in the data alone: rows ordered by count, maximum likelihood."""
    with tempfile.TemporaryDirectory() as folder:
        make_workload(
            "drift", Path(folder) / "data", samples=samples, rows=10_000, zipf=asked, rate=0
        )
        counts = np.sort(_counts(Path(folder) / "data", "item", 10_000))[::-1]
    log_rank = np.log(np.arange(1, len(counts) + 1))
    wanted = float(counts @ log_rank / counts.sum())
    low, high = 0.0, 4.0
    for _ in range(50):  # at the likeliest exponent E[log rank] is what was seen; it falls with it
        middle = (low + high) / 2
        weights = np.exp(-middle * log_rank)
        low, high = (middle, high) if weights @ log_rank / weights.sum() > wanted else (low, middle)
    return (low + high) / 2


def untouched_shares(samples: int) -> list[float]:
    """Untouched rows of Criteo's five big tables, every value drawn 25 times or more."""
    rows = samples // 25
    with tempfile.TemporaryDirectory() as folder:
        make_workload(
            "criteo", Path(folder) / "data", samples=samples, scale=rows / 4e7, zipf=0, hashed=True
        )
        return [
            float((_counts(Path(folder) / "data", name, rows) == 0).mean())
            for name in ("C1", "C10", "C20", "C21", "C22")
        ]


def peak_mib(samples: int) -> float:
    """Peak memory of a process of its own that writes Criteo at 1 % scale."""
    script = [sys.executable, __file__, "peak", str(samples)]
    return float(subprocess.run(script, check=True, capture_output=True, text=True).stdout)


def _print_own_peak(samples: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_workload("criteo", Path(folder) / "data", samples=samples)
    # Not ru_maxrss: a new process starts with the peak of the one that started it.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    print(int(status.split("VmHWM:")[1].split()[0]) / 1024)


def _counts(folder: Path, feature: str, rows: int) -> NDArray[np.int64]:
    column = pq.read_table(folder / "data", columns=[feature])[feature]
    return np.bincount(column.to_numpy(), minlength=rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["peak"]:
        _print_own_peak(int(sys.argv[2]))
    else:
        run("synth", measure, goals=GOALS)

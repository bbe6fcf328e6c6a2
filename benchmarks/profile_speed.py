"""How much a profile costs beyond decoding its Parquet, in CPU-seconds and in memory.

Both sides run in a process of their own, on one thread, over the same files: one decodes
every row group with pyarrow and throws it away, the other runs the whole of
`rowtier profile` (decode, count, order, estimate, write the folder). Runs alternate and the
median of their ratios is the figure. Machine code is compiled before the clock starts.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from _form import Measured, run

from rowtier import Tables, make_workload

DECODE = """
import json, sys, time
import pyarrow as pa, pyarrow.parquet as pq
from pathlib import Path
pa.set_cpu_count(1)
files = sorted(Path(sys.argv[1]).glob("data/*.parquet"))
start = time.process_time()
for file in files:
    with pq.ParquetFile(file) as opened:
        for group in range(opened.num_row_groups):
            opened.read_row_group(group, use_threads=False)
print(json.dumps({"seconds": time.process_time() - start}))
"""

PROFILE = """
import json, sys, time
import pyarrow as pa
from pathlib import Path
from rowtier import Tables
from rowtier.profile.make import make_profile
pa.set_cpu_count(1)
folder = Path(sys.argv[1])
warm = Path(sys.argv[2])
first = make_profile(warm / "data", Tables.load(warm / "tables.yaml"))
first.save(warm / "out")
curves = [stats.curve for stats in first.stats]

def peak():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024

Path("/proc/self/clear_refs").write_text("5")  # forget the peak of imports and compilation
before = peak()
start = time.process_time()
profile = make_profile(folder / "data", Tables.load(folder / "tables.yaml"))
curves = [stats.curve for stats in profile.stats]
counted = time.process_time() - start
profile.save(folder / "out")
seconds = time.process_time() - start
print(json.dumps({
    "seconds": seconds, "without_saving": counted, "memory": peak() - before,
    "touched": sum(stats.touched for stats in profile.stats),
    "lookups": sum(stats.lookups for stats in profile.stats),
}))
"""


def child(code: str, *arguments: Path) -> dict[str, float]:
    """Run a script in a process of its own and read what it prints."""
    settings = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **settings},
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found


def row_group_bytes(folder: Path) -> int:
    """The largest row group, decoded."""
    import pyarrow.parquet as pq

    groups: list[int] = []
    for file in folder.glob("data/*.parquet"):
        with pq.ParquetFile(file) as opened:
            groups.append(opened.read_row_group(0).nbytes)
    return max(groups)


def compare(name: str, folder: Path, warm: Path, repeats: int) -> dict[str, object]:
    """Alternate decoding and profiling; the median ratio counts."""
    decoded, profiled = [], []
    for _ in range(repeats):
        decoded.append(child(DECODE, folder))
        profiled.append(child(PROFILE, folder, warm))
    tables = Tables.load(folder / "tables.yaml")
    rows = sum(table.num_embeddings for table in tables)
    allowed = 8 * rows + 24 * profiled[0]["touched"] + row_group_bytes(folder)
    pairs = list(zip(decoded, profiled, strict=True))
    return {
        "workload": name,
        "ids": profiled[0]["lookups"],
        "rows": rows,
        "touched": profiled[0]["touched"],
        "decode_s": statistics.median(d["seconds"] for d in decoded),
        "profile_s": statistics.median(p["seconds"] for p in profiled),
        "ratio": statistics.median(d["seconds"] / p["seconds"] for d, p in pairs),
        "ratio_without_saving": statistics.median(
            d["seconds"] / p["without_saving"] for d, p in pairs
        ),
        "memory_mib": max(p["memory"] for p in profiled) / 2**20,
        "memory_ratio": max(p["memory"] for p in profiled) / allowed,
    }


def measure(quick: bool) -> Measured:
    """Make both datasets, compare, clean up."""
    shrink = 10 if quick else 1
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        make_workload("drift", home / "warm", rows=1000, samples=5000, rate=0.0)
        make_workload(
            "drift", home / "zipf", rows=40_000_000 // shrink, samples=100_000_000 // shrink,
            zipf=1.05, rate=0.0,
        )  # fmt: skip
        make_workload("criteo", home / "criteo", samples=4_000_000 // shrink, scale=0.01)
        rows: list[Mapping[str, object]] = [
            compare(name, home / name, home / "warm", 1 if quick else 3)
            for name in ("zipf", "criteo")
        ]
    zipf, criteo = rows
    ratios = [float(str(row["memory_ratio"])) for row in rows]
    return Measured(
        rows,
        {
            "zipf_ratio": float(str(zipf["ratio"])),
            "criteo_ratio": float(str(criteo["ratio"])),
            "memory_ratio": max(ratios),
        },
    )


if __name__ == "__main__":
    run(
        "profile_speed",
        measure,
        goals={
            "zipf_ratio": (">=", 0.55),
            "criteo_ratio": (">=", 0.55),
            "memory_ratio": ("<=", 1.3),
        },
    )

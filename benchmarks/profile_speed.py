"""How much a profile costs beyond decoding its Parquet, in CPU-seconds and in memory.

Both sides run in a process of their own, on one thread, over the same files: one decodes
every row group with pyarrow and throws it away, the other runs the whole of
`rowtier profile` (decode, count, order, estimate, write the folder). Runs alternate and the
median of their ratios is the figure. Machine code is compiled before the clock starts, and
the heap was used before: on a virtual machine the first touch of a page costs 15 µs, which
says nothing about either side. `cold` is the ratio with that cost, from the runs that measure
memory.

The figures are for files as pyarrow writes them when told nothing (snappy, dictionaries, row
groups of 1 Mi rows), which is what most data looks like. Rows named `…, delta` read the same
ids in an encoding that decodes several times faster, so that counting is what is left.
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

import pyarrow.parquet as pq
from harness.form import Measured, run

from rowtier import Tables, make_workload

ROW_GROUP = 2**20
ALLOWED_BYTES = 2  # a row: what counting lookups by halves of the data took

DECODE = """
import json, sys, time
import numpy, pyarrow as pa, pyarrow.parquet as pq
from pathlib import Path
pa.set_cpu_count(1)
if sys.argv[3] == "warm":
    numpy.ones(2**27)
files = sorted(Path(sys.argv[1]).glob(f"{sys.argv[2]}/*.parquet"))
start = time.process_time()
for file in files:
    with pq.ParquetFile(file) as opened:
        for group in range(opened.num_row_groups):
            opened.read_row_group(group, use_threads=False)
print(json.dumps({"seconds": time.process_time() - start}))
"""

PROFILE = """
import json, sys, time
import numpy, pyarrow as pa
from pathlib import Path
from rowtier import Tables
from rowtier.profile.make import make_profile
pa.set_cpu_count(1)
folder, kind, warm = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[4])
first = make_profile(warm / "data", Tables.load(warm / "tables.yaml"))
first.save(warm / "out")
curves = [stats.curve for stats in first.stats]

if sys.argv[3] == "warm":
    numpy.ones(2**27)

def peak():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024

Path("/proc/self/clear_refs").write_text("5")  # forget the peak of imports and compilation
before = peak()
start = time.process_time()
profile = make_profile(folder / kind, Tables.load(folder / "tables.yaml"))
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


def child(code: str, *arguments: object) -> dict[str, float]:
    """Run a script in a process of its own and read what it prints."""
    settings = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1"}
    if "warm" in arguments:  # keep freed memory
        settings |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**34)}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **settings},
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found


def rewrite(folder: Path) -> int:
    """The same data as pyarrow writes it by default; the bytes of its largest row group."""
    (folder / "default").mkdir()
    largest = 0
    for file in sorted(folder.glob("data/*.parquet")):
        table = pq.read_table(file)
        largest = max(largest, table[:ROW_GROUP].nbytes)
        pq.write_table(table, folder / "default" / file.name, row_group_size=ROW_GROUP)
    return largest


def compare(folder: Path, kind: str, warm: Path, group: int, repeats: int) -> dict[str, float]:
    """Alternate decoding and profiling; the median ratio counts."""
    decoded, profiled = [], []
    for _ in range(repeats):
        decoded.append(child(DECODE, folder, kind, "warm"))
        profiled.append(child(PROFILE, folder, kind, "warm", warm))
    cold = child(DECODE, folder, kind, "cold"), child(PROFILE, folder, kind, "cold", warm)
    rows = sum(table.num_embeddings for table in Tables.load(folder / "tables.yaml"))
    allowed = ALLOWED_BYTES * rows + 24 * profiled[0]["touched"] + group
    pairs = list(zip(decoded, profiled, strict=True))
    memory = cold[1]["memory"]
    return {
        "ids": profiled[0]["lookups"],
        "touched": profiled[0]["touched"],
        "decode_s": statistics.median(d["seconds"] for d in decoded),
        "profile_s": statistics.median(p["seconds"] for p in profiled),
        "ratio": statistics.median(d["seconds"] / p["seconds"] for d, p in pairs),
        "unsaved": statistics.median(d["seconds"] / p["without_saving"] for d, p in pairs),
        "cold": cold[0]["seconds"] / cold[1]["seconds"],
        "mib": memory / 2**20,
        "memory": memory / allowed,
    }


def measure(quick: bool) -> Measured:
    """Make both datasets, compare, clean up."""
    shrink = 10 if quick else 1
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        make_workload("drift", home / "warm", rows=1000, samples=5000, rate=0.0)
        make_workload(
            "drift", home / "zipf", rows=40_000_000 // shrink, samples=100_000_000 // shrink,
            zipf=1.05, rate=0.0,
        )  # fmt: skip
        make_workload("criteo", home / "criteo", samples=20_000_000 // shrink, scale=0.01)
        for name in ("zipf", "criteo"):
            group = rewrite(home / name)
            for kind, label in (("default", name), ("data", f"{name}, delta")):
                repeats = 1 if quick else 3
                found[label] = compare(home / name, kind, home / "warm", group, repeats)
    rows: list[Mapping[str, object]] = [{"data": name, **row} for name, row in found.items()]
    figures = {
        "zipf_ratio": found["zipf"]["ratio"],
        "criteo_ratio": found["criteo"]["ratio"],
        "memory_ratio": max(found["zipf"]["memory"], found["criteo"]["memory"]),
    }
    return Measured(rows, figures)


if __name__ == "__main__":
    run(
        "profile_speed",
        measure,
        goals={
            "zipf_ratio": (">=", 0.45),
            "criteo_ratio": (">=", 0.45),
            "memory_ratio": ("<=", 1.95),
        },
    )

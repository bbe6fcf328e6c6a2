"""A model four times the memory allowed, trained from a disk in one process.

Two workloads, both 1 GiB with 256 MiB for rows, Zipf 1.05, SGD:

    hashed   40 hash tables of all sizes with skewed pooling and coverage, many of their rows unused
             (benchmarks/harness/hashed_model.py): the kind of model RecShard is about, hence the
             headline
    equal    eight tables alike, 10 ids a sample: placing whole tables can hardly go wrong there;
             figures end in `_equal_tables`

Every contender is a process of its own with the same limit on its memory, page cache included,
and the same code but for where rows are kept. They take turns, with the same batches, whose ids
became addresses beforehand (`plan.remapper()` in a data loader). All run in the pipelined loop:
pages of a batch are read while the one before it is trained; figures that end in `_plain_loop` are
of the hashed tables without it. Greedy placements of whole tables (RecShard's three baselines)
have their rows in the order of ids, as in the paper; `…, hotness order` are the same with hot rows
side by side on few pages, which is stronger than the paper's, and reported apart. `mmap` is one
file with the rows of all tables in id order, mapped with MADV_RANDOM: the system keeps in memory
what it likes.

`slow_reads` (lookups that the disk tier serves) and `slow_rows` (distinct rows of it that are
updated) are the same in every run; `pages_read` is measured, for `mmap` as major page faults.
"""

from __future__ import annotations

import functools
import mmap
import resource
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from harness.contenders import BY_HEAT, GREEDY, Field, Result, first_alike, greedy_plans
from harness.form import Measured, run
from harness.hashed_model import HashedModel
from harness.trainer import DIM, Batch, Trainer, machine

import rowtier
from rowtier import FeatureStats, Profile, RowCounts, Table, TableStats
from rowtier.runtime.store.memory import Disk, Form, RamRows

KEY = ("workload", "batch", "contender")
COUNTS = ("slow_reads", "slow_rows")
MIB = 2**20
TABLES, LENGTH, ALPHA = 8, 10, 1.05
# For all alike: 64 MiB of pages, the order of rows and where they lie, batches, the heap.
WORKING_BYTES = 208 * MIB
HASHED_BATCH, EQUAL_BATCH = 512, 128
BATCHES = (32, 128, 512)  # of the equal tables
WARM_LOOKUPS = 600_000  # until the page cache of a mapped file is as full as it gets
GOALS: Any = {"joint_vs_mmap": (">=", 5.0), "joint_vs_best_greedy": (">=", 6.0)}
Row = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """A model and its data."""

    name: str
    profile: Callable[[int], Profile]  # by batch size
    batch: Callable[[int, int], Batch]  # by number and batch size
    lookups_per_sample: float
    piped: bool = True


def hashed(total_bytes: int) -> Workload:
    """Hash tables of all sizes."""
    model = HashedModel(seed=0, alpha=ALPHA, total_bytes=total_bytes)
    lookups = sum(table.coverage * table.ids_per_sample for table in model.tables)
    return Workload(
        "hashed", model.profile, lambda number, batch: model.batch(number, 0, batch), lookups
    )


def equal(total_bytes: int) -> Workload:
    """Eight tables alike."""
    rows = total_bytes // (TABLES * DIM * 4)
    cdf = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -ALPHA)

    @functools.cache
    def rows_by_heat(table: int) -> Any:
        """Hot rows lie anywhere in the table."""
        return np.random.default_rng(table).permutation(rows).astype(np.int32)

    def ids(random: np.random.Generator, size: int, table: int) -> Any:
        ranks = np.searchsorted(cdf, random.random(size) * cdf[-1])
        return rows_by_heat(table)[ranks].astype(np.int64)

    def profile(batch: int) -> Profile:
        """Statistics of four million lookups a table, other than those trained on."""
        stats = []
        for index in range(TABLES):
            found = ids(np.random.default_rng(100 + index), 4_000_000, index)
            stats.append(_stats_of(index, rows, found))
        return Profile(batch, tuple(stats))

    def batch(number: int, size: int) -> Batch:
        random = np.random.default_rng(10_000 * size + number)
        drawn = (ids(random, size * LENGTH, table) for table in range(TABLES))
        return {f"f{table}": found.reshape(size, LENGTH) for table, found in enumerate(drawn)}

    return Workload("equal", profile, batch, TABLES * LENGTH)


def _stats_of(index: int, rows: int, ids: Any) -> TableStats:
    table = Table(
        name=f"t{index}", num_embeddings=rows, embedding_dim=DIM, pooling="sum",
        features=(f"f{index}",), optimizer="sgd",
    )  # fmt: skip
    counts = RowCounts.from_dense(np.bincount(ids, minlength=rows))
    feature = FeatureStats(name=f"f{index}", present=len(ids) // LENGTH, lookups=len(ids))
    return TableStats.counted(table, len(ids) // LENGTH, (feature,), counts)


def plans_of(profile: Profile, allowed_bytes: int) -> dict[str, rowtier.Plan]:
    """Every plan that is run; those that are alike only once."""
    cluster = machine(1, allowed_bytes)
    found = {"joint": rowtier.make_plan(profile, cluster, "joint")}
    found |= greedy_plans(profile, cluster)
    found = {name: found[name] for name, first in first_alike(found).items() if name == first}
    bands = {
        entry.table.name: (
            rowtier.Band(
                start=0, stop=entry.table.num_embeddings, scope=cluster.top, tier="ssd",
                coalesced=True, order="blocks",
            ),
        )
        for entry in profile.stats
    }  # fmt: skip
    return found | {"mmap": rowtier.Plan.build("mmap", profile, cluster, bands)}


class Mapped(Disk):
    """One mapped file for all tables, as the system serves it."""

    def __init__(self, folder: Any):
        super().__init__(folder)
        self._file = tempfile.NamedTemporaryFile(dir=folder)  # noqa: SIM115
        self._end = 0

    def new(self) -> Mapped:
        return self

    def rows(self, form: Form) -> RamRows:
        size = form.rows * form.width * 4
        self._file.truncate(self._end + size)
        mapped = mmap.mmap(self._file.fileno(), size, offset=self._end)
        mapped.madvise(mmap.MADV_RANDOM)
        self._end += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        rows = RamRows(form._replace(rows=0))
        rows.weights = np.frombuffer(mapped, dtype=np.float32).reshape(form.rows, form.width)
        return rows


class MappedTrainer(Trainer):
    """The same training on a mapped file."""

    def tier(self) -> Any:
        return Mapped(self.folder)

    def pages_read(self) -> int:
        """Page faults that went to the disk."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def compare(
    workload: Workload, batch: int, allowed_bytes: int, field: Field, rounds: int, steps: int
) -> list[Row]:
    """All contenders at one batch size, taking turns."""
    warm = max(1, int(WARM_LOOKUPS / (batch * workload.lookups_per_sample)))
    plans = plans_of(workload.profile(batch), allowed_bytes)
    batches = [[workload.batch(number, batch) for number in range(warm + rounds * steps)]]
    results = field.race(plans, batches, rounds, warm, workload.piped)
    return [_row(workload.name, batch, name, result) for name, result in results.items()]


def _row(workload: str, batch: int, name: str, result: Result) -> Row:
    mapped = name == "mmap"
    return {
        "workload": workload,
        "batch": batch,
        "contender": name,
        "step_ms": 1e3 * result.step_s,
        "fastest_ms": 1e3 * result.fastest_s,
        "cpu_ms": 1e3 * result.by_rank("cpu_s")[0],
        "disk_ms": None if mapped else 1e3 * result.by_rank("disk_s")[0],
        "samples_per_s": batch / result.step_s,
        "slow_reads": None if mapped else result.counts["slow_reads"],
        "slow_rows": None if mapped else sum(result.counts["slow_rows_by_position"]),
        "pages_read": result.by_rank("pages")[0],
        "memory_bound_by": result.bound,
    }


def figures_of(rows: Mapping[str, Row]) -> dict[str, float | None]:
    """Joint against the others of one workload and batch: in throughput and slow accesses."""
    joint, by_id = rows["joint"], [name for name in GREEDY if name in rows]
    by_heat = [name for name in rows if name.endswith(BY_HEAT)]

    def best(names: list[str], key: str) -> float:
        return float(min(rows[name][key] for name in names) / max(joint[key], 1e-9))

    return {
        "joint_vs_mmap": best(["mmap"], "step_ms"),
        "joint_vs_best_greedy": best(by_id, "step_ms"),
        "joint_vs_best_greedy_hotness_order": best(by_heat, "step_ms"),
        "slow_reads_greedy_vs_joint": best(by_id, "slow_reads"),
        "pages_read_mmap_vs_joint": best(["mmap"], "pages_read"),
        "pages_read_greedy_vs_joint": best(by_id, "pages_read"),
        "pages_read_greedy_hotness_order_vs_joint": best(by_heat, "pages_read"),
    }


def _ending(workload: Workload, batch: int) -> str:
    """What the names of figures end in; none for the headline."""
    if workload.name.startswith("hashed"):
        return "" if workload.piped else "_plain_loop"
    return "_equal_tables" + ("" if batch == EQUAL_BATCH else f"_batch_{batch}")


def measure(quick: bool) -> Measured:
    """Both workloads; figures of the equal tables are of the middle batch size, or named so."""
    total_bytes = 512 * MIB if quick else 1024 * MIB
    allowed_bytes = total_bytes // 4
    rows: list[Row] = []
    figures: dict[str, float | None] = {}
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".disk-tier-") as folder,
        Field(
            1, allowed_bytes + WORKING_BYTES, Path(folder), shared=quick,
            trainers={"mmap": MappedTrainer},
        ) as field,
    ):  # fmt: skip
        headline = hashed(total_bytes)
        asked = [(headline, HASHED_BATCH)]
        if not quick:
            asked += [(replace(headline, name="hashed, plain loop", piped=False), HASHED_BATCH)]
        asked += [(equal(total_bytes), b) for b in ((EQUAL_BATCH,) if quick else BATCHES)]
        for workload, batch in asked:
            turns = (2, 2) if quick else (4, 10)
            found = compare(workload, batch, allowed_bytes, field, *turns)
            rows += found
            mine = figures_of({row["contender"]: row for row in found})
            figures |= {f"{name}{_ending(workload, batch)}": value for name, value in mine.items()}
    return Measured(rows, figures)


if __name__ == "__main__":
    run("disk_tier", measure, goals=GOALS)

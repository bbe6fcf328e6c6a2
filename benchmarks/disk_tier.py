"""A model four times the memory allowed, trained from a disk.

Eight tables alike, 1 GiB, Zipf 1.05, SGD; 256 MiB for rows. Every contender is a process of its
own with the same limit on its memory, page cache included, and the same code but for where rows
are kept. They take turns, with the same batches. `joint` and the greedy placements of whole
tables (RecShard's three baselines, as `rowtier plan` makes them) run on RAM and the disk tier;
there greedy plans, too, have rows in hotness order, which their papers do not give them, so
they also run in id order. `mmap` is one file with the rows of all tables in id order, mapped with
MADV_RANDOM: the system keeps in memory what it likes.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _bounded import Worker, bounded
from _form import Measured, run

import rowtier
from rowtier import Cluster, Device, FeatureStats, Profile, RowCounts, Table, TableStats, Tier
from rowtier.runtime.memory import Disk, Form, RamRows

MIB = 2**20
TABLES, ROWS, DIM, LENGTH, ALPHA = 8, 2**19, 64, 10, 1.05
ALLOWED_BYTES = 256 * MIB
BUFFER_BYTES = 32 * MIB  # of the disk tier
WORKING_BYTES = 112 * MIB  # for all alike: that buffer, the remap tables, batches, the heap
BATCHES = (32, 128, 512)
HEADLINE = 128  # what a step of any contender reads fits into the buffer
ROUNDS, STEPS = 5, 8
WARM_LOOKUPS = 600_000  # until the page cache of a mapped file is as full as it gets
GREEDY = ("size", "lookup", "size-lookup")
GOALS: Any = {"joint_vs_mmap": (">=", 5.0), "joint_vs_best_greedy": (">=", 6.0)}


@functools.cache
def cdf() -> Any:
    """How much of all lookups the hottest rows have."""
    return np.cumsum(np.arange(1, ROWS + 1, dtype=np.float64) ** -ALPHA)


@functools.cache
def rows_by_heat(table: int) -> Any:
    """Hot rows lie anywhere in the table."""
    return np.random.default_rng(table).permutation(ROWS).astype(np.int32)


def zipf_ids(random: np.random.Generator, size: int, table: int) -> Any:
    """Zipf-distributed row ids."""
    ranks = np.searchsorted(cdf(), random.random(size) * cdf()[-1])
    return rows_by_heat(table)[ranks].astype(np.int64)


def profile_of(batch: int) -> Profile:
    """Statistics of four million lookups a table, other than those trained on."""
    stats = []
    for index in range(TABLES):
        table = Table(
            name=f"t{index}", num_embeddings=ROWS, embedding_dim=DIM, pooling="sum",
            features=(f"f{index}",), optimizer="sgd",
        )  # fmt: skip
        ids = zipf_ids(np.random.default_rng(100 + index), 4_000_000, index)
        counts = RowCounts.from_dense(np.bincount(ids, minlength=ROWS))
        feature = FeatureStats(name=f"f{index}", present=len(ids) // LENGTH, lookups=len(ids))
        stats.append(TableStats.counted(table, len(ids) // LENGTH, (feature,), counts))
    return Profile(batch, tuple(stats))


def machine() -> Cluster:
    """One process; figures of the kind `rowtier calibrate --disk` finds."""
    ram = Tier(
        name="ram", capacity_bytes=ALLOWED_BYTES, bandwidth_bytes_per_s=5e9, granularity_bytes=64
    )
    ssd = Tier(name="ssd", capacity_bytes=2**34, bandwidth_bytes_per_s=5e8, granularity_bytes=4096)
    return Cluster(name="one", device=Device(tiers=(ram, ssd)))


def plans_of(batch: int) -> dict[str, rowtier.Plan]:
    """Every plan that is run; greedy ones that are alike only once."""
    profile, cluster, found = profile_of(batch), machine(), {}
    found["joint"] = rowtier.make_plan(profile, cluster, "joint")
    seen: list[Any] = []
    for method in GREEDY:
        plan = rowtier.make_plan(profile, cluster, method)
        if plan.bands not in seen:
            seen.append(plan.bands)
            found[method] = plan
            found[f"{method}, id order"] = _by_id(plan, profile, cluster)
    whole = rowtier.Band(
        start=0, stop=ROWS, scope=cluster.top, tier="ssd", coalesced=True, order="blocks"
    )
    bands = {entry.table.name: (whole,) for entry in profile.stats}
    found["mmap"] = rowtier.Plan.build("mmap", profile, cluster, bands)
    return found


def small_plan() -> rowtier.Plan:
    """Half in memory, half on disk: everything is compiled by training it a little."""
    cluster, stats, bands = machine(), [], {}
    for index in range(TABLES):
        table = Table(
            name=f"t{index}", num_embeddings=1000, embedding_dim=DIM, pooling="sum",
            features=(f"f{index}",), optimizer="sgd",
        )  # fmt: skip
        feature = FeatureStats(name=f"f{index}", present=100, lookups=1000)
        counts = RowCounts.from_dense(np.ones(1000, dtype=np.int64))
        stats.append(TableStats.counted(table, 100, (feature,), counts))
        bands[table.name] = tuple(
            rowtier.Band(
                start=start, stop=start + 500, scope=cluster.top, tier=tier, coalesced=True,
                exchange="sums" if index % 2 else "rows",
            )
            for start, tier in ((0, "ram"), (500, "ssd"))
        )  # fmt: skip
    return rowtier.Plan.build("small", Profile(8, tuple(stats)), cluster, bands)


def _by_id(plan: rowtier.Plan, profile: Profile, cluster: Cluster) -> rowtier.Plan:
    bands = {
        name: tuple(band.model_copy(update={"order": "blocks"}) for band in placed)
        for name, placed in plan.bands.items()
    }
    return rowtier.Plan.build(f"{plan.method}, id order", profile, cluster, bands)


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


class Contender:
    """A plan in a process, trained when told to."""

    def __init__(self, name: str, plan_folder: str, folder: str):
        self.name, self.folder, self.plan = name, folder, small_plan()
        self.make()
        self.train(0, 2, 8, 1000)  # compiles
        self.plan = rowtier.Plan.load(plan_folder)

    def ready(self) -> None:
        """Nothing; it answers when the process has started."""

    def make(self) -> float:
        """Set all rows; seconds it took."""
        from rowtier.torch import SGD, ShardedEmbeddings

        start = time.perf_counter()
        self.disk = Mapped(self.folder) if self.name == "mmap" else Disk(self.folder, BUFFER_BYTES)
        self.module = ShardedEmbeddings(self.plan, SGD(lr=0.01), tiers={"ssd": self.disk})
        return time.perf_counter() - start

    def train(self, first: int, steps: int, batch: int, rows: int = ROWS) -> tuple[float, int]:
        """Seconds of some steps, and how often they went to the disk for a page."""
        import torch

        batches = [batch_of(number, batch, rows) for number in range(first, first + steps)]
        grad = torch.full((batch, DIM), 0.01)
        before, start = self.slow_reads(), time.perf_counter()
        for ids in batches:
            outs = list(self.module(ids).values())
            torch.autograd.backward(outs, [grad] * len(outs))
            self.module.optimizer.step()
        return time.perf_counter() - start, self.slow_reads() - before

    def slow_reads(self) -> int:
        if self.name == "mmap":
            return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        kept = self.module.engine.memories["ssd"]
        return sum(pages.pages_read for pages in kept.pages.values())  # type: ignore[attr-defined]


def batch_of(number: int, batch: int, rows: int) -> dict[str, Any]:
    """The same for all contenders."""
    import torch

    random = np.random.default_rng(10_000 * batch + number)
    found = {}
    for table in range(TABLES):
        ids = zipf_ids(random, batch * LENGTH, table) % rows
        found[f"f{table}"] = torch.from_numpy(ids.reshape(batch, LENGTH))
    return found


def compare(batch: int, folder: Path, quick: bool) -> list[dict[str, object]]:
    """All contenders at one batch size, taking turns."""
    rounds, steps = (3, 4) if quick else (ROUNDS, STEPS)
    warm = WARM_LOOKUPS // (batch * LENGTH * TABLES) // (4 if quick else 1)
    seconds: dict[str, list[float]] = {}
    slow: dict[str, list[int]] = {}
    with contextlib.ExitStack() as stack:
        workers, limits = {}, {}
        for name, plan in plans_of(batch).items():
            plan.save(folder / f"{batch}-{name}")
            worker = Worker(Contender, name, str(folder / f"{batch}-{name}"), str(folder))
            worker.call("ready")  # what is imported and loaded so far is not counted
            pid = worker.process.pid
            assert pid is not None
            limits[name] = stack.enter_context(bounded(pid, ALLOWED_BYTES + WORKING_BYTES))
            stack.callback(worker.stop)
            worker.call("make")
            worker.call("train", 0, warm, batch)
            workers[name] = worker
        for turn in range(rounds):
            for name, worker in workers.items():
                spent, reads = worker.call("train", warm + turn * steps, steps, batch)
                seconds.setdefault(name, []).append(spent / steps)
                slow.setdefault(name, []).append(reads // steps)
    return [
        {
            "batch": batch,
            "contender": name,
            "step_ms": 1e3 * statistics.median(times),
            "fastest_ms": 1e3 * min(times),
            "slow_reads_per_step": statistics.median(slow[name]),
            "samples_per_s": batch / statistics.median(times),
            "memory_bound_by": limits[name],
        }
        for name, times in seconds.items()
    ]


def figures_of(rows: list[dict[str, Any]], batch: int) -> dict[str, float | None]:
    """Joint against the others, in throughput and in reads from the disk."""
    mine = {row["contender"]: row for row in rows if row["batch"] == batch}
    joint = mine["joint"]

    def best(names: list[str], key: str) -> float:
        return float(min(mine[name][key] for name in names) / max(joint[key], 1e-9))

    ranked = [name for name in mine if name in GREEDY]
    by_id = [name for name in mine if name.endswith("id order")]
    return {
        "joint_vs_mmap": best(["mmap"], "step_ms"),
        "joint_vs_best_greedy": best(ranked, "step_ms"),
        "joint_vs_best_greedy_id_order": best(by_id, "step_ms"),
        "slow_reads_mmap_vs_joint": best(["mmap"], "slow_reads_per_step"),
        "slow_reads_greedy_vs_joint": best(ranked, "slow_reads_per_step"),
        "slow_reads_greedy_id_order_vs_joint": best(by_id, "slow_reads_per_step"),
    }


def measure(quick: bool) -> Measured:
    """Three batch sizes; the figures are of the middle one, those of the others named so."""
    rows: list[dict[str, object]] = []
    figures: dict[str, float | None] = {}
    batches = (HEADLINE,) if quick else BATCHES
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".disk-tier-") as folder:
        for batch in batches:
            rows += compare(batch, Path(folder), quick)
            found = figures_of(rows, batch)
            end = "" if batch == HEADLINE else f"_batch_{batch}"
            figures |= {f"{name}{end}": value for name, value in found.items()}
    return Measured(rows, figures)


if __name__ == "__main__":
    run("disk_tier", measure, goals=GOALS)

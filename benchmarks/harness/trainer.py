"""One rank of a training job on memory and a disk, told what to do from outside."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import rowtier
from rowtier import (
    Band,
    Cluster,
    Device,
    FeatureStats,
    Level,
    Profile,
    RowCounts,
    Table,
    TableStats,
)

DIM = 64
Batch = Mapping[str, Any]  # feature → (ids, lengths), or a rectangle of ids


def machine(ranks: int, allowed_bytes: int) -> Cluster:
    """Ranks that share a machine's memory and its disk; figures of the kind calibration finds."""
    ram = rowtier.Tier(
        name="ram", capacity_bytes=allowed_bytes // ranks, bandwidth_bytes_per_s=5e9,
        granularity_bytes=64,
    )  # fmt: skip
    ssd = rowtier.Tier(
        name="ssd", capacity_bytes=2**36, bandwidth_bytes_per_s=5e8 / ranks, granularity_bytes=4096
    )
    node = Level(name="node", size=ranks, bandwidth_bytes_per_s=2e9, latency_s=5e-5)
    levels = (node,) if ranks > 1 else ()
    return Cluster(name=f"{ranks} ranks", levels=levels, device=Device(tiers=(ram, ssd)))


class Turn(NamedTuple):
    """What some steps took on one rank, seconds a step."""

    step_s: float
    cpu_s: float  # of all its threads
    disk_s: float  # for which it waited for pages
    pages: float  # read a step; depends on what is still being written, so not always the same

    @property
    def busy_s(self) -> float:
        """Not waiting for other ranks."""
        return self.cpu_s + self.disk_s


class Trainer:
    """One rank of a contender, trained when told to."""

    def __init__(self, rank: int, size: int, folder: str, store: str):
        import torch.distributed as dist

        self.rank, self.size, self.folder = rank, size, folder
        self.module: Any = None
        self.waits = _timed_pages()
        if size > 1:
            dist.init_process_group(
                "gloo", init_method=f"file://{store}", rank=rank, world_size=size
            )
        self._build(small_plan(size))
        self.train([small_batch(number) for number in range(2)])  # compiles

    def ready(self) -> None:
        """Nothing; it answers when the process has started."""

    def make(self, plan_folder: str) -> float:
        """Set all rows of a plan; seconds it took."""
        began = time.perf_counter()
        self._build(rowtier.Plan.load(plan_folder))
        return time.perf_counter() - began

    def _build(self, plan: rowtier.Plan) -> None:
        from rowtier.torch import SGD, ShardedEmbeddings

        self.module = None
        _trim()
        tiers = {"ssd": self.tier()}
        self.module = ShardedEmbeddings(
            plan, SGD(lr=0.01), tiers=tiers, init=_first_weights, counters=True
        )
        self.drain()
        _trim()

    def tier(self) -> Any:
        """What keeps the slow tier: the library's own with its default buffer."""
        from rowtier.torch import Disk

        return Disk(self.folder)

    def train(self, batches: Sequence[Batch], piped: bool = False) -> Turn:
        """Train some steps and wait until all is written, so that nobody else's turn pays.

        Ids become addresses before, as in a data loader with `plan.remapper()`.
        """
        import torch

        from rowtier.torch import Pipeline

        given = [self.module.remapper(batch) for batch in batches]
        grads = [torch.full((entry.samples, DIM), 0.01) for entry in given[0].values()]
        loop = Pipeline(self.module, given) if piped else ((b, self.module(b)) for b in given)
        waited, pages = self.waits[0], self.pages_read()
        cpu, began = time.process_time(), time.perf_counter()
        for _, found in loop:
            torch.autograd.backward(list(found.values()), grads)
            self.module.optimizer.step()
        self.drain()
        spent = (
            time.perf_counter() - began,
            time.process_time() - cpu,
            self.waits[0] - waited,
            self.pages_read() - pages,
        )
        return Turn(*(value / len(batches) for value in spent))

    def drain(self) -> None:
        """Wait for pages that are being written."""
        for pages in self._pages():
            pages.close()

    def pages_read(self) -> int:
        """Pages read from the disk so far."""
        return sum(pages.pages_read for pages in self._pages())

    def _pages(self) -> Sequence[Any]:
        return list(getattr(self.module.engine.memories["ssd"], "pages", {}).values())

    def reset(self) -> None:
        """Count from now on."""
        self.module.counters.reset()

    def counts(self) -> dict[str, Any]:
        """Counts a step since the last reset: the same in every run."""
        totals = self.module.count()
        bands = totals.bands
        slow = [n for n, piece in enumerate(bands.pieces) if piece.band.tier == "ssd"]
        rows = bands.rows[:, slow]
        return {
            "slow_reads": float(rows[:, :, 0].sum()) / totals.steps,
            "slow_rows_by_position": (rows[:, :, 2].sum(axis=1) / totals.steps).tolist(),
        }


def _trim() -> None:
    """Give back what is free: tables of other sizes would not fit into the gaps of the heap."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def _first_weights(table: Table, rows: Any) -> Any:
    """Not zero: pages of zeros are never read."""
    return np.full((len(rows), table.embedding_dim), 0.01, dtype=np.float32)


def _timed_pages() -> list[float]:
    """Have this process note for how many seconds it waits for pages, CPU time not counted."""
    from rowtier.runtime.store.pages import Pages

    waits, hold = [0.0], Pages.hold

    def timed(self: Any, pages: Any) -> Any:
        cpu, began = time.thread_time(), time.perf_counter()
        try:
            return hold(self, pages)
        finally:
            waits[0] += time.perf_counter() - began - (time.thread_time() - cpu)

    Pages.hold = timed  # type: ignore[method-assign]
    return waits


def small_plan(ranks: int) -> rowtier.Plan:
    """Every way that rows travel, on both tiers: training it a little compiles everything."""
    cluster, stats, bands = machine(ranks, 2**24), [], {}
    for index in range(8):
        table = Table(
            name=f"t{index}", num_embeddings=1000, embedding_dim=DIM, pooling="sum",
            features=(f"f{index}",), optimizer="sgd",
        )  # fmt: skip
        feature = FeatureStats(name=f"f{index}", present=100, lookups=1000)
        counts = RowCounts.from_dense(np.ones(1000, dtype=np.int64))
        stats.append(TableStats.counted(table, 100, (feature,), counts))
        ways: dict[str, Any] = {
            "coalesced": bool(index & 1) or index >= 4,
            "exchange": "sums" if index & 2 else "rows",
        } | ({"members": (index % ranks,)} if index < 4 else {})
        bands[table.name] = tuple(
            Band(start=start, stop=start + 500, scope=cluster.top, tier=tier, **ways)
            for start, tier in ((0, "ram"), (500, "ssd"))
        )
    return rowtier.Plan.build("small", Profile(8, tuple(stats)), cluster, bands)


def small_batch(number: int) -> Batch:
    """Ids of all rows of the small plan."""
    random = np.random.default_rng(number)
    lengths = np.full(8, 10)
    return {f"f{index}": (random.integers(0, 1000, 80), lengths) for index in range(8)}

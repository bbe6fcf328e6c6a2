"""What saves and deltas cost while two ranks train: time lost, and bytes.

Steps are timed in blocks, in turns without a save and with one that is written behind them.
`async_save_stall` is the time that a block with a save takes longer, its call included, over what a
save takes that is waited for, the median over rounds; `delta_save_stall` the same if it holds only
what changed. `delta_bytes_over_changed_rows`: bytes of a delta's folder over those of its rows and
ids.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from harness.form import Measured
from harness.ranks import run_ranks

RANKS, DIM, BATCH = 2, 64, 512
ROWS, QUICK_ROWS = 2**18, 2**14  # of each of two tables, with as much state: 256 MiB together
IDS = 20  # a sample and table
ROUNDS, QUICK_ROUNDS = 7, 3


def measure(quick: bool) -> Measured:
    """Time blocks of steps; all figures of saves and deltas."""
    with tempfile.TemporaryDirectory(prefix="rowtier-saves-", dir=Path.cwd()) as folder:
        rows, rounds = (QUICK_ROWS, QUICK_ROUNDS) if quick else (ROWS, ROUNDS)
        found = run_ranks(RANKS, _trained, folder, rows, rounds)[0]
    blocks = found["blocks"]
    base = statistics.median(blocks["none"])
    waited = statistics.median(found["waited"])
    listed = [
        {"save": kind, "block_s": statistics.median(times), "calls_s": statistics.median(calls)}
        for kind, times, calls in (
            (kind, blocks[kind], found["calls"].get(kind, [0.0])) for kind in blocks
        )
    ]
    figures = {
        "async_save_stall": _stall(blocks["behind"], blocks["none"], waited),
        "delta_save_stall": _stall(blocks["delta behind"], blocks["none"], waited),
        "delta_bytes_over_changed_rows": found["delta_ratio"],
        "blocking_save_s": waited,
        "blocking_delta_save_s": statistics.median(found["waited delta"]),
        "block_s": base,
        "steps_of_a_block": found["steps"],
        "table_bytes": 4 * rows * DIM * 4,
    }
    return Measured(listed, figures)


def _stall(with_save: list[float], without: list[float], save_s: float) -> float:
    """The time that blocks take longer, over the time of a save."""
    pairs = zip(with_save, without, strict=True)
    return statistics.median(long - short for long, short in pairs) / save_s


def _trained(rank: int, _size: int, folder: str, rows: int, rounds: int) -> dict[str, Any]:
    return _Trained(rank, Path(folder), rows).measured(rounds)


class _Trained:
    """Two tables that are trained on rows drawn by a power of their number."""

    def __init__(self, rank: int, folder: Path, rows: int):
        import torch
        from fault_kinds.small_model import parts_of, plan_of

        from rowtier.torch import Adagrad, ShardedEmbeddings

        torch.set_num_threads(1)
        self.folder, self.rows, self.random = folder, rows, np.random.default_rng(rank)
        self.embeddings = ShardedEmbeddings(plan_of(rows, DIM, RANKS), Adagrad(0.01), deltas=True)
        self.parts = parts_of(self.embeddings, 0)

    def steps(self, count: int) -> float:
        """Train; seconds of all steps."""
        import torch

        lengths, began = torch.full((BATCH,), IDS), time.perf_counter()
        for _ in range(count):
            batch = {name: (torch.from_numpy(self._ids()), lengths) for name in ("a", "b")}
            sum(found.sum() for found in self.embeddings(batch).values()).backward()
            self.embeddings.optimizer.step()
        return time.perf_counter() - began

    def _ids(self) -> Any:
        return (self.rows * self.random.random(BATCH * IDS) ** 4).astype(np.int64)

    def timed(self, work: Any, *args: Any, **options: Any) -> tuple[float, Any]:
        """Seconds until all ranks are done, and what came of it here."""
        import torch.distributed as dist

        dist.barrier()
        began = time.perf_counter()
        made = work(*args, **options)
        dist.barrier()
        return time.perf_counter() - began, made

    def save(self, **options: Any) -> Any:
        from rowtier.torch import save_checkpoint

        return save_checkpoint(self.folder / "run", **options, **self.parts)

    def measured(self, rounds: int) -> dict[str, Any]:
        """All times of this rank."""
        import torch

        self.steps(10)
        self.save()
        waited = [self.timed(self.save)[0] for _ in range(3)]
        step_s = self.timed(self.steps, 10)[0] / 10
        # Long enough for a save to end within it, on the slower of two ranks.
        told = torch.tensor([3 * statistics.median(waited) / step_s])
        torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MAX)
        count = max(10, int(told.item()) + 1)
        blocks: dict[str, list[float]] = {"none": [], "behind": [], "delta behind": []}
        calls: dict[str, list[float]] = {"behind": [], "delta behind": []}
        for _ in range(rounds):
            blocks["none"].append(self.steps(count))
            for kind in calls:
                call_s, seconds = self._block(count, kind)
                blocks[kind].append(call_s + seconds)
                calls[kind].append(call_s)
            waited.append(self.timed(self.save)[0])
        waited_delta = []
        for _ in range(3):
            self.steps(3)
            waited_delta.append(self.timed(self.save, delta_of=True)[0])
        return {
            "blocks": blocks, "calls": calls, "waited": waited, "waited delta": waited_delta,
            "steps": count, "delta_ratio": self._delta_ratio(),
        }  # fmt: skip

    def _block(self, count: int, kind: str) -> tuple[float, float]:
        """Steps behind which a save is written: seconds of the call, and of the steps."""
        call_s, pending = self.timed(self.save, wait=False, delta_of=kind != "behind")
        seconds = self.steps(count)
        pending.wait()
        return call_s, seconds

    def _delta_ratio(self) -> float:
        from rowtier import Delta

        self.embeddings.delta(self.folder / "first")
        self.steps(3)
        path = self.embeddings.delta(self.folder / "delta")
        size = sum(entry.stat().st_size for entry in path.iterdir())
        return size / (Delta.load(path).changed_rows * (DIM * 4 + 8))

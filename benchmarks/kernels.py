"""The runtime's inner loops on one core, against the barest loops on the same rows.

`lookup_ratio`: summing the rows of bags, ours against the fastest of a numba read-and-sum loop,
`F.embedding_bag` and `index_select(out=)`; turning ids into addresses is timed beside it.
`update_ratio`: adding up gradients and updating each distinct row, ours against a bare numba
loop that reads, changes and writes the same distinct rows (and state) from gradients that are
summed already; sorting is timed beside it. Ratios are theirs over ours: 1 is as fast.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from harness.form import Measured, run
from harness.runtime_step.data import DIM, ROWS, cluster_of, coalesced_row_wise, zipf_ids
from numba import njit

from rowtier import FeatureStats, Profile, RowCounts, Table, TableStats

GOALS: Any = {"lookup_ratio": (">=", 0.9), "update_ratio": (">=", 0.5)}
POOLING, LR = 10, np.float32(0.01)


@njit(cache=True)  # type: ignore[untyped-decorator]
def read_and_sum(rows: Any, slots: Any, edges: Any, out: Any) -> None:
    """The loop anyone would write."""
    for bag in range(len(edges) - 1):
        to = out[bag]
        to[:] = 0
        for i in range(edges[bag], edges[bag + 1]):
            row = rows[slots[i]]
            for c in range(len(to)):
                to[c] += row[c]


@njit(cache=True)  # type: ignore[untyped-decorator]
def bare_sgd(rows: Any, slots: Any, grads: Any, lr: Any) -> None:
    """Read, change and write each row once."""
    for i in range(len(slots)):
        row, grad = rows[slots[i]], grads[i]
        for c in range(len(row)):
            row[c] -= lr * grad[c]


@njit(cache=True)  # type: ignore[untyped-decorator]
def bare_rowwise(rows: Any, state: Any, slots: Any, grads: Any, lr: Any) -> None:
    """The same with one state a row."""
    for i in range(len(slots)):
        row, grad, total = rows[slots[i]], grads[i], np.float32(0)
        for c in range(len(row)):
            total += grad[c] * grad[c]
        state[slots[i], 0] += total / np.float32(len(row))
        rate = lr / (np.sqrt(state[slots[i], 0]) + np.float32(1e-8))
        for c in range(len(row)):
            row[c] -= rate * grad[c]


def median_s(turns: dict[str, Callable[[int], None]], rounds: int) -> dict[str, float]:
    """Median seconds of each, taking turns, on other data each time."""
    times: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds + 2):
        # Nobody gets rows that the one before has just brought into the cache.
        for place, (name, call) in enumerate(turns.items()):
            began = time.perf_counter()
            call(number + 3 * place)
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(found[2:]) for name, found in times.items()}


def engine_of(optimizer: Any, alpha: float) -> Any:
    """One process with one table."""
    from rowtier.torch import ShardedEmbeddings

    table = Table(
        name="t0", num_embeddings=ROWS, embedding_dim=DIM, features=("f0",), optimizer=optimizer
    )
    ids = zipf_ids(np.random.default_rng(5), alpha, 2_000_000, 0)
    counts = RowCounts.from_dense(np.bincount(ids, minlength=ROWS))
    feature = FeatureStats(name="f0", present=len(ids) // POOLING, lookups=len(ids))
    stats = TableStats.counted(table, len(ids) // POOLING, (feature,), counts)
    plan = coalesced_row_wise(Profile(1024, (stats,)), cluster_of(1))
    return ShardedEmbeddings(plan).engine


def measure_lookup(alpha: float, rounds: int) -> dict[str, float]:
    """Nanoseconds per lookup."""
    import torch

    engine, count = engine_of("sgd", alpha), 20480
    shard, random = engine.run_shards[0], np.random.default_rng(6)
    ids = [zipf_ids(random, alpha, count, 0) for _ in range(8)]
    address = [engine.remapper({"f0": i.reshape(-1, POOLING)})["f0"].values for i in ids]
    slots = [a.astype(np.int64) for a in address]
    edges = np.arange(0, count + 1, POOLING)
    none = np.empty(0, dtype=np.float32)
    weights, out = torch.from_numpy(shard.weights), np.empty((count // POOLING, DIM), np.float32)
    rows, starts = torch.empty(count, DIM), torch.from_numpy(edges[:-1].copy())
    turns: dict[str, Callable[[int], Any]] = {
        "ours": lambda k: shard.pooled(slots[k % 8], edges[:-1], none),
        "numba loop": lambda k: read_and_sum(shard.weights, slots[k % 8], edges, out),
        "F.embedding_bag": lambda k: torch.nn.functional.embedding_bag(
            torch.from_numpy(slots[k % 8]), weights, starts, mode="sum"
        ),
        "index_select": lambda k: torch.index_select(
            weights, 0, torch.from_numpy(slots[k % 8]), out=rows
        ),
        "remap": lambda k: engine.remapper({"f0": (ids[k % 8].reshape(-1, POOLING))}),
    }
    return {name: 1e9 * s / count for name, s in median_s(turns, rounds).items()}


def measure_update(optimizer: str, alpha: float, rounds: int) -> dict[str, float]:
    """Nanoseconds per distinct row."""
    from rowtier.runtime.store.storage import Part

    engine, count = engine_of(optimizer, alpha), 40960
    shard, random = engine.run_shards[0], np.random.default_rng(7)
    none = np.empty(0, dtype=np.float32)
    lanes, parts = random.standard_normal((count, DIM), dtype=np.float32), []
    for _ in range(8):
        # Two ranks asked for distinct rows, as they do: two runs that rise.
        runs = [np.unique(zipf_ids(random, alpha, count // 2, 1)) for _ in range(2)]
        slots = np.concatenate(runs)
        edges = np.array([0, len(runs[0]), len(slots)])
        parts.append(Part(slots, np.arange(len(slots)), none, 0, lanes[: len(slots)], edges))
    distinct = [np.unique(part.slots) for part in parts]
    grads = random.standard_normal((max(map(len, distinct)), DIM), dtype=np.float32)
    found = [shard.segments(part) for part in parts]
    weights = shard.weights

    def ours(k: int) -> None:
        shard.parts[:] = [parts[k % 8]]
        engine.updates.sum_and_update(shard, np.float32(1), engine.groups[0].optimizer, 0)

    def bare(k: int) -> None:
        rows = distinct[k % 8]
        if optimizer == "sgd":
            bare_sgd(weights, rows, grads, LR)
        else:
            bare_rowwise(weights, shard.state["sum"], rows, grads, LR)

    turns: dict[str, Callable[[int], Any]] = {
        "ours with sort": ours,
        "sort": lambda k: shard.segments(parts[k % 8]),
        "bare loop": bare,
    }
    assert all((a == b).all() for a, (b, *_) in zip(distinct, found, strict=True))
    size = statistics.mean(map(len, distinct))
    times = {name: 1e9 * s / size for name, s in median_s(turns, rounds).items()}
    return {"ours": times["ours with sort"] - times["sort"], **times}


def measure(quick: bool) -> Measured:
    """Both, on both distributions."""
    rounds, rows, lookup, update = 10 if quick else 40, [], [], []
    for alpha in (1.05, 1.2):
        found = measure_lookup(alpha, rounds)
        best = min(found[n] for n in ("numba loop", "F.embedding_bag", "index_select"))
        lookup.append(best / found["ours"])
        rows += [
            {"what": "lookup", "zipf": alpha, "of": n, "ns a row": round(v, 1)}
            for n, v in found.items()
        ]
        for optimizer in ("sgd", "rowwise_adagrad"):
            found = measure_update(optimizer, alpha, rounds)
            update.append(found["bare loop"] / found["ours"])
            rows += [
                {"what": f"update {optimizer}", "zipf": alpha, "of": n, "ns a row": round(v, 1)}
                for n, v in found.items()
            ]
    return Measured(rows, {"lookup_ratio": min(lookup), "update_ratio": min(update)})


if __name__ == "__main__":
    run("kernels", measure, goals=GOALS)

"""A training step of the embeddings: rowtier against TorchRec, in the same processes.

Steps of all contenders take turns, in each possible order equally often, with the same batches,
one thread a rank and the same malloc; half of the turns are another job's, in which they were
made in the opposite order, for where tables lie in memory makes a difference too. Rowtier's own
two, which differ least, have two more turns for each. Times are medians over the turns; how many
times as fast joint is (`joint is`), the median of each turn's ratio, which this machine's weather
touches less. A step is look-up, backward and update (SGD). `own row-wise` is rowtier with every
table spread over all ranks, coalesced: against TorchRec's row-wise it tells what the kernels and
coalescing give, and joint against it what the placement gives. A small step has many tables and few
samples: there what is done before the first row moves decides.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from harness.form import Measured, run
from harness.ranks import run_ranks
from harness.runtime_step.data import (
    DIM,
    ROWS,
    cluster_of,
    coalesced_row_wise,
    profile_of,
    rows_of,
    zipf_ids,
)
from harness.torchrec_model import sharded

import rowtier
from rowtier import (
    Profile,
)
from rowtier.cost.options import CostOptions

LR = 0.01
SMALL = {"tables": 26, "batch": 32, "length": 5, "rows": 100_000}
SMALL_BATCHES = (32, 256)
SEQUENCE = {"tables": 4, "batch": 1024, "length": 50}
POOLED = {"tables": 8, "batch": 2048, "length": 10}
ALPHAS = (1.05, 1.2)
ROUNDS = 72  # each order of four contenders three times, of three twelve times
GOALS: Any = {
    "sequence_vs_torchrec_min": (">=", 4.5),
    "sequence_vs_torchrec_median": (">=", 5.0),
    "sequence_vs_own_rowwise_min": (">=", 0.97),
    "pooled_vs_torchrec_best_min": (">=", 1.0),
    "small_vs_torchrec_min": (">=", 1.0),
    "memory_over_plan_max": ("<=", 1.10),
}


class Ours:
    """A plan, trained."""

    def __init__(self, plan: rowtier.Plan):
        from rowtier.torch import ShardedEmbeddings

        self.module = ShardedEmbeddings(plan)
        for group in self.module.optimizer.param_groups:
            group["lr"] = LR

    def prepare(self, ids: list[Any], shape: dict[str, int], grad: Any) -> Any:
        import torch

        return {
            f"f{i}": torch.from_numpy(part.reshape(shape["batch"], -1))
            for i, part in enumerate(ids)
        }, grad

    def step(self, prepared: Any) -> None:
        import torch

        batch, grad = prepared
        outs = list(self.module(batch).values())
        torch.autograd.backward(outs, [grad.view(out.shape) for out in outs])
        self.module.optimizer.step()

    def bytes_per_step(self) -> float:
        """Sent by all ranks."""
        return float(self.module.count().sent_per_step)


class TorchRec:
    """TorchRec's sharded module, every table placed in the same way."""

    def __init__(self, shape: dict[str, int], pooled: bool, how: str, size: int):
        from torchrec.distributed.sharding_plan import row_wise, table_wise

        self.pooled = pooled
        tables = [
            {
                "name": f"t{i}",
                "num_embeddings": rows_of(shape),
                "embedding_dim": DIM,
                "feature_names": [f"f{i}"],
            }
            for i in range(shape["tables"])
        ]
        ways = {
            f"t{i}": row_wise(compute_kernel="fused")
            if how == "row_wise"
            else table_wise(rank=i % size, compute_kernel="fused")
            for i in range(shape["tables"])
        }
        self.model = sharded(tables, ways, pooled=pooled, lr=LR, world=size, local_world=size)

    def prepare(self, ids: list[Any], shape: dict[str, int], grad: Any) -> Any:
        import torch
        from torchrec import KeyedJaggedTensor

        lengths = torch.full((len(ids) * shape["batch"],), shape["length"], dtype=torch.int32)
        return KeyedJaggedTensor(
            keys=[f"f{i}" for i in range(len(ids))],
            values=torch.from_numpy(np.concatenate(ids)),
            lengths=lengths,
        ), grad

    def step(self, prepared: Any) -> None:
        import torch

        batch, grad = prepared
        out = self.model(batch)
        if self.pooled:
            values = out.values()
            values.backward(grad.repeat(1, values.shape[1] // DIM))
        else:
            outs = [entry.values() for entry in out.values()]
            torch.autograd.backward(outs, [grad] * len(outs))


def contest(
    rank: int, size: int, shape: dict[str, int], pooled: bool, alpha: float, turns: range,
    plans: dict[str, rowtier.Plan],
) -> dict[str, Any]:  # fmt: skip
    """Step times of everyone, and bytes sent where they are counted."""
    import torch
    import torch.distributed as dist

    makers: dict[str, Callable[[], Any]] = {n: partial(Ours, plan) for n, plan in plans.items()}
    for how in ("row_wise", "table_wise") if pooled else ("row_wise",):
        makers[f"torchrec {how}"] = partial(TorchRec, shape, pooled, how, size)
    names = list(makers)
    contenders = {name: makers[name]() for name in (reversed(names) if turns.start else names)}
    lines = shape["batch"] if pooled else shape["batch"] * shape["length"]
    grad = torch.full((lines, DIM), 1e-3)
    random = np.random.default_rng((1000 + rank, turns.start))
    times: dict[str, list[float]] = {name: [] for name in names}
    orders = list(permutations(names))  # nobody follows the same one more often
    np.random.default_rng(0).shuffle(orders)  # the same on all ranks
    ours = list(plans)
    for number in range(turns.start - 2, turns.stop):
        ids = [
            zipf_ids(random, alpha, shape["batch"] * shape["length"], i, rows_of(shape))
            for i in range(shape["tables"])
        ]
        # By turns, and each begins in half of the turns.
        more = 2 * ours[:: 1 - 2 * (number % 2)] if len(ours) > 1 else []
        for name in [*orders[number % len(orders)], *more]:
            prepared = contenders[name].prepare(ids, shape, grad)
            dist.barrier()
            began = time.perf_counter()
            contenders[name].step(prepared)
            dist.barrier()
            if number >= turns.start:
                times[name].append(time.perf_counter() - began)
    sent = {n: c.bytes_per_step() for n, c in contenders.items() if isinstance(c, Ours)}
    return {"times": times, "bytes": sent}


def torchrec_bytes(how: str, shape: dict[str, int], pooled: bool, size: int) -> float:
    """What TorchRec sends, from its layout: ids of 8 bytes, rows or pooled rows both ways."""
    lookups = shape["batch"] * shape["length"] * shape["tables"]
    apart = (size - 1) / size
    if not pooled:
        return size * lookups * apart * (8 + 2 * 4 * DIM)
    if how == "table_wise":
        return size * apart * (lookups * 8 + 2 * shape["batch"] * shape["tables"] * DIM * 4)
    sums = (size - 1) * shape["batch"] * shape["tables"] * DIM * 4
    return size * (lookups * apart * 8 + 3 * sums)  # gloo's reduce-scatter moves twice as much


MEMORY = (
    ("sequence", SEQUENCE, "none", "sgd", "fp32"),
    ("pooled", POOLED, "sum", "sgd", "fp32"),
    ("row-wise Adagrad", POOLED, "sum", "rowwise_adagrad", "fp32"),
    ("Adam, four tables", {**POOLED, "tables": 4}, "mean", "adam", "fp32"),
    ("fp16", POOLED, "sum", "rowwise_adagrad", "fp16"),
)


def resident_bytes(entry: str) -> int:
    """VmRSS, or VmHWM for the peak since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(entry))


def forget_peak() -> None:
    """Let the kernel begin a new peak."""
    Path("/proc/self/clear_refs").write_text("5")


def memory_job(
    rank: int, _size: int, shape: dict[str, int], small: rowtier.Plan, plan: rowtier.Plan
) -> int:
    """Peak resident bytes above what the process held before the tables were made."""
    import ctypes
    import gc

    import torch

    random = np.random.default_rng(rank)

    def train(contender: Ours, tables: int, rows: int) -> None:
        for _ in range(3):
            count = shape["batch"] * shape["length"]
            ids = [random.zipf(1.2, count) % rows for _ in range(tables)]
            pooled = contender.module.plan.profile.stats[0].table.pooling != "none"
            lines = shape["batch"] if pooled else count
            contender.step(contender.prepare(ids, shape, torch.full((lines, DIM), 1e-3)))

    train(Ours(small), 1, ROWS)  # compiles everything
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # or the heap would be reused, and the tables seem smaller
    forget_peak()
    before = resident_bytes("VmRSS")
    train(Ours(plan), shape["tables"], ROWS)
    return resident_bytes("VmHWM") - before


def measure_memory(size: int = 2) -> list[dict[str, Any]]:
    """Peak over plan, on five workloads."""
    rows = []
    for name, shape, pooling, optimizer, dtype in MEMORY:
        cluster = cluster_of(size)
        profile = profile_of(shape, 1.2, pooling, optimizer, dtype)
        small = rowtier.make_plan(Profile(profile.batch_size, profile.stats[:1]), cluster)
        plan = rowtier.make_plan(profile, cluster)
        peaks = run_ranks(size, memory_job, shape, small, plan)
        memory = rowtier.predict(plan, options=CostOptions(ids="narrow")).cost.memory
        said = sum(kept[:size].sum(axis=1) for kept in vars(memory).values())
        # The remap tables are one per machine; every process that maps them shows them as its own.
        said = said - memory.remap[:size].sum(axis=1) + memory.remap.sum()
        worst = max(peak / float(s) for peak, s in zip(peaks, said, strict=True))
        rows.append(
            {
                "step": f"memory: {name}",
                "ranks": size,
                "MB peak": round(max(peaks) / 1e6, 1),
                "MB planned": round(float(said.max()) / 1e6, 1),
                "peak over plan": round(worst, 3),
            }
        )
    return rows


def measure(quick: bool) -> Measured:
    """All settings."""
    rows: list[dict[str, Any]] = []
    ratios: dict[str, list[float]] = {"torchrec": [], "own": [], "pooled": [], "small": []}
    for size in (2,) if quick else (2, 4):
        for alpha in ALPHAS[1:] if quick else ALPHAS:
            for pooled, shape in ((False, SEQUENCE), (True, POOLED)):
                found = _setting(size, alpha, pooled, shape, 4 if quick else ROUNDS)
                rows += found
                faster = {row["contender"]: float(row["joint is"]) for row in found}
                best = _least_of_torchrec(found)
                if pooled:
                    ratios["pooled"].append(best)
                else:
                    ratios["torchrec"].append(best)
                    ratios["own"].append(faster["own row-wise"])
    for batch in SMALL_BATCHES:
        found = _setting(2, ALPHAS[1], True, {**SMALL, "batch": batch}, 6 if quick else ROUNDS)
        rows += found
        ratios["small"].append(_least_of_torchrec(found))
    memory = [] if quick else measure_memory()
    return Measured(
        rows + memory,
        {
            "sequence_vs_torchrec_min": min(ratios["torchrec"]),
            "sequence_vs_torchrec_median": statistics.median(ratios["torchrec"]),
            "sequence_vs_own_rowwise_min": min(ratios["own"]),
            "pooled_vs_torchrec_best_min": min(ratios["pooled"]),
            "small_vs_torchrec_min": min(ratios["small"]),
            "memory_over_plan_max": max((row["peak over plan"] for row in memory), default=None),
        },
    )


def _least_of_torchrec(rows: list[dict[str, Any]]) -> float:
    """How many times as fast joint is as the fastest of TorchRec's ways."""
    return min(float(r["joint is"]) for r in rows if r["contender"].startswith("torchrec"))


def _setting(
    size: int, alpha: float, pooled: bool, shape: dict[str, int], rounds: int
) -> list[dict[str, Any]]:
    profile, cluster = profile_of(shape, alpha, "sum" if pooled else "none"), cluster_of(size)
    plans = {
        "joint": rowtier.make_plan(profile, cluster),
        "own row-wise": coalesced_row_wise(profile, cluster),
    }
    if "rows" in shape:
        del plans["own row-wise"]  # what the placement gives is not the question of small steps
    halves = [
        run_ranks(size, contest, shape, pooled, alpha, turns, plans)[0]
        for turns in (range(rounds // 2), range(rounds // 2, rounds))
    ]
    times = {
        name: [time for half in halves for time in half["times"][name]]
        for name in halves[0]["times"]
    }
    bytes_sent = halves[0]["bytes"]
    rows = []
    for name, each in times.items():
        beside = times["joint"][:: len(times["joint"]) // len(each)]  # of the same turns
        ratios = [theirs / ours for theirs, ours in zip(each, beside, strict=True)]
        how = name.removeprefix("torchrec ")
        sent = bytes_sent.get(name)
        rows.append(
            {
                "step": _step_name(shape, pooled),
                "ranks": size,
                "zipf": alpha,
                "contender": name,
                "ms": round(1e3 * statistics.median(each[:: len(each) // rounds]), 2),
                "MB sent": round(
                    (torchrec_bytes(how, shape, pooled, size) if sent is None else sent) / 1e6, 2
                ),
                "joint is": round(statistics.median(ratios), 3),
            }
        )
    return rows


def _step_name(shape: dict[str, int], pooled: bool) -> str:
    if "rows" in shape:
        return f"small, {shape['tables']} tables, batch {shape['batch']}"
    return "pooled" if pooled else "sequence"


if __name__ == "__main__":
    run("runtime_step", measure, goals=GOALS)

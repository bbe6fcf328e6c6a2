"""sca.py, really trained: parameters on a server behind a link of 1 Gbit/s.

The workers are rank 0 (and 1) of one node, the server is the last rank, alone on another. All
contenders train the same samples from the same first weights, and take turns.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _sca_plans import PLENTY_BYTES, home_plan, sca_plan, without_coalescing, workers_of

import rowtier
from rowtier import Plan, Profile, Tables
from rowtier.cost.options import CostOptions

Row = dict[str, object]
Batch = dict[str, Any]

RATE_BITS_PER_S = 1e9
CACHE, DIM, SEED = 0.1, 64, 3
LR, DENSE_LR = 0.05, 0.1
PLAIN, SCA = "plain", "sca"


@dataclass(frozen=True)
class Size:
    """How much is trained."""

    scale: float  # of MLPerf's tables
    profiled: int  # samples that the plans are made from; others are trained
    batch: int  # samples of a worker and step
    rounds: int
    steps: int  # of each contender in a round

    @property
    def all_steps(self) -> int:
        """Every contender trains so many, one round to warm up included."""
        return (self.rounds + 1) * self.steps


FULL = Size(scale=0.02, profiled=1_000_000, batch=4096, rounds=12, steps=2)
QUICK = Size(scale=0.004, profiled=200_000, batch=4096, rounds=3, steps=2)


def trained(size: Size, workers: int) -> list[Row]:
    """Samples per second and bytes over the link of every contender."""
    from cluster import Shaped

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        profile, batches = workload(size, workers, folder)
        plans = contenders(profile, workers)
        for name, plan in plans.items():
            plan.save(folder / name)
        np.savez(folder / "ids.npz", **batches)
        with Shaped(2, (workers, 1), RATE_BITS_PER_S) as cluster:
            runs = train_all(cluster, folder, list(plans), size)
    counted = {name: replayed_bytes(plan, batches, size) for name, plan in plans.items()}
    return list(rows_of(runs, counted, size, workers))


def workload(size: Size, workers: int, folder: Path) -> tuple[Profile, Batch]:
    """Statistics of the first samples of a criteo-like dataset, and those that come after."""
    samples = size.profiled + size.all_steps * size.batch * workers
    options: dict[str, Any] = {"embedding_dim": DIM, "batch_size": size.batch}
    rowtier.make_workload(
        "criteo", folder / "made", seed=SEED, samples=samples, scale=size.scale, **options
    )
    tables = Tables.load(folder / "made" / "tables.yaml")
    data = pq.read_table(folder / "made" / "data")
    ids = {name: _matrix(data.column(name).combine_chunks()) for name in data.column_names}
    first = {name: column[: size.profiled] for name, column in ids.items()}
    later = {name: column[size.profiled :] for name, column in ids.items()}
    return rowtier.make_profile([first], tables), later


def _matrix(column: Any) -> Any:
    """Ids as samples × ids of a sample."""
    listed = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    values = (column.flatten() if listed else column).to_numpy()
    return values.reshape(len(column), -1)


def contenders(profile: Profile, workers: int) -> dict[str, Plan]:
    """The plan of method `sca`, the same without its cache or without coalescing, and neither."""
    cluster = workers_of(workers, PLENTY_BYTES, nodes=workers > 1)
    best = sca_plan(profile, cluster, CACHE)
    return {
        PLAIN: home_plan(profile, best.cluster, coalesced=False),
        "coalescing": home_plan(profile, best.cluster, coalesced=True),
        "cache": without_coalescing(best, profile),
        SCA: best,
    }


def replayed_bytes(plan: Plan, batches: Batch, size: Size) -> float:
    """Bytes over the link in all steps after the first round, by replay of the same samples."""
    first = size.steps * size.batch * plan.cluster.num_devices
    measured = {name: ids[first:] for name, ids in batches.items()}
    found = rowtier.replay(plan, [measured], options=CostOptions(ids="narrow"))
    per_step = sum(
        figure.replayed
        for figure in found.figures
        if figure.label.kind == "level"
        and figure.label.of == "cluster"
        and figure.label.unit == "bytes"
    )
    return per_step * found.steps


@dataclass
class Run:
    """What a contender did after its first round."""

    seconds: list[float]  # a step, one entry per round
    losses: list[float]
    link_bytes: int = 0
    off: float = 0.0  # the largest difference of any weight from plain's


def train_all(cluster: Any, folder: Path, names: list[str], size: Size) -> dict[str, Run]:
    """Train all contenders, round by round, and compare their weights in the end."""
    workers = cluster.world - 1
    cluster.call(set_up, folder, names, size.batch)
    runs = {name: Run([], []) for name in names}
    for turn in range(size.rounds + 1):
        for name, run in runs.items():
            before = sum(cluster.sent_bytes())
            found = cluster.call(train, name, turn * size.steps, size.steps)
            run.losses += [statistics.fmean(losses) for losses in _by_step(found[:workers])]
            if turn:  # the first one compiles and warms up
                run.link_bytes += sum(cluster.sent_bytes()) - before
                run.seconds.append(max(seconds for seconds, _ in found) / size.steps)
    for name, off in zip(names, _largest(cluster.call(compare, names)), strict=True):
        runs[name].off = off
    return runs


def _by_step(found: list[tuple[float, list[float]]]) -> list[tuple[float, ...]]:
    return list(zip(*(losses for _, losses in found), strict=True))


def _largest(found: list[list[float]]) -> list[float]:
    return [max(values) for values in zip(*found, strict=True)]


def rows_of(
    runs: dict[str, Run], counted: dict[str, float], size: Size, workers: int
) -> list[Row]:
    """Two lines for each contender: how fast it is, and what crosses the link."""
    lines: list[Row] = []
    plain = runs[PLAIN]
    samples = size.batch * workers
    for name, run in runs.items():
        step_s = statistics.median(run.seconds)
        common: Row = {
            "data": "criteo",
            "method": name,
            "lookups": samples,
            "workers": workers,
            "cache": CACHE if name in ("cache", SCA) else 0.0,
        }
        speed: Row = {
            "unit": "samples/s",
            "expected": None,
            "measured": samples / step_s,
            "error": None,
            "sampling_error": None,
            "ratio": statistics.median(plain.seconds) / step_s,
            "counted": float(len(run.seconds) * size.steps),
        }
        steps = size.rounds * size.steps
        moved: Row = {
            "unit": "bytes/step",
            "expected": counted[name] / steps,
            "measured": run.link_bytes / steps,
            "error": counted[name] / run.link_bytes - 1,
            "sampling_error": None,
            "ratio": plain.link_bytes / run.link_bytes,
            "counted": float(run.link_bytes),
        }
        lines += [{"part": "trained", **common, **speed}, {"part": "link", **common, **moved}]
    lines.append(_same(runs, workers))
    return lines


def _same(runs: dict[str, Run], workers: int) -> Row:
    """One line: how far the contenders' losses and weights are apart."""
    losses = np.array([run.losses for run in runs.values()])
    return {
        "part": "exact",
        "data": "criteo",
        "method": "all",
        "lookups": None,
        "workers": workers,
        "cache": None,
        "unit": "weights",
        "expected": float(losses[0, -1]),
        "measured": float(losses[-1, -1]),
        "error": max(run.off for run in runs.values()),
        "sampling_error": float(np.ptp(losses, axis=0).max()),
        "ratio": None,
        "counted": float(losses.shape[1]),
    }


# What runs on the ranks, which keep this between calls.
_HERE: dict[str, Any] = {}


class Contender:
    """A plan's tables and a dense part: one linear layer over all vectors, plain SGD."""

    def __init__(self, plan: Plan, workers: int):
        import torch
        from rowtier.torch import RowwiseAdagrad, ShardedEmbeddings

        self.tables = ShardedEmbeddings(
            plan, RowwiseAdagrad(lr=LR), local_world_size=workers, seed=SEED
        )
        torch.manual_seed(SEED)
        self.dense = torch.nn.Linear(len(plan.bands) * DIM, 1)
        self.optimizer = torch.optim.SGD(self.dense.parameters(), lr=DENSE_LR)

    def step(self, ids: Batch, labels: Any, readers: Any) -> float:
        """One training step; the server has no samples, and no dense part to train."""
        import torch

        vectors = torch.cat(list(self.tables(ids).values()), dim=1)
        if not len(labels):
            vectors.sum().backward()
            self.tables.optimizer.step()
            return math.nan
        logits = self.dense(vectors).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.dense.parameters() if readers is not None else ():
            torch.distributed.all_reduce(parameter.grad, torch.distributed.ReduceOp.AVG, readers)
        self.optimizer.step()
        self.tables.optimizer.step()
        return float(loss.detach())


def set_up(rank: int, world: int, folder: Path, names: list[str], batch: int) -> None:
    """Read the plans and the ids, and make the tables of every contender."""
    import torch.distributed as dist

    workers = world - 1
    group = dist.new_group(list(range(workers))) if workers > 1 else None
    with np.load(folder / "ids.npz") as kept:
        ids = {name: kept[name] for name in kept.files}
    _HERE.update(
        ids=ids, batch=batch, rank=rank, workers=workers, readers=group if rank < workers else None
    )
    for name in names:
        _HERE[name] = Contender(Plan.load(folder / name), workers)


def _batch_at(step: int) -> tuple[Batch, Any]:
    """This rank's samples of a step, with labels that follow from an id; a server has none."""
    import torch

    rank, batch, workers = _HERE["rank"], _HERE["batch"], _HERE["workers"]
    first = (step * workers + rank) * batch
    size = batch if rank < workers else 0
    ids = {name: torch.from_numpy(all_[first : first + size]) for name, all_ in _HERE["ids"].items()}
    labels = (next(iter(ids.values()))[:, 0] % 3 == 0).float()
    return ids, labels


def train(rank: int, world: int, name: str, first: int, steps: int) -> tuple[float, list[float]]:
    """Seconds of some steps, until all ranks have updated, and the losses."""
    import torch.distributed as dist

    contender: Contender = _HERE[name]
    batches = [_batch_at(first + index) for index in range(steps)]
    dist.barrier()
    start = time.perf_counter()
    losses = [contender.step(ids, labels, _HERE["readers"]) for ids, labels in batches]
    dist.barrier()
    return time.perf_counter() - start, losses


def compare(rank: int, world: int, names: list[str]) -> list[float]:
    """How far any weight of this rank's part of the tables is from the first contender's."""
    wanted: dict[str, Any] = {}
    largest = []
    for name in names:
        off = 0.0
        for key, value in _HERE[name].tables.state_dict().items():
            weights = value.to_local()
            first = wanted.setdefault(key, weights)
            if weights.numel():
                off = max(off, float((weights - first).abs().max()))
        largest.append(off)
    return largest


def why_not_here() -> str | None:
    """Why nothing can be trained behind a link on this machine; None if it can."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return "torch is not installed"
    from cluster import why_not

    return why_not()


def trained_or_not(quick: bool) -> list[Row]:
    """The lines of one worker and, if there is time, of two; none where links cannot be made."""
    reason = why_not_here()
    if reason is not None:
        print(f"nothing is trained: {reason}", file=sys.stderr)
        return []
    size = QUICK if quick else FULL
    lines = trained(size, 1)
    return lines if quick else lines + trained(size, 2)

"""A DLRM whose embedding tables lie where a plan puts them.

    python examples/dlrm.py                                  # one process
    torchrun --nproc-per-node 2 examples/dlrm.py             # two, gloo on CPUs
    torchrun --nproc-per-node 2 examples/dlrm.py --data train.txt    # Criteo's own format

Profiles the first part of the data, plans for as many devices as there are processes, trains,
and measures AUC on data that comes later. Without `--data` it generates clicks with the sizes
and skew of Criteo; a hidden model draws the labels, so there is something to learn.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

import rowtier
from rowtier.cost.options import CostOptions
from rowtier.torch import RowwiseAdagrad, ShardedEmbeddings, Totals
from rowtier.units import show_bytes

NUM_DENSE = 13  # of Criteo
CATEGORIES = tuple(f"C{i + 1}" for i in range(26))
EVALUATED = 0.2  # the last fifth of the data is never trained on
SIGNAL = 2.5  # standard deviation of the hidden model's log-odds
WARM_UP = 5  # steps whose time does not count: kernels are loaded in the first ones

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bags = dict[str, tuple[Ints, Ints]]  # feature → ids, ids per sample


@dataclass(frozen=True, eq=False)
class Data:
    """Samples in the order of time; a feature's ids lie one sample after the other."""

    labels: Floats
    dense: Floats
    features: Bags

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def _edges(self) -> dict[str, Ints]:
        return {
            name: np.concatenate(([0], np.cumsum(lengths)))
            for name, (_, lengths) in self.features.items()
        }

    def bags(self, start: int, stop: int) -> Bags:
        """The ids of some samples, as `make_profile`, `replay` and the module take them."""
        return {
            name: (ids[self._edges[name][start] : self._edges[name][stop]], lengths[start:stop])
            for name, (ids, lengths) in self.features.items()
        }


def generated(args: argparse.Namespace) -> tuple[Data, rowtier.Tables]:
    """Clicks of the workload `criteo`; every id and every number has a hidden effect on the label.

    What is drawn depends on the seed alone, so all processes draw the same.
    """
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as folder:
        rowtier.make_workload(
            "criteo", folder, seed=args.seed, samples=args.samples, scale=args.scale,
            embedding_dim=args.embedding_dim, batch_size=args.batch_size,
        )  # fmt: skip
        columns = pq.read_table(Path(folder) / "data")
        tables = rowtier.Tables.load(Path(folder) / "tables.yaml")
    random = np.random.default_rng(args.seed)
    dense = random.standard_normal((args.samples, NUM_DENSE), dtype=np.float32)
    odds = dense @ random.standard_normal(NUM_DENSE) / NUM_DENSE**0.5
    features: Bags = {}
    for table in tables:
        (name,) = table.features
        column = columns.column(name).combine_chunks()
        lists = hasattr(column, "value_lengths")  # features with one id a sample are plain
        ids = (column.values if lists else column).to_numpy()
        lengths = column.value_lengths().to_numpy() if lists else np.ones(len(column), np.int64)
        effects = random.standard_normal(table.num_embeddings)[ids]
        at = np.repeat(np.arange(len(lengths)), lengths)
        odds += np.bincount(at, effects / lengths[at], len(lengths))
        features[name] = (ids, lengths.astype(np.int64))
    odds *= SIGNAL / odds.std()
    clicked = random.random(len(odds)) < 1 / (1 + np.exp(-odds))
    return Data(clicked.astype(np.float32), dense, features), tables


def criteo(args: argparse.Namespace) -> tuple[Data, rowtier.Tables]:
    """Criteo's display ads: label, 13 whole numbers, 26 hexadecimal ids; fields may be empty."""
    with Path(args.data).open() as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    wanted = 1 + NUM_DENSE + len(CATEGORIES)
    for number, fields in enumerate(lines, 1):
        if len(fields) != wanted:
            raise rowtier.UserError(
                f"{args.data}, line {number}: {len(fields)} fields, and Criteo's format has "
                f"{wanted}, with tabs between: give its train.txt, or leave --data away"
            )
    numbers = np.array([[float(f or 0) for f in fields[1 : 1 + NUM_DENSE]] for fields in lines])
    features: Bags = {}
    for column, name in enumerate(CATEGORIES, 1 + NUM_DENSE):
        texts = [fields[column] for fields in lines]
        ids = np.array([int(text, 16) for text in texts if text], dtype=np.int64)
        features[name] = (ids, np.array([bool(text) for text in texts], dtype=np.int64))
    tables = tuple(
        rowtier.Table(
            name=name,
            num_embeddings=args.rows,
            embedding_dim=args.embedding_dim,
            features=(name,),
            ids="hash",
        )
        for name in CATEGORIES
    )
    labels = np.array([float(fields[0]) for fields in lines], dtype=np.float32)
    dense = np.log1p(np.maximum(numbers, 0)).astype(np.float32)
    return Data(labels, dense, features), rowtier.Tables(batch_size=args.batch_size, tables=tables)


def mlp(*sizes: int) -> torch.nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[torch.nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


class Dense(torch.nn.Module):  # type: ignore[misc]
    """All of a DLRM but the tables: bottom, pairwise products, top."""

    def __init__(self, num_features: int, embedding_dim: int):
        super().__init__()
        vectors = num_features + 1
        self.bottom = mlp(NUM_DENSE, 64, embedding_dim)
        self.top = mlp(embedding_dim + vectors * (vectors - 1) // 2, 64, 32, 1)
        rows, columns = np.tril_indices(vectors, -1)
        self.register_buffer("pairs", torch.from_numpy(rows * vectors + columns))

    def forward(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        """Log-odds of a click; `pooled` is samples × features × dim."""
        low = self.bottom(dense)
        vectors = torch.cat([low[:, None], pooled], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        pairs = products.index_select(1, self.pairs)  # each pair once
        return self.top(torch.cat([low, pairs], dim=1)).squeeze(1)


class Job:
    """This process among all, and its parts of the model."""

    def __init__(self, args: argparse.Namespace):
        self.size = int(os.environ.get("WORLD_SIZE", "1"))  # torchrun sets it
        self.rank = int(os.environ.get("RANK", "0"))
        torch.set_num_threads(1)  # as torchrun has it; matrices this small gain nothing from more
        if self.size > 1:
            dist.init_process_group("gloo")
        self.args = args
        self.data, self.tables = criteo(args) if args.data else generated(args)
        self.step_samples = args.batch_size * self.size
        self.steps = int(len(self.data) * (1 - EVALUATED)) // self.step_samples
        if not self.steps:
            raise rowtier.UserError(
                f"{len(self.data):,} samples, of which {1 - EVALUATED:.0%} are for training, and a "
                f"step takes {self.step_samples:,}: give more --samples, or a smaller --batch-size"
            )
        self.plan = self._plan()
        self.embeddings = ShardedEmbeddings(
            self.plan, RowwiseAdagrad(args.lr), seed=args.seed, counters=args.replay
        )
        torch.manual_seed(args.seed)
        self.dense: Any = Dense(len(CATEGORIES), args.embedding_dim)
        if self.size > 1:
            self.dense = torch.nn.parallel.DistributedDataParallel(self.dense)

    def _plan(self) -> rowtier.Plan:
        """Made by the first process, from the first part of the data; the others are sent it."""
        made: list[Any] = [None]
        if self.rank == 0:
            first = self.data.bags(0, max(1, int(len(self.data) * self.args.profiled)))
            profile = rowtier.make_profile(first, self.tables)
            made[0] = rowtier.make_plan(profile, rowtier.Cluster.local(self.size), self.args.method)
        if self.size > 1:
            dist.broadcast_object_list(made)
        plan: rowtier.Plan = made[0]
        return plan

    def logits(self, start: int, stop: int) -> torch.Tensor:
        """What the model says of this process's share of some samples."""
        share = -(-(stop - start) // self.size)
        start, stop = (min(stop, start + (self.rank + i) * share) for i in range(2))
        pooled = self.embeddings(self.data.bags(start, stop))
        self.labels = torch.from_numpy(self.data.labels[start:stop])
        stacked = torch.stack([pooled[name] for name in CATEGORIES], dim=1)
        return self.dense(torch.from_numpy(self.data.dense[start:stop]), stacked)

    def train(self) -> tuple[list[float], list[float]]:
        """Loss of every step, mean over the processes, and its seconds here."""
        optimizer = torch.optim.Adam(self.dense.parameters(), lr=self.args.dense_lr)
        losses, seconds = [], []
        for start in self.starts():
            began = time.perf_counter()
            logits = self.logits(start, start + self.step_samples)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, self.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.embeddings.optimizer.step()
            losses.append(loss.detach())
            seconds.append(time.perf_counter() - began)
        mean = torch.stack(losses)
        if self.size > 1:
            dist.all_reduce(mean)
        return (mean / self.size).tolist(), seconds

    def starts(self) -> Iterator[int]:
        """Where each step begins in the data."""
        for _ in range(self.args.epochs):
            yield from range(0, self.steps * self.step_samples, self.step_samples)

    def evaluate(self) -> tuple[float, int]:
        """AUC on the last part of the data, and how many samples that are."""
        found = []
        first = int(len(self.data) * (1 - EVALUATED))
        for start in range(first, len(self.data), self.step_samples):
            with torch.no_grad():
                logits = self.logits(start, min(start + self.step_samples, len(self.data)))
            found.append(torch.stack([logits, self.labels]).numpy())
        mine = np.concatenate(found, axis=1)
        everyones: list[Any] = [mine]
        if self.size > 1:
            everyones = [None] * self.size
            dist.all_gather_object(everyones, mine)
        scores, labels = np.concatenate(everyones, axis=1)
        return auc(scores, labels), len(labels)

    def leave(self) -> None:
        """End the process group, after all else is done."""
        # DDP first: if it were the last to hold the group, it would wait for gloo's threads
        # while they wait for the interpreter, now and then for ever (torch 2.13).
        self.dense = None
        if self.size > 1:
            dist.destroy_process_group()


def auc(scores: Floats, labels: Floats) -> float:
    """How often a click is scored above a sample without one; ties count half."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    clicks = int(labels.sum())
    above = ranks[labels > 0].sum() - clicks * (clicks + 1) / 2
    return float(above / max(1, clicks * (len(labels) - clicks)))


def replay_differences(
    counted: Totals, plan: rowtier.Plan, batches: list[Bags]
) -> tuple[int, list[str]]:
    """How many counters there are, and those that `rowtier.replay` finds otherwise."""
    # The runtime sends 4 bytes an id where a table's rows allow it.
    found = rowtier.replay(
        plan, batches, batches="in_time_order", options=CostOptions(ids="narrow")
    )
    figures = {(f.label.of, f.label.name, f.label.at): f.replayed for f in found.figures}
    compared, wrong = 0, []
    for of, name, at, amount in _counters(counted, plan.cluster):
        # Replay gives means over the steps, and leaves out what is zero.
        expected = round(figures.get((of, name, at), 0.0) * found.steps)
        compared += 1
        if expected != amount:
            wrong.append(f"{name} of {of} {at}: counted {amount:,}, replayed {expected:,}")
    return compared, wrong


def _counters(counted: Totals, cluster: rowtier.Cluster) -> Iterator[tuple[str, str, str, int]]:
    """What every holder did, by the names that replay has for it, and how much."""
    read, written = counted.moved()
    for holder in range(cluster.num_holders):
        of = cluster.holder_name(holder)
        for flow in ("ids", "forward", "backward", "sync", "sync_ids"):
            for index, level in enumerate(cluster.levels):
                yield of, f"{flow} sent", level.name, int(counted.sent(flow)[holder, index])
                yield of, f"{flow} received", level.name, int(counted.received(flow)[holder, index])
        for index, tier in enumerate(cluster.tier_names):
            yield of, "read", tier, int(read[holder, index])
            yield of, "written", tier, int(written[holder, index])
    for tier, lookups in zip(cluster.tier_names, counted.lookups(), strict=True):
        yield tier, "lookups", "", int(lookups)


def run(args: argparse.Namespace) -> dict[str, Any] | None:
    """Train and evaluate; the first process gets all figures."""
    job = Job(args)
    losses, seconds = job.train()
    counted = job.embeddings.count()
    score, samples = job.evaluate()
    job.leave()
    if job.rank:
        return None
    facts: dict[str, Any] = {
        "method": args.method,
        "processes": job.size,
        "auc": score,
        "evaluated_samples": samples,
        "loss": losses,
        "step_s": float(np.median(seconds[WARM_UP:] or seconds)),
        "bytes_per_step": counted.to_dict()["bytes_per_step"],
    }
    if args.replay:
        batches = [job.data.bags(start, start + job.step_samples) for start in job.starts()]
        compared, wrong = replay_differences(counted, job.plan, batches)
        facts["replay"] = {"counters": compared, "differences": wrong}
    return facts


def show(facts: dict[str, Any]) -> None:
    """The figures for people."""
    losses, processes = facts["loss"], facts["processes"]
    tenth = max(1, len(losses) // 10)
    print(
        f"AUC {facts['auc']:.3f} on {facts['evaluated_samples']:,} later samples; loss "
        f"{np.mean(losses[:tenth]):.4f} → {np.mean(losses[-tenth:]):.4f} (means of {tenth} steps)\n"
        f"{len(losses)} steps of {1e3 * facts['step_s']:.1f} ms under {facts['method']}, "
        f"{processes} process{'es' if processes > 1 else ''}"
    )
    for flow, levels in facts["bytes_per_step"].items():
        for level, amount in levels.items():
            if amount:
                print(f"  {flow:9} {show_bytes(round(amount)):>11} a step, {level} links")
    if "replay" in facts:
        wrong = facts["replay"]["differences"]
        if wrong:
            print("counters differ from `rowtier replay`:", *wrong, sep="\n  ")
        else:
            print(f"all {facts['replay']['counters']} counters equal `rowtier replay` to the byte")


def main() -> None:
    """Read the command line, run, and print from the first process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    whole: dict[str, Any] = {"type": int, "metavar": "N"}
    number: dict[str, Any] = {"type": float, "metavar": "X"}
    parser.add_argument("--data", help="a file in Criteo's format (default: generated clicks)")
    parser.add_argument("--method", default="joint", choices=rowtier.METHODS, metavar="NAME")
    parser.add_argument("--samples", default=120_000, help="to generate", **whole)
    parser.add_argument("--scale", default=0.001, help="of the tables to generate", **number)
    parser.add_argument("--rows", default=2000, help="per table, for ids that are hashed", **whole)
    parser.add_argument("--embedding-dim", default=16, **whole)
    parser.add_argument("--batch-size", default=512, help="samples a process and step", **whole)
    parser.add_argument("--epochs", default=1, **whole)
    parser.add_argument("--lr", default=0.1, help="of the tables (row-wise Adagrad)", **number)
    parser.add_argument("--dense-lr", default=3e-3, help="of all else (Adam)", **number)
    parser.add_argument("--profiled", default=0.25, help="share of the data to plan from", **number)
    parser.add_argument("--seed", default=0, **whole)
    parser.add_argument("--replay", action="store_true", help="hold the counters against replay")
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args()
    try:
        facts = run(args)
    except rowtier.RowtierError as error:
        sys.exit(f"error: {error}")
    if facts is not None:
        print(json.dumps(facts)) if args.json else show(facts)


if __name__ == "__main__":
    main()

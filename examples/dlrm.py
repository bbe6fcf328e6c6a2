"""A DLRM whose embedding tables lie where a plan puts them.

    python examples/dlrm.py                                  # one process
    torchrun --nproc-per-node 2 examples/dlrm.py             # two, gloo on CPUs
    torchrun --nproc-per-node 2 examples/dlrm.py --data train.txt    # Criteo's own format

Profiles the first part of the data, plans for as many devices as there are processes, trains,
and measures AUC on data that comes later. Without `--data` it generates clicks with the sizes
and skew of Criteo (clicks.py); a hidden model draws the labels, so there is something to learn.
job.py has what all examples share: processes, the plan, the loop.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from against_replay import replay_differences, replay_verdict
from clicks import CATEGORIES, NUM_DENSE, Data, Floats, criteo, generated
from job import Job, main, parser

import rowtier
from rowtier.torch import RowwiseAdagrad, ShardedEmbeddings

EVALUATED = 0.2  # the last fifth of the data is never trained on


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


class Training(Job):
    """Tables and dense part in this process, and the data."""

    def __init__(self, args: argparse.Namespace, data: Data, tables: rowtier.Tables):
        self.data, self.first_evaluated = data, int(len(data) * (1 - EVALUATED))
        super().__init__(args, trained=self.first_evaluated)
        profiled = max(1, int(len(data) * args.profiled))
        self.placed = self.plan(lambda: data.bags(0, profiled), tables)
        self.embeddings = ShardedEmbeddings(
            self.placed, RowwiseAdagrad(args.lr), seed=args.seed, counters=args.replay
        )
        torch.manual_seed(args.seed)
        self.dense = self.together(Dense(len(CATEGORIES), args.embedding_dim))

    def scored(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the model says of this process's share of some samples, and their labels."""
        start, stop = self.share(start, stop)
        pooled = self.embeddings(self.data.bags(start, stop))
        stacked = torch.stack([pooled[name] for name in CATEGORIES], dim=1)
        logits = self.dense(torch.from_numpy(self.data.dense[start:stop]), stacked)
        return logits, torch.from_numpy(self.data.labels[start:stop])

    def loss(self, start: int, stop: int) -> torch.Tensor:
        """Cross-entropy of clicks."""
        return torch.nn.functional.binary_cross_entropy_with_logits(*self.scored(start, stop))

    def evaluate(self) -> tuple[float, int]:
        """AUC on the last part of the data, and how many samples that are."""
        found = []
        for start in range(self.first_evaluated, len(self.data), self.step_samples):
            with torch.no_grad():
                scored = self.scored(start, min(start + self.step_samples, len(self.data)))
            found.append(torch.stack(scored).numpy())
        mine = np.concatenate(found, axis=1)
        everyones: list[Any] = [mine]
        if self.size > 1:
            everyones = [None] * self.size
            dist.all_gather_object(everyones, mine)
        scores, labels = np.concatenate(everyones, axis=1)
        return auc(scores, labels), len(labels)


def auc(scores: Floats, labels: Floats) -> float:
    """How often a click is scored above a sample without one; ties count half."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    clicks = int(labels.sum())
    above = ranks[labels > 0].sum() - clicks * (clicks + 1) / 2
    return float(above / max(1, clicks * (len(labels) - clicks)))


def run(args: argparse.Namespace) -> dict[str, Any] | None:
    """Train and evaluate; the first process gets all figures."""
    job = Training(args, *(criteo(args) if args.data else generated(args)))
    facts = job.train()
    counted = job.embeddings.count()
    score, samples = job.evaluate()
    job.leave()
    if job.rank:
        return None
    facts |= {"auc": score, "evaluated_samples": samples}
    facts["bytes_per_step"] = counted.to_dict()["bytes_per_step"]
    if args.replay:
        batches = [job.data.bags(start, start + job.step_samples) for start in job.starts()]
        compared, wrong = replay_differences(counted, job.placed, batches)
        facts["replay"] = {"counters": compared, "differences": wrong}
    return facts


def headline(facts: dict[str, Any]) -> str:
    """What the model learned, and whether replay counts the same."""
    text = f"AUC {facts['auc']:.3f} on {facts['evaluated_samples']:,} later samples"
    return "\n  ".join([text, *replay_verdict(facts["replay"])]) if "replay" in facts else text


if __name__ == "__main__":
    options = parser(
        __doc__,
        samples=(120_000, "to generate"),
        scale=(0.001, "of the tables to generate"),
        rows=(2000, "per table, for ids that are hashed"),
        embedding_dim=(16, "of every table"),
        batch_size=(512, "samples a process and step"),
        lr=(0.1, "of the tables (row-wise Adagrad)"),
    )
    options.add_argument("--data", help="a file in Criteo's format (default: generated clicks)")
    options.add_argument("--replay", action="store_true", help="hold the counters against replay")
    main(options.parse_args(), run, headline)

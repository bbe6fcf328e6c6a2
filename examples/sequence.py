"""A small model of sessions (after SASRec) whose item table lies where a plan puts it.

    python examples/sequence.py                                    # one process
    torchrun --nproc-per-node 2 examples/sequence.py               # two, gloo on CPUs
    torchrun --nproc-per-node 2 examples/sequence.py --data sessions.parquet

Profiles the first part of the sessions, plans for as many devices as there are processes, trains to
tell the next item, and measures on later sessions how often their last item is among the 20 that
score best. `--data` takes a Parquet file with a column of lists of item numbers in the order of
time; sessions.py generates some in which an item is often followed by a certain other one.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from encoder import Encoder
from job import Job, main, parser
from sessions import Sessions, generated, read

import rowtier
from rowtier.torch import ShardedEmbeddings, SparseAdam

EVALUATED = 0.1  # the last tenth of the sessions is never trained on
BEST = 20  # items that count as a hit
CHUNK = 8192  # items that are looked up at once to score them all


class Training(Job):
    """Table and encoder in this process, and the sessions."""

    def __init__(self, args: argparse.Namespace, data: Sessions):
        self.data, self.num_items = data, int(data.items.max()) + 1
        self.first_evaluated = int(len(data) * (1 - EVALUATED))
        super().__init__(args, trained=self.first_evaluated)
        self.random = np.random.default_rng([args.seed, self.rank])
        item = rowtier.Table(
            name="item", num_embeddings=self.num_items, embedding_dim=args.embedding_dim,
            pooling="none", features=("session", "negatives"), optimizer="adam",
        )  # fmt: skip
        tables = rowtier.Tables(batch_size=args.batch_size, tables=(item,))
        profiled = max(1, int(len(data) * args.profiled))
        plan = self.plan(lambda: self.batch(0, profiled), tables)
        self.embeddings = ShardedEmbeddings(plan, SparseAdam(args.lr), seed=args.seed)
        torch.manual_seed(args.seed)
        self.dense = self.together(Encoder(args.embedding_dim, args.max_length))

    def batch(self, start: int, stop: int) -> dict[str, Any]:
        """Sessions, and items drawn at random that most likely do not come next."""
        shape = (stop - start, self.args.negatives)
        negatives = self.random.integers(0, self.num_items, shape)
        return {"session": self.data.part(start, stop), "negatives": negatives}

    def encoded(self, rows: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What comes after each item of each session, and the session and place of each."""
        session = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        begins = torch.cumsum(lengths, 0) - lengths
        place = torch.arange(len(rows)) - begins[session]
        padded = rows.new_zeros(len(lengths), self.args.max_length, rows.shape[1])
        padded = padded.index_put((session, place), rows)
        return self.dense(padded)[session, place], session, place

    def loss(self, start: int, stop: int) -> torch.Tensor:
        """Cross-entropy of the next item among all negatives of this process's sessions."""
        batch = self.batch(*self.share(start, stop))
        found = self.embeddings(batch)
        rows, lengths = found["session"]
        ahead, session, _ = self.encoded(rows, lengths)
        has_next = torch.cat([session[1:] == session[:-1], torch.tensor([False])])
        follows = torch.roll(has_next, 1)
        ahead, right = ahead[has_next], rows[follows]
        wrong = found["negatives"].flatten(0, 1)
        scores = torch.cat([(ahead * right).sum(1, keepdim=True), ahead @ wrong.T], dim=1)
        ids = torch.from_numpy(batch["session"][0])[follows]
        same = ids[:, None] == torch.from_numpy(batch["negatives"]).flatten()
        scores[:, 1:].masked_fill_(same, float("-inf"))  # drawn by accident
        return torch.nn.functional.cross_entropy(scores, torch.zeros(len(ids), dtype=torch.long))

    def every_item(self) -> torch.Tensor:
        """The whole table, looked up; all processes do this together."""
        found = []
        for start in range(0, self.num_items, CHUNK):
            ids = np.arange(start, min(start + CHUNK, self.num_items))
            nothing = np.zeros((1, 0), dtype=np.int64)
            rows = self.embeddings({"session": (ids, [len(ids)]), "negatives": nothing})
            found.append(rows["session"].values)
        return torch.cat(found)

    def evaluate(self) -> tuple[float, float]:
        """Hit rate on the last sessions; of the model, and of the items seen most often."""
        trained = self.data.items[: self.data.edges[self.first_evaluated]]
        popular = torch.from_numpy(np.argsort(-np.bincount(trained))[:BEST].copy())
        counts = torch.zeros(3)
        with torch.no_grad():
            table = self.every_item()
            for start in range(self.first_evaluated, len(self.data), self.step_samples):
                stop = min(start + self.step_samples, len(self.data))
                counts += self.hits(*self.share(start, stop), table, popular)
        if self.size > 1:
            dist.all_reduce(counts)
        return float(counts[0] / counts[2]), float(counts[1] / counts[2])

    def hits(
        self, start: int, stop: int, table: torch.Tensor, popular: torch.Tensor
    ) -> torch.Tensor:
        """Sessions whose last item is among the best, among the popular, and all of them."""
        items, lengths = map(torch.from_numpy, self.data.part(start, stop))
        if not len(lengths):
            return torch.zeros(3)
        ends = torch.cumsum(lengths, 0) - 1
        ahead, _, _ = self.encoded(table[items], lengths)
        scores = ahead[ends - 1] @ table.T
        last = items[ends]
        above = (scores > scores.gather(1, last[:, None])).sum(1)
        found = [(above < BEST).sum(), torch.isin(last, popular).sum(), torch.tensor(len(last))]
        return torch.stack(found).float()


def run(args: argparse.Namespace) -> dict[str, Any] | None:
    """Train and evaluate; the first process gets all figures."""
    job = Training(args, read(args) if args.data else generated(args))
    facts = job.train()
    facts["bytes_per_step"] = job.embeddings.count().to_dict()["bytes_per_step"]
    facts["hit_rate_20"], facts["popular_hit_rate_20"] = job.evaluate()
    facts["evaluated_sessions"] = len(job.data) - job.first_evaluated
    job.leave()
    return None if job.rank else facts


def headline(facts: dict[str, Any]) -> str:
    """What the model learned."""
    return (
        f"hit rate @{BEST} {facts['hit_rate_20']:.3f} on {facts['evaluated_sessions']:,} later "
        f"sessions, {facts['popular_hit_rate_20']:.3f} by popularity"
    )


if __name__ == "__main__":
    options = parser(
        __doc__, samples=(40_000, "sessions to generate"), rows=(5000, "items to generate"),
        max_length=(16, "last items of a session to use"), embedding_dim=(32, "of the table"),
        batch_size=(128, "sessions a process and step"), negatives=(4, "items drawn a session"),
        lr=(0.03, "of the table (SparseAdam)"),
    )  # fmt: skip
    options.add_argument("--data", help="a Parquet file of sessions (default: generated ones)")
    main(options.parse_args(), run, headline)

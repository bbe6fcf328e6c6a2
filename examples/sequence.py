"""A small model of sessions (after SASRec) whose item table lies where a plan puts it.

    python examples/sequence.py                                    # one process
    torchrun --nproc-per-node 2 examples/sequence.py               # two, gloo on CPUs
    torchrun --nproc-per-node 2 examples/sequence.py --data sessions.parquet

`--data` takes a Parquet file with a column of lists of item numbers, in the order of time.
Profiles the first part of the sessions, plans for as many devices as there are processes,
trains to tell the next item, and measures on later sessions how often their last item is among
the 20 that score best. Without `--data` it generates sessions in which an item is often
followed by a certain other one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

import rowtier
from rowtier.torch import ShardedEmbeddings, SparseAdam
from rowtier.units import show_bytes

EVALUATED = 0.1  # the last tenth of the sessions is never trained on
ZIPF = 0.8  # skew of generated items
FOLLOWED = 0.7  # of generated items are followed by their partner
BEST = 20  # items that count as a hit
WARM_UP = 5  # steps whose time does not count: kernels are loaded in the first ones
CHUNK = 8192  # items that are looked up at once to score them all

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sessions:
    """Items of all sessions one after the other; session i is `items[edges[i]:edges[i + 1]]`."""

    items: Ints
    edges: Ints

    @classmethod
    def of(cls, items: Ints, lengths: Ints, longest: int) -> Sessions:
        """The last items of sessions that have at least two."""
        ends = np.cumsum(lengths)
        from_end = np.repeat(ends, lengths) - np.arange(len(items))
        kept = np.repeat(lengths > 1, lengths) & (from_end <= longest)
        lengths = np.minimum(lengths[lengths > 1], longest)
        return cls(items[kept], np.concatenate(([0], np.cumsum(lengths))))

    def __len__(self) -> int:
        return len(self.edges) - 1

    def part(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """Items and lengths of some sessions."""
        edges = self.edges[start : stop + 1]
        return self.items[edges[0] : edges[-1]], np.diff(edges)


def generated(args: argparse.Namespace) -> Sessions:
    """Sessions of the workload `sequence`, rewritten so that items follow each other.

    An item's partner is its neighbour by popularity, so the skew stays as it was. What is drawn
    depends on the seed alone, so all processes draw the same.
    """
    with tempfile.TemporaryDirectory() as folder:
        rowtier.make_workload(
            "sequence", folder, seed=args.seed, samples=args.samples, rows=args.rows, users=10,
            zipf=ZIPF, mean_length=args.max_length / 2, max_length=args.max_length,
        )  # fmt: skip
        items, lengths = read_lists(Path(folder) / "data", "history")
    ranked = np.argsort(-np.bincount(items, minlength=args.rows), kind="stable")
    partner = np.arange(args.rows)
    pairs = ranked[: args.rows // 2 * 2].reshape(-1, 2)
    partner[pairs[:, 0]], partner[pairs[:, 1]] = pairs[:, 1], pairs[:, 0]
    follows = np.random.default_rng(args.seed).random(len(items)) < FOLLOWED
    begins = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    for place in range(1, args.max_length):
        at = begins[lengths > place] + place
        at = at[follows[at]]
        items[at] = partner[items[at - 1]]
    return Sessions.of(items, lengths, args.max_length)


def read_lists(path: Path, column: str | None = None) -> tuple[Ints, Ints]:
    """Values and lengths of a column of lists; of the first one, if it is not named."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    lists = [field.name for field in table.schema if pa.types.is_list(field.type)]
    if not lists:
        raise rowtier.UserError(
            f"{path}: no column holds lists, there are {', '.join(table.column_names)}; give "
            "sessions as lists of item numbers"
        )
    found = table.column(column or lists[0]).combine_chunks()
    return found.flatten().to_numpy().copy(), found.value_lengths().to_numpy().astype(np.int64)


class Encoder(torch.nn.Module):  # type: ignore[misc]
    """Causal self-attention over the items of a session: all of the model but the table."""

    def __init__(self, dim: int, longest: int, layers: int = 2):
        super().__init__()
        self.places = torch.nn.Parameter(0.02 * torch.randn(longest, dim))
        block = torch.nn.TransformerEncoderLayer(
            dim, nhead=2, dim_feedforward=2 * dim, dropout=0.0, batch_first=True, norm_first=True
        )
        # Nested tensors do not go with norm_first, and torch warns unless they are off.
        self.blocks = torch.nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm = torch.nn.LayerNorm(dim)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """What comes after each item; `rows` is sessions × places × dim, filled up at the end."""
        length = rows.shape[1]
        # Nobody looks ahead, so nobody sees what sessions are filled up with.
        ahead = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        return self.norm(self.blocks(rows + self.places[:length], mask=ahead))


class Job:
    """This process among all, and its parts of the model."""

    def __init__(self, args: argparse.Namespace):
        self.size = int(os.environ.get("WORLD_SIZE", "1"))  # torchrun sets it
        self.rank = int(os.environ.get("RANK", "0"))
        torch.set_num_threads(1)  # as torchrun has it; matrices this small gain nothing from more
        if self.size > 1:
            dist.init_process_group("gloo")
        self.args = args
        if args.data:
            self.data = Sessions.of(*read_lists(Path(args.data)), args.max_length)
        else:
            self.data = generated(args)
        self.num_items = int(self.data.items.max()) + 1
        self.random = np.random.default_rng([args.seed, self.rank])
        self.step_sessions = args.batch_size * self.size
        self.first_evaluated = int(len(self.data) * (1 - EVALUATED))
        self.steps = self.first_evaluated // self.step_sessions
        if not self.steps:
            raise rowtier.UserError(
                f"{self.first_evaluated:,} sessions for training, and a step takes "
                f"{self.step_sessions:,}: give more of them, or a smaller --batch-size"
            )
        self.embeddings = ShardedEmbeddings(self._plan(), SparseAdam(args.lr), seed=args.seed)
        torch.manual_seed(args.seed)
        self.encoder: Any = Encoder(args.embedding_dim, args.max_length)
        if self.size > 1:
            self.encoder = torch.nn.parallel.DistributedDataParallel(self.encoder)

    def _plan(self) -> rowtier.Plan:
        """Made by the first process, from the first part of the data; the others are sent it."""
        made: list[Any] = [None]
        if self.rank == 0:
            item = rowtier.Table(
                name="item",
                num_embeddings=self.num_items,
                embedding_dim=self.args.embedding_dim,
                pooling="none",
                features=("session", "negatives"),
                optimizer="adam",
            )
            tables = rowtier.Tables(batch_size=self.args.batch_size, tables=(item,))
            first = self.batch(0, max(1, int(len(self.data) * self.args.profiled)))
            profile = rowtier.make_profile(first, tables)
            made[0] = rowtier.make_plan(profile, rowtier.Cluster.local(self.size), self.args.method)
        if self.size > 1:
            dist.broadcast_object_list(made)
        plan: rowtier.Plan = made[0]
        return plan

    def batch(self, start: int, stop: int) -> dict[str, Any]:
        """Sessions, and items drawn at random that most likely do not come next."""
        shape = (stop - start, self.args.negatives)
        negatives = self.random.integers(0, self.num_items, shape)
        return {"session": self.data.part(start, stop), "negatives": negatives}

    def share(self, start: int, stop: int) -> tuple[int, int]:
        """This process's part of some sessions."""
        each = -(-(stop - start) // self.size)
        begin = min(stop, start + self.rank * each)
        return begin, min(stop, begin + each)

    def encoded(self, rows: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What comes after each item of each session, and the session and place of each."""
        session = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        begins = torch.cumsum(lengths, 0) - lengths
        place = torch.arange(len(rows)) - begins[session]
        padded = rows.new_zeros(len(lengths), self.args.max_length, rows.shape[1])
        padded = padded.index_put((session, place), rows)
        return self.encoder(padded)[session, place], session, place

    def loss(self, batch: dict[str, Any]) -> torch.Tensor:
        """Cross-entropy of the next item among all negatives of the batch."""
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

    def train(self) -> tuple[list[float], list[float]]:
        """Loss of every step, mean over the processes, and its seconds here."""
        optimizer = torch.optim.Adam(self.encoder.parameters(), lr=self.args.dense_lr)
        losses, seconds = [], []
        for step in range(self.steps * self.args.epochs):
            began = time.perf_counter()
            start = step % self.steps * self.step_sessions
            loss = self.loss(self.batch(*self.share(start, start + self.step_sessions)))
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
            for start in range(self.first_evaluated, len(self.data), self.step_sessions):
                stop = min(start + self.step_sessions, len(self.data))
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

    def leave(self) -> None:
        """End the process group, after all else is done."""
        # DDP first: if it were the last to hold the group, it would wait for gloo's threads
        # while they wait for the interpreter, now and then for ever (torch 2.13).
        self.encoder = None
        if self.size > 1:
            dist.destroy_process_group()


def run(args: argparse.Namespace) -> dict[str, Any] | None:
    """Train and evaluate; the first process gets all figures."""
    job = Job(args)
    losses, seconds = job.train()
    counted = job.embeddings.count()
    hit_rate, popular = job.evaluate()
    job.leave()
    if job.rank:
        return None
    return {
        "method": args.method,
        "processes": job.size,
        "hit_rate_20": hit_rate,
        "popular_hit_rate_20": popular,
        "evaluated_sessions": len(job.data) - job.first_evaluated,
        "loss": losses,
        "step_s": float(np.median(seconds[WARM_UP:] or seconds)),
        "bytes_per_step": counted.to_dict()["bytes_per_step"],
    }


def show(facts: dict[str, Any]) -> None:
    """The figures for people."""
    losses, processes = facts["loss"], facts["processes"]
    tenth = max(1, len(losses) // 10)
    print(
        f"hit rate @{BEST} {facts['hit_rate_20']:.3f} on {facts['evaluated_sessions']:,} later "
        f"sessions, {facts['popular_hit_rate_20']:.3f} by popularity\n"
        f"loss {np.mean(losses[:tenth]):.4f} → {np.mean(losses[-tenth:]):.4f} (means of {tenth} "
        "steps); "
        f"{len(losses)} steps of {1e3 * facts['step_s']:.1f} ms under {facts['method']}, "
        f"{processes} process{'es' if processes > 1 else ''}"
    )
    for flow, levels in facts["bytes_per_step"].items():
        for level, amount in levels.items():
            if amount:
                print(f"  {flow:9} {show_bytes(round(amount)):>11} a step, {level} links")


def main() -> None:
    """Read the command line, run, and print from the first process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    whole: dict[str, Any] = {"type": int, "metavar": "N"}
    number: dict[str, Any] = {"type": float, "metavar": "X"}
    parser.add_argument("--data", help="a Parquet file of sessions (default: generated ones)")
    parser.add_argument("--method", default="joint", choices=rowtier.METHODS, metavar="NAME")
    parser.add_argument("--samples", default=40_000, help="sessions to generate", **whole)
    parser.add_argument("--rows", default=5000, help="items to generate", **whole)
    parser.add_argument("--max-length", default=16, help="last items of a session to use", **whole)
    parser.add_argument("--embedding-dim", default=32, **whole)
    parser.add_argument("--batch-size", default=128, help="sessions a process and step", **whole)
    parser.add_argument("--negatives", default=4, help="items drawn a session", **whole)
    parser.add_argument("--epochs", default=1, **whole)
    parser.add_argument("--lr", default=0.03, help="of the table (SparseAdam)", **number)
    parser.add_argument("--dense-lr", default=3e-3, help="of all else (Adam)", **number)
    parser.add_argument("--profiled", default=0.25, help="share of the data to plan from", **number)
    parser.add_argument("--seed", default=0, **whole)
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

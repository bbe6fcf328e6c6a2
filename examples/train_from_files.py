"""From strings in Parquet files to a trained model, with checkpoints.

    python examples/train_from_files.py                             # one process
    torchrun --nproc-per-node 2 examples/train_from_files.py        # two, gloo on CPUs

Makes some clicks if the folder is not there, profiles and plans, and trains from the files. Stop
it and start it again: it goes on after the last checkpoint, with the batch that comes next.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import rowtier
from rowtier.torch import (
    ParquetBatches,
    RowwiseAdagrad,
    ShardedEmbeddings,
    load_checkpoint,
    save_checkpoint,
)

DIM = 8
FEATURES = ("user", "item", "history")


def make_clicks(folder: Path, samples: int) -> None:
    """Users, items and lists of earlier items as strings; users like every second item."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for part in range(4):
        user, item = (random.zipf(1.2, samples // 4) % n for n in (500, 300))
        history = [random.zipf(1.2, random.integers(0, 5)) % 300 for _ in user]
        columns = {
            "user": [f"u{n}" for n in user],
            "item": [f"https://shop/item/{n}" for n in item],
            "history": [[f"https://shop/item/{n}" for n in some] for some in history],
            "label": ((user + item) % 2 == 0).astype(np.float32),
        }
        pq.write_table(pa.table(columns), folder / f"{part}.parquet", row_group_size=500)


def make_plan(folder: Path, ranks: int) -> rowtier.Plan:
    """Users have a vocabulary, items share a hashed table; a device for every process."""
    facts: dict[str, Any] = {"embedding_dim": DIM}
    user = rowtier.Table(
        name="user", num_embeddings=400, features=("user",), ids="vocabulary", **facts
    )
    item = rowtier.Table(
        name="item", num_embeddings=1000, features=("item", "history"), ids="hash", **facts
    )
    tables = rowtier.Tables(batch_size=100, tables=(user, item))
    return rowtier.make_plan(rowtier.make_profile(folder, tables), rowtier.Cluster.local(ranks))


class Model(torch.nn.Module):  # type: ignore[misc]
    """Tables that lie where the plan puts them, and a small network on top."""

    def __init__(self, plan: rowtier.Plan, ranks: int):
        super().__init__()
        self.embeddings = ShardedEmbeddings(plan, RowwiseAdagrad(lr=0.1))
        torch.manual_seed(0)
        layers = [torch.nn.Linear(DIM * len(FEATURES), 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)]
        self.top: Any = torch.nn.Sequential(*layers)
        if ranks > 1:
            self.top = torch.nn.parallel.DistributedDataParallel(self.top)

    def forward(self, features: Any) -> torch.Tensor:
        """Log-odds of a click."""
        pooled = self.embeddings(features)
        return self.top(torch.cat([pooled[name] for name in FEATURES], dim=1)).squeeze(1)


def train(model: Model, data: ParquetBatches, args: argparse.Namespace) -> Iterator[float]:
    """The loss of every step of this process; saves after each `--save-every` of them."""
    optimizer = torch.optim.Adam(model.top.parameters(), lr=0.01)
    parts = {"model": model, "rows": model.embeddings.optimizer, "top": optimizer}
    if (args.checkpoints / "current.json").exists():
        data.load_state_dict(load_checkpoint(args.checkpoints, **parts, data=None)["data"])
    loader = DataLoader(data, batch_size=None, num_workers=args.workers)
    for epoch in range(data.epoch, args.epochs):
        data.set_epoch(epoch)
        for batch in loader:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                model(batch.features), batch.columns["label"]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.embeddings.optimizer.step()
            yield loss.item()
            done = batch.number + 1
            if done % args.save_every == 0:
                save_checkpoint(args.checkpoints, **parts, data=data.state_dict(done=done))


def main() -> None:
    """Read the command line, train, and print the losses from the first process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("clicks"))
    parser.add_argument("--checkpoints", type=Path, default=Path("run"), help="folder")
    parser.add_argument("--samples", type=int, default=20_000, help="to make")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="stop after so many")
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1, help="of the loader, per process")
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args()
    ranks, rank = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", "1"), ("RANK", "0")))
    if ranks > 1:
        dist.init_process_group("gloo")
    if rank == 0 and not args.data.exists():
        make_clicks(args.data, args.samples)
    plan: list[Any] = [make_plan(args.data, ranks) if rank == 0 else None]
    if ranks > 1:
        dist.broadcast_object_list(plan)
    model = Model(plan[0], ranks)
    data = ParquetBatches(args.data, plan[0], columns=("label",), shuffle=True)
    losses = list(islice(train(model, data, args), args.steps))
    if rank == 0:
        print(json.dumps(losses) if args.json else shown(losses))
    del model  # before the group: at times DDP and gloo's threads would wait for each other
    if ranks > 1:
        dist.destroy_process_group()


def shown(losses: list[float]) -> str:
    """The losses for people."""
    if not losses:
        return "nothing is left to do; remove the folder of checkpoints to begin anew"
    tenth = max(1, len(losses) // 10)
    first, last = np.mean(losses[:tenth]), np.mean(losses[-tenth:])
    return f"{len(losses)} steps, loss {first:.4f} → {last:.4f} (means of {tenth} steps)"


if __name__ == "__main__":
    main()

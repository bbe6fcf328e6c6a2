"""Run by torchrun: each rank trains on its batches of some files, and saves what it saw."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import rowtier
from rowtier.torch import SGD, ParquetBatches, ShardedEmbeddings

FEATURES = ("user", "seen", "shop")
BATCH, DIM, LR, EPOCHS = 8, 4, 0.5, 2


def first_weights(table: rowtier.Table) -> Any:
    random = np.random.default_rng(len(table.name))
    return random.standard_normal((table.num_embeddings, DIM), dtype=np.float32)


def dense_part() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(DIM * len(FEATURES), 1)


def batches_of(folder: Path, plan: rowtier.Plan, **options: Any) -> ParquetBatches:
    return ParquetBatches(
        folder / "data", plan, BATCH, columns=("number", "label"), shuffle=True, shuffle_window=40,
        seed=5, **options,
    )  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plan = rowtier.Plan.load(folder / "plan")
    embeddings = ShardedEmbeddings(
        plan, SGD(LR), init=lambda table, rows: first_weights(table)[rows]
    )
    dense = torch.nn.parallel.DistributedDataParallel(dense_part())
    optimizer = torch.optim.SGD(dense.parameters(), lr=LR)
    data = batches_of(folder, plan)
    loader = DataLoader(data, batch_size=None, num_workers=2, persistent_workers=True)
    losses, seen = [], []
    for epoch in range(EPOCHS):
        data.set_epoch(epoch)
        for batch in loader:
            pooled = embeddings(batch.features)
            logits = dense(torch.cat([pooled[name] for name in FEATURES], dim=1)).squeeze(1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                logits, batch.columns["label"]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            embeddings.optimizer.step()
            losses.append(loss.item())
            seen.append(batch.columns["number"].tolist())
    rank = dist.get_rank()
    (folder / f"{rank}.json").write_text(json.dumps({"losses": losses, "seen": seen}))
    del dense  # before the group: at times DDP and gloo's threads would wait for each other
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

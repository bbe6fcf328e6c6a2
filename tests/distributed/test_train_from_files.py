"""From strings in Parquet to a loss: two ranks against one process with torch's own modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cases import cluster_of
from torch.utils.data import DataLoader
from train_from_files import BATCH, EPOCHS, FEATURES, LR, batches_of, dense_part, first_weights

import rowtier
from rowtier.torch import ParquetBatches

SAMPLES, RANKS = 300, 2
FACTS: dict[str, Any] = {"embedding_dim": 4, "optimizer": "sgd"}
TABLES = rowtier.Tables(
    batch_size=BATCH,
    tables=(
        rowtier.Table(
            name="user", num_embeddings=40, features=("user",), ids="vocabulary", min_count=2,
            num_shared=4, **FACTS,
        ),
        rowtier.Table(name="item", num_embeddings=30, features=("seen",), ids="hash", **FACTS),
        rowtier.Table(
            name="shop", num_embeddings=20, features=("shop",), on_out_of_range="drop", **FACTS
        ),
    ),
)  # fmt: skip


def write(folder: Path) -> pa.Table:
    """Strings with nulls, lists of strings, and whole numbers of which some have no row."""
    random = np.random.default_rng(0)
    folder.mkdir()
    drawn = random.zipf(1.3, SAMPLES).tolist()
    items = [random.zipf(1.3, random.integers(0, 4)).tolist() for _ in range(SAMPLES)]
    table = pa.table(
        {
            "user": [None if i % 11 == 0 else f"user {n}" for i, n in enumerate(drawn)],
            "seen": pa.array([[f"ïtem {n}" for n in some] for some in items]),
            "shop": random.integers(0, 22, SAMPLES),
            "number": np.arange(SAMPLES),
            "label": np.array([n % 2 for n in drawn], dtype=np.float32),
        }
    )
    for index in range(3):
        pq.write_table(table.slice(100 * index, 100), folder / f"{index}.parquet", row_group_size=9)
    return table


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The data, the plan, and what two processes made of them."""
    folder = tmp_path_factory.mktemp("files")
    table = write(folder / "data")
    profile = rowtier.make_profile(folder / "data", TABLES)
    plan = rowtier.make_plan(profile, cluster_of((RANKS,)))
    plan.save(folder / "plan")
    script = Path(__file__).parent / "train_from_files.py"
    command = [
        sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(RANKS), str(script), str(folder),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    return folder, table, plan, found


def bags_of(table: pa.Table, plan: rowtier.Plan, feature: str, samples: list[int]) -> Any:
    """Rows and offsets, one sample after the other, by nothing but `rows_of`."""
    name = next(t.name for t in TABLES if feature in t.features)
    column, rows, offsets = table.column(feature).to_pylist(), [], []
    for sample in samples:
        offsets.append(len(rows))
        ids = column[sample]
        ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
        rows += [row for row in plan.rows_of(name, ids).tolist() if row >= 0] if ids else []
    return torch.tensor(rows, dtype=torch.long), torch.tensor(offsets, dtype=torch.long)


def alone(table: pa.Table, plan: rowtier.Plan, steps: list[list[int]]) -> list[float]:
    """The losses of one process with `nn.EmbeddingBag` on the same samples."""
    bags = {
        feature: torch.nn.EmbeddingBag.from_pretrained(
            torch.from_numpy(first_weights(entry)), freeze=False, mode="sum"
        )
        for entry in TABLES
        for feature in entry.features
    }
    dense, labels = dense_part(), torch.tensor(table.column("label").to_pylist())
    weights = [bag.weight for bag in bags.values()]
    optimizer = torch.optim.SGD([*dense.parameters(), *weights], lr=LR)
    losses = []
    for samples in steps:
        pooled = [bags[name](*bags_of(table, plan, name, samples)) for name in FEATURES]
        logits = dense(torch.cat(pooled, dim=1)).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels[samples])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_two_ranks_train_on_strings_as_one_process_does(job: Any) -> None:
    _, table, plan, found = job
    steps = [mine + yours for mine, yours in zip(*(rank["seen"] for rank in found), strict=True)]
    together = np.mean([rank["losses"] for rank in found], axis=0)
    expected = alone(table, plan, steps)
    assert len(expected) == EPOCHS * (SAMPLES // (RANKS * BATCH))
    assert np.mean(expected[-5:]) < np.mean(expected[:5])
    np.testing.assert_allclose(together, expected, rtol=0, atol=1e-6)


def test_ranks_share_the_samples_and_epochs_differ(job: Any) -> None:
    *_, found = job
    half = len(found[0]["seen"]) // EPOCHS
    for epoch in range(EPOCHS):
        seen = [n for r in found for b in r["seen"][epoch * half : (epoch + 1) * half] for n in b]
        assert len(seen) == len(set(seen)) == half * RANKS * BATCH
    assert found[0]["seen"][:half] != found[0]["seen"][half:]


def test_one_process_reads_what_a_rank_reads(job: Any) -> None:
    folder, _, plan, found = job
    for rank in range(RANKS):
        data = batches_of(folder, plan, rank=rank, world=RANKS)
        seen = [batch.columns["number"].tolist() for batch in DataLoader(data, batch_size=None)]
        assert seen == found[rank]["seen"][: len(data)]


def test_a_profile_gives_the_rows_that_the_plan_addresses(job: Any) -> None:
    folder, table, plan, _ = job
    profile = rowtier.make_profile(folder / "data", TABLES)
    data = ParquetBatches(folder / "data", profile, 50, columns=["number"], shuffle=True)
    for batch in data:
        for feature in FEATURES:
            rows, offsets = bags_of(table, plan, feature, batch.columns["number"].tolist())
            found, lengths = batch.features[feature]
            assert torch.equal(found, rows)
            assert torch.equal(lengths.cumsum(0) - lengths, offsets)

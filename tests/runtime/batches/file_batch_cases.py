"""Files of samples, a table that reads them, and batches of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import DataLoader

import rowtier
from rowtier import Plan, Table, Tables
from rowtier.torch import FileBatch, ParquetBatches

ROWS = 50


def tables_of(*tables: Table) -> Tables:
    return Tables(batch_size=4, tables=tables)


ITEM = Table(name="item", num_embeddings=ROWS, embedding_dim=4, features=("item", "seen"))
TABLES = tables_of(ITEM)


def plan_of(data: Any, tables: Tables) -> Plan:
    tier = rowtier.Tier(name="ram", capacity_bytes=2**30, bandwidth_bytes_per_s=10e9)
    cluster = rowtier.Cluster(name="one", device=rowtier.Device(tiers=(tier,)))
    return rowtier.make_plan(rowtier.make_profile(data, tables), cluster)


def write(folder: Path, samples: int = 100, files: int = 2, row_group: int = 7) -> Path:
    """Sample i has id i % 50, i % 4 other ids, and is called i in column `number`."""
    folder.mkdir()
    for index, numbers in enumerate(np.array_split(np.arange(samples), files)):
        columns = {
            "item": [None if n % 9 == 0 else int(n) % ROWS for n in numbers],
            "seen": [[(int(n) + k) % ROWS for k in range(n % 4)] for n in numbers],
            "number": numbers,
            "label": (numbers % 2).astype(np.float32),
        }
        pq.write_table(pa.table(columns), folder / f"{index}.parquet", row_group_size=row_group)
    return folder


def numbers(batches: Any) -> list[list[int]]:
    return [batch.columns["number"].tolist() for batch in batches]


def load(data: ParquetBatches, workers: int = 0, **options: Any) -> list[FileBatch]:
    return list(DataLoader(data, batch_size=None, num_workers=workers, **options))

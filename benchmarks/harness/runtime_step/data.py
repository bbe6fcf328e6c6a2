"""Ids, profiles and plans of the steps that are timed."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import rowtier
from rowtier import (
    Cluster,
    Device,
    FeatureStats,
    Level,
    Profile,
    RowCounts,
    Table,
    TableStats,
    Tier,
)

ROWS, DIM = 1_000_000, 64


def zipf_ids(
    random: np.random.Generator, alpha: float, size: int, table: int, rows: int = ROWS
) -> Any:
    """Zipf-distributed row ids; hot rows lie anywhere in the table."""
    cdf = _zipf(alpha, rows)
    return _rows_by_position(table, rows)[np.searchsorted(cdf, random.random(size) * cdf[-1])]


@cache
def _zipf(alpha: float, rows: int) -> Any:
    return np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -alpha)


@cache
def _rows_by_position(table: int, rows: int) -> Any:
    return np.random.default_rng(table).permutation(rows)


def rows_of(shape: dict[str, int]) -> int:
    """Rows of every table."""
    return shape.get("rows", ROWS)


def cluster_of(size: int) -> Cluster:
    """The ranks of this machine, with round figures of the kind `rowtier calibrate` finds."""
    ram = Tier(
        name="ram", capacity_bytes=4 * 2**30, bandwidth_bytes_per_s=5e9, granularity_bytes=64
    )
    level = Level(name="node", size=size, bandwidth_bytes_per_s=1.2e9, latency_s=6e-5)
    return Cluster(name=f"local-{size}", levels=(level,), device=Device(tiers=(ram,)))


def profile_of(
    shape: dict[str, int], alpha: float, pooling: Any, optimizer: Any = "sgd", dtype: Any = "fp32"
) -> Profile:
    """Statistics of 40 batches."""
    stats, rows = [], rows_of(shape)
    for index in range(shape["tables"]):
        table = Table(
            name=f"t{index}", num_embeddings=rows, embedding_dim=DIM, pooling=pooling,
            features=(f"f{index}",), optimizer=optimizer, dtype=dtype,
        )  # fmt: skip
        samples = 40 * shape["batch"]
        size = samples * shape["length"]
        ids = zipf_ids(np.random.default_rng(100 + index), alpha, size, index, rows)
        counts = RowCounts.from_dense(np.bincount(ids, minlength=rows))
        feature = FeatureStats(name=f"f{index}", present=samples, lookups=len(ids))
        stats.append(TableStats.counted(table, samples, (feature,), counts))
    return Profile(shape["batch"], tuple(stats))


def coalesced_row_wise(profile: Profile, cluster: Cluster) -> rowtier.Plan:
    """Every table spread over all ranks, rows fetched once a step."""
    bands = {
        entry.table.name: (
            rowtier.Band(
                start=0, stop=ROWS, scope=cluster.top, tier="ram", coalesced=True, offset=i
            ),
        )
        for i, entry in enumerate(profile.stats)
    }
    return rowtier.Plan.build("own row-wise", profile, cluster, bands)

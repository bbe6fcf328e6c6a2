"""Small random tables, profiles, clusters and placements for property tests."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import numpy as np
from hypothesis import strategies as st

import rowtier
from rowtier import (
    Band,
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
from rowtier.tables import Optimizer


@st.composite
def clusters(draw: st.DrawFn, capacity_bytes: int = 2**40) -> Cluster:
    """One to three levels of one to three, and one or two tiers."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=0, max_size=3))
    tiers = [
        Tier(name=f"tier{i}", capacity_bytes=capacity_bytes, bandwidth_bytes_per_s=1e9 / (i + 1))
        for i in range(draw(st.integers(1, 2)))
    ]
    levels = [
        Level(name=f"level{i}", size=size, bandwidth_bytes_per_s=1e9)
        for i, size in enumerate(sizes)
    ]
    return Cluster(name="random", levels=tuple(levels), device=Device(tiers=tuple(tiers)))


@st.composite
def tables(draw: st.DrawFn, name: str = "t") -> Table:
    """A small table of any kind."""
    return Table(
        name=name,
        num_embeddings=draw(st.integers(1, 60)),
        embedding_dim=draw(st.integers(1, 8)),
        dtype=draw(st.sampled_from(["fp32", "fp16", "bf16"])),
        pooling=draw(st.sampled_from(["sum", "mean", "none"])),
        features=(f"{name}_feature",),
        optimizer=draw(st.sampled_from(get_args(Optimizer))),
    )


@st.composite
def profiles(draw: st.DrawFn, max_tables: int = 4) -> Profile:
    """Counted statistics of a few small tables."""
    stats = []
    for index in range(draw(st.integers(1, max_tables))):
        table = draw(tables(f"t{index}"))
        heat = draw(
            st.lists(
                st.integers(0, 9), min_size=table.num_embeddings, max_size=table.num_embeddings
            )
        )
        stats.append(counted(table, np.array(heat, dtype=np.int64)))
    return Profile(draw(st.integers(1, 64)), tuple(stats))


def counted(table: Table, heat: np.ndarray, samples: int = 1000) -> TableStats:
    """Statistics of a table from one counter per row."""
    counts = RowCounts.from_dense(heat)
    lookups = int(counts.counts.sum())
    feature = FeatureStats(
        name=table.features[0], present=min(lookups, samples), lookups=max(lookups, 0)
    )
    return TableStats.counted(table, samples, (feature,), counts)


@st.composite
def bands(draw: st.DrawFn, table: Table, cluster: Cluster) -> tuple[Band, ...]:
    """Any valid cut of a table: row cuts, each cut again by columns, each piece anywhere."""
    cuts = draw(st.sets(st.integers(1, max(1, table.num_embeddings - 1)), max_size=3))
    edges = sorted({0, table.num_embeddings, *(c for c in cuts if c < table.num_embeddings)})
    pieces = []
    for start, stop in pairwise(edges):
        middle = draw(st.integers(0, table.embedding_dim))
        spans = [(0, middle), (middle, table.embedding_dim)]
        pieces += [
            draw(_band(table, cluster, start, stop, span)) for span in spans if span[0] < span[1]
        ]
    return tuple(draw(st.permutations(pieces)))


@st.composite
def _band(
    draw: st.DrawFn, table: Table, cluster: Cluster, start: int, stop: int, span: tuple[int, int]
) -> Band:
    scope = draw(st.sampled_from(cluster.scopes))
    size = cluster.group_size(cluster.level_of(scope))
    listed = draw(st.permutations(range(size)))[: draw(st.integers(1, size))]
    return Band(
        start=start,
        stop=stop,
        columns=None if span == (0, table.embedding_dim) else span,
        scope=scope,
        members=draw(st.sampled_from(["all", tuple(listed)])),
        order=draw(st.sampled_from(["spread", "blocks"])),
        offset=draw(st.integers(0, 5)),
        tier=draw(st.sampled_from([tier.name for tier in cluster.device.tiers])),
        exchange="rows" if table.why_rows else draw(st.sampled_from(["rows", "sums"])),
        coalesced=draw(st.booleans()),
        staged=draw(st.booleans()),
        sync=draw(st.sampled_from(["dense", "sparse"])),
    )


@st.composite
def plans(draw: st.DrawFn) -> rowtier.Plan:
    """A valid plan that no planner made."""
    profile, cluster = draw(profiles()), draw(clusters())
    placed = {s.table.name: draw(bands(s.table, cluster)) for s in profile.stats}
    return rowtier.Plan.build("random", profile, cluster, placed)

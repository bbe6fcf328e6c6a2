"""Random clusters with everything a cluster may have, and random placements on them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st
from strategies import counted, tables

from rowtier import (
    Band,
    Cluster,
    Curve,
    Device,
    FeatureStats,
    Level,
    Profile,
    Server,
    Table,
    TableStats,
    Tier,
)
from rowtier.cost.options import CostOptions
from rowtier.work import UpdateWork, Work

MAX_DEVICES = 12


@st.composite
def tiers(draw: st.DrawFn, levels: list[str], first: str = "tier0") -> tuple[Tier, ...]:
    names = [first, *draw(st.sampled_from([[], ["tier1"], ["tier1", "tier2"]]))]
    return tuple(
        Tier(
            name=name,
            capacity_bytes=2**40,
            bandwidth_bytes_per_s=draw(st.sampled_from([1e9, 3e9, 5e10])),
            granularity_bytes=draw(st.sampled_from([1, 8, 32, 4096])),
            shared_by=draw(st.sampled_from([None, *levels])),
        )
        for name in names
    )


@st.composite
def rich_clusters(draw: st.DrawFn) -> Cluster:
    sizes: list[int] = []
    for _ in range(draw(st.sampled_from([2, 1, 3, 2, 3, 0]))):
        room = MAX_DEVICES // int(np.prod([1, *sizes]))
        sizes.append(draw(st.sampled_from([n for n in (2, 3, 1, 4) if n <= room])))
    levels = [
        Level(
            name=f"level{i}",
            size=size,
            bandwidth_bytes_per_s=draw(st.sampled_from([1e8, 1e9, 7e9])),
            latency_s=draw(st.sampled_from([0.0, 1e-5])),
            message_s=draw(st.sampled_from([0.0, 3e-6])),
            per=draw(st.sampled_from(["device", "group"])),
            exchange_efficiency=draw(st.sampled_from([1.0, 0.5])),
            sync_efficiency=draw(st.sampled_from([1.0, 0.8])),
        )
        for i, size in enumerate(sizes)
    ]
    names = [level.name for level in levels]
    servers = [
        Server(
            name=f"server{i}",
            count=draw(st.integers(1, 2)),
            level=draw(st.sampled_from(names)),
            tiers=draw(tiers([], first=draw(st.sampled_from(["tier0", "far"])))),
            bandwidth_bytes_per_s=draw(st.sampled_from([None, 2e9])),
        )
        for i in range(draw(st.integers(0, 2)) if names else 0)
    ]
    device = Device(tiers=draw(tiers(names)))
    return Cluster(
        name="rich",
        levels=tuple(levels),
        device=device,
        servers=tuple(servers),
        overlap=draw(overlaps(names, device, servers)),
        work=draw(works()),
    )


@st.composite
def overlaps(
    draw: st.DrawFn, levels: list[str], device: Device, servers: list[Server]
) -> tuple[tuple[str, ...], ...]:
    """Lists of tiers, and of levels, that run side by side."""
    owned = [*device.tiers, *(tier for server in servers for tier in server.tiers)]
    lists = []
    for names in (sorted({tier.name for tier in owned}), levels):
        together = draw(st.permutations(names))[: draw(st.sampled_from([0, 2, 3]))]
        lists += [tuple(together)] if len(together) > 1 else []
    return tuple(lists)


def seconds(*some: float) -> st.SearchStrategy[float]:
    return st.sampled_from([0.0, *some])


@st.composite
def works(draw: st.DrawFn) -> Work:
    """Coefficients, each of which may be missing; some clusters have none at all."""
    if draw(st.integers(0, 4)) == 0:
        return Work(hidden=draw(seconds(0.5)))
    return Work(
        step_s=draw(seconds(1e-4)),
        round_s=draw(seconds(7e-6)),
        table_s=draw(seconds(1e-6)),
        bundle_s=draw(seconds(4e-6)),
        band_s=draw(seconds(3e-6)),
        copied_s=draw(seconds(2e-6)),
        lookup_s=draw(seconds(2e-8, 1e-6)),
        distinct_s=draw(seconds(4e-8, 1e-6)),
        plain_s=draw(seconds(3e-8, 1e-6)),
        row_s=draw(seconds(5e-8, 2e-6)),
        sum_s=draw(seconds(6e-8, 1e-6)),
        buffer_bytes_per_s=draw(st.sampled_from([None, 1e8, 4e9])),
        output_bytes_per_s=draw(st.sampled_from([None, 2e8, 3e9])),
        update=UpdateWork(
            sgd=draw(seconds(1e-7)),
            adagrad=draw(seconds(2e-7)),
            rowwise_adagrad=draw(seconds(3e-7)),
            adam=draw(seconds(4e-7)),
        ),
        hidden=draw(seconds(0.25, 1.0)),
    )


@st.composite
def rich_profiles(draw: st.DrawFn, max_tables: int = 2, max_rows: int = 24) -> Profile:
    stats = [draw(_stats(f"t{i}", max_rows)) for i in range(draw(st.integers(1, max_tables)))]
    return Profile(draw(st.sampled_from([1, 2, 16, 500])), tuple(stats))


@st.composite
def _stats(draw: st.DrawFn, name: str, max_rows: int) -> TableStats:
    table = draw(tables(name))
    rows = min(table.num_embeddings, max_rows)
    table = table.model_copy(update={"num_embeddings": rows})
    if draw(st.booleans()):
        heat = draw(st.lists(st.integers(0, 9), min_size=rows, max_size=rows))
        return counted(table, np.array(heat, dtype=np.int64))
    features = tuple(draw(_features(f"{name}_{i}")) for i in range(draw(st.integers(1, 2))))
    table = table.model_copy(update={"features": tuple(f.name for f in features)})
    stops = sorted(draw(st.sets(st.integers(1, rows), min_size=1, max_size=6)))
    heat = sorted((draw(st.integers(1, 50)) for _ in stops), reverse=True)
    lookups = np.array(heat, dtype=float) * np.diff([0, *stops])
    lookups *= sum(f.lookups for f in features) / lookups.sum()
    return TableStats(table, 1000, features, Curve(np.array(stops), lookups))


@st.composite
def _features(draw: st.DrawFn, name: str) -> FeatureStats:
    pairs = draw(st.dictionaries(st.integers(1, 9), st.integers(1, 300), min_size=1, max_size=3))
    present = sum(pairs.values())
    lookups = sum(length * samples for length, samples in pairs.items())
    lengths = tuple(sorted(pairs.items())) if draw(st.booleans()) else ()
    return FeatureStats(name=name, present=present, lookups=lookups, lengths=lengths)


@st.composite
def rich_bands(draw: st.DrawFn, table: Table, cluster: Cluster) -> tuple[Band, ...]:
    rows = table.num_embeddings
    cuts = draw(st.sets(st.integers(1, max(1, rows - 1)), max_size=2))
    pieces = []
    for start, stop in pairwise(sorted({0, rows, *(c for c in cuts if c < rows)})):
        middle = draw(st.sampled_from([0, table.embedding_dim // 2]))
        for span in ((0, middle), (middle, table.embedding_dim)):
            if span[0] < span[1]:
                pieces.append(draw(_rich_band(table, cluster, start, stop, span)))
    return tuple(pieces)


@st.composite
def _rich_band(
    draw: st.DrawFn, table: Table, cluster: Cluster, start: int, stop: int, span: tuple[int, int]
) -> Band:
    scope = draw(st.sampled_from(cluster.scopes))
    level = cluster.level_of(scope)
    tier = draw(st.sampled_from(cluster.tier_names))
    able = [
        position
        for position, holder in enumerate(cluster.members(level))
        if tier in [t.name for t in cluster.tiers_of(holder)]
    ]
    devices = tier in [t.name for t in cluster.device.tiers]
    members = "all"
    if not able:
        tier = cluster.device.tiers[0].name
    elif not devices or draw(st.booleans()):
        members = tuple(draw(st.permutations(able))[: draw(st.integers(1, len(able)))])
    return Band(
        start=start,
        stop=stop,
        columns=None if span == (0, table.embedding_dim) else span,
        scope=scope,
        members=members,
        order=draw(st.sampled_from(["spread", "spread", "blocks"])),
        offset=draw(st.integers(0, 5)),
        tier=tier,
        exchange="rows" if table.why_rows else draw(st.sampled_from(["rows", "sums"])),
        coalesced=draw(st.booleans()),
        staged=draw(st.booleans()),
        sync=draw(st.sampled_from(["dense", "sparse"])),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, tuple[Band, ...]], Profile, Cluster, CostOptions]:
    """A placement, what it is for, and how to count."""
    profile, cluster = draw(rich_profiles()), draw(rich_clusters())
    bands = {s.table.name: draw(rich_bands(s.table, cluster)) for s in profile.stats}
    options = CostOptions(
        dense_s=draw(st.sampled_from([0.0, 1e-5, 1.0])),
        ids=draw(st.sampled_from(["wide", "narrow"])),
        training=draw(st.booleans()),
        weighted=frozenset(draw(st.sampled_from([[], ["t0"]]))),
    )
    return bands, profile, cluster, options

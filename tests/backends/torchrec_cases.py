"""Small TorchRec models, statistics and clusters for the tests here."""

from __future__ import annotations

import numpy as np

from rowtier import Cluster, Device, FeatureStats, Level, Profile, Table, Tables, TableStats, Tier
from rowtier.profile.curve import Curve, bucket_stops


def tables(*shapes: tuple[int, int, str]) -> Tables:
    """Tables of so many rows, columns and kind of pooling."""
    return Tables(
        batch_size=64,
        tables=tuple(
            Table(
                name=f"t{i}",
                num_embeddings=rows,
                embedding_dim=columns,
                pooling=pooling,
                features=(f"f{i}",),
            )
            for i, (rows, columns, pooling) in enumerate(shapes)
        ),
    )


def statistics(wanted: Tables, seed: int = 0) -> Profile:
    """Zipf-like curves over all rows."""
    random, stats = np.random.default_rng(seed), []
    for table in wanted:
        stops = bucket_stops(table.num_embeddings)
        ends = np.concatenate(([0.0], stops.astype(np.float64)))
        heat = np.diff((ends + 1) ** random.uniform(0.1, 0.8))
        lookups = int(10**6 * random.uniform(1, 20))
        feature = FeatureStats(name=table.features[0], present=10**6, lookups=lookups)
        curve = Curve(stops, heat * lookups / heat.sum())
        stats.append(TableStats(table, 10**6, (feature,), curve))
    return Profile(wanted.batch_size, tuple(stats))


def machine(nodes: int = 2, devices: int = 4, fast: str = "hbm", gigabytes: float = 80) -> Cluster:
    """Nodes of devices with fast and slow memory."""
    return Cluster(
        name="test",
        levels=(
            Level(name="node", size=devices, bandwidth_bytes_per_s=3e11),
            Level(name="cluster", size=nodes, bandwidth_bytes_per_s=2.5e10),
        ),
        device=Device(
            tiers=(
                Tier(name=fast, capacity_bytes=int(gigabytes * 1e9), bandwidth_bytes_per_s=1.5e12),
                Tier(name="dram", capacity_bytes=10**12, bandwidth_bytes_per_s=1.6e10),
            )
        ),
    )

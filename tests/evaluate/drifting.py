"""Small tables whose hot rows change, for tests of drift and of moving within a budget."""

from __future__ import annotations

import numpy as np

from rowtier import (
    Cluster,
    FeatureStats,
    Plan,
    Profile,
    RowCounts,
    Table,
    TableStats,
    make_plan,
)


def machine(ram: str = "24KiB", devices: int = 2, nodes: int = 1) -> Cluster:
    """Devices with little fast memory and slow disks."""
    levels = [{"name": "node", "size": devices, "bandwidth": "10GB/s", "latency": "5us"}]
    if nodes > 1:
        link = {"bandwidth": "2GB/s", "latency": "20us"}
        levels.append({"name": "cluster", "size": nodes, **link})
    tiers = [
        {"name": "ram", "capacity": ram, "bandwidth": "8GB/s"},
        {"name": "disk", "capacity": "1GiB", "bandwidth": "300MB/s", "granularity": "512B"},
    ]
    return Cluster.model_validate({"name": "m", "levels": levels, "device": {"tiers": tiers}})


def heat(rows: int, shift: int = 0, seed: int = 0, unseen: int = 0) -> np.ndarray:
    """Lookups by row id: Zipf-like, dealt to ids at random; the hot ones shift."""
    order = np.random.default_rng(seed).permutation(rows)
    counts = (20_000 / (1 + np.arange(rows))).astype(np.int64)
    found = np.zeros(rows, dtype=np.int64)
    found[np.roll(order, -shift)] = counts
    if unseen:
        found[np.random.default_rng(seed + 1).choice(rows, unseen, replace=False)] = 0
    return found


def table(name: str, rows: int, dim: int = 16, pooling: str = "sum") -> Table:
    return Table(
        name=name, num_embeddings=rows, embedding_dim=dim, features=(name,), pooling=pooling
    )


def profile(*shifts: int, rows: int = 400, batch: int = 64, unseen: int = 0) -> Profile:
    """One table for each shift of its hot rows."""
    stats = []
    for index, shift in enumerate(shifts):
        facts = table(f"t{index}", rows + 37 * index)
        counts = RowCounts.from_dense(heat(facts.num_embeddings, shift, index, unseen))
        lookups = int(counts.counts.sum())
        samples = lookups // 2
        feature = FeatureStats(name=facts.name, present=samples, lookups=lookups)
        stats.append(TableStats.counted(facts, samples, (feature,), counts))
    return Profile(batch, tuple(stats))


def planned(seen: Profile, cluster: Cluster, method: str = "joint") -> Plan:
    """A plan that is made in no time: `joint` is stopped before it searches."""
    return make_plan(seen, cluster, method, stop=at_once)


def at_once() -> bool:
    return True


__all__ = ["at_once", "heat", "machine", "planned", "profile", "table"]

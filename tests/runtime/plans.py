"""Small plans for one process."""

from __future__ import annotations

import numpy as np
from strategies import counted

from rowtier import Band, Cluster, Device, Level, Plan, Profile, Table, Tier


def plan_for(*tables: Table) -> Plan:
    """Rows in hotness order, in two bands, the second cut by columns."""
    tier = Tier(name="ram", capacity_bytes=2**40, bandwidth_bytes_per_s=1e9)
    level = Level(name="node", size=1, bandwidth_bytes_per_s=1e9)
    cluster = Cluster(name="one", levels=(level,), device=Device(tiers=(tier,)))
    random = np.random.default_rng(2)
    stats = tuple(counted(t, random.integers(0, 9, t.num_embeddings)) for t in tables)
    placed = {}
    for table in tables:
        half, dim = table.num_embeddings // 2, table.embedding_dim
        common = {"scope": cluster.scopes[-1], "tier": "ram"}
        placed[table.name] = (
            Band(start=0, stop=half, **common),
            Band(start=half, stop=table.num_embeddings, columns=(0, 1), **common),
            Band(start=half, stop=table.num_embeddings, columns=(1, dim), order="blocks", **common),
        )
    return Plan.build("drawn", Profile(4, stats), cluster, placed)

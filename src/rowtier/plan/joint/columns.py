"""Rows whose columns lie apart: what they can save beside a row that lies together.

Such a row is several rows in narrower tables, and nothing of it is cheaper than its share of the
width, but for one thing: bytes that were moved for granularity's sake alone may be saved. So where
a narrower row moves fewer bytes per column in some memory, a home may also cost what it would
without granularity, and either ask twice, or have a column copied to every device.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from rowtier.cluster import Cluster, Tier
from rowtier.cost.amounts import whole_bytes
from rowtier.cost.touch import LOOKUPS
from rowtier.plan.joint.homes import HomeCosts
from rowtier.profile.curve import Floats
from rowtier.tables import Table


@lru_cache(maxsize=4096)
def wastes(embedding_dim: int, item_bytes: int, states: tuple[int, ...], cluster: Cluster) -> bool:
    """Whether a narrower row moves fewer bytes per column in some memory."""
    widths = np.arange(1, embedding_dim + 1)
    for tier in _all_tiers(cluster):
        for beside in (np.zeros(embedding_dim, dtype=np.int64), np.array(states)):
            moved = [whole_bytes(int(n), tier) for n in widths * item_bytes + beside]
            each = np.array(moved) / widths
            if each.min() < each[-1] * (1 - 1e-12):
                return True
    return False


def narrow_share(table: Table, cluster: Cluster) -> float:
    """The share of a row that pays for a home if one column may lie elsewhere; 1: none does."""
    dim = table.embedding_dim
    states = tuple(table.state_bytes(width) for width in range(1, dim + 1))
    if dim == 1 or not wastes(dim, table.item_bytes, states, cluster):
        return 1.0
    return 1 - 1 / dim


def _all_tiers(cluster: Cluster) -> list[Tier]:
    return [*cluster.device.tiers, *(tier for server in cluster.servers for tier in server.tiers)]


@lru_cache(maxsize=64)
def ungrained(cluster: Cluster) -> Cluster:
    """The same cluster if an access moved no more than it needs."""

    def fine(tiers: tuple[Tier, ...]) -> tuple[Tier, ...]:
        return tuple(tier.model_copy(update={"granularity_bytes": 1}) for tier in tiers)

    device = cluster.device.model_copy(update={"tiers": fine(cluster.device.tiers)})
    servers = tuple(s.model_copy(update={"tiers": fine(s.tiers)}) for s in cluster.servers)
    return cluster.model_copy(update={"device": device, "servers": servers})


def with_cut_columns(
    whole_s: Floats, fine: HomeCosts, share: float, basis: Floats, weights: Floats, lookup_s: float
) -> Floats:
    """Homes × buckets: the least seconds of a row that lies together, or in parts."""
    fine_s = fine.weighted(weights) @ basis
    copied = np.array([home.level == 0 for home in fine.homes])
    least_s = np.minimum(whole_s, np.where(copied[:, None], fine_s, np.inf))
    if copied.all():
        return np.asarray(least_s)
    asking_s = (fine.asking_s @ basis)[~copied].min(axis=0)
    twice_s = fine_s + asking_s + weights[0] * lookup_s * basis[LOOKUPS]
    if copied.any():
        beside_s = share * fine_s + (1 - share) * fine_s[copied].min(axis=0)
        twice_s = np.minimum(twice_s, beside_s)
    return np.asarray(np.minimum(least_s, twice_s))

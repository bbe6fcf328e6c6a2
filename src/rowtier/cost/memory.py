"""Bytes: what rows take, where a band puts them, and what room is left.

Counted per holder and tier, never as an average: the fullest one decides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.profile.profile import Profile
from rowtier.tables import Table

Ints = NDArray[np.int64]


def row_bytes(table: Table, band: Band) -> int:
    """Bytes that keeping one row of a band takes: its columns and their optimizer state."""
    width = band.width(table.embedding_dim)
    return width * table.item_bytes + table.state_bytes(width)


def band_bytes(table: Table, band: Band, cluster: Cluster) -> Ints:
    """Bytes that each holder keeps of a band."""
    level = cluster.level_of(band.scope)
    members = list(band.member_list(cluster.group_size(level)))
    share = band.rows_per_member(len(members)) * row_bytes(table, band)
    held = np.zeros(cluster.num_holders, dtype=np.int64)
    for group in range(cluster.num_groups(level)):
        held[np.asarray(cluster.members(level, group))[members]] += share
    return held


def used_bytes(bands: Bands, profile: Profile, cluster: Cluster) -> Ints:
    """Bytes in use per holder (row) and tier (column, in the order of `cluster.tier_names`)."""
    used = np.zeros((cluster.num_holders, len(cluster.tier_names)), dtype=np.int64)
    for stats in profile.stats:
        for band in bands[stats.table.name]:
            column = cluster.tier_names.index(band.tier)
            used[:, column] += band_bytes(stats.table, band, cluster)
    return used


class Room:
    """Free bytes per holder and tier while a planner fills them; shared tiers are one pool."""

    def __init__(self, cluster: Cluster, reserve: float = 0.0):
        self._pool: dict[tuple[int, str], int] = {}
        pools: dict[tuple[str, int, str], int] = {}
        free: list[int] = []
        for holder in range(cluster.num_holders):
            for tier in cluster.tiers_of(holder):
                place = ("holder", holder, tier.name)
                if tier.shared_by is not None:
                    size = cluster.group_size(cluster.level_of(tier.shared_by))
                    place = (tier.shared_by, holder // size, tier.name)
                if place not in pools:
                    pools[place] = len(free)
                    free.append(int(tier.capacity_bytes * (1 - reserve)))
                self._pool[holder, tier.name] = pools[place]
        self._free = np.array(free, dtype=np.int64)

    def free_bytes(self, holder: int, tier: str) -> int:
        """Bytes left; zero where the holder has no such tier."""
        pool = self._pool.get((holder, tier))
        return 0 if pool is None else int(self._free[pool])

    def fits(self, needed: Ints, tier: str) -> bool:
        """Whether every holder's bytes fit into a tier together."""
        return not (self._left_after(needed, tier) < 0).any()

    def take(self, needed: Ints, tier: str) -> None:
        """Use bytes of a tier, per holder."""
        self._free = self._left_after(needed, tier)

    def _left_after(self, needed: Ints, tier: str) -> Ints:
        left = self._free.copy()
        for holder in np.flatnonzero(needed):
            left[self._pool[int(holder), tier]] -= needed[holder]
        return left

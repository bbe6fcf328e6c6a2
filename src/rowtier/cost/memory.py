"""Bytes kept: what rows take, what training needs beside them, and what room is left.

Counted per holder and tier, never as an average: the fullest one decides. Beside rows
there are exchange buffers and the outputs of lookups, in the holder's first tier, and remap
tables (row id → where the row lies), one per node in host memory. *Host memory* is the
slowest tier of a device that is not a disk; its node is the group that shares that tier, else
the level called "node", whose devices then carry the table in equal parts, else the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rowtier.band import Band, Bands
from rowtier.cluster import DEVICE, Cluster, Tier
from rowtier.cost.options import DEFAULTS, CostOptions
from rowtier.cost.tree import Tree, tree_of
from rowtier.profile.profile import Profile, TableStats
from rowtier.tables import Table
from rowtier.units import show_bytes

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

DISK_BYTES = 512  # the least that any disk reads at once
BITMAP_BYTES = 0.14  # one bit a row, and a running count


def row_bytes(table: Table, band: Band) -> int:
    """Bytes that keeping one row of a band takes: its columns and their optimizer state."""
    width = band.width(table.embedding_dim)
    return width * table.item_bytes + table.state_bytes(width)


def band_bytes(table: Table, band: Band, cluster: Cluster) -> Ints:
    """Bytes that each holder keeps of a band."""
    tree = tree_of(cluster)
    holders = tree.holders_of(band)
    held = np.zeros(tree.holders, dtype=np.int64)
    held[holders] = band.rows_per_member(holders.shape[1]) * row_bytes(table, band)
    return held


def used_bytes(bands: Bands, profile: Profile, cluster: Cluster) -> Ints:
    """Bytes of rows per holder (row) and tier (column, in the order of `cluster.tier_names`)."""
    tree = tree_of(cluster)
    used = np.zeros((tree.holders, len(tree.columns)), dtype=np.int64)
    for stats in profile.stats:
        for band in bands[stats.table.name]:
            used[:, tree.columns[band.tier]] += band_bytes(stats.table, band, cluster)
    return used


@dataclass(frozen=True, eq=False)
class MemoryUse:
    """Bytes in use per holder (row) and tier (column, in the order of `cluster.tier_names`)."""

    weights: Ints
    state: Ints  # of the optimizer
    remap: Ints
    buffers: Ints
    outputs: Ints  # what lookups give the model

    @property
    def rows(self) -> Ints:
        """Weights and optimizer state, all copies counted."""
        return self.weights + self.state

    @property
    def total(self) -> Ints:
        """Everything."""
        return self.rows + self.remap + self.buffers + self.outputs

    def in_pools(self, cluster: Cluster) -> list[tuple[Pool, int]]:
        """Bytes in use of every memory that has a capacity of its own."""
        total = self.total
        return [
            (pool, int(total[list(pool.holders), cluster.tier_names.index(pool.tier)].sum()))
            for pool in pools(cluster)
        ]


def all_remap_bytes(
    bands: Bands, profile: Profile, cluster: Cluster, options: CostOptions = DEFAULTS
) -> Ints:
    """Bytes of the remap tables per holder (row) and tier (column)."""
    tree, (host, devices) = tree_of(cluster), host_memory(cluster)
    remap = np.zeros((tree.holders, len(tree.columns)), dtype=np.int64)
    node_bytes = sum(
        remap_bytes(stats.table, bands[stats.table.name], tree, options) for stats in profile.stats
    )
    remap[: tree.devices, tree.columns[host.name]] = -(-node_bytes // devices)
    return remap


def output_bytes(profile: Profile, tree: Tree) -> Floats:
    """Bytes of what a step's lookups give the model, per holder."""
    held = np.zeros(tree.holders, dtype=np.float64)
    held[: tree.devices] = sum(table_output_bytes(stats, profile) for stats in profile.stats)
    return held


def table_output_bytes(stats: TableStats, profile: Profile) -> float:
    """The same of one table on each device: fp32, whatever the table is."""
    table = stats.table
    lines = stats.lookups_per_sample if table.pooling == "none" else len(table.features)
    return 4 * table.embedding_dim * lines * profile.batch_size


def in_first_tier(held_bytes: Floats, cluster: Cluster) -> Ints:
    """Bytes per holder, as bytes per holder (row) and tier (column): all in its first tier."""
    tree = tree_of(cluster)
    first = np.array([tree.columns[next(iter(tiers))] for tiers in tree.tiers])
    held = np.zeros((tree.holders, len(tree.columns)), dtype=np.int64)
    held[np.arange(tree.holders), first[tree.kinds]] = np.ceil(held_bytes)
    return held


def remap_bytes(table: Table, bands: Iterable[Band], tree: Tree, options: CostOptions) -> int:
    """Bytes of a table's remap table: 4 a row, 8 above 2³¹ rows, or a bitmap per cut.

    None is needed where a row's id tells its place: whole tables on one member or in blocks.
    """
    bands, rows = tuple(bands), table.num_embeddings
    if all(_id_tells_place(band, rows, tree) for band in bands):
        return 0
    if options.remap == "bitmap":
        cuts = len({band.stop for band in bands} - {rows})
        return int(np.ceil(BITMAP_BYTES * rows * max(1, cuts)))
    return rows * (4 if rows <= 2**31 else 8)


def _id_tells_place(band: Band, rows: int, tree: Tree) -> bool:
    if band.rows < rows:
        return False
    return band.order == "blocks" or len(tree.positions(band, tree.scopes[band.scope])) == 1


def host_memory(cluster: Cluster) -> tuple[Tier, int]:
    """The tier that stands for host memory, and how many devices have it together."""
    tiers = cluster.device.tiers
    memories = [tier for tier in tiers if tier.granularity_bytes < DISK_BYTES] or [tiers[0]]
    host = memories[-1]
    shared_by = host.shared_by or ("node" if "node" in cluster.scopes else DEVICE)
    return host, cluster.group_size(cluster.level_of(shared_by))


@dataclass(frozen=True)
class Pool:
    """One memory with one capacity: a holder's tier, or one that a group shares."""

    place: str
    tier: str
    holders: tuple[int, ...]
    capacity_bytes: int


def pools(cluster: Cluster) -> list[Pool]:
    """Every memory that has a capacity of its own."""
    found: list[Pool] = []
    for tier in cluster.device.tiers:
        shared_by = tier.shared_by or DEVICE
        groups = np.arange(cluster.num_devices).reshape(
            -1, cluster.group_size(cluster.level_of(shared_by))
        )
        found += [
            Pool(f"{shared_by} {index}", tier.name, tuple(group.tolist()), tier.capacity_bytes)
            for index, group in enumerate(groups)
        ]
    found += [
        Pool(cluster.holder_name(holder), tier.name, (holder,), tier.capacity_bytes)
        for holder in range(cluster.num_devices, cluster.num_holders)
        for tier in cluster.tiers_of(holder)
    ]
    return found


@dataclass(frozen=True)
class Reserve:
    """Memory that rows may not use: a share of every tier, and bytes of some."""

    share: float = 0.0
    amounts: tuple[tuple[str, int | None, int], ...] = ()  # tier, device or all, bytes

    def left(self, tier: Tier, holders: Iterable[int] = ()) -> int:
        """Bytes that rows may use of one tier, which these holders have together."""
        kept = [a for name, who, a in self.amounts if name == tier.name and who is None]
        mine = set(holders)
        kept += [a for name, who, a in self.amounts if name == tier.name and who in mine]
        return max(0, int(tier.capacity_bytes * (1 - self.share)) - sum(kept))

    def least_left(self, tier: Tier) -> int:
        """The same on the device that has the least of it."""
        whose = {who for name, who, _ in self.amounts if name == tier.name and who is not None}
        return min(self.left(tier, (who,)) for who in (whose or {-1}))

    def __str__(self) -> str:
        said = [f"{self.share:.0%} reserved"] if self.share else []
        for tier, who, amount in self.amounts:
            where = f" on device {who}" if who is not None else ""
            said.append(f"{show_bytes(amount)} of {tier} reserved{where}")
        return ", ".join(said)


NOTHING_RESERVED = Reserve()


def _sharers(holder: int, tier: Tier, cluster: Cluster) -> range:
    """The holders that have a tier together with one of them."""
    if tier.shared_by is None:
        return range(holder, holder + 1)
    size = cluster.group_size(cluster.level_of(tier.shared_by))
    first = holder // size * size
    return range(first, first + size)


class Room:
    """Free bytes per holder and tier while a planner fills them; shared tiers are one pool."""

    def __init__(self, cluster: Cluster, reserve: Reserve = NOTHING_RESERVED):
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
                    free.append(reserve.left(tier, _sharers(holder, tier, cluster)))
                self._pool[holder, tier.name] = pools[place]
        self._free = np.array(free, dtype=np.int64)
        self._pool_of = {
            name: np.array([self._pool.get((h, name), -1) for h in range(cluster.num_holders)])
            for name in cluster.tier_names
        }
        self._devices = cluster.num_devices

    def copy(self) -> Room:
        """The same room, to try something in."""
        other = copy(self)
        other._free = self._free.copy()
        return other

    def free_bytes(self, holder: int, tier: str) -> int:
        """Bytes left; zero where the holder has no such tier."""
        pool = self._pool.get((holder, tier))
        return 0 if pool is None else int(self._free[pool])

    def free_on(self, tier: str) -> Ints:
        """Bytes left on every holder; zero where it has no such tier."""
        pool_of = self._pool_of[tier]
        return np.where(pool_of < 0, 0, self._free[pool_of])

    def free_of_each(self, tier: str) -> float:
        """Bytes left for each device if all of them take the same; devices share some pools."""
        pool_of = self._pool_of[tier][: self._devices]
        if (pool_of < 0).any():
            return 0.0
        sharing = np.bincount(pool_of, minlength=len(self._free))
        return float((self._free[pool_of] / sharing[pool_of]).min())

    def fits(self, needed: Ints, tier: str) -> bool:
        """Whether every holder's bytes fit into a tier together."""
        left = self._left_after(needed, tier)
        return not ((left < 0) & (left < self._free)).any()

    def take(self, needed: Ints, tier: str) -> None:
        """Use bytes of a tier, per holder."""
        self._free = self._left_after(needed, tier)

    def take_from(self, holder: int, tier: str, amount: int) -> None:
        """Use bytes of one holder's tier."""
        self._free[self._pool[holder, tier]] -= amount

    def _left_after(self, needed: Ints, tier: str) -> Ints:
        left, holders = self._free.copy(), np.flatnonzero(needed)
        np.subtract.at(left, self._pool_of[tier][holders], needed[holders])
        return left


def memory_sizes(cluster: Cluster, reserve: Reserve = NOTHING_RESERVED) -> list[tuple[str, float]]:
    """Every kind of memory: its tier, and its bytes for each device, on average."""
    devices = cluster.num_devices
    found = []
    for tier in cluster.device.tiers:
        level = 0 if tier.shared_by is None else cluster.level_of(tier.shared_by)
        size, groups = cluster.group_size(level), cluster.num_groups(level)
        left = [reserve.left(tier, range(g * size, (g + 1) * size)) for g in range(groups)]
        found.append((tier.name, sum(left) / devices))
    for server in cluster.servers:
        count = len(cluster.server_members(server))
        found += [(t.name, reserve.left(t) * count / devices) for t in server.tiers]
    return found

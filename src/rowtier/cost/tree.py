"""The cluster as arrays: who is in which group, and sums over groups.

Two holders are *at distance j* if level j is the first whose group has both, and what one
sends the other is carried by the level-j links alone. A server hangs at the level it is
declared for: it is at least that far from everyone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from rowtier.band import Band
from rowtier.cluster import Cluster, Tier
from rowtier.profile.curve import Floats, Ints


@dataclass(frozen=True)
class Rack:
    """All servers of one kind: holders `first` to `stop`, in every group of `level` alike."""

    level: int
    first: int
    stop: int
    bandwidth_bytes_per_s: float | None


@dataclass(frozen=True, eq=False)
class Tree:
    """A cluster, unfolded. Levels count from 0, the device; level j's links are column j − 1."""

    cluster: Cluster
    sizes: tuple[int, ...]  # n_0 … n_K, devices per group
    racks: tuple[Rack, ...]
    members: tuple[Ints, ...]  # per level: groups × positions, the holder
    kinds: Ints  # per holder: 0 for a device, i + 1 for a server of rack i
    attached: Ints  # per holder: the level it hangs at, 0 for a device
    tiers: tuple[dict[str, Tier], ...]  # per kind
    columns: dict[str, int]  # tier name → column
    scopes: dict[str, int]  # scope → level

    @property
    def levels(self) -> int:
        """How many levels have links (K)."""
        return len(self.sizes) - 1

    @property
    def devices(self) -> int:
        """How many devices read (W)."""
        return self.sizes[-1]

    @property
    def holders(self) -> int:
        """Devices and servers together."""
        return len(self.kinds)

    def fan_out(self, level: int) -> int:
        """How many level-(level−1) groups a group of the level joins."""
        return self.sizes[level] // self.sizes[level - 1]

    def readers(self, level: int, attached: int) -> Ints:
        """Devices at each distance from a holder, inside its group of a level."""
        sizes = np.array(self.sizes, dtype=np.int64)
        apart: Ints = sizes[1:] - sizes[:-1]
        if attached:
            apart[: attached - 1] = 0
            apart[attached - 1] = self.sizes[attached]
        apart[level:] = 0
        return apart

    @cached_property
    def others(self) -> Ints:
        """Levels × holders: the groups below in the holder's group of a level it is not in."""
        rows = [np.zeros((0, self.holders), dtype=np.int64)]
        for level in range(1, self.levels + 1):
            inside = self.fan_out(level) - 1
            beside = np.where(self.attached == level, inside + 1, inside)
            rows.append(np.where(self.attached > level, 0, beside)[None])
        return np.concatenate(rows)

    def group_sums(self, amounts: Floats, level: int) -> Floats:
        """Sum over each group's holders; the first axis of `amounts` counts holders."""
        sums = amounts[: self.devices]
        for step in range(1, level + 1):
            sums = sums.reshape(-1, self.fan_out(step), *amounts.shape[1:]).sum(axis=1)
            sums = sums + self.attached_sums(amounts, step, step)
        return sums

    def attached_sums(self, amounts: Floats, at: int, level: int) -> Floats:
        """Sum over the servers that hang at level `at`, per group of a level ≥ `at`."""
        groups = self.devices // self.sizes[level]
        sums = np.zeros((groups, *amounts.shape[1:]))
        for rack in self.racks:
            if rack.level == at:
                here = amounts[rack.first : rack.stop]
                sums += here.reshape(groups, -1, *amounts.shape[1:]).sum(axis=1)
        return sums

    def positions(self, band: Band, level: int) -> Ints:
        """The positions of a band's members in a group of its scope's level."""
        if band.members == "all":
            return self.places[: self.sizes[level]]
        if len(band.members) == 1:
            return self.places[band.members[0] : band.members[0] + 1]
        return np.array(band.members, dtype=np.int64)

    def holders_of(self, band: Band) -> Ints:
        """The holders of a band, groups × members."""
        level = self.scopes[band.scope]
        return self.members[level][:, self.positions(band, level)]

    def by_kind(self, level: int, positions: Ints) -> list[tuple[int, Ints | slice]]:
        """The kinds among some positions of a group, and which of them are of it."""
        if not self.racks:
            return [(0, slice(None))]
        kinds = self.kinds[self.members[level][0, positions]]
        if (kinds == kinds[0]).all():
            return [(int(kinds[0]), slice(None))]
        return [(int(kind), np.flatnonzero(kinds == kind)) for kind in np.unique(kinds)]

    @cached_property
    def places(self) -> Ints:
        """0, 1, 2, … as many as there are holders."""
        return np.arange(self.holders, dtype=np.int64)

    @cached_property
    def reach(self) -> Ints:
        """Levels × holders: devices at each distance from a holder."""
        below = np.array(self.sizes[:-1], dtype=np.int64)
        return self.others * below[:, None]


def sum_of_others(sums: Floats, run: int) -> Floats:
    """For each entry, the sum of the other entries of its run of `run`; nothing is subtracted."""
    split = sums.reshape(-1, run, *sums.shape[1:])
    before, after = np.zeros_like(split), np.zeros_like(split)
    np.cumsum(split[:, :-1], axis=1, out=before[:, 1:])
    np.cumsum(split[:, :0:-1], axis=1, out=after[:, -2::-1])
    return (before + after).reshape(sums.shape)


@lru_cache(maxsize=64)
def tree_of(cluster: Cluster) -> Tree:
    """Unfold a cluster."""
    sizes = tuple(cluster.group_size(level) for level in range(len(cluster.levels) + 1))
    racks, first = [], sizes[-1]
    for server in cluster.servers:
        level = cluster.level_of(server.level)
        stop = first + server.count * cluster.num_groups(level)
        racks.append(Rack(level, first, stop, server.bandwidth_bytes_per_s))
        first = stop
    kinds, attached = np.zeros(first, dtype=np.int64), np.zeros(first, dtype=np.int64)
    for index, rack in enumerate(racks):
        kinds[rack.first : rack.stop] = index + 1
        attached[rack.first : rack.stop] = rack.level
    tiers = [cluster.device.tiers, *(server.tiers for server in cluster.servers)]
    return Tree(
        cluster,
        sizes,
        tuple(racks),
        tuple(_members(sizes, racks, level) for level in range(len(sizes))),
        kinds,
        attached,
        tuple({tier.name: tier for tier in owned} for owned in tiers),
        {name: column for column, name in enumerate(cluster.tier_names)},
        {name: level for level, name in enumerate(cluster.scopes)},
    )


def _members(sizes: tuple[int, ...], racks: list[Rack], level: int) -> Ints:
    groups = sizes[-1] // sizes[level]
    parts = [np.arange(sizes[-1], dtype=np.int64).reshape(groups, -1)]
    parts += [
        np.arange(rack.first, rack.stop, dtype=np.int64).reshape(groups, -1)
        for rack in racks
        if rack.level <= level
    ]
    return np.concatenate(parts, axis=1)

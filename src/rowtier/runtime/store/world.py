"""Which rank is which device of the plan's cluster."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from rowtier.cluster import Cluster
from rowtier.cost.tree import Tree, tree_of
from rowtier.errors import MismatchError

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class World:
    """This process among all: rank r is holder r of the cluster, devices first, then servers."""

    rank: int
    tree: Tree
    group: dist.ProcessGroup | None  # None: a single process

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        group: dist.ProcessGroup | None = None,
        local_world_size: int | None = None,
    ) -> World:
        """Match the job's ranks with the cluster's devices, or say what does not fit."""
        if group is None and dist.is_available() and dist.is_initialized():
            group = dist.group.WORLD
        size = 1 if group is None else dist.get_world_size(group)
        rank = 0 if group is None else dist.get_rank(group)
        tree = tree_of(cluster)
        if size != tree.holders:
            servers = tree.holders - tree.devices
            wanted = f"{tree.devices} devices" + (f" and {servers} servers" if servers else "")
            raise MismatchError(
                f"the plan is for cluster {cluster.name!r} with {wanted}, and this job has {size} "
                f"rank{'s' if size > 1 else ''}: start {tree.holders} ranks (torchrun "
                f"--nproc-per-node …), or plan again for a cluster of {size}, on this machine "
                f"rowtier.Cluster.local({size})"
            )
        _check_nodes(cluster, tree, size, local_world_size)
        return cls(rank, tree, group)

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.tree.holders

    def first_here(self) -> int:
        """The first rank on this machine; all ranks must call this."""
        if self.group is None:
            return self.rank
        names: list[str] = [""] * self.size
        dist.all_gather_object(names, socket.gethostname(), group=self.group)
        return names.index(names[self.rank])

    @cached_property
    def anchors(self) -> Ints:
        """Per holder: the first device of the group it hangs at; a device's is itself."""
        anchors = np.arange(self.tree.holders, dtype=np.int64)
        for rack in self.tree.racks:
            groups = self.tree.devices // self.tree.sizes[rack.level]
            each = (rack.stop - rack.first) // groups
            first = np.arange(groups, dtype=np.int64) * self.tree.sizes[rack.level]
            anchors[rack.first : rack.stop] = np.repeat(first, each)
        return anchors

    @cached_property
    def distance(self) -> Ints:
        """Levels between this rank and every other: the first whose group has both; 0 for self."""
        attached = self.tree.attached
        found = np.full(self.size, -1, dtype=np.int64)
        for level in range(len(self.tree.sizes)):
            near = self.in_group(level)
            reach = np.maximum(attached, attached[self.rank]) <= level
            found[near & reach & (found < 0)] = level
        found[self.rank] = 0
        return found

    def in_group(self, level: int) -> NDArray[np.bool_]:
        """Which holders hang below this rank's group of a level."""
        size = self.tree.sizes[level]
        return np.asarray(self.anchors // size == self.anchors[self.rank] // size)


def _check_nodes(cluster: Cluster, tree: Tree, size: int, given: int | None) -> None:
    """Several levels need ranks grouped as the cluster says."""
    if tree.levels < 2:
        return
    said = os.environ.get("LOCAL_WORLD_SIZE")
    local = given if given is not None else int(said) if said else None
    wanted = tree.sizes[1]
    if local != wanted:
        level = cluster.levels[0].name
        how = "unknown (LOCAL_WORLD_SIZE is not set)" if local is None else f"{local}"
        raise MismatchError(
            f"cluster {cluster.name!r} has {wanted} devices in a {level}, and the ranks in a "
            f"{level} of this job are {how}, of {size} in all: start torchrun with "
            f"--nproc-per-node {wanted}, or say local_world_size={wanted} if neighbouring ranks "
            "are to count as one"
        )

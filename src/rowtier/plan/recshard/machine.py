"""The devices as the solver sees them: all alike, with memories from fast to slow."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rowtier.cluster import Cluster, Tier
from rowtier.cost.memory import Reserve
from rowtier.plan.recshard.heat import Floats, Ints


class Machine(NamedTuple):
    """Devices of one kind. Sizes in bytes, costs in seconds per byte read, fastest first."""

    devices: int
    sizes: Ints
    costs: Floats
    largest: Ints  # what one device could have if the others left a shared memory to it


def tiers_by_speed(cluster: Cluster) -> list[Tier]:
    """The memory tiers of a device, fastest first."""
    return sorted(cluster.device.tiers, key=lambda tier: -cluster.own_bandwidth(tier))


def machine_of(cluster: Cluster, reserve: Reserve) -> Machine:
    """The devices of a cluster with a share of every tier left free.

    There are at least two memories; where the cluster has one, the second holds nothing.
    """
    tiers = tiers_by_speed(cluster)
    largest = [reserve.least_left(tier) for tier in tiers]
    sizes = [size // cluster.sharers(tier) for size, tier in zip(largest, tiers, strict=True)]
    costs = [1 / cluster.own_bandwidth(tier) for tier in tiers]
    if len(tiers) == 1:
        sizes, largest, costs = [*sizes, 0], [*largest, 0], [*costs, *costs]
    return Machine(
        cluster.num_devices,
        np.array(sizes, dtype=np.int64),
        np.array(costs, dtype=np.float64),
        np.array(largest, dtype=np.int64),
    )

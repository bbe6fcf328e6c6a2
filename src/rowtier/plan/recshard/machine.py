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
    return _machine(cluster, sizes, largest)


def roomiest(cluster: Cluster, reserve: Reserve) -> Machine:
    """The devices as bounds must see them: with no less than any plan may use of them.

    Devices of which not the same is reserved are not alike, and what is shared need not be divided
    without a remainder.
    """
    tiers, sizes, largest = tiers_by_speed(cluster), [], []
    for tier in tiers:
        sharers, devices = cluster.sharers(tier), cluster.num_devices
        groups = (range(first, first + sharers) for first in range(0, devices, sharers))
        left = [reserve.left(tier, group) for group in groups]
        sizes.append(-(-sum(left) // devices))
        largest.append(max(left))
    return _machine(cluster, sizes, largest)


def _machine(cluster: Cluster, sizes: list[int], largest: list[int]) -> Machine:
    tiers = tiers_by_speed(cluster)
    costs = [1 / cluster.own_bandwidth(tier) for tier in tiers]
    if len(tiers) == 1:
        sizes, largest, costs = [*sizes, 0], [*largest, 0], [*costs, *costs]
    return Machine(
        cluster.num_devices,
        np.array(sizes, dtype=np.int64),
        np.array(costs, dtype=np.float64),
        np.array(largest, dtype=np.int64),
    )

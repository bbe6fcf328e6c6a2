"""Our cluster as TorchRec's topology, and a cluster for a plan that names none.

TorchRec knows two kinds of link and one device like all others: devices of the first level
form a host, everything outside it is joined by the slowest level. Bandwidths there are
bytes per millisecond.
"""

from __future__ import annotations

from typing import Any

from torchrec.distributed.planner.types import (
    HardwareConfig,
    KernelConfig,
    TopologyFactory,
    TrainerConfig,
)

from rowtier.cluster import Cluster, Level, Tier
from rowtier.errors import UserError

MS = 1e3  # per second
HBM = "hbm"
NODE = 8  # devices, in a cluster that is made up


def device_of(cluster: Cluster) -> str:
    """What TorchRec calls the devices: cuda if their first memory is hbm, else cpu."""
    return "cuda" if cluster.device.tiers[0].name == HBM else "cpu"


def host_size(cluster: Cluster) -> int:
    """Devices in what TorchRec takes for a host."""
    if len(cluster.levels) < 2:
        return cluster.num_devices
    return cluster.group_size(1)


def topology_of(cluster: Cluster, device: str | None = None, reserve: float = 0.0) -> Any:
    """TorchRec's view of a cluster, with a share of every memory left free."""
    if cluster.servers:
        raise UserError(
            f"cluster {cluster.name!r} has servers ({cluster.servers[0].name}) and TorchRec places "
            "rows on devices only: drop the servers, or plan with another method"
        )
    kind = device or device_of(cluster)
    tiers = list(cluster.device.tiers)
    sizes = [_bytes_per_device(tier, cluster, reserve) for tier in tiers] + [0, 0, 0]
    speeds = [cluster.own_bandwidth(tier) / MS for tier in tiers]
    if kind == "cpu":  # what a device computes in is its host memory
        sizes, speeds = [0, *sizes], [speeds[0], *speeds]
    return TopologyFactory.create_topology(
        TrainerConfig(world_size=cluster.num_devices, local_world_size=host_size(cluster)),
        HardwareConfig(
            hbm_cap_bytes=sizes[0] or None,
            ddr_cap_bytes=sizes[1],
            ssd_cap_bytes=sizes[2],
            hbm_mem_bw=speeds[0],
            ddr_mem_bw=speeds[min(1, len(speeds) - 1)],
            hbm_to_ddr_mem_bw=speeds[min(1, len(speeds) - 1)],
            **_links(cluster),
        ),
        KernelConfig(compute_device=kind, use_hardware_based_bandwidth=True),
    )


def _links(cluster: Cluster) -> dict[str, float]:
    if not cluster.levels:
        return {}
    inside, outside = cluster.levels[0], min(cluster.levels, key=_speed(cluster))
    speed = _speed(cluster)
    return {"intra_host_bw": speed(inside) / MS, "inter_host_bw": speed(outside) / MS}


def _speed(cluster: Cluster) -> Any:
    def of(level: Level) -> float:
        """Bytes per second and device; a link that a group shares is divided among it."""
        sharing = cluster.group_size(cluster.level_of(level.name) - 1)
        return level.bandwidth_bytes_per_s / (sharing if level.per == "group" else 1)

    return of


def _bytes_per_device(tier: Tier, cluster: Cluster, reserve: float) -> int:
    return int(tier.capacity_bytes * (1 - reserve)) // cluster.sharers(tier)


def cluster_for(devices: int) -> Cluster:
    """So many devices in nodes of eight, with what TorchRec assumes if it is told nothing."""
    usual = Cluster.preset("torchrec-default")
    node, top = usual.levels
    inside = NODE if devices % NODE == 0 else devices
    levels = [node.model_copy(update={"size": inside})]
    if devices > inside:
        levels.append(top.model_copy(update={"size": devices // inside}))
    return usual.model_copy(update={"name": f"torchrec-{devices}", "levels": tuple(levels)})

"""Baseline `row-wise`: every table cut into equal blocks of row ids over all devices."""

from __future__ import annotations

from collections.abc import Sequence

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.memory import Room, band_bytes
from rowtier.errors import InfeasibleError
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.profile.profile import Profile
from rowtier.tables import Table
from rowtier.units import show_bytes


def plan(profile: Profile, cluster: Cluster, options: PlanOptions) -> Plan:
    """Partial sums of pooled tables travel, and a row for every lookup of sequence tables."""
    return Plan.build("row-wise", profile, cluster, blocks(profile, cluster, options))


def blocks(
    profile: Profile, cluster: Cluster, options: PlanOptions, *, coalesced: bool = False
) -> Bands:
    """Tables as listed, each in the fastest tier that still has room for its blocks.

    Devices hold the blocks; where they have no room left, the servers do. `coalesced`: rows
    travel, for pooled tables too, each once per device and step.
    """
    room = Room(cluster, options.reserved)
    return {
        s.table.name: (
            first_with_room(s.table, _candidates(s.table, cluster, coalesced), room, cluster),
        )
        for s in profile.stats
    }


def first_with_room(table: Table, bands: Sequence[Band], room: Room, cluster: Cluster) -> Band:
    """The first band that fits; its bytes are taken."""
    for band in bands:
        needed = band_bytes(table, band, cluster)
        if room.fits(needed, band.tier):
            room.take(needed, band.tier)
            return band
    most = max(_free_bytes(band, room, cluster) for band in bands)
    raise InfeasibleError(
        f"table {table.name!r} needs {show_bytes(table.stored_bytes)}, spread over all servers or "
        f"all devices of {cluster.name!r}, and the most that any memory of theirs has left is "
        f"{show_bytes(most)}: add capacity, a tier or devices"
    )


def _free_bytes(band: Band, room: Room, cluster: Cluster) -> int:
    group = cluster.members(len(cluster.levels))
    members = band.member_list(cluster.num_devices)
    return sum(room.free_bytes(group[member], band.tier) for member in members)


def _candidates(table: Table, cluster: Cluster, coalesced: bool) -> list[Band]:
    whole = Band(
        start=0,
        stop=table.num_embeddings,
        scope=cluster.top,
        order="blocks",
        tier=cluster.device.tiers[0].name,
        exchange="rows" if coalesced or table.pooling == "none" else "sums",
        coalesced=coalesced,
    )
    on_devices = [whole.model_copy(update={"tier": t.name}) for t in cluster.device.tiers]
    on_servers = [
        whole.model_copy(update={"members": cluster.server_members(server), "tier": tier.name})
        for server in cluster.servers
        for tier in server.tiers
    ]
    return on_devices + on_servers

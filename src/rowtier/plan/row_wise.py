"""Baseline `row-wise`: every table cut into equal blocks of row ids over all devices."""

from __future__ import annotations

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.cost.memory import Room, band_bytes
from rowtier.errors import InfeasibleError
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.profile.profile import Profile
from rowtier.tables import Table
from rowtier.units import show_bytes


def plan(profile: Profile, cluster: Cluster, options: PlanOptions) -> Plan:
    """Tables as listed, each in the fastest tier that still has room for its blocks.

    Devices hold the blocks; where they have no room left, the servers do.
    """
    room = Room(cluster, options.reserved)
    bands = {s.table.name: (_place(s.table, room, cluster),) for s in profile.stats}
    return Plan.build("row-wise", profile, cluster, bands)


def _place(table: Table, room: Room, cluster: Cluster) -> Band:
    for band in _candidates(table, cluster):
        needed = band_bytes(table, band, cluster)
        if room.fits(needed, band.tier):
            room.take(needed, band.tier)
            return band
    raise InfeasibleError(
        f"table {table.name!r} needs {show_bytes(table.stored_bytes)}, cut over all devices of "
        f"{cluster.name!r}, and no memory tier has that left: add capacity, a tier or devices"
    )


def _candidates(table: Table, cluster: Cluster) -> list[Band]:
    whole = Band(
        start=0,
        stop=table.num_embeddings,
        scope=cluster.top,
        order="blocks",
        tier=cluster.device.tiers[0].name,
        exchange="rows" if table.pooling == "none" else "sums",
    )
    on_devices = [whole.model_copy(update={"tier": t.name}) for t in cluster.device.tiers]
    on_servers = [
        whole.model_copy(update={"members": cluster.server_members(server), "tier": tier.name})
        for server in cluster.servers
        for tier in server.tiers
    ]
    return on_devices + on_servers

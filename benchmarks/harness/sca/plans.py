"""What the parts of sca.py share: servers behind links, plans with a cache of a given size."""

from __future__ import annotations

from dataclasses import replace

from rowtier import Band, Cluster, Device, Level, Plan, Profile, Server, Tier, make_plan
from rowtier.band import Bands

PLENTY_BYTES = 2**44
LINK_BYTES_PER_S = 1.25e8  # 1 Gbit/s
FAST_BYTES_PER_S = 1e10
_TURNS = 48  # of halving what is not known of a capacity
_CLOSE = 1e-4  # of the cache that is wanted


def workers_of(workers: int, capacity_bytes: int, nodes: bool = False) -> Cluster:
    """So many workers and one server that only keeps rows.

    `nodes`: the workers share a machine, and only the server is behind the slow link.
    """
    slow = Level(name="cluster", size=workers, bandwidth_bytes_per_s=LINK_BYTES_PER_S)
    levels: tuple[Level, ...] = (slow,)
    if nodes:
        inside = Level(name="node", size=workers, bandwidth_bytes_per_s=1e9)
        levels = (inside, slow.model_copy(update={"size": 1}))
    near = Tier(name="ram", capacity_bytes=capacity_bytes, bandwidth_bytes_per_s=FAST_BYTES_PER_S)
    far = near.model_copy(update={"capacity_bytes": PLENTY_BYTES})
    return Cluster(
        name=f"{workers}-and-server",
        levels=levels,
        device=Device(tiers=(near,)),
        servers=(Server(name="server", level="cluster", tiers=(far,)),),
    )


def with_capacity(cluster: Cluster, capacity_bytes: int) -> Cluster:
    """The same cluster with so much memory in every device."""
    tier = cluster.device.tiers[0].model_copy(update={"capacity_bytes": capacity_bytes})
    return cluster.model_copy(update={"device": Device(tiers=(tier,))})


def cached_rows(bands: Bands) -> int:
    """Rows, of all tables, that every worker keeps."""
    return sum(band.rows for table in bands.values() for band in table if band.scope == "device")


def sca_plan(profile: Profile, cluster: Cluster, share: float) -> Plan:
    """The plan of method `sca` when so large a share of all rows fits into a worker.

    The memory that this takes depends on the exchange buffers, which the planner counts too,
    so it is searched for. Rows that are needed in nearly every step take less memory cached than
    in buffers, so that some small shares come with no capacity; then it is what is next to it.
    Without a cache everything is at home, and coalesced.
    """
    if not share:
        return replace(home_plan(profile, cluster, coalesced=True), method="sca")
    known = profile.to_curve()
    wanted = share * sum(stats.table.num_embeddings for stats in profile.stats)
    low, high = 0, 4 * sum(stats.table.stored_bytes for stats in profile.stats)
    for _ in range(_TURNS):
        middle = (low + high) // 2
        found = cached_rows(make_plan(known, with_capacity(cluster, middle), "sca").bands)
        if abs(found - wanted) <= max(1.0, _CLOSE * wanted):
            break
        low, high = (middle, high) if found < wanted else (low, middle)
    return make_plan(profile, with_capacity(cluster, middle), "sca")


def home_plan(profile: Profile, cluster: Cluster, *, coalesced: bool) -> Plan:
    """Every row on the server, none cached."""
    members = cluster.server_members(cluster.servers[0])
    tier = cluster.servers[0].tiers[0].name
    bands = {
        stats.table.name: (
            Band(
                start=0,
                stop=stats.table.num_embeddings,
                scope=cluster.top,
                members=members,
                tier=tier,
                coalesced=coalesced,
            ),
        )
        for stats in profile.stats
    }
    return Plan.build("coalescing" if coalesced else "plain", profile, cluster, bands)


def without_coalescing(plan: Plan, profile: Profile) -> Plan:
    """The same cache, but every lookup of another row fetches it anew."""
    bands = {
        name: tuple(band.model_copy(update={"coalesced": False}) for band in table)
        for name, table in plan.bands.items()
    }
    return Plan.build("cache", profile, plan.cluster, bands)

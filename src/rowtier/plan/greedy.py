"""Whole tables, one after the other, each onto one holder: what the baselines share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.cost.memory import Room
from rowtier.errors import InfeasibleError
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.profile.profile import Profile, TableStats
from rowtier.tables import Table
from rowtier.units import show_bytes


def place_heaviest_first(
    method: str,
    profile: Profile,
    cluster: Cluster,
    options: PlanOptions,
    weight: Callable[[TableStats], float],
) -> Plan:
    """Give each table, heaviest first, to the lightest holder that has room.

    Fast memory of any holder is preferred; once no holder has room there, whole tables
    go to the next tier.
    """
    room = Room(cluster, options.reserved)
    load = np.zeros(cluster.num_holders)
    bands: dict[str, tuple[Band, ...]] = {}
    order = sorted(profile.stats, key=lambda s: (-weight(s), s.table.name))
    for stats in order:
        by_load = [int(holder) for holder in np.argsort(load, kind="stable")]
        holder, tier = find_room(stats.table, by_load, room, cluster)
        load[holder] += weight(stats)
        bands[stats.table.name] = (whole_table(stats.table, holder, tier, room, cluster),)
    return Plan.build(
        method, profile, cluster, {s.table.name: bands[s.table.name] for s in profile.stats}
    )


def find_room(
    table: Table, holders: Sequence[int], room: Room, cluster: Cluster
) -> tuple[int, str]:
    """The fastest tier with room for a whole table, on the first of the holders that has it."""
    needed = table.stored_bytes
    for tier in cluster.tier_names:
        enough = room.free_on(tier) >= needed
        for holder in holders:
            if enough[holder]:
                return holder, tier
    most = max(room.free_bytes(h, t) for h in holders for t in cluster.tier_names)
    raise InfeasibleError(
        f"table {table.name!r} needs {show_bytes(table.stored_bytes)} in one piece and the most "
        f"that is free in any one memory of {cluster.name!r} is {show_bytes(most)}: add capacity "
        "or devices, or use a method that splits tables (row-wise)"
    )


def whole_table(table: Table, holder: int, tier: str, room: Room, cluster: Cluster) -> Band:
    """The band that puts a whole table on one holder, with its bytes taken from the room."""
    needed = np.zeros(cluster.num_holders, dtype=np.int64)
    needed[holder] = table.stored_bytes
    room.take(needed, tier)
    return Band(
        start=0,
        stop=table.num_embeddings,
        scope=cluster.top,
        members=(cluster.members(len(cluster.levels)).index(holder),),
        tier=tier,
        exchange="rows" if table.pooling == "none" else "sums",
    )

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
from rowtier.tables import Exchange, Table
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
    wanted = options.constraints
    load = np.zeros(cluster.num_holders)
    bands: dict[str, tuple[Band, ...]] = {}
    order = sorted(profile.stats, key=lambda s: (-weight(s), s.table.name))
    for stats in order:
        by_load = [int(holder) for holder in np.argsort(load, kind="stable")]
        sent = wanted.exchange(stats.table)
        holder, band = place_whole(stats.table, by_load, room, cluster, sent)
        load[holder] += weight(stats)
        bands[stats.table.name] = (band,)
    return Plan.build(
        method, profile, cluster, {s.table.name: bands[s.table.name] for s in profile.stats}
    )


def place_whole(
    table: Table, holders: Sequence[int], room: Room, cluster: Cluster, sent: Exchange
) -> tuple[int, Band]:
    """A whole table in the fastest tier with room for it, on the first holder that has it.

    Its bytes are taken from the room; rows or sums are `sent`.
    """
    free = {tier: room.free_on(tier)[holders] for tier in cluster.tier_names}
    tier = next((name for name in free if free[name].max() >= table.stored_bytes), None)
    if tier is None:
        most = show_bytes(int(max(each.max() for each in free.values())))
        raise InfeasibleError(
            f"table {table.name!r} needs {show_bytes(table.stored_bytes)} in one piece and the "
            f"most that is free in any one memory of {cluster.name!r} is {most}: add capacity "
            "or devices, or use a method that splits tables (row-wise)"
        )
    holder = holders[int(np.argmax(free[tier] >= table.stored_bytes))]
    needed = np.zeros(cluster.num_holders, dtype=np.int64)
    needed[holder] = table.stored_bytes
    room.take(needed, tier)
    return holder, Band(
        start=0,
        stop=table.num_embeddings,
        scope=cluster.top,
        members=(cluster.members(len(cluster.levels)).index(holder),),
        tier=tier,
        exchange=sent,
    )

"""Baseline `table-wise`: whole tables dealt to the devices in turn, as they are listed."""

from __future__ import annotations

from rowtier.cluster import Cluster
from rowtier.cost.memory import Room
from rowtier.plan.greedy import place_whole
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.profile.profile import Profile


def plan(profile: Profile, cluster: Cluster, options: PlanOptions) -> Plan:
    """Table i goes to holder i mod W, or to the next one that has room for it."""
    room = Room(cluster, options.reserved)
    bands, count = {}, cluster.num_holders
    for index, stats in enumerate(profile.stats):
        turn = index % count
        holders = [*range(turn, count), *range(turn)]
        sent = options.constraints.exchange(stats.table)
        _, band = place_whole(stats.table, holders, room, cluster, sent)
        bands[stats.table.name] = (band,)
    return Plan.build("table-wise", profile, cluster, bands)

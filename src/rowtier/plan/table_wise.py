"""Baseline `table-wise`: whole tables dealt to the devices in turn, as they are listed."""

from __future__ import annotations

from rowtier.cluster import Cluster
from rowtier.cost.memory import Room
from rowtier.plan.greedy import find_room, whole_table
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.profile.profile import Profile


def plan(profile: Profile, cluster: Cluster, options: PlanOptions) -> Plan:
    """Table i goes to holder i mod W, or to the next one that has room for it."""
    room = Room(cluster, options.reserved)
    bands, turn, count = {}, 0, cluster.num_holders
    for stats in profile.stats:
        holders = [*range(turn, count), *range(turn)]
        holder, tier = find_room(stats.table, holders, room, cluster)
        bands[stats.table.name] = (whole_table(stats.table, holder, tier, room, cluster),)
        turn = (turn + 1) % count
    return Plan.build("table-wise", profile, cluster, bands)

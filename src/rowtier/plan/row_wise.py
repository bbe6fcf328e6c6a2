"""Baseline `row-wise`: every table cut into equal blocks of row ids over all devices.

Where fast memory does not hold all tables, it holds the rows of all of them that are read most per
stored byte, and the others lie in the next tier: such a table has blocks in both.
"""

from __future__ import annotations

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.plan.tiers import spread
from rowtier.profile.profile import Profile
from rowtier.tables import Exchange, Table


def plan(profile: Profile, cluster: Cluster, options: PlanOptions) -> Plan:
    """Partial sums travel, and a row for every lookup of tables that may not send sums."""
    return Plan.build("row-wise", profile, cluster, blocks(profile, cluster, options))


def blocks(
    profile: Profile, cluster: Cluster, options: PlanOptions, *, coalesced: bool = False
) -> Bands:
    """Blocks of all tables, the hottest rows in the fastest tier.

    Devices hold the blocks; where they have no room left, the servers do. `coalesced`: rows
    travel, for pooled tables too, each once per device and step.
    """
    sent = {s.table.name: options.constraints.exchange(s.table) for s in profile.stats}
    homes = {
        s.table.name: _home(s.table, cluster, coalesced, sent[s.table.name]) for s in profile.stats
    }
    return spread(profile, cluster, options, homes)


def _home(table: Table, cluster: Cluster, coalesced: bool, sent: Exchange) -> Band:
    return Band(
        start=0,
        stop=table.num_embeddings,
        scope=cluster.top,
        order="blocks",
        tier=cluster.device.tiers[0].name,
        exchange="rows" if coalesced else sent,
        coalesced=coalesced,
    )

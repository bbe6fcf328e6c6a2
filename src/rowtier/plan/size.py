"""Baseline `size`: balance the bytes of whole tables.

One of the three greedy baselines of RecShard (arXiv 2201.10095): largest table first,
onto the device that holds the fewest bytes.
"""

from __future__ import annotations

from rowtier.cluster import Cluster
from rowtier.plan.greedy import place_heaviest_first
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.profile.profile import Profile


def plan(profile: Profile, cluster: Cluster, options: PlanOptions) -> Plan:
    """Whole tables, largest first, to the device with the fewest bytes."""
    return place_heaviest_first(
        "size", profile, cluster, options, lambda stats: stats.table.stored_bytes
    )

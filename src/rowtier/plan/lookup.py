"""Baseline `lookup`: balance what whole tables read.

One of the three greedy baselines of RecShard (arXiv 2201.10095): a table weighs
dim × pooling, the numbers read per sample that has the feature. Coverage is ignored.
"""

from __future__ import annotations

from rowtier.cluster import Cluster
from rowtier.plan.greedy import place_heaviest_first
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.profile.profile import Profile


def plan(profile: Profile, cluster: Cluster, options: PlanOptions) -> Plan:
    """Whole tables, most read first, to the device that reads the least."""
    return place_heaviest_first(
        "lookup", profile, cluster, options, lambda stats: stats.table.embedding_dim * stats.pooling
    )

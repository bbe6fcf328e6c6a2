"""Baseline `size-lookup`: balance reads, with a say for the number of rows.

One of the three greedy baselines of RecShard (arXiv 2201.10095): a table weighs
dim × pooling × log10(rows).
"""

from __future__ import annotations

import math

from rowtier.cluster import Cluster
from rowtier.plan.greedy import place_heaviest_first
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.profile.profile import Profile, TableStats


def plan(profile: Profile, cluster: Cluster, options: PlanOptions) -> Plan:
    """Whole tables, heaviest first, to the lightest device."""
    return place_heaviest_first("size-lookup", profile, cluster, options, _weight)


def _weight(stats: TableStats) -> float:
    return stats.table.embedding_dim * stats.pooling * math.log10(stats.table.num_embeddings)

"""Baseline `row-wise-coalesced`: the blocks of `row-wise`, rows fetched once per device and step.

Beside it `row-wise` tells what coalescing alone gives, and any other method what its placement
gives beyond that.
"""

from __future__ import annotations

from rowtier.cluster import Cluster
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.plan.row_wise import blocks
from rowtier.profile.profile import Profile


def plan(profile: Profile, cluster: Cluster, options: PlanOptions) -> Plan:
    """Rows travel, each once per device and step however often it is looked up there."""
    bands = blocks(profile, cluster, options, coalesced=True)
    return Plan.build("row-wise-coalesced", profile, cluster, bands)

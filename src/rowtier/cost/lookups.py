"""Lookups: how many each holder serves per step, and from which tier.

Every lookup counts, as if nothing were coalesced. A holder serves the lookups of all
devices of the group it keeps a band's copy for.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.deal import deal, known_rows
from rowtier.cost.tree import tree_of
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.order import RowOrder
from rowtier.profile.profile import Profile, TableStats


def served_lookups(
    bands: Bands, profile: Profile, cluster: Cluster, order: RowOrder | None = None
) -> Floats:
    """Expected lookups per step and holder (row), by tier (column, as `cluster.tier_names`).

    A table that is cut by columns is read once per column piece.
    """
    columns = tree_of(cluster).columns
    served = np.zeros((cluster.num_holders, len(columns)))
    for _, band, holders, lookups in served_by_band(bands, profile, cluster, order):
        served[holders, columns[band.tier]] += lookups
    return served


def served_by_band(
    bands: Bands, profile: Profile, cluster: Cluster, order: RowOrder | None = None
) -> Iterator[tuple[TableStats, Band, Ints, Floats]]:
    """For every band its holders, groups × members, and the lookups each member serves."""
    tree = tree_of(cluster)
    for stats in profile.stats:
        per_device = profile.lookups_per_step(stats)
        rows, heat = known_rows(stats, order), stats.curve.probabilities[None]
        for band in bands[stats.table.name]:
            level = tree.scopes[band.scope]
            holders = tree.holders_of(band)
            dealt = deal(band, stats.curve, heat, holders.shape[1], rows=rows)
            share = dealt.by_member(holders.shape[1])[0]
            yield (
                stats,
                band,
                holders,
                per_device * tree.sizes[level] * share,
            )

"""Lookups: how many each holder serves per step, and from which tier.

Every lookup counts, as if nothing were coalesced. A holder serves the lookups of all
devices of the group it keeps a band's copy for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.profile.order import RowOrder, rows_by_rank
from rowtier.profile.profile import Profile, TableStats

Floats = NDArray[np.float64]


def served_lookups(
    bands: Bands, profile: Profile, cluster: Cluster, order: RowOrder | None = None
) -> Floats:
    """Expected lookups per step and holder (row), by tier (column, as `cluster.tier_names`).

    A table that is cut by columns is read once per column piece.
    """
    served = np.zeros((cluster.num_holders, len(cluster.tier_names)))
    for stats in profile.stats:
        per_device = profile.lookups_per_step(stats)
        touched = None if order is None else order[stats.table.name]
        for band in bands[stats.table.name]:
            level = cluster.level_of(band.scope)
            size = cluster.group_size(level)
            members = list(band.member_list(size))
            share = per_device * size * _member_shares(stats, band, len(members), touched)
            column = cluster.tier_names.index(band.tier)
            for group in range(cluster.num_groups(level)):
                served[np.asarray(cluster.members(level, group))[members], column] += share
    return served


def _member_shares(
    stats: TableStats, band: Band, members: int, touched: NDArray[np.int64] | None
) -> Floats:
    """Share of the table's lookups that falls on each member's part of a band."""
    if band.order == "spread":
        return _spread_shares(stats, band, members)
    if touched is None or members == 1:
        # Row ids are hashes: without the row order every block is as likely as another.
        mass = float(stats.curve.share(band.stop) - stats.curve.share(band.start))
        return mass * band.rows_per_member(members) / band.rows
    return _block_shares(stats, band, members, touched)


def _spread_shares(stats: TableStats, band: Band, members: int) -> Floats:
    """Deal the ranks of every bucket to the members in turn."""
    stops = np.clip(stats.curve.stops, band.start, band.stop) - band.start
    starts = np.concatenate(([0], stops[:-1])) if len(stops) else stops
    first = (np.arange(members)[:, None] - band.offset) % members
    # ranks r < x with r ≡ first (mod members): ceil((x − first) / members)
    held = -(-(stops - first) // members) - -(-(starts - first) // members)
    shares: Floats = held @ stats.curve.probabilities
    return shares


def _block_shares(
    stats: TableStats, band: Band, members: int, touched: NDArray[np.int64]
) -> Floats:
    """Add up the rows of each contiguous block of row ids."""
    rows = rows_by_rank(touched, stats.table.num_embeddings)[band.start : band.stop]
    heat = np.repeat(stats.curve.probabilities, stats.curve.widths)[band.start : band.stop]
    position = np.argsort(np.argsort(rows)) if band.rows < stats.table.num_embeddings else rows
    block = position[: len(heat)] // -(-band.rows // members)
    return np.asarray(np.bincount(block, weights=heat, minlength=members), dtype=np.float64)

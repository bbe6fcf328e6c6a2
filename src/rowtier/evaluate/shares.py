"""How much of a step is whose: the step time, dealt to the tables by the bytes they move.

The time of every memory tier and of every link level is dealt in proportion to bytes, that of
work in proportion to the work of each table, so the shares of all tables add up to one.
"""

from __future__ import annotations

import numpy as np

from rowtier.cluster import Cluster
from rowtier.cost.step import StepCost, TableCost
from rowtier.cost.time import counted_tier_time_s
from rowtier.cost.tree import tree_of
from rowtier.profile.curve import Floats


def tier_seconds(cost: StepCost) -> Floats:
    """Memory time of every holder (row), by tier (column)."""
    return seconds_by_tier(cost.cluster, cost.read_bytes + cost.written_bytes)


def seconds_by_tier(cluster: Cluster, moved_bytes: Floats) -> Floats:
    """Memory time of every holder (row), by tier (column), for bytes of the same shape.

    Tiers that run beside one that takes longer have none.
    """
    return counted_tier_time_s(tree_of(cluster), moved_bytes)


def step_shares(cost: StepCost) -> list[float]:
    """Each table's share of the step time."""
    if not cost.step_s:
        return [0.0] * len(cost.tables)
    time, tiers = cost.time, tier_seconds(cost).sum(axis=0)
    tiers = tiers * (time.slowest_memory_s / max(tiers.sum(), 1e-300))
    seconds = _dealt(np.array([t.read_bytes + t.written_bytes for t in cost.tables]), tiers)
    exchanged = np.array([_exchanged(t, cost.links.phases.training) for t in cost.tables])
    seconds += _dealt(exchanged, time.exchange_counts * time.exchange_level_s)
    synced = np.array([t.sync_bytes + t.sync_id_bytes for t in cost.tables])
    seconds += _dealt(synced, time.sync_counts * time.sync_level_s)
    worked = np.array([[table.work_s] for table in cost.tables])
    seconds += _dealt(worked, np.array([time.slowest_work_s]))
    return [float(share) for share in seconds / max(seconds.sum(), 1e-300)]


def _exchanged(table: TableCost, training: bool) -> Floats:
    """Rows or sums come, and in training their gradients return: the same bytes twice."""
    return (1 + training) * table.forward_bytes + table.id_bytes


def _dealt(amounts: Floats, seconds: Floats) -> Floats:
    """Seconds of each column, dealt to the rows by amount and added up per row."""
    return np.asarray((amounts / np.maximum(amounts.sum(axis=0), 1e-300) * seconds).sum(axis=1))

"""What one row costs, bucket by bucket, for every way to keep it: what a solver works with.

A solver asks once per table and candidate home, multiplies by the rows it moves, and can
trust that `step_cost` of the finished plan says the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.cost.amounts import Parts, RowSizes, amounts_of
from rowtier.cost.options import DEFAULTS, CostOptions
from rowtier.cost.rates import Way
from rowtier.cost.time import link_s_per_byte, tier_s_per_byte
from rowtier.cost.touch import BagLengths
from rowtier.cost.tree import tree_of
from rowtier.profile.curve import Floats
from rowtier.profile.profile import Profile, TableStats
from rowtier.tables import Table


@dataclass(frozen=True, eq=False)
class RowTerms:
    """Cost per step of one row of one copy, by bucket (last axis).

    Bytes are those of the whole scope group: the row's holder keeps, reads and writes
    them, and each byte that passes a level's links is counted once. Times are one device's
    share when all `group_devices` hold the band alike, so their sum over the rows is the
    time of a plan that is even; a device that holds a row alone carries `group_devices`
    times its memory time. Nothing here is a latency.
    """

    group_devices: int
    stored_bytes: int
    read_bytes: Floats  # tiers × buckets
    written_bytes: Floats
    forward_bytes: Floats  # levels × buckets; 0 for `sums`, see `sums_bytes`
    backward_bytes: Floats
    id_bytes: Floats
    sync_bytes: Floats
    sync_id_bytes: Floats
    buffer_bytes: Floats
    memory_s: Floats
    serving_s: Floats  # work of the row's holder
    reading_s: Floats  # work of the readers
    exchange_s: Floats  # levels × buckets
    sync_s: Floats

    def step_s(self, sync_weight: float = 1.0) -> Floats:
        """A row's part of the step time in an even plan; sync may be taken for cheaper."""
        links_s = self.exchange_s.sum(axis=0) + sync_weight * self.sync_s.sum(axis=0)
        return np.asarray(self.memory_s + self.serving_s + self.reading_s + links_s)


def row_terms(
    home: Band, table: Table, basis: Floats, cluster: Cluster, options: CostOptions = DEFAULTS
) -> RowTerms:
    """Terms of rows with this basis (`touch.py`), kept as `home` says, whatever its positions.

    The members must be of one kind.
    """
    tree, sizes = tree_of(cluster), RowSizes.of(table, home, options)
    way = Way.of(home, tree)
    devices = tree.sizes[way.level]
    ((kind, _),) = tree.by_kind(way.level, tree.positions(home, way.level))
    amounts = amounts_of(tree, way, kind, home.tier, sizes, options.training)
    parts = Parts.of(tree, amounts.matrix @ basis[amounts.basis_rows])
    backward = parts.forward * options.training
    exchange = parts.ids + parts.forward + backward
    return RowTerms(
        group_devices=devices,
        stored_bytes=sizes.weight_bytes + sizes.state_bytes,
        read_bytes=parts.read,
        written_bytes=parts.written,
        forward_bytes=parts.forward,
        backward_bytes=backward,
        id_bytes=parts.ids,
        sync_bytes=parts.sync,
        sync_id_bytes=parts.sync_ids,
        buffer_bytes=parts.waiting[0] + 2 * (parts.ids + parts.forward).sum(axis=0),
        memory_s=tier_s_per_byte(tree, kind) @ (parts.read + parts.written) / devices,
        serving_s=parts.serving[0] / devices,
        reading_s=parts.reading[0] + parts.relaying[0],
        exchange_s=link_s_per_byte(tree, "exchange")[:, None] * exchange / devices,
        sync_s=link_s_per_byte(tree, "sync")[:, None] * (parts.sync + parts.sync_ids) / devices,
    )


def sums_bytes(
    home: Band, profile: Profile, stats: TableStats, mass: Floats, cluster: Cluster
) -> Floats:
    """Bytes per device and level (row) that partial sums take one way, by mass (column).

    For rows that take `mass` of the lookups together and lie evenly on all devices of the
    scope group, where a row has no cost of its own:
    unstaged s·batch·(n_j − n_j−1)·v(device); staged s·batch·(n_j/n_j−1 − 1)·v(level-(j−1) group),
    and inside each sending group, at level i, s·batch·(n_j − n_j−1)·(1/n_i−1 − 1/n_i)·v(i − 1).
    """
    tree, table = tree_of(cluster), stats.table
    level, bags = cluster.level_of(home.scope), BagLengths.of(stats)
    amount = home.width(table.embedding_dim) * table.item_bytes * profile.batch_size
    size = tree.sizes
    sums = [amount * bags.sums(mass * (n / size[level])) for n in size[: level + 1]]
    moved = np.zeros((tree.levels, *np.shape(mass)))
    for at in range(1, level + 1):
        far = size[at] - size[at - 1]
        moved[at - 1] += sums[at - 1] * far / size[at - 1] if home.staged else sums[0] * far
        for inner in range(1, at if home.staged else 1):
            moved[inner - 1] += sums[inner - 1] * far * (1 / size[inner - 1] - 1 / size[inner])
    return moved


def sums_seconds(
    stats: TableStats, profile: Profile, cluster: Cluster, options: CostOptions, mass: Floats
) -> Floats:
    """g: link seconds of a device, on average, if rows of this mass go by sums of one owner.

    One owner is the least: a sample needs one sum of it, where several owners send several.
    """
    tree = tree_of(cluster)
    amount = stats.table.row_bytes * profile.batch_size
    sums = amount * BagLengths.of(stats).sums(mass)
    passes = 2 if options.training else 1
    rate = link_s_per_byte(tree)
    apart = np.diff(np.array(tree.sizes)) / tree.devices
    return np.asarray(sums * passes * float(rate @ apart))


def sums_work_seconds(
    stats: TableStats, profile: Profile, cluster: Cluster, options: CostOptions, mass: Floats
) -> Floats:
    """Work of a device, on average, if rows of this mass go by sums of one owner.

    The owner packs as many sums as the readers unpack.
    """
    passes = 2 if options.training else 1
    each_s = 2 * passes * cluster.work.sum_copy_s(stats.table.row_bytes)
    return np.asarray(profile.batch_size * each_s * BagLengths.of(stats).sums(mass))

"""In how many portions the rows of a table move, so that no rank needs much memory for a round."""

from __future__ import annotations

from itertools import chain

import numpy as np

from rowtier.cost.memory import DISK_BYTES, band_bytes
from rowtier.cost.tree import Tree, tree_of
from rowtier.plan.plan import Plan
from rowtier.profile.curve import Ints
from rowtier.tables import Table

EXTRA_BYTES = 256 << 20  # that a rank has for a round, if nobody says otherwise
_INDEX_BYTES = 160  # of one row, while its way is worked out
_OF_A_ROUND = 8  # portions that fill a round


def moving_bytes(old: Plan, new: Plan, table: Table) -> int:
    """Bytes that any rank may need while all rows of a table move at once."""
    before, after = (
        np.sum([band_bytes(table, b, plan.cluster) for b in plan.bands[table.name]], axis=0)
        for plan in (old, new)
    )
    tree = tree_of(new.cluster)
    copies = max(len(tree.holders_of(band)) for band in new.bands[table.name])
    sent = min(int(after.sum()), int(before.max()) * copies)
    return _INDEX_BYTES * table.num_embeddings + int(after.max()) + sent


def portions_of(old: Plan, new: Plan, table: Table, extra_bytes: int = EXTRA_BYTES) -> int:
    """How many portions a table's rows move in; of one row at least."""
    needed = moving_bytes(old, new, table)
    if needed <= extra_bytes:
        return 1
    return min(-(-needed * _OF_A_ROUND // extra_bytes), table.num_embeddings)


def order_bytes(tree: Tree, side: Ints, plan: Plan, table: Table, passes: int) -> Ints:
    """Bytes read and written in memory, by holder and tier, to keep rows of portions together.

    `side` says which holder of the tree each one of the plan is.
    """
    found = np.zeros((tree.holders, len(tree.columns)), dtype=np.int64)
    disks = {
        tier.name
        for tier in chain(*(tiers.values() for tiers in tree.tiers))
        if tier.granularity_bytes >= DISK_BYTES
    }
    for band in plan.bands[table.name]:
        if band.tier in tree.columns and band.tier not in disks:
            held = band_bytes(table, band, plan.cluster)
            here = side >= 0
            np.add.at(found[:, tree.columns[band.tier]], side[here], passes * held[here])
    return found

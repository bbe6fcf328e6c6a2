"""Which device is which: a plan on devices that are alike may call any of them the first.

A plan that is made anew deals whole tables and pieces to devices in an order of its own. Renaming
the devices so that most rows are already where they shall be changes nothing of what a step costs
and saves most of what would move. Devices of a node are renamed alike in all nodes, and nodes as a
whole, so that every group stays one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.cost.memory import row_bytes
from rowtier.cost.tree import tree_of
from rowtier.evaluate.classes import PlanSide, classes_by_row, column_cuts
from rowtier.plan.plan import Plan
from rowtier.profile.curve import Ints


def relabelled(old: Plan, new: Plan) -> Plan:
    """The new plan with devices renamed so that it overlaps most with the old one.

    Both are for the same cluster and know their rows.
    """
    if all(band.members == "all" for bands in new.bands.values() for band in bands):
        return new
    names = _best_names(_overlap(old, new))
    if all((name == np.arange(len(name))).all() for name in names):
        return new
    bands = {
        table: tuple(_renamed(band, new.cluster, names) for band in bands)
        for table, bands in new.bands.items()
    }
    return replace(new, bands=bands)


def _overlap(old: Plan, new: Plan) -> list[Ints]:
    """Per level, bytes that a new holder with one place in its group would find at an old one."""
    cluster, tree = new.cluster, tree_of(new.cluster)
    sizes = [level.size for level in cluster.levels]
    found = [np.zeros((size, size), dtype=np.int64) for size in sizes]
    for table, bands in new:
        if all(band.members == "all" for band in bands):
            continue
        rows = old.rows_in_order(table.name), new.rows_in_order(table.name)
        for columns in column_cuts(old, new, table.name):
            before, after = (PlanSide.of(plan, table.name, columns) for plan in (old, new))
            for classes in classes_by_row(before, after, *rows):
                was, now = before.bands[classes.old_band], after.bands[classes.new_band]
                if now.members == "all":
                    continue
                have = tree.holders_of(was)[0, classes.old_member]
                want = tree.holders_of(now)[0, classes.new_member]
                devices = (have < tree.devices) & (want < tree.devices)
                amount = classes.rows * row_bytes(table, now)
                for level, size in enumerate(sizes[: tree.scopes[now.scope]]):
                    inner = cluster.group_size(level)
                    place = want[devices] // inner % size, have[devices] // inner % size
                    np.add.at(found[level], place, amount[devices])
    return found


def _best_names(overlap: list[Ints]) -> list[Ints]:
    """Per level the new name of every place in a group: pairs with most in common come first."""
    found = []
    for amounts in overlap:
        left = amounts.astype(np.float64) * 2 + np.eye(len(amounts))  # equally good: as it is
        names = np.zeros(len(left), dtype=np.int64)
        for _ in names:
            place, name = np.unravel_index(int(left.argmax()), left.shape)
            names[place] = name
            left[place, :] = left[:, name] = -1.0
        found.append(names)
    return found


def _renamed(band: Band, cluster: Cluster, names: list[Ints]) -> Band:
    if band.members == "all":
        return band
    level = cluster.level_of(band.scope)
    members = tuple(_new_place(place, level, cluster, names) for place in band.members)
    return band.model_copy(update={"members": members})


def _new_place(place: int, level: int, cluster: Cluster, names: list[Ints]) -> int:
    """The position in a group of a level whose places on all levels below have new names."""
    if place >= cluster.group_size(level):
        return place  # a server
    found = 0
    for below in range(level):
        inner, size = cluster.group_size(below), cluster.levels[below].size
        found += int(names[below][place // inner % size]) * inner
    return found

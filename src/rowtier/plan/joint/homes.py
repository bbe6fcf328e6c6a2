"""Every way to keep and to send a row that a band can say, priced on the basis of `cost/touch.py`.

`members`, `order` and `offset` say which holders of a kind have which rows: on average over
holders all the same, so one member stands for all of its kind. Of a copy on every device
`exchange`, `coalesced` and `staged` say nothing, nor does `sync` of a row that has no copies; sums
are asked for lookup by lookup, so `coalesced` says nothing of them, and those that are `staged`
are no fewer for a reader. `columns` are a table's own affair (`columns.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.cost.options import CostOptions
from rowtier.cost.terms import row_terms
from rowtier.cost.time import link_s_per_byte
from rowtier.cost.tree import Tree, tree_of
from rowtier.plan.constraints import Constraints
from rowtier.profile.curve import Floats, Ints
from rowtier.tables import Table

NO_SUMS = -1  # of a home that sends rows


class Home(NamedTuple):
    """A way to keep and to send a row: a band of one row, and who holds it."""

    band: Band
    kind: int  # of holder, as in `Tree.kinds`
    memory: int  # which of `memory_sizes`
    level: int  # of its scope
    holders: tuple[int, ...]  # of its kind in a group of its scope

    @property
    def way(self) -> tuple[object, ...]:
        """What makes it different from others, but for its tier."""
        band = self.band
        return self.level, self.kind, band.exchange, band.coalesced, band.staged, band.sync

    def placed(self, start: int, stop: int, offset: int) -> Band:
        """A run of ranks on all holders; sums of devices come from one, yet to be found."""
        changes: dict[str, object] = {"start": start, "stop": stop, "offset": offset}
        if self.kind or self.band.exchange == "rows":
            changes["members"] = self.holders if self.kind else "all"
        return self.band.model_copy(update=changes)


class Phase(NamedTuple):
    """Which rounds a home takes part in: how far it is asked, and where copies meet."""

    widest: int  # level of its exchange; 0: nobody is asked
    lowest: int  # level at which its copies meet first; 0: there are none
    relayed: bool  # its rows pass from gateway to gateway, level by level

    def allows(self, other: Phase) -> bool:
        """Whether a plan that has no other rounds than these may have a home of others."""
        meets = not other.lowest or 0 < self.lowest <= other.lowest
        return other.widest <= self.widest and meets and other.relayed <= self.relayed


@lru_cache(maxsize=64)
def homes_of(cluster: Cluster, pooled: bool) -> tuple[Home, ...]:
    """Every home of a row, but for those that cost no less than another."""
    tree, found = tree_of(cluster), []
    for (memory, kind, tier), scope in product(_memories(cluster), cluster.scopes):
        level = tree.scopes[scope]
        here = np.flatnonzero(tree.kinds[tree.members[level][0]] == kind)
        if not len(here):
            continue
        whole = Band(start=0, stop=1, scope=scope, tier=tier, members=(int(here[0]),))
        for changes in _ways(level, len(cluster.levels), pooled):
            band = whole.model_copy(update=changes)
            found.append(Home(band, kind, memory, level, tuple(here.tolist())))
    return tuple(found)


def _ways(level: int, top: int, pooled: bool) -> Iterator[dict[str, object]]:
    if level == 0:
        ways: list[dict[str, object]] = [{}]
    else:
        ways = [{"coalesced": False}, {"coalesced": True}]
        ways += [{"coalesced": True, "staged": True}] * (level > 1)
        ways += [{"exchange": "sums"}] * pooled
    for way, sync in product(ways, ("dense", "sparse") if level < top else ("dense",)):
        yield {**way, "sync": sync}


def _memories(cluster: Cluster) -> Iterator[tuple[int, int, str]]:
    """Every memory: its number, kind of holder and tier."""
    owners = [(0, cluster.device.tiers)]
    owners += [(kind, server.tiers) for kind, server in enumerate(cluster.servers, start=1)]
    every = [(kind, tier.name) for kind, tiers in owners for tier in tiers]
    for memory, (kind, name) in enumerate(every):
        yield memory, kind, name


def open_homes(
    homes: Sequence[Home], table: Table, wanted: Constraints, cluster: Cluster
) -> NDArray[np.bool_]:
    """Which homes a table's pins leave it, and the weights of its lookups."""
    pin, exchanges = wanted.pin(table.name), wanted.exchanges(table)
    alone = wanted.one_owner(table.name) and cluster.num_devices > 1
    if not alone and pin.tier is None and pin.scope is None and len(exchanges) == 2:
        return np.ones(len(homes), dtype=bool)

    def is_open(home: Home) -> bool:
        if alone and (home.kind or home.band.scope != cluster.top):
            return False
        if pin.tier is not None and (home.kind or home.band.tier != pin.tier):
            return False  # a server's tier may have the same name
        if home.level and home.band.exchange not in exchanges:
            return False
        return pin.scope in (None, home.band.scope)

    return np.array([is_open(home) for home in homes])


def phase_of(band: Band, kind: int, tree: Tree, training: bool) -> Phase:
    """The rounds that the rows of a band take part in, on holders of a kind."""
    level = tree.scopes[band.scope]
    attached = tree.racks[kind - 1].level if kind else 0
    asked = np.flatnonzero(tree.readers(level, attached)) + 1
    met = [j for j in range(level + 1, tree.levels + 1) if tree.fan_out(j) > 1 and training]
    relayed = band.staged and band.exchange == "rows"
    return Phase(int(asked[-1]) if len(asked) else 0, met[0] if met else 0, relayed)


@dataclass(frozen=True, eq=False)
class HomeCosts:
    """Seconds of each home (row) for each entry of the basis (column): what a row pays for."""

    homes: tuple[Home, ...]
    busy_s: Floats  # memory and work of the holder, the mean over holders of the kind
    reading_s: Floats  # work of a reader
    links_s: Floats
    asking_s: Floats  # the part of them that does not depend on the row's width
    kept_bytes: Floats  # for each device, on average
    kind: Ints
    memory: Ints
    level: Ints
    way: Ints  # the same number for homes that differ in nothing but their tier
    sums: Ints  # class of its sums, or `NO_SUMS`

    def weighted(self, weights: Floats) -> Floats:
        """Homes × basis: seconds, if kinds of holders count so much."""
        held = weights[self.kind][:, None]
        return np.asarray(held * self.busy_s + weights[0] * self.reading_s + self.links_s)


def home_costs(table: Table, cluster: Cluster, cost: CostOptions, sync_weight: float) -> HomeCosts:
    """Price every home for rows of a table; row terms are linear in the basis."""
    tree = tree_of(cluster)
    homes = homes_of(cluster, table.pooling != "none")
    units, scale = np.eye(tree.levels + 3), holder_scale(tree)
    terms = [row_terms(home.band, table, units, cluster, cost) for home in homes]
    kind = np.array([home.kind for home in homes], dtype=np.int64)
    classes = sorted({(h.level, h.kind) for h in homes if h.band.exchange == "sums"})
    ways = list(dict.fromkeys(home.way for home in homes))
    busy_s = np.stack([one.memory_s + one.serving_s for one in terms]) * scale[kind][:, None]
    sync_s = np.stack([one.sync_s.sum(axis=0) for one in terms]) * (kind == 0)[:, None]
    return HomeCosts(
        homes,
        busy_s,
        np.stack([one.reading_s for one in terms]),
        np.stack([one.exchange_s.sum(axis=0) for one in terms]) + sync_weight * sync_s,
        np.stack([link_s_per_byte(tree) @ one.id_bytes / one.group_devices for one in terms]),
        np.array([one.stored_bytes / one.group_devices for one in terms]),
        kind,
        np.array([home.memory for home in homes], dtype=np.int64),
        np.array([home.level for home in homes], dtype=np.int64),
        np.array([ways.index(home.way) for home in homes], dtype=np.int64),
        np.array([sums_class(home, classes) for home in homes], dtype=np.int64),
    )


def sums_class(home: Home, classes: Sequence[tuple[int, int]]) -> int:
    """Which level and kind of owners send sums of a home, if any."""
    by_sums = home.band.exchange == "sums"
    return classes.index((home.level, home.kind)) if by_sums else NO_SUMS


def holder_scale(tree: Tree) -> Floats:
    """Devices for each holder of every kind."""
    counts = np.bincount(tree.kinds, minlength=len(tree.racks) + 1)
    return np.asarray(tree.devices / counts)


def sum_costs(
    table: Table, classes: tuple[tuple[int, int], ...], cluster: Cluster, cost: CostOptions,
    weights: Floats,
) -> Floats:  # fmt: skip
    """Classes × distances: seconds for a sum of every sample, times the readers at that distance.

    Distance 0 is the owner's own: it packs and unpacks, and no link carries anything.
    """
    tree, passes = tree_of(cluster), 2 if cost.training else 1
    rate, scale = link_s_per_byte(tree), holder_scale(tree)
    copy_s = passes * cluster.work.sum_copy_s(table.row_bytes)
    found = np.zeros((len(classes), tree.levels + 1))
    for row, (level, kind) in enumerate(classes):
        attached = tree.racks[kind - 1].level if kind else 0
        readers = tree.readers(level, attached) / tree.sizes[level]
        work_s = copy_s * (weights[0] + weights[kind] * scale[kind])
        found[row, 1:] = readers * (passes * table.row_bytes * rate + work_s)
        found[row, 0] = (1 - readers.sum()) * work_s
    return found

"""What each table can choose from, priced: the dual of the joint problem.

A *home* is a way to keep a row (scope, tier, exchange). In a placement whose devices are
loaded alike, step time is a sum over rows of their home's time, except for partial sums:
a sample needs a sum of an owner or not, so what they cost is a concave function g of
the mass of lookups that goes by sums. A concave function is the least of its chords' lines
(from below), so

    F(λ) = min over lines (a, b) of g:  a + Σ rows min over homes [ time + λ·bytes (+ b·p) ]

is the least that a table can cost at prices λ for a byte of each tier, whichever rows go
where: min and min commute. Devices that are not alike only cost more, since the slowest
counts, so Σ F_j(λ) − λ·capacity bounds every plan from below, for every λ ≥ 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.cost.memory import NOTHING_RESERVED, Reserve
from rowtier.cost.options import CostOptions
from rowtier.cost.terms import row_terms
from rowtier.cost.time import link_s_per_byte
from rowtier.cost.touch import Bags, table_basis
from rowtier.cost.tree import tree_of
from rowtier.plan.solve.homes import best_homes
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile, TableStats

GRID = np.concatenate(([0.0], np.geomspace(1e-5, 1.0, 64)))  # of mass


@dataclass(frozen=True)
class Home:
    """A way to keep a row: a band whose ranks are still to be filled in, and its memory."""

    band: Band
    memory: int  # which of `memories`
    owned: bool = False  # by one device, which is still to be found
    members: tuple[int, ...] | None = None  # who shall hold it, where it is priced for one of them

    @property
    def by_sums(self) -> bool:
        """Whether owners send partial sums."""
        return self.band.exchange == "sums"

    @property
    def way(self) -> tuple[object, ...]:
        """What makes it different from others, but for its tier."""
        band = self.band
        return band.scope, band.members, band.exchange, band.coalesced, band.staged, band.sync

    def placed(self, start: int, stop: int, offset: int) -> Band:
        """The band with its ranks filled in."""
        changes = {"start": start, "stop": stop, "offset": offset}
        if self.members is not None:
            return self.band.model_copy(update={**changes, "members": self.members})
        return self.band.model_copy(update=changes)


def memories(cluster: Cluster, reserve: Reserve = NOTHING_RESERVED) -> list[tuple[str, float]]:
    """Every kind of memory: its tier, and its bytes for each device, on average."""
    devices = cluster.num_devices
    found = []
    for tier in cluster.device.tiers:
        level = 0 if tier.shared_by is None else cluster.level_of(tier.shared_by)
        size, groups = cluster.group_size(level), cluster.num_groups(level)
        left = [reserve.left(tier, range(g * size, (g + 1) * size)) for g in range(groups)]
        found.append((tier.name, sum(left) / devices))
    for server in cluster.servers:
        count = len(cluster.server_members(server))
        for tier in server.tiers:
            found.append((tier.name, reserve.left(tier) * count / devices))
    return found


@lru_cache(maxsize=64)
def homes_of(pooled: bool, cluster: Cluster, one_owner: bool = False) -> tuple[Home, ...]:
    """All ways to keep a row of a table that can be the best one.

    Or with `one_owner` those that leave all rows of the table on one device.
    """
    found: list[Home] = []
    for memory, tier in enumerate(cluster.device.tiers):
        if one_owner:
            found += _one_owner(pooled, cluster, tier.name, memory)
        else:
            found += _on_devices(pooled, cluster, tier.name, memory)
    memory = len(cluster.device.tiers)
    for server in cluster.servers:
        members = cluster.server_members(server)
        for tier in server.tiers:
            if not one_owner:
                found += _on_servers(pooled, cluster, members, tier.name, memory)
            memory += 1
    return tuple(found)


def _on_devices(pooled: bool, cluster: Cluster, tier: str, memory: int) -> Iterator[Home]:
    top = len(cluster.levels)
    for level, scope in enumerate(cluster.scopes):
        base = Band(start=0, stop=1, scope=scope, tier=tier, coalesced=True)
        for staged in (False, True) if level > 1 else (False,):
            for sync in ("dense", "sparse") if level < top else ("dense",):
                yield Home(base.model_copy(update={"staged": staged, "sync": sync}), memory)
    if pooled and top:
        yield from _one_owner(pooled, cluster, tier, memory, exchanges=("sums",))


def _one_owner(
    pooled: bool,
    cluster: Cluster,
    tier: str,
    memory: int,
    exchanges: tuple[str, ...] = ("sums", "rows"),
) -> Iterator[Home]:
    base = Band(start=0, stop=1, scope=cluster.top, tier=tier, members=(0,))
    if "sums" in exchanges and pooled:
        yield Home(base.model_copy(update={"exchange": "sums"}), memory, owned=True)
    if "rows" in exchanges:
        for staged in (False, True) if len(cluster.levels) > 1 else (False,):
            changes = {"coalesced": True, "staged": staged}
            yield Home(base.model_copy(update=changes), memory, owned=True)


def _on_servers(
    pooled: bool, cluster: Cluster, members: tuple[int, ...], tier: str, memory: int
) -> Iterator[Home]:
    base = Band(start=0, stop=1, scope=cluster.top, tier=tier, coalesced=True, members=members)
    yield Home(base, memory)
    if len(cluster.levels) > 1:
        yield Home(base.model_copy(update={"staged": True}), memory)
    if pooled:
        changed = {"exchange": "sums", "coalesced": False, "members": members[:1]}
        yield Home(base.model_copy(update=changed), memory, members=members)


@dataclass(frozen=True, eq=False)
class Menu:
    """The homes of one table: seconds and bytes of a row, by home and by bucket."""

    stats: TableStats
    homes: tuple[Home, ...]
    by_sums: Floats  # 1 where a home sends partial sums
    owned: Floats  # 1 where a home has one owner
    seconds: Floats  # homes × buckets, of one row in an even placement
    busy_s: Floats  # the part of them that the holder's memory and work take
    reading_s: Floats  # the part that is the readers' work
    memory_bytes: Floats  # homes × memories, of one row for each device, on average
    stops: Ints  # where buckets end
    widths: Floats
    mass: Floats  # of one row in each bucket
    lines: Floats  # intercept and slope of g, rising with the mass that it belongs to

    def best(self, prices: Floats) -> tuple[float, int, Ints, Floats]:
        """The least that the table costs at these prices, and the line of g it lies on.

        And the best home of every bucket, and the rows that each home gets.
        """
        paid = self.memory_bytes @ prices
        cost, line, choice, rows = best_homes(
            self.seconds, paid, self.by_sums, self.widths, self.mass, self.lines
        )
        return cost, line, choice, rows

    @property
    def links_s(self) -> Floats:
        """The part of the seconds that links take."""
        return self.seconds - self.busy_s - self.reading_s

    def choose(self, prices: Floats) -> Ints:
        """The best home of every bucket."""
        return self.best(prices)[2]

    def runs(
        self, choice: Ints, offset: int, first: int = 0, last: int | None = None
    ) -> Iterator[tuple[Band, bool]]:
        """One band for every run of buckets with the same home, and whether it needs an owner."""
        last = len(choice) if last is None else last
        edges = np.flatnonzero(np.diff(choice[first:last])) + 1 + first
        for a, b in pairwise([first, *edges.tolist(), last]):
            home = self.homes[int(choice[a])]
            start = int(self.stops[a - 1]) if a else 0
            yield home.placed(start, int(self.stops[b - 1]), offset), home.owned

    def only(self, kept: Floats) -> Menu:
        """The same menu with some of the homes: those where `kept` is not 0."""
        kept = kept != 0
        return replace(
            self,
            homes=tuple(home for home, keep in zip(self.homes, kept, strict=True) if keep),
            by_sums=self.by_sums[kept],
            owned=self.owned[kept],
            seconds=self.seconds[kept],
            busy_s=self.busy_s[kept],
            reading_s=self.reading_s[kept],
            memory_bytes=self.memory_bytes[kept],
            lines=self.lines if self.by_sums[kept].any() else np.empty((0, 2)),
        )

    def without_owners(self) -> Menu:
        """The same menu for a table that needs none."""
        return self.only(1 - self.owned)


def menu_of(
    stats: TableStats,
    profile: Profile,
    cluster: Cluster,
    options: CostOptions,
    homes: Sequence[Home] | None = None,
    sync_weight: float = 1.0,
) -> Menu:
    """Price every home for every bucket of a table; sync may be taken for cheaper than it is."""
    curve, rows = stats.curve, stats.table.num_embeddings
    stops, p = curve.stops, curve.probabilities
    if curve.ranks < rows:  # rows that are never looked up are a bucket of their own
        stops, p = np.append(stops, rows), np.append(p, 0.0)
    if homes is None:
        homes = homes_of(stats.table.pooling != "none", cluster)
    rest = curve.ranks < rows
    basis = table_basis(stats, profile, tree_of(cluster).sizes, rest=rest)
    kinds = len(cluster.device.tiers) + sum(len(server.tiers) for server in cluster.servers)
    seconds, busy_s, reading_s = [], [], []
    used = np.zeros((len(homes), kinds))
    for index, home in enumerate(homes):
        terms = row_terms(home.band, stats.table, basis, cluster, options)
        seconds.append(terms.step_s(sync_weight))
        busy_s.append(terms.memory_s + terms.serving_s)
        reading_s.append(terms.reading_s)
        used[index, home.memory] = terms.stored_bytes / terms.group_devices
    by_sums = np.array([float(home.by_sums) for home in homes])
    return Menu(
        stats,
        tuple(homes),
        by_sums,
        np.array([float(home.owned) for home in homes]),
        np.stack(seconds),
        np.stack(busy_s),
        np.stack(reading_s),
        used,
        stops,
        np.diff(stops, prepend=0).astype(np.float64),
        p,
        _lines(stats, profile, cluster, options) if by_sums.any() else np.empty((0, 2)),
    )


def sums_seconds(
    stats: TableStats, profile: Profile, cluster: Cluster, options: CostOptions, mass: Floats
) -> Floats:
    """g: link seconds of a device, on average, if rows of this mass go by sums of one owner.

    One owner is the least: a sample needs one sum of it, where several owners send several.
    """
    tree = tree_of(cluster)
    amount = stats.table.row_bytes * profile.batch_size
    sums = amount * Bags.of(stats).sums(mass)
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
    return np.asarray(profile.batch_size * each_s * Bags.of(stats).sums(mass))


def node_size(cluster: Cluster) -> int:
    """Devices of the smallest group of several; 1 if that is all of them."""
    sizes = [size for size in tree_of(cluster).sizes if 1 < size < cluster.num_devices]
    return sizes[0] if sizes else 1


def _lines(stats: TableStats, profile: Profile, cluster: Cluster, options: CostOptions) -> Floats:
    facts = (stats, profile, cluster, options, GRID)
    return _through(sums_seconds(*facts) + sums_work_seconds(*facts))


def _through(cost: Floats) -> Floats:
    """The lines through neighbouring points of g: none of them is above g between its points."""
    slopes = np.diff(cost) / np.diff(GRID)
    return np.stack([cost[:-1] - slopes * GRID[:-1], slopes], axis=1)

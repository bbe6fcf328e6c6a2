"""What the rows of one table may choose from, and what they chose at the prices of memory.

Seconds are those of an even placement. What goes by partial sums is not a sum over rows: sums of
one owner in the whole cluster, which packing places, are left out of the seconds; all others, of
owners inside groups or on servers, cost what a lookup costs on average where they were chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rowtier.cost.touch import BagLengths, table_basis
from rowtier.cost.tree import tree_of
from rowtier.jit import compiled
from rowtier.plan.joint.dual import Priced, at_prices
from rowtier.plan.joint.homes import NO_SUMS, Home, HomeCosts
from rowtier.plan.joint.problem import FlatTables, Pricing, sums_of_devices
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import TableStats

Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Menu:
    """Homes of one table that some rows want: seconds and bytes of a row, by home and by bucket."""

    stats: TableStats
    homes: tuple[Home, ...]
    is_open: Flags  # of each home: whether it may be chosen
    owned: Flags  # whether one device has all rows there, which is still to be found
    by_sums: Flags  # whether such an owner sends partial sums
    seconds: (
        Floats  # homes × buckets, of one row; endless if a home is not open and it is asked for
    )
    busy_s: Floats  # the part of them that the holder's memory and work take
    reading_s: Floats  # the part that is the readers' work
    choosing_s: Floats  # the seconds with devices and servers weighed as the bound weighs them
    memory_bytes: Floats  # homes × memories, of one row for each device, on average
    stops: Ints  # where buckets end
    widths: Floats
    mass: Floats  # of one row in each bucket
    owner_s: float  # what sums of one owner in the whole cluster take, as chosen
    choice: Ints  # home of each bucket
    even: Ints  # the best home of each bucket without an owner, if there is one
    own: Ints  # the best home of each bucket by sums of one owner, if there is one

    @classmethod
    def of(
        cls, pricing: Pricing, tables: FlatTables, priced: Priced, allowed: Floats, index: int
    ) -> Menu:
        """Of a table that chose among `allowed` shelves."""
        stats = pricing.profile.stats[index]
        known, choosing_s, _ = pricing.seconds(stats, tables.weights, cut=False)
        costs, shelf = known.costs, known.shelf
        # Rows that are never looked up are a bucket of their own, if there are any.
        idle = stats.curve.positions < stats.table.num_embeddings
        stops = np.append(stats.curve.stops, [stats.table.num_embeddings] * idle)
        here = slice(int(tables.first[index]), int(tables.first[index]) + len(stops))
        mass, lookups = tables.mass[here], tables.widths[here] * tables.mass[here]
        at = _best_on_shelf(choosing_s, shelf, priced.shelf[here])
        owned = _owned(costs, pricing, stats)
        beside = (costs.sums != NO_SUMS) & ~owned
        sums_s = _SumsCost.of(pricing, tables, index)
        each_s = np.zeros(len(costs.homes))
        for one in set(costs.sums[beside].tolist()):
            share = float(lookups[costs.sums[at] == one].sum())
            each_s[beside & (costs.sums == one)] = sums_s(one, share) / share if share else np.inf
        is_open = (allowed[shelf] > 0) & np.isfinite(choosing_s.min(axis=1)) & np.isfinite(each_s)
        memory_bytes = np.zeros((len(costs.homes), len(tables.capacity)))
        memory_bytes[np.arange(len(costs.homes)), costs.memory] = costs.kept_bytes
        paid_s, more_s = memory_bytes @ priced.prices, np.where(is_open, each_s, 0.0)
        by_sums = owned & (costs.sums != NO_SUMS)
        even, own = (
            _best_of(choosing_s, paid_s, more_s, mass, np.flatnonzero(is_open & some))
            for some in (~owned, by_sums)
        )
        kept = _wanted(costs, at, even, own)
        place = np.cumsum(kept) - 1
        basis = table_basis(stats, pricing.profile, tree_of(pricing.cluster).sizes, rest=True)
        basis = basis[:, : len(stops)]
        added_s = np.multiply.outer(more_s[kept], mass)
        added_s[~is_open[kept]] += np.where(mass > 0, np.inf, 0.0)  # others may be anywhere
        busy_s, reading_s = costs.busy_s[kept] @ basis, costs.reading_s[kept] @ basis
        return cls(
            stats,
            tuple(home for home, wanted in zip(costs.homes, kept.tolist(), strict=True) if wanted),
            is_open[kept],
            owned[kept],
            by_sums[kept],
            busy_s + reading_s + costs.links_s[kept] @ basis + added_s,
            busy_s,
            reading_s,
            choosing_s[kept, : len(stops)] + added_s,
            memory_bytes[kept],
            stops,
            tables.widths[here],
            mass,
            _owner_s(sums_s, costs, owned, at, lookups),
            place[at],
            place[even],
            place[own],
        )

    def cost_s(self, prices: Floats) -> float:
        """What the table costs at prices of memory, sums of one owner as one owner sends them."""
        at, buckets = self.choice, np.arange(len(self.choice))
        priced_s = self.choosing_s[at, buckets] + (self.memory_bytes @ prices)[at]
        return float(priced_s @ self.widths) + self.owner_s

    @property
    def links_s(self) -> Floats:
        """The part of the seconds that links take."""
        return self.seconds - self.busy_s - self.reading_s


@compiled
def _best_on_shelf(seconds: Floats, shelf_of: Ints, shelf: Ints) -> Ints:
    """The best home on the shelf of each bucket."""
    found, least = np.zeros(len(shelf), np.int64), np.full(len(shelf), np.inf)
    for home in range(len(shelf_of)):
        for bucket in range(len(shelf)):
            if shelf_of[home] == shelf[bucket] and seconds[home, bucket] < least[bucket]:
                found[bucket], least[bucket] = home, seconds[home, bucket]
    return found


@compiled
def _best_of(seconds: Floats, paid_s: Floats, more_s: Floats, mass: Floats, homes: Ints) -> Ints:
    """The best of some homes for each bucket, bytes and lookups paid for; none: -1."""
    found, least = np.full(len(mass), -1, np.int64), np.full(len(mass), np.inf)
    for home in homes:
        for bucket in range(len(mass)):
            one = seconds[home, bucket] + more_s[home] * mass[bucket] + paid_s[home]
            if one < least[bucket] or found[bucket] < 0:
                found[bucket], least[bucket] = home, one
    return found


def _wanted(costs: HomeCosts, *choices: Ints) -> Flags:
    """Homes that some bucket wants, and those that differ in nothing but their memory."""
    counts = np.zeros(len(costs.homes) + 1, dtype=np.int64)
    for choice in choices:
        counts += np.bincount(choice + 1, minlength=len(counts))
    wanted = np.bincount(costs.way, counts[1:] > 0) > 0
    return np.asarray(wanted[costs.way])


def _owned(costs: HomeCosts, pricing: Pricing, stats: TableStats) -> Flags:
    """Homes of one device, still to be found: sums in the whole cluster, or all of a pinned one."""
    cluster, name = pricing.cluster, stats.table.name
    if pricing.options.constraints.one_owner(name) and cluster.num_devices > 1:
        return np.ones(len(costs.homes), dtype=bool)
    wide = costs.level == len(cluster.levels)
    return np.asarray((costs.sums != NO_SUMS) & (costs.kind == 0) & wide)


@dataclass(frozen=True, eq=False)
class _SumsCost:
    """Seconds that sums of one class take, by the share of lookups that goes that way."""

    bags: BagLengths
    all_s: Floats  # by class: for a sum of every sample of a batch

    @classmethod
    def of(cls, pricing: Pricing, tables: FlatTables, index: int) -> _SumsCost:
        all_s = pricing.profile.batch_size * tables.sums.alone_s(index)
        return cls(BagLengths.of(pricing.profile.stats[index]), all_s)

    def __call__(self, sums: int, share: float) -> float:
        return float(self.all_s[sums] * self.bags.sums(np.array([min(share, 1.0)]))[0])


def _owner_s(sums_s: _SumsCost, costs: HomeCosts, owned: Flags, at: Ints, lookups: Floats) -> float:
    mine = owned[at] & (costs.sums[at] != NO_SUMS)
    return sums_s(int(costs.sums[at][mine][0]), float(lookups[mine].sum())) if mine.any() else 0.0


def menus_of(
    pricing: Pricing, tables: FlatTables, prices: Floats, allowed: Floats
) -> tuple[list[Menu], Priced]:
    """What every table chooses among some shelves at prices of memory.

    Prices take sums of owners inside groups and of others for one. So a table that has both may
    be better off with either, which is seen when each is counted as it is sent.
    """
    chosen = at_prices(tables, prices, allowed, fine=True)
    owners, inside = (shelves * allowed for shelves in sums_of_devices(tables))
    found = [Menu.of(pricing, tables, chosen, allowed, index) for index in range(tables.count)]
    both = np.add.reduceat(inside[chosen.shelf], tables.first[:-1]) > 0
    for kept in (allowed - inside, allowed - owners) if both.any() else ():
        other = at_prices(tables, prices, kept, fine=True)
        for index in np.flatnonzero(both).tolist():
            menu = Menu.of(pricing, tables, other, kept, index)
            found[index] = min(found[index], menu, key=lambda one: one.cost_s(prices))
    return found, chosen

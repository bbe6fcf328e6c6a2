"""What the rows of one table may choose from, and what they chose at the prices of memory.

Seconds are those of an even placement. What goes by partial sums is not a sum over rows: sums of
one owner in the whole cluster, which packing places, are left out of the seconds; all others, of
owners inside groups or on servers, cost what a lookup costs on average where they were chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rowtier.cost.touch import Bags, table_basis
from rowtier.cost.tree import tree_of
from rowtier.plan.joint.dual import Priced, at_prices
from rowtier.plan.joint.homes import NO_SUMS, Home, HomeCosts
from rowtier.plan.joint.problem import FlatTables, Pricing, sums_of_devices
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import TableStats

Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Menu:
    """The homes of one table: seconds and bytes of a row, by home and by bucket."""

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

    @classmethod
    def of(
        cls, pricing: Pricing, tables: FlatTables, priced: Priced, allowed: Floats, index: int
    ) -> Menu:
        """Of a table that chose among `allowed` shelves."""
        stats = pricing.profile.stats[index]
        costs, choosing_s, _ = pricing.seconds(stats, tables.weights, cut=False)
        shelf = np.array([tables.shelf_of(home) for home in costs.homes])
        # Rows that are never looked up are a bucket of their own, if there are any.
        idle = stats.curve.ranks < stats.table.num_embeddings
        stops = np.append(stats.curve.stops, [stats.table.num_embeddings] * idle)
        here = slice(int(tables.first[index]), int(tables.first[index]) + len(stops))
        basis = table_basis(stats, pricing.profile, tree_of(pricing.cluster).sizes, rest=idle)
        choosing_s, mass = choosing_s[:, : len(stops)], tables.mass[here]
        at = np.where(shelf[:, None] == priced.shelf[here], choosing_s, np.inf).argmin(axis=0)
        owned = _owned(costs, pricing, stats)
        beside = (costs.sums != NO_SUMS) & ~owned
        sums_s = _SumsCost.of(pricing, tables, index)
        each_s = np.zeros(len(costs.homes))
        for one in np.unique(costs.sums[beside]).tolist():
            share = float((tables.widths[here] * mass)[costs.sums[at] == one].sum())
            each_s[beside & (costs.sums == one)] = sums_s(one, share) / share if share else np.inf
        is_open = (allowed[shelf] > 0) & np.isfinite(choosing_s).any(axis=1) & np.isfinite(each_s)
        more_s = np.multiply.outer(np.where(is_open, each_s, 0.0), mass)
        more_s[np.ix_(~is_open, mass > 0)] = np.inf  # rows that nobody asks for may be anywhere
        busy_s, reading_s = costs.busy_s @ basis, costs.reading_s @ basis
        memory_bytes = np.zeros((len(costs.homes), len(tables.capacity)))
        memory_bytes[np.arange(len(costs.homes)), [h.memory for h in costs.homes]] = (
            costs.kept_bytes
        )
        return cls(
            stats,
            costs.homes,
            is_open,
            owned,
            owned & (costs.sums != NO_SUMS),
            busy_s + reading_s + costs.links_s @ basis + more_s,
            busy_s,
            reading_s,
            choosing_s + more_s,
            memory_bytes,
            stops,
            tables.widths[here],
            mass,
            _owner_s(sums_s, costs, owned, at, tables.widths[here] * mass),
            at,
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


def _owned(costs: HomeCosts, pricing: Pricing, stats: TableStats) -> Flags:
    """Homes of one device, still to be found: sums in the whole cluster, or all of a pinned one."""
    cluster, name = pricing.cluster, stats.table.name
    if pricing.options.constraints.one_owner(name) and cluster.num_devices > 1:
        return np.ones(len(costs.homes), dtype=bool)
    levels = np.array([home.level for home in costs.homes])
    wide = levels == len(cluster.levels)
    return np.asarray((costs.sums != NO_SUMS) & (costs.kind == 0) & wide)


@dataclass(frozen=True, eq=False)
class _SumsCost:
    """Seconds that sums of one class take, by the share of lookups that goes that way."""

    bags: Bags
    all_s: Floats  # by class: for a sum of every sample of a batch

    @classmethod
    def of(cls, pricing: Pricing, tables: FlatTables, index: int) -> _SumsCost:
        all_s = pricing.profile.batch_size * tables.sums.alone_s(index)
        return cls(Bags.of(pricing.profile.stats[index]), all_s)

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

"""The rows of a table at given prices: what they cost without an owner, and with one.

Which memory of its owner a row lies in is open until memory is filled, so what it asks of memory is
a vector: time and what the bytes cost together, at each of several multiples of the prices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rowtier.cluster import Cluster
from rowtier.cost.options import CostOptions
from rowtier.cost.time import link_s_per_byte
from rowtier.cost.touch import BagLengths
from rowtier.cost.tree import tree_of
from rowtier.plan.joint.place.menu import Menu
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile

# Of the prices at which memory is counted: the true one first, most of the others close around it.
# A device that has a large even table may run out of memory at much higher prices.
MULTIPLES = np.array([1.0, 1.1, 0.9, 1.2, 0.8, 1.35, 0.65, 1.6, 0.5, 2.0, 0.3, 3.0, 5.0, 9.0, 0.0])
NEAR = (MULTIPLES > 0.45) & (MULTIPLES < 2.1)  # prices that devices end at


class Pinned(NamedTuple):
    """What is decided about a table's owner."""

    device: int | None = None
    whole: bool = False  # may not be cut
    tier: str | None = None
    together: int | None = None  # tables that have one owner


@dataclass(frozen=True, eq=False)
class Setting:
    """What all tables have in common."""

    profile: Profile
    cluster: Cluster
    cost: CostOptions
    prices: Floats  # of a byte of each memory
    scarce: Floats  # the same where one device may run out of it

    @cached_property
    def devices(self) -> int:
        """How many there are."""
        return self.cluster.num_devices

    @cached_property
    def levels(self) -> int:
        """Of links."""
        return len(self.cluster.levels)

    @cached_property
    def node(self) -> int:
        """Devices of the smallest group of several; 1 if that is all of them."""
        sizes = [size for size in tree_of(self.cluster).sizes if 1 < size < self.devices]
        return sizes[0] if sizes else 1

    @cached_property
    def link_s(self) -> Floats:
        """Seconds by level that one owner is busy with a byte for every device."""
        tree = tree_of(self.cluster)
        return np.asarray(link_s_per_byte(tree) * np.diff(np.array(tree.sizes)))

    @cached_property
    def shares(self) -> Floats:
        """How the link seconds of one owner divide among the levels."""
        return self.link_s / max(float(self.link_s.sum()), 1e-300)

    @property
    def widest_s(self) -> float:
        """The same at the widest level alone; nothing where one device is all there is."""
        return float(self.link_s[-1]) if self.levels else 0.0

    @property
    def widest_share(self) -> float:
        """The share of the widest level."""
        return float(self.shares[-1]) if self.levels else 0.0

    @cached_property
    def staged_s(self) -> Floats:
        """Seconds by level of a device with a byte for every device, added up in its node.

        Inside the node each owner sends what it has to the devices that pass sums on; beyond it,
        each device passes on what is for the readers that have its own place.
        """
        tree = tree_of(self.cluster)
        size = np.array(tree.sizes, dtype=np.float64)
        below, above = size[:-1], size[1:]
        each = tree.devices / above * (above / below - 1) * np.maximum(below / self.node, 1.0)
        return np.asarray(link_s_per_byte(tree) * each)


@dataclass(frozen=True, eq=False)
class PlacedRows:
    """One table: its buckets, those first that gain most from an owner per lookup.

    Running sums have one entry more than there are buckets: entry k is that of the first k.
    """

    setting: Setting
    index: int  # of the table
    menu: Menu
    pinned: Pinned
    order: Ints  # of buckets
    count: int  # the first so many have owners by choice
    most: int  # the first so many may have owners
    even_home: Ints  # by bucket, if it has no owner
    own_home: Ints  # by bucket, if it has one

    @classmethod
    def of(cls, setting: Setting, index: int, menu: Menu, pinned: Pinned) -> PlacedRows:
        """The rows of a table that chose at the prices."""
        choice, buckets = menu.choice, np.arange(len(menu.choice))
        owned, without = menu.owned[choice], np.flatnonzero(menu.is_open & ~menu.owned)
        even, own = choice.copy(), choice.copy()
        if not owned.any():
            return cls(setting, index, menu, pinned, buckets, 0, 0, even, own)
        sums = np.flatnonzero(menu.is_open & menu.by_sums)
        if len(without):
            even[owned] = menu.even[owned]
        if setting.cluster.servers or pinned.whole or not len(without) or not len(sums):
            order = np.argsort(~owned, kind="stable")
            return cls(setting, index, menu, pinned, order, *2 * (int(owned.sum()),), even, own)
        own[~owned] = menu.own[~owned]
        paid_s = menu.memory_bytes @ setting.prices
        gain = menu.choosing_s[even, buckets] + paid_s[even]
        gain = (gain - menu.choosing_s[own, buckets] - paid_s[own]) / np.maximum(menu.mass, 1e-300)
        gain = np.where(menu.mass > 0, gain, -np.inf)
        order = np.lexsort((-gain, ~owned))
        most = max(int(owned.sum()), int((gain > 0).sum()))
        return cls(setting, index, menu, pinned, order, int(owned.sum()), most, even, own)

    @property
    def name(self) -> str:
        """Of the table."""
        return self.menu.stats.table.name

    @property
    def may_spread(self) -> bool:
        """Whether its rows may do without owners."""
        return bool((self.menu.is_open & ~self.menu.owned).any())

    @cached_property
    def by_sums(self) -> bool:
        """Whether all of its owners send partial sums."""
        owned = self.order[: self.count]
        return bool(self.menu.by_sums[self.own_home[owned]].all())

    @cached_property
    def bags(self) -> BagLengths:
        """How many lookups samples bring."""
        return BagLengths.of(self.menu.stats)

    @cached_property
    def sum_bytes(self) -> float:
        """Bytes of a sum for each sample of a device, forth and back."""
        passes = 2 if self.setting.cost.training else 1
        return float(passes * self.menu.stats.table.row_bytes * self.setting.profile.batch_size)

    @cached_property
    def owned_parts(self) -> Floats:
        """Seconds of ids and lookups of one owner, rows, memory at each price (last axis: order).

        Memory first in the memory that is chosen: seconds, and what its bytes cost.
        """
        menu, order, devices = self.menu, self.order[: self.most], self.setting.devices
        home = self.own_home[order]
        busy_s = menu.busy_s[home, order] * devices
        links_s = (menu.seconds - menu.reading_s)[home, order] * devices - busy_s
        mass = menu.mass[order] * menu.by_sums[home]
        paid_s = (menu.memory_bytes @ self.setting.scarce)[home] * devices
        one = np.ones(len(order))
        parts = np.vstack([links_s, mass, one, busy_s, paid_s, self._memory_s(order, home)])
        return np.asarray(parts * menu.widths[order])

    def _memory_s(self, order: Ints, home: Ints) -> Floats:
        """Time of a row in its best memory and what that costs, by price and bucket."""
        menu, devices = self.menu, self.setting.devices
        ways = [one.way for one in menu.homes]
        found = np.zeros((len(MULTIPLES), len(order)))
        for way in {ways[one] for one in np.unique(home).tolist()}:
            alike = np.array([one for one, other in enumerate(ways) if other == way])
            paid_s = (menu.memory_bytes[alike] @ self.setting.scarce)[:, None] * MULTIPLES
            priced_s = menu.busy_s[np.ix_(alike, order)][:, None] + paid_s[:, :, None]
            found += priced_s.min(axis=0) * (devices * np.isin(home, alike))
        return found

    @cached_property
    def owned_sums(self) -> Floats:
        """Running sums of them."""
        parts = self.owned_parts
        return np.concatenate([np.zeros((len(parts), 1)), np.cumsum(parts, axis=1)], axis=1)

    @cached_property
    def cost_s(self) -> Floats:
        """Running: what the table costs at the prices, without links of rows with owners."""
        menu, order, buckets = self.menu, self.order, np.arange(len(self.order))
        paid_s = menu.memory_bytes @ self.setting.prices
        even_s = menu.seconds[self.even_home, buckets] + paid_s[self.even_home]
        own_s = menu.busy_s[self.own_home, buckets] + paid_s[self.own_home]
        own_s += menu.reading_s[self.own_home, buckets]
        saved_s = ((even_s - own_s) * menu.widths)[order[: self.most]]
        total_s = float(even_s @ menu.widths)
        return total_s - np.concatenate([[0.0], np.cumsum(saved_s)])

    def even_bytes(self, count: int) -> Floats:
        """Bytes of each memory that rows without owners take of a device."""
        rest = self.order[count:]
        each = np.bincount(self.even_home[rest], self.menu.widths[rest], len(self.menu.homes))
        return np.asarray(each @ self.menu.memory_bytes)

"""What one device can own of a table: pieces, and what they ask of it.

What owners carry does not spread by itself, as other rows do. A *piece* is a run of a
table's buckets, in some columns, that one device owns. It keeps the owner busy in three
ways: ids that come, rows or sums that go, memory. Which memory a row lies in is still open, so
the last is a vector: time and what memory costs together, at each of several prices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.cost.deal import deal
from rowtier.cost.options import CostOptions
from rowtier.plan.solve.menu import (
    Cutting,
    Menu,
    cut_lines,
    level_shares,
    node_size,
    node_sums_seconds,
    sums_seconds,
)
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile

LEAST_COLUMNS = 8  # a table is cut at multiples of these: memory reads no less at once
# Multiples of the prices at which memory is counted: the true one first, the others close around
# it. A device that has a large even table may run out of memory at much higher prices.
_NEAR = (0.12, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0)  # octaves
_HIGHER = np.array(sorted((*_NEAR, 1.75, 2.5, 3.5, 4.0)))
MULTIPLES = np.concatenate(([1.0, 0.0], 2.0**_HIGHER, 2.0 ** -np.array(_NEAR)))
WAYS = 2 + len(MULTIPLES)  # asking, answering with sums, memory at each price
MAIN = 3  # of the ways: with memory at the true price alone


class Share(NamedTuple):
    """Of a row: its columns, and its bytes with optimizer state, which are read as well."""

    columns: float
    bytes: float


ALL_COLUMNS = Share(1.0, 1.0)


@dataclass(eq=False)
class Course:
    """What the rows of a table that have owners ask of them, added up bucket by bucket."""

    menu: Menu
    choice: Ints
    index: int  # of the table
    prices: Floats  # of a byte of each memory
    scarce: Floats  # the same where one device may run out of it
    profile: Profile
    cluster: Cluster
    cost: CostOptions
    owner: int | None = None  # if it is decided already
    whole: bool = False  # may not be cut
    tier: str | None = None  # if it is decided already
    group: int | None = None  # tables that have one owner together
    known: dict[object, Floats] = field(default_factory=dict)  # of the table, whatever is chosen
    nodes: dict[object, Floats] = field(default_factory=dict, init=False)  # loads of their devices

    def without_owners(self) -> Course:
        """The same table, where no row has one owner."""
        menu = self.menu.without_owners()
        return replace(self, menu=menu, choice=menu.choose(self.prices))

    def when_cut(self, cutting: Cutting) -> Course:
        """The same table, where rows choose knowing what it costs to be cut."""
        if self.cluster.servers:  # whose sums are not cut, and would be taken to be
            return replace(self)
        lines = cut_lines(self.menu.stats, self.profile, self.cluster, self.cost, cutting)
        choice = self.menu.when_cut(cutting.columns, lines).choose(self.prices)
        return replace(self, choice=choice)

    @cached_property
    def even_s(self) -> float:
        """Links of rows without owners and readers' work, which all devices have alike."""
        menu, buckets = self.menu, np.arange(len(self.choice))
        links_s = menu.links_s[self.choice, buckets]
        reading_s = menu.reading_s[self.choice, buckets] @ menu.widths
        rows = menu.widths * (1 - self.owned)
        mass = (menu.mass * menu.by_sums[self.choice]) @ rows  # by sums of servers
        facts = (menu.stats, self.profile, self.cluster, self.cost)
        sums_s = sums_seconds(*facts, np.clip([mass], 0.0, 1.0))[0] if mass else 0.0
        return float(links_s @ rows + sums_s + reading_s)

    @cached_property
    def even_busy(self) -> Floats:
        """What rows without owners keep the memory of every device busy with, as `Piece.busy`."""
        menu, buckets = self.menu, np.arange(len(self.choice))
        rows = menu.widths * self._even_on_devices
        memory_s = float(menu.busy_s[self.choice, buckets] @ rows)
        paid_s = float((menu.memory_bytes @ self.scarce)[self.choice] @ rows)
        links = np.zeros(2 * len(self.level_shares))
        return np.concatenate([links, memory_s + paid_s * MULTIPLES])

    @property
    def even_cost_s(self) -> float:
        """Links and memory of rows without owners, with what the memory is worth."""
        return self.even_s + float(self.even_busy[2 * len(self.level_shares)])

    @cached_property
    def even_bytes(self) -> float:
        """Bytes that rows without owners take of every device, in whichever memory."""
        each = self.menu.memory_bytes.sum(axis=1)[self.choice]
        return float(each @ (self.menu.widths * self._even_on_devices))

    @property
    def _even_on_devices(self) -> Floats:
        """1 for the buckets whose home has no owner and is not a server's."""
        tiers = len(self.cluster.device.tiers)
        here = np.array([float(home.memory < tiers and not home.owned) for home in self.menu.homes])
        return np.asarray(here[self.choice])

    @cached_property
    def owned(self) -> Floats:
        """1 for the buckets whose home has one owner."""
        return self.menu.owned[self.choice]

    @cached_property
    def _sums(self) -> Floats:
        menu, buckets = self.menu, np.arange(len(self.choice))
        chosen_s = menu.links_s[self.choice, buckets]
        asking_s, mass = self.cluster.num_devices * chosen_s, menu.mass * menu.by_sums[self.choice]
        parts = np.vstack([asking_s, mass, self._priced_memory_s]) * (self.owned * menu.widths)
        return np.concatenate([np.zeros((WAYS, 1)), np.cumsum(parts, axis=1)], axis=1)

    @property
    def _priced_memory_s(self) -> Floats:
        """Time of a row in its best memory and what that costs, by price and bucket.

        Of rows that have owners; what stands for others means nothing.
        """
        ways = [home.way for home in self.menu.homes]
        chosen = {ways[index] for index in np.unique(self.choice[self.owned > 0])}
        if len(chosen) == 1:
            return self._least_memory_s(chosen.pop())
        found = np.zeros((len(MULTIPLES), len(self.choice)))
        for way in chosen:
            alike = [index for index, other in enumerate(ways) if other == way]
            found += self._least_memory_s(way) * np.isin(self.choice, alike)
        return found

    def _least_memory_s(self, way: tuple[object, ...]) -> Floats:
        if way not in self.known:
            menu = self.menu
            alike = [index for index, home in enumerate(menu.homes) if home.way == way]
            paid = (menu.memory_bytes[alike] @ self.scarce)[:, None] * MULTIPLES
            priced = menu.busy_s[alike][:, None] + paid[:, :, None]
            self.known[way] = priced.min(axis=0) * self.cluster.num_devices
        return self.known[way]

    @cached_property
    def _bytes(self) -> Floats:
        """Rows' bytes before a bucket, in all columns."""
        held = self.owned * self.menu.widths * self.menu.stats.table.stored_row_bytes
        return np.concatenate([np.zeros(1), np.cumsum(held)])

    def load(self, first: Ints | int, last: Ints | int, share: Share) -> Floats:
        """Seconds in each of the ways (first axis) of runs of buckets in a share of columns."""
        found = self._sums[:, last] - self._sums[:, first]
        mass = np.clip(found[1], 0.0, 1.0)
        sums_s = sums_seconds(self.menu.stats, self.profile, self.cluster, self.cost, mass)
        found[1] = self.cluster.num_devices * sums_s
        found[1] *= share.columns
        found[2:] *= share.bytes
        return found

    def node_load(self, first: int, last: int, share: Share) -> Floats:
        """Seconds of each device of a node that has a run of buckets, level by level; the mean.

        Its rows are priced in the memories that were chosen: they cannot fit themselves to one
        device. Where they lie is decided when memory is filled.
        """
        menu, devices, node = self.menu, self.cluster.num_devices, node_size(self.cluster)
        chosen, at = self.choice[first:last], np.arange(first, last)
        rows = (self.owned * menu.widths)[first:last] * share.bytes
        memory_s = float(menu.busy_s[chosen, at] @ rows) * devices
        paid_s = float((menu.memory_bytes @ self.scarce)[chosen] @ rows) * devices
        ids_s, mass = self._sums[:2, last] - self._sums[:2, first]
        sums_s = self._node_sums_s(np.clip([mass], 0.0, 1.0))[:, 0] * share.columns
        priced_s = memory_s + paid_s * MULTIPLES
        return np.concatenate([self.level_shares * ids_s / node, sums_s, priced_s / node])

    def node_loads(self, piece: Piece) -> Floats:
        """The same for every device of the node (row): one of them has the hottest row."""
        menu, size, levels = self.menu, node_size(self.cluster), len(self.level_shares)
        mean = self.node_load(piece.first, piece.last, piece.share)
        curve, mass = menu.stats.curve, np.zeros((1, size))
        for band in piece.bands(0):
            mass += deal(band, curve, curve.probabilities[None], size).by_member(size)
        found = np.repeat(mean[None], size, axis=0)
        found[:, :levels] *= mass.T / max(float(mass.mean()), 1e-300)
        # Inside the node each device sends sums of its own rows.
        found[:, levels] = self._node_sums_s(mass[0] * size)[0] * piece.share.columns
        return found

    def _node_sums_s(self, mass: Floats) -> Floats:
        return node_sums_seconds(self.menu.stats, self.profile, self.cluster, self.cost, mass)

    @cached_property
    def level_shares(self) -> Floats:
        """How the link seconds of one owner divide among the levels."""
        return level_shares(self.cluster)

    def by_level(self, load: Floats) -> Floats:
        """The load of one owner with ids and sums level by level."""
        shares = self.level_shares
        return np.concatenate([shares * load[0], shares * load[1], load[2:]])

    def main(self, busy: Floats) -> Floats:
        """The same with memory at its true price alone."""
        return busy[: 2 * len(self.level_shares) + 1]

    def forget(self) -> None:
        """Drop what can be computed again, and is large."""
        self.__dict__.pop("_sums", None)

    @property
    def fits_a_node(self) -> bool:
        """Whether all devices of a node may have it together: only sums are added up there."""
        free = self.owner is None and self.group is None and not self.whole
        sums = self.menu.by_sums[self.choice] == self.owned
        return free and bool(sums.all()) and node_size(self.cluster) > 1

    def bytes(self, first: Ints | int, last: Ints | int, share: Share) -> Floats:
        """Bytes of runs of buckets in a share of columns."""
        return np.asarray((self._bytes[last] - self._bytes[first]) * share.bytes)

    def evenly(self, first: int, last: int, count: int) -> list[int]:
        """Where to cut a run into so many pieces of about the same weight."""
        mass = self._sums[1]
        weight = self._sums[0] + self._sums[2]
        weight += mass * (self.load(first, last, ALL_COLUMNS)[1] / max(mass[-1], 1e-30))
        return self._evenly(weight, first, last, count)

    def evenly_asked(self, first: int, last: int, count: int) -> list[int]:
        """Where to cut a run into so many pieces that get about as many ids each."""
        return self._evenly(self._sums[0], first, last, count)

    def halves(self, first: int, last: int) -> list[int]:
        """Where to cut a run into two pieces of about the same bytes."""
        return self._evenly(self._bytes, first, last, 2)

    @staticmethod
    def _evenly(weight: Floats, first: int, last: int, count: int) -> list[int]:
        wanted = weight[first] + (weight[last] - weight[first]) * np.arange(1, count) / count
        inner = np.clip(np.searchsorted(weight, wanted), first + 1, last - 1)
        return sorted({first, *inner.tolist(), last})


@dataclass(frozen=True, eq=False)
class Piece:
    """A run of buckets, in some columns, that one device is to own."""

    course: Course
    first: int
    last: int
    columns: tuple[int, int] | None = None
    place: int | None = None  # of the device in its node, if all devices of a node have it

    @property
    def node(self) -> bool:
        """Whether all devices of a node have it together."""
        return self.place is not None

    @property
    def stays(self) -> bool:
        """Whether it stays where it was dealt to."""
        return self.node or self.course.owner is not None or self.course.tier is not None

    @property
    def share(self) -> Share:
        """Of the columns; optimizer state that a row has once comes with every cut."""
        if self.columns is None:
            return ALL_COLUMNS
        table, width = self.course.menu.stats.table, self.columns[1] - self.columns[0]
        kept_bytes = width * table.item_bytes + table.state_bytes(width)
        return Share(width / table.embedding_dim, kept_bytes / table.stored_row_bytes)

    @cached_property
    def load(self) -> Floats:
        """Seconds that one owner is busy with it, in each of the ways."""
        return self.course.load(self.first, self.last, self.share)

    @cached_property
    def busy(self) -> Floats:
        """Seconds that its device is busy with it: ids by level, sums by level, memory by price."""
        if self.place is None:
            return self.course.by_level(self.load)
        return np.asarray(self._node_loads[self.place])

    @property
    def _node_loads(self) -> Floats:
        key, found = (self.first, self.last, self.columns), self.course.nodes
        if key not in found:
            found[key] = self.course.node_loads(replace(self, place=0))
        return found[key]

    @property
    def weight(self) -> float:
        """Seconds, all together, with memory at its price."""
        return float(self.load[:MAIN].sum())

    @cached_property
    def bytes(self) -> int:
        """Bytes, in whichever memory."""
        held = float(self.course.bytes(self.first, self.last, self.share))
        return int(np.ceil(held / node_size(self.course.cluster) if self.node else held))

    @property
    def halved(self) -> Iterator[tuple[Piece, Piece]]:
        """In two, by rows and by columns."""
        if self.course.whole or self.node:
            return
        if self.last - self.first > 1:
            cut = self.course.evenly(self.first, self.last, 2)[1]
            yield replace(self, last=cut), replace(self, first=cut)
        left, right = self.columns or (0, self.course.menu.stats.table.embedding_dim)
        units = (right - left) // LEAST_COLUMNS
        if units > 1:
            middle = left + units // 2 * LEAST_COLUMNS
            yield replace(self, columns=(left, middle)), replace(self, columns=(middle, right))

    def cut(self, at: Sequence[int]) -> list[Piece]:
        """The pieces between neighbouring buckets of a list."""
        return [replace(self, first=a, last=b) for a, b in pairwise(at)]

    def bands(self, owner: int) -> Iterator[Band]:
        """One band for every run of buckets with the same home; a node's first device has all."""
        course, size = self.course, node_size(self.course.cluster) if self.node else 1
        if owner % size:
            return
        members = tuple(range(owner, owner + size))
        changes: dict[str, object] = {"members": members, "columns": self.columns}
        if self.node:
            changes["staged"] = True
        for band, owned in course.menu.runs(course.choice, course.index, self.first, self.last):
            if owned:
                yield band.model_copy(update=changes)

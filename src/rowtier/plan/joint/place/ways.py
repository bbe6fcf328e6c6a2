"""Ways to divide a table among owners, and which of them all tables together should take.

Rows with owners are cut into runs of ranks, which repeats sums, and into columns, which repeats
ids; or several devices of a node have them and add their sums up before they leave it. Which rows
have owners at all depends on it: where ids are repeated, fewer go by sums. A peak is paid once,
however many tables reach it, so how high each may be is chosen for all tables together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.cost.terms import sums_work_seconds
from rowtier.jit import compiled
from rowtier.plan.joint.place.rows import MULTIPLES, NEAR, PlacedRows
from rowtier.profile.curve import Floats, Ints

LEAST_COLUMNS = 8  # a table is cut at multiples of these: memory reads no less at once
HEAVY = 0.2  # of a device, in anything: from there on a table is looked at in all ways
PREFIXES = 28  # numbers of buckets with owners that are tried, by rows, and as many by lookups
FEWER = (0.8, 0.6)  # of the best mass that goes by sums: where peaks are high
ROOM = 0.5  # of a device's memory, that a piece may need
HEIGHTS = (0.8, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)  # of the mean, that peaks may have
INSIDE_HEIGHTS = (0.0, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03)  # of a step
INSIDE_FREE = 0.005  # of a step, inside nodes: what a piece may take there without being hard
INSIDE_COUNTS = (1.0, 0.3)  # how much of the seconds inside nodes tables see, as peaks hide some


class Division(NamedTuple):
    """How a table is divided: how many of its buckets have owners, and what they are cut into."""

    buckets: int
    runs: int = 1
    columns: int = 1
    members: int = 1  # of a node, that have each run together, dealt out by rank


class Ways(NamedTuple):
    """Divisions of tables: what each costs, and what its largest piece asks of a device."""

    table: Ints  # place in the list of tables
    division: Ints  # way, field of `Division`
    cost_s: Floats  # of the whole table, for a device on average
    inside_s: Floats  # of that, sums inside nodes
    pieces: Ints
    ids_s: Floats  # at the widest level
    sums_s: Floats
    node_s: Floats  # sums inside its node
    memory_s: Floats  # beyond what a device's memory is worth, at the worst price
    memory_share: Floats  # of what a device has on average, at prices near the true one
    bytes: Floats


class Means(NamedTuple):
    """What a device is busy with on average, if every table had one owner."""

    ids_s: float
    sums_s: float
    memory_s: float
    worth_s: Floats  # of its memory, at each price
    priced_s: Floats  # memory with what it costs, at each price
    step_s: float  # about what a step takes
    devices: int


class Wish(NamedTuple):
    """How large pieces may be before they are hard to pack, as shares of a device."""

    ids: float
    sums: float
    memory: float
    weight: float  # of what exceeds that, in seconds for a second


def ways_of(place: int, rows: PlacedRows, means: Means, capacity_bytes: float, most: int) -> Ways:
    """All ways of one table that cost less than to do without owners."""
    one = _OneTable(rows, most)
    found = one.ways(place, means)
    kept = found.bytes <= ROOM * capacity_bytes
    if kept.any():
        found = some_of(found, kept)
    if not rows.may_spread:
        return found
    better = some_of(found, found.cost_s < rows.cost_s[0])
    return joined_ways([without_owners(place, rows), better])


def some_of(ways: Ways, which: NDArray[np.bool_]) -> Ways:
    """Those that are wanted."""
    return Ways._make(field[which] for field in ways)


def joined_ways(ways: Sequence[Ways]) -> Ways:
    """Several lists as one."""
    return Ways._make(np.concatenate(fields) for fields in zip(*ways, strict=True))


def without_owners(place: int, rows: PlacedRows) -> Ways:
    """The one way in which no row has an owner."""
    nothing = np.zeros(1)
    return Ways(
        np.array([place]),
        np.array([Division(0, 0, 0, 0)]),
        rows.cost_s[:1],
        nothing,
        np.zeros(1, dtype=np.int64),
        *(nothing,) * 6,
    )


@dataclass(frozen=True, eq=False)
class _OneTable:
    rows: PlacedRows
    most: int  # pieces

    @property
    def _counts(self) -> list[int]:
        """Numbers of buckets with owners."""
        rows = self.rows
        if (rows.most == rows.count and not rows.may_spread) or rows.setting.cluster.servers:
            return [rows.count]
        mass = rows.owned_sums[1]
        steps = np.arange(1, PREFIXES + 1) / PREFIXES
        by_mass = np.searchsorted(mass, mass[-1] * steps * (1 - 1e-12))
        found = {rows.count, *by_mass.tolist(), *(rows.most * steps).astype(int).tolist()}
        return sorted(count for count in found if 0 < count <= rows.most)

    def _cuttings(self) -> Ints:
        """Runs, columns and members of all ways to cut."""
        setting, table = self.rows.setting, self.rows.menu.stats.table
        units = max(1, table.embedding_dim // LEAST_COLUMNS)
        devices, node = setting.devices, setting.node
        numbers = _numbers(min(self.most, devices))
        found = []
        for columns, runs in product(numbers, numbers):
            parts = runs * columns
            if columns > units or parts > self.most:
                continue
            found.append((runs, columns, 1))
            if self.rows.by_sums and parts * node <= devices:
                most = (self.most + node) // parts
                found += [(runs, columns, m) for m in range(2, min(node, most) + 1)]
        return np.array(found, dtype=np.int64).reshape(-1, 3)

    def ways(self, place: int, means: Means) -> Ways:
        """The best number of buckets for every way to cut, and fewer."""
        rows, setting = self.rows, self.rows.setting
        counts, cuttings = np.array(self._counts), self._cuttings()
        runs, columns, members = cuttings.T
        ids_s, mass = rows.owned_sums[:2, counts]
        mass = np.clip(mass, 0.0, 1.0)
        sums = rows.bags.sums(mass / runs[:, None])  # of each run, by cutting and count
        members_sums = rows.bags.sums(mass / (runs * members)[:, None])
        facts = (rows.menu.stats, setting.profile, setting.cluster, setting.cost)
        every = rows.bags.sums(np.ones(1))[0]  # none of a table that nobody looks up
        work_s = sums_work_seconds(*facts, np.ones(1))[0] / every if every else 0.0
        own_s, staged_s = setting.link_s * rows.sum_bytes, setting.staged_s * rows.sum_bytes
        direct = members[:, None] == 1
        inside_s = np.where(direct, 0.0, staged_s[0] * (runs * members)[:, None] * members_sums)
        passed_s = staged_s[1:].sum() * setting.node * runs[:, None] * sums
        sums_s = np.where(direct, own_s.sum() * runs[:, None] * sums, inside_s + passed_s)
        wide, repeated = self._shares(columns)
        cost_s = rows.cost_s[counts] + runs[:, None] * work_s * sums
        more_s = ids_s * columns[:, None] + repeated[:, None] * rows.owned_sums[5, counts]
        cost_s = cost_s + (more_s + sums_s) / setting.devices
        which, at = self._best(cost_s, mass)
        runs, columns, members, direct = (x[which] for x in (runs, columns, members, direct[:, 0]))
        wide, inside_s = wide[which], inside_s[which, at] / setting.devices
        passed = np.where(direct, own_s[-1], staged_s[-1]) * sums[which, at]
        parts, row_bytes = runs * members, rows.menu.stats.table.stored_row_bytes
        memory_s = self._memory_s(counts[at], direct) * (wide[:, 1] / parts)
        return Ways(
            np.full(len(which), place),
            np.column_stack([counts[at], runs, columns, members]),
            cost_s[which, at],
            inside_s,
            parts * columns,
            ids_s[at] * setting.shares[-1] / parts,
            passed * wide[:, 0],
            np.where(direct, 0.0, staged_s[0] * members_sums[which, at] * wide[:, 0]),
            (memory_s - means.worth_s[:, None]).max(axis=0),
            (memory_s / means.priced_s[:, None])[NEAR].max(axis=0),
            rows.owned_sums[2, counts[at]] * row_bytes * wide[:, 1] / parts,
        )

    def _memory_s(self, counts: Ints, direct: Ints) -> Floats:
        """Seconds of memory at each price (row); what several members have lies where it chose."""
        sums = self.rows.owned_sums[:, counts]
        chosen_s = sums[3] + MULTIPLES[:, None] * sums[4]
        return np.where(direct, sums[5:], chosen_s)

    def _shares(self, columns: Ints) -> tuple[Floats, Floats]:
        """The widest piece's share of columns and bytes; bytes that are repeated.

        A row's optimizer state may come with every cut.
        """
        table = self.rows.menu.stats.table
        dim, row_bytes = table.embedding_dim, table.stored_row_bytes
        units, found = max(1, dim // LEAST_COLUMNS), {}
        for count in set(columns.tolist()):
            width = dim * -(-units // count) // units
            each = dim / count * table.item_bytes + table.state_bytes(dim // count)
            kept = width * table.item_bytes + table.state_bytes(width)
            repeated = max(0.0, count * each / row_bytes - 1)
            found[count] = (width / dim, kept / row_bytes, repeated)
        shares = np.array([found[count] for count in columns.tolist()])
        return shares[:, :2], shares[:, 2]

    def _best(self, cost_s: Floats, mass: Floats) -> tuple[Ints, Ints]:
        """Which cuttings with which counts: the cheapest, and some with less by sums."""
        best = cost_s.argmin(axis=1)
        found = [(np.arange(len(best)), best)]
        for share in FEWER:
            fewer = np.searchsorted(mass, share * mass[best], side="right") - 1
            kept = np.flatnonzero((fewer >= 0) & (fewer != best))
            found.append((kept, fewer[kept]))
        which, at = (np.concatenate(x) for x in zip(*found, strict=True))
        return which, at


def _numbers(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ..."""
    found = {number for k in range(most.bit_length()) for number in (2**k, 3 * 2**k // 2)}
    return sorted(number for number in found if 0 < number <= most)


def choose(ways: Ways, light_ids_s: float, means: Means, wish: Wish) -> Ints:
    """One way for every table, so that tables and peaks together cost the least.

    `light_ids_s` is what tables that are not divided bring to a device on average.
    """
    return _Choice(ways, light_ids_s, means, wish).best()


class _Choice:
    def __init__(self, ways: Ways, light_ids_s: float, means: Means, wish: Wish):
        self.ways, self.light_ids_s, self.means = ways, light_ids_s, means
        starts = np.flatnonzero(np.diff(ways.table, prepend=-1))
        self.first = np.append(starts, len(ways.table))  # way of each table
        self.asked_s = np.stack([ways.ids_s, ways.sums_s, ways.memory_s, ways.node_s], axis=1)
        self.base_s = ways.cost_s + _hard_s(ways, means, wish)
        self.all_ids_s = ways.ids_s * ways.pieces / means.devices

    def best(self) -> Ints:
        """By coordinate descent on the heights of the peaks."""
        found = [self._descend(counts) for counts in INSIDE_COUNTS]
        return min(found, key=lambda one: one[0])[1]

    def _descend(self, counts: float) -> tuple[float, Ints]:
        means, step_s = self.means, self.means.step_s
        mean = np.array([means.ids_s, means.sums_s, means.memory_s, step_s])
        tries = [(3, INSIDE_HEIGHTS), *((dim, HEIGHTS) for dim in range(3))]
        heights = np.array([1.0, 1.0, 1.0, 0.01]) * mean
        now = self._at(heights, counts)
        for _ in range(2):
            for dim, values in tries:
                for value in values:
                    other = heights.copy()
                    other[dim] = value * mean[dim]
                    then = self._at(other, counts)
                    if then[0] < now[0] - 1e-9 * step_s:
                        now, heights = then, other
        return now

    def _at(self, heights: Floats, counts: float) -> tuple[float, Ints]:
        """What all tables cost if pieces may be so large, and which ways that are."""
        ways, means = self.ways, self.means
        cost_s = self.base_s - (1 - counts) * ways.inside_s
        chosen = _cheapest(self.first, self.asked_s, heights, cost_s)
        ids_s = self.light_ids_s + float(self.all_ids_s[chosen].sum())
        inside_s = float(ways.inside_s[chosen].sum())
        links = max(ways.ids_s[chosen].max() - ids_s, ways.sums_s[chosen].max() - means.sums_s, 0)
        over_s = links + max(ways.memory_s[chosen].max() - means.memory_s, 0)
        over_s += max(ways.node_s[chosen].max() - inside_s, 0)
        return float(self.base_s[chosen].sum() + over_s), chosen


@compiled
def _cheapest(first: Ints, asked_s: Floats, heights: Floats, cost_s: Floats) -> Ints:
    """The cheapest way of each table whose pieces are not too large; the first if all are."""
    found = first[:-1].copy()
    for table in range(len(found)):
        best = np.inf
        for way in range(first[table], first[table + 1]):
            low = cost_s[way] < best
            for peak in range(len(heights)):
                low = low and asked_s[way, peak] <= heights[peak]
            if low:
                best, found[table] = cost_s[way], way
    return found


def _hard_s(ways: Ways, means: Means, wish: Wish) -> Floats:
    """What it costs, about, that pieces are large and hard to pack."""
    over_s = np.maximum(ways.ids_s - wish.ids * means.ids_s, 0)
    over_s = over_s + np.maximum(ways.sums_s - wish.sums * means.sums_s, 0)
    over_s += max(means.memory_s, 0.0) * np.maximum(ways.memory_share - wish.memory, 0)
    over_s += 0.5 * np.maximum(ways.node_s - INSIDE_FREE * means.step_s, 0)
    return np.asarray(wish.weight * over_s)

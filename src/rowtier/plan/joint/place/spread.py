"""Rows that are spread over all devices may be spread unevenly, to level what pieces leave uneven.

What a device sends of such rows it does not send of its own sums, and their memory is there for
its own rows. So packing may count on a share of them, and afterwards the tables with most of them
are spread over nested sets of devices: those that have the least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rowtier.cost.terms import row_terms
from rowtier.cost.touch import rows_at, table_basis
from rowtier.cost.tree import tree_of
from rowtier.plan.joint.place.menu import Menu
from rowtier.plan.joint.place.rows import MULTIPLES, PlacedRows, Setting
from rowtier.profile.curve import Floats, Ints

USED = 0.75  # of what is spread, that packing may count on
LEAST_NODES = 4  # with fewer, the nodes of the devices that hold more feel it
PORTIONS = 60  # about, that all rows in a memory are divided into
ROOM = 0.9  # of what is left of a device's memory, as parts are not divided exactly
ROUNDS = 4  # of levelling links and memory in turn
SENT, MEMORY, BYTES, INSIDE = range(4)


def may_be_uneven(setting: Setting) -> bool:
    """Whether holding more than others is felt at the widest level only."""
    enough = setting.node > 1 and setting.devices >= LEAST_NODES * setting.node
    return enough and not setting.cluster.servers


@dataclass(frozen=True, eq=False)
class SpreadAmounts:
    """What rows that are spread over all devices take of each of them.

    By table and tier: seconds sent at the widest level, seconds of memory, bytes, and seconds at
    the other levels.
    """

    by_table: Floats

    @property
    def fast(self) -> Floats:
        """Of rows in the first memory."""
        return np.asarray(self.by_table[:, 0].sum(axis=0))

    @property
    def slow(self) -> Floats:
        """Of rows in the others."""
        return np.asarray(self.by_table[:, 1:].sum(axis=(0, 1)))


@dataclass(frozen=True, eq=False)
class Spreadable:
    """How much of every table can be spread, whatever has owners."""

    tables: Sequence[PlacedRows]
    setting: Setting
    rest: list[Floats]  # by table: tier, amount, after so many buckets of its order

    @classmethod
    def of(cls, tables: Sequence[PlacedRows], setting: Setting) -> Spreadable:
        """Of tables at their prices."""
        known: dict[object, Floats] = {}
        return cls(tables, setting, [_rest(rows, known) for rows in tables])

    def amounts(self, buckets: Sequence[int]) -> SpreadAmounts:
        """What is spread, if the first so many buckets of each table have owners."""
        pairs = zip(self.rest, buckets, strict=True)
        return SpreadAmounts(np.stack([rest[:, :, count] for rest, count in pairs]))


def _rest(rows: PlacedRows, known: dict[object, Floats]) -> Floats:
    menu, homes, devices = rows.menu, rows.even_home, rows.setting.devices
    at, tiers = np.arange(len(homes)), len(rows.setting.cluster.device.tiers)
    sent_s = _sent_s(rows, known)
    busy_s = menu.busy_s[homes, at]
    links_s = menu.links_s[homes, at]
    held = np.full(len(at), menu.stats.table.stored_row_bytes / devices)
    each = np.stack([sent_s, busy_s, held, links_s - sent_s]) * menu.widths
    here = _tier_of(rows)[homes] == np.arange(tiers)[:, None]
    found = np.zeros((tiers, len(each), len(at) + 1))
    ordered = (each * here[:, None])[:, :, rows.order]
    found[:, :, :-1] = np.cumsum(ordered[:, :, ::-1], axis=2)[:, :, ::-1]
    return found


def _tier_of(rows: PlacedRows) -> Ints:
    """By home: its tier if rows there lie once in the cluster, on all devices; else -1."""
    top, homes = rows.setting.cluster.top, rows.menu.homes
    spread = [_on_all(rows.menu, at) and home.band.scope == top for at, home in enumerate(homes)]
    return np.where(spread, [home.memory for home in homes], -1)


def _on_all(menu: Menu, home: int) -> bool:
    """Whether rows of a home are spread over all devices."""
    one = menu.homes[home]
    return one.kind == 0 and one.band.exchange == "rows" and not menu.owned[home]


def _sent_s(rows: PlacedRows, known: dict[object, Floats]) -> Floats:
    """Seconds at the widest level of a row of each bucket, where it has no owner."""
    setting, menu = rows.setting, rows.menu
    rest = len(menu.stops) > len(menu.stats.curve.stops)
    basis = table_basis(menu.stats, setting.profile, tree_of(setting.cluster).sizes, rest=rest)
    found = np.zeros(len(rows.order))
    for number in np.unique(rows.even_home).tolist():
        home, table = menu.homes[number], menu.stats.table
        if _on_all(menu, number):
            sizes = (table.row_bytes, table.state_bytes(), setting.cost.id_bytes(table))
            key = (home.way, sizes)
            if key not in known:
                eye = np.eye(rows_at(setting.levels) + 1)
                terms = row_terms(home.band, table, eye, setting.cluster, setting.cost)
                known[key] = terms.exchange_s[-1]
            found = np.where(rows.even_home == number, known[key] @ basis, found)
    return found


@dataclass(frozen=True, eq=False)
class Spread:
    """Who holds which part of the rows of a table that are spread, by table and tier."""

    sets: dict[tuple[int, int], list[tuple[int, ...] | None]] = field(default_factory=dict)

    def parts(self, place: int, rows: PlacedRows, free: Floats) -> Ints:
        """Which of its parts every bucket of a table is in: as many seconds in each of them."""
        found = np.zeros(len(rows.order), dtype=np.int64)
        for tier in range(len(rows.setting.cluster.device.tiers)):
            count = len(self.sets.get((place, tier), ()))
            if count > 1:
                menu, at = rows.menu, np.arange(len(found))
                here = free & (_tier_of(rows)[rows.even_home] == tier)
                seconds = menu.busy_s if tier else menu.links_s
                done = np.cumsum(seconds[rows.even_home, at] * menu.widths * here)
                share = done / max(float(done[-1]), 1e-300)
                number = np.minimum((share * count - 1e-9).astype(np.int64), count - 1)
                found = np.where(here, number, found)
        return found

    def members(self, place: int, rows: PlacedRows, home: int, part: int) -> tuple[int, ...] | None:
        """The members of a part; None if it is as its home says."""
        sets = self.sets.get((place, int(_tier_of(rows)[home])))
        return None if sets is None else sets[part]


@dataclass(frozen=True, eq=False)
class Levelling:
    """What packing may count on, as pieces are vectors: see `vectors.py`."""

    amounts: SpreadAmounts | None
    setting: Setting

    @property
    def sums_s(self) -> float:
        """Sums that a device may send above the mean, as it can send less of these rows."""
        return USED * float(self.amounts.fast[SENT]) if self.amounts else 0.0

    @property
    def memory_s(self) -> float:
        """Memory that a device may be busy above the mean."""
        return USED * float(self.amounts.slow[MEMORY]) if self.amounts else 0.0

    @property
    def given_back(self) -> Floats:
        """What a second of a device's own sums saves it otherwise: it holds fewer of these rows."""
        setting = self.setting
        found = np.zeros(2 * setting.levels + len(MULTIPLES))
        if self.amounts is None or self.amounts.fast[SENT] <= 0:
            return found
        fast, nodes = self.amounts.fast, setting.devices // setting.node
        inside_s = fast[INSIDE] + self.amounts.slow[[SENT, INSIDE]].sum()
        found[setting.levels] = max(0.0, inside_s) / nodes / fast[SENT]
        found[2 * setting.levels :] = self._fast_s / fast[SENT]
        return found

    @property
    def _fast_s(self) -> Floats:
        assert self.amounts is not None
        fast = self.amounts.fast
        return np.asarray(fast[MEMORY] + MULTIPLES * self.setting.scarce[0] * fast[BYTES])

    def spread(self, load: Floats, free_bytes: Floats) -> Spread:
        """Which devices hold the rows that are spread, so that all of them end alike.

        `free_bytes` are those that a device has left if it holds as many as all others.
        """
        if self.amounts is None:
            return Spread()
        fast, slow = self._shares(load, free_bytes)
        sets: dict[tuple[int, int], list[tuple[int, ...] | None]] = {}
        for tier in range(1, self.amounts.by_table.shape[1]):
            _nested(self.amounts.by_table[:, tier, MEMORY], slow, tier, sets)
        _nested(self.amounts.by_table[:, 0, SENT], fast, 0, sets)
        return Spread(sets)

    def _shares(self, load: Floats, free_bytes: Floats) -> tuple[Floats, Floats]:
        """Of what is spread in fast memory and elsewhere, each device's share; 1 on average."""
        assert self.amounts is not None
        levels, (fast, slow) = self.setting.levels, (self.amounts.fast, self.amounts.slow)
        sums_s, memory_s = load[:, 2 * levels - 1], load[:, 2 * levels :]
        even = np.ones(len(load))
        counted = 1 + (sums_s.mean() - sums_s) / max(fast[SENT], 1e-300)
        room_s = np.maximum(sums_s.mean() + fast[SENT] + slow[SENT] - sums_s, 0)
        in_fast, in_slow = even, even
        for _ in range(ROUNDS):
            in_fast = _levelled(sums_s + slow[SENT] * in_slow, fast[SENT], np.inf * even)
            busy_s = (memory_s + self._fast_s * (in_fast - counted)[:, None]).max(axis=1)
            free = 1 + ROOM * (free_bytes - fast[BYTES] * (in_fast - 1)) / max(slow[BYTES], 1.0)
            most = np.minimum(room_s / max(slow[SENT], 1e-300), np.maximum(free, 0.0))
            in_slow = (in_slow + _levelled(busy_s, slow[MEMORY], most)) / 2
        return _levelled(sums_s + slow[SENT] * in_slow, fast[SENT], np.inf * even), in_slow


def _levelled(load: Floats, amount: float, most: Floats) -> Floats:
    """Shares, 1 on average, of `amount` for each device that level the loads; none above `most`."""
    if amount <= 0:
        return np.ones(len(load))
    low, high = float(load.min()), float(load.max()) + 10 * amount * len(load)
    for _ in range(60):
        middle = (low + high) / 2
        if np.minimum(np.maximum(middle - load, 0) / amount, most).sum() < len(load):
            low = middle
        else:
            high = middle
    return np.minimum(np.maximum(high - load, 0) / amount, most)


def _nested(
    amount: Floats,
    share: Floats,
    tier: int,
    sets: dict[tuple[int, int], list[tuple[int, ...] | None]],
) -> None:
    """Spread tables over as many of the emptiest devices as have room for their part.

    Large tables are divided; the smallest ones go to all devices, as far as the fullest allows.
    """
    tables = np.flatnonzero(amount > 0)
    if not len(tables):
        return
    devices, total = len(share), float(amount.sum())
    count = np.ceil(amount[tables] * PORTIONS / total).astype(np.int64)
    parts = np.repeat(tables, count)
    each = np.repeat(amount[tables] / count, count)
    order = np.argsort(-each, kind="stable")
    parts, each = parts[order], each[order]
    left = share * total
    tail = np.cumsum(each[::-1])
    small = int(np.searchsorted(tail, left.min()))
    left = left - (tail[small - 1] if small else 0.0)
    for table, seconds in zip(parts[: len(parts) - small].tolist(), each.tolist(), strict=False):
        emptiest = np.argsort(-left, kind="stable")
        fit = np.flatnonzero(left[emptiest] * np.arange(1, devices + 1) >= seconds * devices)
        number = int(fit[-1]) + 1 if len(fit) else max(1, int((left > 0).sum()))
        chosen = emptiest[:number]
        left[chosen] -= seconds * devices / number
        members = tuple(sorted(chosen.tolist())) if number < devices else None
        sets.setdefault((table, tier), []).append(members)
    for table in parts[len(parts) - small :].tolist():
        if (table, tier) in sets:
            sets[table, tier].append(None)

"""Which tables move first: ladders of offers, and paths that climb them table by table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rowtier.cluster import Cluster
from rowtier.cost.memory import Reserve, pools
from rowtier.cost.step import StepCost, TableCost
from rowtier.evaluate.shares import tier_seconds
from rowtier.profile.curve import Floats, Ints

_PRICED = 24  # plans of one path that are priced as a whole, where there are few tables
_TABLES = 6000  # that are priced at most in all plans of a path together

Mix = tuple[int, ...]  # the offer of each table
Climb = tuple[float, int, int]  # seconds saved for each byte, table, offer


@dataclass(frozen=True, eq=False)
class OfferLadder:
    """Offers of every table: what a step costs if all take the same, and what each moves.

    The first is to stay, the last ones change the bands and so what memories hold.
    """

    costs: Sequence[StepCost]
    moved_bytes: Ints  # tables × offers
    cluster: Cluster
    reserve: Reserve
    kept_bytes: Ints  # tables × holders × tiers, of rows
    new_bytes: Sequence[Ints]  # the same of offers that change the bands

    @property
    def tables(self) -> int:
        """How many tables there are."""
        return len(self.moved_bytes)

    @property
    def offers(self) -> int:
        """How many offers a table has."""
        return len(self.costs)

    @property
    def new(self) -> int:
        """The first offer that changes the bands."""
        return self.offers - len(self.new_bytes)

    def distinct(self, table: int, most: int) -> list[int]:
        """So many offers of a table that move different numbers of bytes, the ends first."""
        moved, new = self.moved_bytes[table], self.new
        found: dict[int, int] = {}
        for offer in (0, self.offers - 1, new, new - 2, new // 2, new + 1, new - 1, *range(new)):
            if len(found) < most:
                found.setdefault(int(moved[offer]), offer)
        return list(found.values())

    def seconds(self, at: int) -> Floats:
        """What each table takes of a step with each offer, at the prices of one of the plans."""
        priced = _Prices.of(self.costs[at])
        return np.array([[priced.seconds(t) for t in cost.tables] for cost in self.costs]).T

    @cached_property
    def _room(self) -> tuple[Ints, NDArray[np.int64]]:
        """Which pool each holder's tier belongs to (−1: none), and what every pool holds."""
        names = self.cluster.tier_names
        which = np.full((self.cluster.num_holders, len(names)), -1, dtype=np.int64)
        room = []
        for number, pool in enumerate(pools(self.cluster)):
            which[list(pool.holders), names.index(pool.tier)] = number
            tiers = self.cluster.tiers_of(pool.holders[0])
            tier = next(t for t in tiers if t.name == pool.tier)
            room.append(self.reserve.left(tier, pool.holders))
        return which, np.array(room)

    @cached_property
    def _in_pools(self) -> list[Ints]:
        """Tables × pools: to stay, and with each of the offers that change the bands."""
        which, room = self._room
        found = []
        for used in (self.kept_bytes, *self.new_bytes):
            pooled = np.zeros((self.tables, len(room)), dtype=np.int64)
            for holder, tier in np.argwhere(which >= 0):
                pooled[:, which[holder, tier]] += used[:, holder, tier]
            found.append(pooled)
        return found

    def used(self, table: int, offer: int) -> Ints:
        """Bytes of a table in each pool."""
        beyond = offer - self.new
        return np.asarray(self._in_pools[0 if beyond < 0 else 1 + beyond][table])

    def held(self, mix: Mix) -> Ints:
        """Bytes of all tables in each pool."""
        return np.asarray(sum(self.used(table, offer) for table, offer in enumerate(mix)))

    def fits(self, held: Ints) -> bool:
        """Whether no pool holds more than it may."""
        return bool((held <= self._room[1]).all())

    def over(self, held: Ints) -> NDArray[np.bool_]:
        """The pools that hold more than they may."""
        return np.asarray(held > self._room[1])


@dataclass(frozen=True, eq=False)
class _Prices:
    """What a byte costs in each memory and on each level's links, and a second of work."""

    tiers: Floats
    exchange: Floats
    sync: Floats
    work: float

    @classmethod
    def of(cls, cost: StepCost) -> _Prices:
        """The time of every part of a step, over what all tables do there."""
        time, tables = cost.time, cost.tables
        tiers_s = tier_seconds(cost).sum(axis=0)
        tiers_s = tiers_s * (time.slowest_memory_s / max(tiers_s.sum(), 1e-300))
        moved = sum(t.read_bytes + t.written_bytes for t in tables)
        exchanged = sum(2 * t.forward_bytes + t.id_bytes for t in tables)
        synced = sum(t.sync_bytes + t.sync_id_bytes for t in tables)
        worked = sum(t.work_s for t in tables)
        return cls(
            _per(tiers_s, np.asarray(moved)),
            _per(time.exchange_counts * time.exchange_level_s, np.asarray(exchanged)),
            _per(time.sync_counts * time.sync_level_s, np.asarray(synced)),
            time.slowest_work_s / max(worked, 1e-300),
        )

    def seconds(self, table: TableCost) -> float:
        """What a table takes of a step."""
        return float(
            (table.read_bytes + table.written_bytes) @ self.tiers
            + (2 * table.forward_bytes + table.id_bytes) @ self.exchange
            + (table.sync_bytes + table.sync_id_bytes) @ self.sync
            + table.work_s * self.work
        )


def _per(seconds: Floats, amounts: Floats) -> Floats:
    return np.asarray(seconds / np.maximum(amounts, 1e-300) * (amounts > 0))


def paths(ladder: OfferLadder) -> Iterator[Mix]:
    """Mixes of offers from staying to moving all, by the prices at both ends; some of each path."""
    many = max(8, min(_PRICED, _TABLES // ladder.tables))
    for at in (0, ladder.new):
        seconds = ladder.seconds(at)
        climbs = _climbs(ladder, seconds)
        yield from _thinned(ladder, list(_up(ladder, climbs)), many)
        yield from _thinned(ladder, list(_down(ladder, seconds)), many)
    yield from ((offer,) * ladder.tables for offer in range(ladder.offers))


def _thinned(ladder: OfferLadder, mixes: list[Mix], many: int) -> list[Mix]:
    """Some mixes of a path, evenly by what they move."""
    if len(mixes) <= many:
        return mixes
    every = np.arange(ladder.tables)
    moved = np.array([ladder.moved_bytes[every, list(mix)].sum() for mix in mixes], dtype=float)
    wanted = np.geomspace(max(1.0, float(moved[moved > 0].min(initial=1.0))), moved.max(), many)
    return [mixes[int(np.abs(moved - amount).argmin())] for amount in dict.fromkeys(wanted)]


def _climbs(ladder: OfferLadder, seconds: Floats) -> list[Climb]:
    """Each table's steps from offer to offer, those that save most for each byte first."""
    found: list[Climb] = []
    for table in range(ladder.tables):
        moved, saved = ladder.moved_bytes[table], seconds[table, 0] - seconds[table]
        offer = 0
        while True:
            more = np.flatnonzero((moved > moved[offer]) & (saved > saved[offer]))
            if not len(more):
                break
            rates = (saved[more] - saved[offer]) / (moved[more] - moved[offer])
            offer = int(more[int(rates.argmax())])
            found.append((float(rates.max()), table, offer))
    return sorted(found, key=lambda climb: (-climb[0], climb[1], climb[2]))


def _up(ladder: OfferLadder, climbs: list[Climb]) -> Iterator[Mix]:
    """Climb as long as all fits; what does not fit is tried again with others that make room."""
    mix = [0] * ladder.tables
    held, blocked = ladder.held(tuple(mix)), list[Climb]()
    for climb in climbs:
        _, table, offer = climb
        after = held - ladder.used(table, mix[table]) + ladder.used(table, offer)
        if not ladder.fits(after):
            blocked.append(climb)
            continue
        held, mix[table] = after, offer
        yield tuple(mix)
    for _, table, offer in blocked:
        made = _with_room(ladder, mix, table, offer)
        if made is not None:
            mix = made
            yield tuple(mix)


def _with_room(ladder: OfferLadder, mix: list[int], table: int, offer: int) -> list[int] | None:
    """The mix with one more climb, and with new bands of other tables that make room for it."""
    found = [*mix]
    found[table] = offer
    held = ladder.held(tuple(found))
    for _ in range(ladder.tables):
        over = ladder.over(held)
        if not over.any():
            return found
        best, gain = None, 0
        for other in range(ladder.tables):
            if other == table or found[other] >= ladder.new:
                continue
            freed = ladder.used(other, found[other]) - ladder.used(other, ladder.new)
            if int(freed[over].sum()) > gain:
                best, gain = other, int(freed[over].sum())
        if best is None:
            return None
        found[best] = ladder.new
        held = ladder.held(tuple(found))
    return found if ladder.fits(held) else None


def _down(ladder: OfferLadder, seconds: Floats) -> Iterator[Mix]:
    """From the new plan back: tables that save least for each byte stay where they are first."""
    last = ladder.new
    mix = [last] * ladder.tables
    held = ladder.held(tuple(mix))
    rates = (seconds[:, 0] - seconds[:, last]) / np.maximum(ladder.moved_bytes[:, last], 1)
    full = ladder.new - 2  # all rows where they should be, in the bands that there are
    for table in np.argsort(rates, kind="stable").tolist():
        for offer in (0, full):
            after = held - ladder.used(table, mix[table]) + ladder.used(table, offer)
            if ladder.fits(after):
                held, mix[table] = after, offer
                yield tuple(mix)
                break

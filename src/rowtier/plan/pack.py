"""Somewhere to lie for every row, if there is room at all: the last resort.

Pinned tables first, then the coldest. From the slowest memory inwards rows go to all devices alike
while that fits, then to those that have room left, the coldest rows first, so that fast memory is
left to what is hot. It finds a place whenever the bytes are there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.memory import Room, band_bytes
from rowtier.plan.options import PlanOptions
from rowtier.profile.profile import Profile, TableStats
from rowtier.tables import Exchange


def packed(
    profile: Profile, cluster: Cluster, options: PlanOptions, sync: str = "dense"
) -> Bands | None:
    """A placement that fits and keeps to the pins, or None; copies are kept equal by `sync`."""
    found = _Packer(profile, cluster, options).pack()
    if found is None:
        return None
    changed = {"sync": sync}
    return {
        name: tuple(b.model_copy(update=changed) for b in bands) for name, bands in found.items()
    }


class _Packer:
    def __init__(self, profile: Profile, cluster: Cluster, options: PlanOptions):
        self.profile, self.cluster, self.wanted = profile, cluster, options.constraints
        self.room = Room(cluster, options.reserved)
        self.bands: dict[str, list[Band]] = {s.table.name: [] for s in profile.stats}

    def pack(self) -> Bands | None:
        for unit in self._owned():
            if not self._give_to_one(unit):
                return None
        free = [s for s in self.profile.stats if not self.wanted.one_owner(s.table.name)]
        pinned = [s for s in free if s.table.name in self.wanted.tables]
        rest = [s for s in free if s.table.name not in self.wanted.tables]
        for stats in [*pinned, *sorted(rest, key=self._heat)]:
            if not self._fill(stats, self._places(stats)):
                return None
        return {name: tuple(mine) for name, mine in self.bands.items()}

    def _heat(self, stats: TableStats) -> float:
        return self.profile.lookups_per_step(stats) / stats.table.num_embeddings

    def _owned(self) -> list[list[TableStats]]:
        """Tables that must be on one device, those kept together as one; pinned ones first."""
        units: dict[object, list[TableStats]] = {}
        for stats in self.profile.stats:
            name = stats.table.name
            if self.wanted.one_owner(name):
                group = self.wanted.group(name)
                units.setdefault(name if group is None else group, []).append(stats)

        def rank(unit: list[TableStats]) -> tuple[bool, int]:
            size = sum(stats.table.stored_bytes for stats in unit)
            return self.wanted.device(unit[0].table.name) is None, -size

        return sorted(units.values(), key=rank)

    def _give_to_one(self, unit: list[TableStats]) -> bool:
        pinned = self.wanted.device(unit[0].table.name)
        devices = range(self.cluster.num_devices) if pinned is None else [pinned]
        names = [tier.name for tier in self.cluster.device.tiers]
        most_free = sorted(devices, key=lambda d: -sum(self.room.free_bytes(d, t) for t in names))
        for device in most_free:
            before = self.room.copy()
            if all(self._fill(stats, self._on((device,), stats)) for stats in unit):
                return True
            self.room = before
            for stats in unit:
                self.bands[stats.table.name] = []
        return False

    def _tiers(self, stats: TableStats) -> list[str]:
        pin = self.wanted.pin(stats.table.name).tier
        return [t.name for t in self.cluster.device.tiers[::-1]] if pin is None else [pin]

    def _home(self, stats: TableStats, scope: str, tier: str) -> Band:
        """A band of any rows: each is fetched once, or owners send sums if only that is left."""
        rows = "rows" in self.wanted.exchanges(stats.table)
        sent: Exchange = "rows" if rows else "sums"
        return Band(start=0, stop=1, scope=scope, tier=tier, exchange=sent, coalesced=rows)

    def _on(self, members: tuple[int, ...], stats: TableStats) -> Iterator[Band]:
        for tier in self._tiers(stats):
            home = self._home(stats, self.cluster.top, tier)
            yield home.model_copy(update={"members": members})

    def _places(self, stats: TableStats) -> Iterator[Band]:
        scope = self.wanted.pin(stats.table.name).scope or self.cluster.top
        for tier in self._tiers(stats):
            base = self._home(stats, scope, tier)
            yield base
            if scope == self.cluster.top:
                for members in self._with_room(stats, tier):
                    yield base.model_copy(update={"members": members})
        if scope == self.cluster.top:
            for server in self.cluster.servers:
                members = self.cluster.server_members(server)
                memories = server.tiers if self.wanted.pin(stats.table.name).tier is None else ()
                for memory in memories:
                    home = self._home(stats, scope, memory.name)
                    yield home.model_copy(update={"members": members})
            for device in range(self.cluster.num_devices):
                yield from self._on((device,), stats)

    def _with_room(self, stats: TableStats, tier: str) -> Iterator[tuple[int, ...]]:
        """The devices that have room for a row left, ever fewer of them as they are filled."""
        devices, before = self.cluster.num_devices, self.cluster.num_devices
        while True:
            enough = self.room.free_on(tier)[:devices] >= stats.table.stored_row_bytes
            members = tuple(np.flatnonzero(enough).tolist())
            if not members or len(members) >= before:
                return
            before = len(members)
            yield members

    def _fill(self, stats: TableStats, places: Iterator[Band]) -> bool:
        """Cut the table over places, as much into each as there is room for."""
        table, left = stats.table, stats.table.num_embeddings
        for place in places:
            rows = min(left, self._rows_that_fit(stats, place))
            while rows > 0:
                band = place.model_copy(update={"start": left - rows, "stop": left})
                needed = band_bytes(table, band, self.cluster)
                if self.room.fits(needed, band.tier):
                    self.room.take(needed, band.tier)
                    self.bands[table.name].insert(0, band)
                    left -= rows
                    break
                rows = rows * 15 // 16
            if not left:
                return True
        return False

    def _rows_that_fit(self, stats: TableStats, place: Band) -> int:
        size = stats.table.stored_row_bytes
        if place.members == "all":
            level = self.cluster.level_of(place.scope)
            each = int(self.room.free_of_each(place.tier)) // size
            return each * self.cluster.group_size(level)
        group = self.cluster.members(self.cluster.level_of(place.scope))
        free = [self.room.free_bytes(group[m], place.tier) // size for m in place.members]
        return min(free) * len(free)

"""From choices to bands: rows on all devices first, then owners, then what memory is left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.memory import Room, band_bytes
from rowtier.cost.options import CostOptions
from rowtier.cost.step import step_cost
from rowtier.plan.options import PlanOptions
from rowtier.plan.solve.cuts import Cut, cut_tables
from rowtier.plan.solve.menu import Menu
from rowtier.plan.solve.owners import Owners
from rowtier.plan.solve.prices import Priced
from rowtier.plan.solve.refill import joined, refill, tidied
from rowtier.plan.solve.shares import MULTIPLES, Course
from rowtier.profile.curve import Floats
from rowtier.profile.profile import Profile

MOST_WITHOUT_OWNER = 48  # tries, two for each table that finds no room


@dataclass(frozen=True, eq=False)
class Maker:
    """Turns choices into bands."""

    profile: Profile
    cluster: Cluster
    options: PlanOptions
    cost: CostOptions

    def bands(
        self, menus: list[Menu], priced: Priced, scarce: Floats, pieces: float
    ) -> Bands | None:
        """The bands that were chosen; a table that finds no owner goes without one.

        `scarce` are prices at which owners run out of memory.
        """
        facts = (priced.prices, scarce, self.profile, self.cluster, self.cost)
        courses = [
            Course(menu, choice, index, *facts)
            for index, (menu, choice) in enumerate(zip(menus, priced.choices, strict=True))
        ]
        for course in courses:
            self._pin(course)
        owned = [course for course in courses if course.owned.any()]
        cut = cut_tables(owned, pieces, self.cluster)
        ways = {course.index: cuts for course, cuts in zip(owned, cut, strict=True)}
        for _ in range(MOST_WITHOUT_OWNER):
            found = self._try(courses, ways, scarce)
            if not isinstance(found, int):
                return found
            ways[found] = ways[found][1:2]  # the next best way to cut it, and then none
            if ways[found]:
                continue
            if courses[found].menu.owned.all():
                return None
            courses[found] = courses[found].without_owners()
            del ways[found]
        return None

    def _try(
        self, courses: list[Course], ways: dict[int, list[Cut]], scarce: Floats
    ) -> Bands | int | None:
        """The bands, the index of a table that found no owner, or None if rows do not fit."""
        chosen = [ways[c.index][0].course if c.index in ways else c for c in courses]
        for course in chosen:
            self._pin(course)  # anew, as dealing out pins tables that belong together
        even = self._without_owners(chosen)
        if even is None:
            return None
        bands, room = even
        worth_s = self._worth_s(room, scarce) * MULTIPLES
        memory_s = self._even_memory_s(bands)[:, None] - worth_s
        for others in (list(ways.values()), []):  # if what is cut otherwise does not fit, as it is
            owners = Owners(self.cluster, room.copy(), memory_s)
            without = owners.deal([cuts[0] for cuts in ways.values()])
            if without is not None:
                return without
            owners.level(others)
            even = self._without_owners([owners.courses.get(c.index, c) for c in courses])
            found = None if even is None else self._with_owners(*even, owners)
            if found is not None:
                return found
        return None

    def _without_owners(self, courses: list[Course]) -> tuple[dict[str, list[Band]], Room] | None:
        """The bands of rows that have no owner, and the room that they leave."""
        room = Room(self.cluster, self.options.reserved)
        bands: dict[str, list[Band]] = {}
        for course in courses:
            table, runs = course.menu.stats.table, course.menu.runs(course.choice, course.index)
            bands[table.name] = [band for band, owned in runs if not owned]
            for band in bands[table.name]:
                needed = band_bytes(table, band, self.cluster)
                if not room.fits(needed, band.tier):
                    return None
                room.take(needed, band.tier)
        return bands, room

    def _with_owners(
        self, bands: dict[str, list[Band]], room: Room, owners: Owners
    ) -> Bands | None:
        """The same bands with those of owners, and what is left of fast memory filled."""
        for piece, owner in zip(owners.pieces, owners.owners, strict=True):
            table = piece.course.menu.stats.table
            for band in piece.bands(owner):
                # To be filled from the slowest memory on.
                tier = band.tier if piece.course.tier else self._slowest
                kept = band.model_copy(update={"tier": tier})
                room.take(band_bytes(table, kept, self.cluster), kept.tier)
                bands[table.name].append(kept)
        return self._refilled({name: joined(mine) for name, mine in bands.items()}, room)

    @property
    def _slowest(self) -> str:
        return self.cluster.device.tiers[-1].name

    def _pin(self, course: Course) -> None:
        wanted, name = self.options.constraints, course.menu.stats.table.name
        course.owner, course.whole = wanted.device(name), wanted.one_owner(name)
        course.group, course.tier = wanted.group(name), wanted.pin(name).tier

    def _worth_s(self, room: Room, prices: Floats) -> float:
        """What the memory that a device has left for its own rows is worth at these prices."""
        free = [room.free_of_each(tier.name) for tier in self.cluster.device.tiers]
        return float(prices[: len(free)] @ np.array(free))

    def _even_memory_s(self, bands: dict[str, list[Band]]) -> Floats:
        """How long devices are busy with rows that are on all of them: hot ones are not even."""
        fixed = {name: tuple(mine) for name, mine in bands.items()}
        cost = step_cost(fixed, self.profile, self.cluster, None, self.cost)
        return (cost.time.memory_s + cost.time.work_s)[: self.cluster.num_devices]

    def refilled(self, bands: Bands) -> Bands | None:
        """Bands that fit, with what is left of fast memory filled."""
        room = Room(self.cluster, self.options.reserved)
        for stats in self.profile.stats:
            for band in bands[stats.table.name]:
                room.take(band_bytes(stats.table, band, self.cluster), band.tier)
        return self._refilled({name: list(mine) for name, mine in bands.items()}, room)

    def _refilled(self, bands: dict[str, list[Band]], room: Room) -> Bands | None:
        pins = self.options.constraints.tables
        pinned = frozenset(name for name, pin in pins.items() if pin.tier is not None)
        refilled = refill(bands, self.profile, self.cluster, room, self.cost, pinned)
        # Where a spread band begins and ends decides who has a row more, so look again.
        unjoined = {name: tuple(sorted(b, key=_place)) for name, b in refilled.items()}
        for candidate in (tidied(refilled), unjoined, tidied(bands)):
            if self._fits(candidate):
                return candidate
        return None

    def _fits(self, bands: Bands) -> bool:
        room = Room(self.cluster, self.options.reserved)
        for stats in self.profile.stats:
            for band in bands[stats.table.name]:
                needed = band_bytes(stats.table, band, self.cluster)
                if not room.fits(needed, band.tier):
                    return False
                room.take(needed, band.tier)
        return True


def _place(band: Band) -> tuple[int, tuple[int, int]]:
    return band.start, band.columns or (0, 0)

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
from rowtier.plan.solve.cuts import cut_tables
from rowtier.plan.solve.menu import Menu
from rowtier.plan.solve.owners import Owners
from rowtier.plan.solve.prices import Priced
from rowtier.plan.solve.refill import joined, refill, tidied
from rowtier.plan.solve.shares import MULTIPLES, Course
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile

MOST_WITHOUT_OWNER = 24
MOST_PASSES = 2  # over tables that are not worth cutting


@dataclass(frozen=True, eq=False)
class Maker:
    """Turns choices into bands."""

    profile: Profile
    cluster: Cluster
    options: PlanOptions
    cost: CostOptions

    def bands(self, menus: list[Menu], priced: Priced, pieces: float) -> Bands | None:
        """The bands that were chosen; a table that finds no owner goes without one."""
        menus, choices = list(menus), list(priced.choices)
        for _ in range(MOST_PASSES):
            for index in self._not_worth_it(menus, choices, priced.prices, pieces):
                self._without_owner(index, menus, choices, priced)
        for _ in range(MOST_WITHOUT_OWNER):
            found = self._try(menus, choices, priced.prices, pieces)
            if not isinstance(found, int):
                return found
            if menus[found].owned.all():
                return None
            self._without_owner(found, menus, choices, priced)
        return None

    def _without_owner(
        self, index: int, menus: list[Menu], choices: list[Ints], priced: Priced
    ) -> None:
        menus[index] = menus[index].without_owners()
        choices[index] = menus[index].choose(priced.prices, 0)

    def _not_worth_it(
        self, menus: list[Menu], choices: list[Ints], prices: Floats, pieces: float
    ) -> list[int]:
        """Tables that gain less by having owners than cutting them among owners costs."""
        courses = [
            self._course(menu, choice, index, prices)
            for index, (menu, choice) in enumerate(zip(menus, choices, strict=True))
            if menu.owned[choice].any() and not menu.owned.all()
        ]
        found = []
        for course, cut in zip(courses, cut_tables(courses, pieces, self.cluster), strict=True):
            menu = course.menu
            if cut.overhead_s:
                gain_s = menu.without_owners().least(prices)[0] - menu.least(prices)[0]
                if cut.overhead_s > gain_s:
                    found.append(course.index)
        return found

    def _try(
        self, menus: list[Menu], choices: list[Ints], prices: Floats, pieces: float
    ) -> Bands | int | None:
        """The bands, the index of a table that found no owner, or None if rows do not fit."""
        room = Room(self.cluster, self.options.reserved)
        bands: dict[str, list[Band]] = {}
        courses: list[Course] = []
        for index, (menu, choice) in enumerate(zip(menus, choices, strict=True)):
            table, runs = menu.stats.table, list(menu.runs(choice, offset=index))
            bands[table.name] = [band for band, owned in runs if not owned]
            if any(owned for _, owned in runs):
                courses.append(self._course(menu, choice, index, prices))
            for band in bands[table.name]:
                needed = band_bytes(table, band, self.cluster)
                if not room.fits(needed, band.tier):
                    return None
                room.take(needed, band.tier)
        worth_s = self._worth_s(room, prices) * MULTIPLES
        memory_s = self._even_memory_s(bands)[:, None] - worth_s
        owners = Owners(self.cluster, room.copy(), memory_s)
        cuts = cut_tables(courses, pieces, self.cluster)
        without = owners.deal(cuts)
        if without is not None:
            return without
        owners.level()
        for piece, owner in zip(owners.pieces, owners.owners, strict=True):
            table = piece.course.menu.stats.table
            for band in piece.bands(owner):
                # To be filled from the slowest memory on.
                tier = band.tier if piece.node or piece.course.tier else self._slowest
                kept = band.model_copy(update={"tier": tier})
                room.take(band_bytes(table, kept, self.cluster), kept.tier)
                bands[table.name].append(kept)
        return self._refilled({name: joined(mine) for name, mine in bands.items()}, room)

    @property
    def _slowest(self) -> str:
        return self.cluster.device.tiers[-1].name

    def _course(self, menu: Menu, choice: Ints, index: int, prices: Floats) -> Course:
        wanted, name = self.options.constraints, menu.stats.table.name
        course = Course(menu, choice, index, prices, self.profile, self.cluster, self.cost)
        course.owner, course.whole = wanted.device(name), wanted.one_owner(name)
        course.group, course.tier = wanted.group(name), wanted.pin(name).tier
        return course

    def _worth_s(self, room: Room, prices: Floats) -> float:
        """What the memory that a device has left for its own rows is worth at these prices."""
        free = [room.free_of_each(tier.name) for tier in self.cluster.device.tiers]
        return float(prices[: len(free)] @ np.array(free))

    def _even_memory_s(self, bands: dict[str, list[Band]]) -> Floats:
        """How long devices are busy with rows that are on all of them: hot ones are not even."""
        fixed = {name: tuple(mine) for name, mine in bands.items()}
        cost = step_cost(fixed, self.profile, self.cluster, None, self.cost)
        return cost.time.memory_s[: self.cluster.num_devices]

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

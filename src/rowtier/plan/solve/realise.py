"""From choices to bands: rows on all devices first, then owners, then what memory is left."""

from __future__ import annotations

from dataclasses import dataclass

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.memory import Room, band_bytes
from rowtier.cost.options import CostOptions
from rowtier.cost.step import step_cost
from rowtier.plan.options import PlanOptions
from rowtier.plan.solve.menu import Menu
from rowtier.plan.solve.owners import Owners
from rowtier.plan.solve.prices import Priced
from rowtier.plan.solve.refill import refill, tidied
from rowtier.plan.solve.shares import Course, cut_tables
from rowtier.profile.curve import Ints
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
            for index in self._not_worth_it(menus, choices, priced, pieces):
                self._without_owner(index, menus, choices, priced)
        for _ in range(MOST_WITHOUT_OWNER):
            found = self._try(menus, choices, pieces)
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
        self, menus: list[Menu], choices: list[Ints], priced: Priced, pieces: float
    ) -> list[int]:
        """Tables that gain less by having owners than cutting them among owners costs."""
        courses = [
            self._course(menu, choice, index)
            for index, (menu, choice) in enumerate(zip(menus, choices, strict=True))
            if menu.owned[choice].any() and not menu.owned.all()
        ]
        found = []
        for course, cut in zip(courses, cut_tables(courses, pieces, self.cluster), strict=True):
            menu = course.menu
            gain_s = menu.without_owners().least(priced.prices)[0] - menu.least(priced.prices)[0]
            if cut.overhead_s > gain_s:
                found.append(course.index)
        return found

    def _try(self, menus: list[Menu], choices: list[Ints], pieces: float) -> Bands | int | None:
        """The bands, the index of a table that found no owner, or None if rows do not fit."""
        room = Room(self.cluster, self.options.reserved)
        bands: dict[str, list[Band]] = {}
        courses: list[Course] = []
        for index, (menu, choice) in enumerate(zip(menus, choices, strict=True)):
            table, runs = menu.stats.table, list(menu.runs(choice, offset=index))
            bands[table.name] = [band for band, owned in runs if not owned]
            if any(owned for _, owned in runs):
                courses.append(self._course(menu, choice, index))
            for band in bands[table.name]:
                needed = band_bytes(table, band, self.cluster)
                if not room.fits(needed, band.tier):
                    return None
                room.take(needed, band.tier)
        owners = Owners(self.cluster, room, self._even_memory_s(bands))
        cuts = cut_tables(courses, pieces, self.cluster)
        without = owners.deal([piece for cut in cuts for piece in cut.pieces])
        if without is not None:
            return without
        owners.level()
        for piece, owner in zip(owners.pieces, owners.owners, strict=True):
            bands[piece.course.menu.stats.table.name] += piece.bands(owner)
        return self._refilled(bands, room)

    def _course(self, menu: Menu, choice: Ints, index: int) -> Course:
        wanted, name = self.options.constraints, menu.stats.table.name
        course = Course(menu, choice, index, self.profile, self.cluster, self.cost)
        course.owner, course.whole = wanted.device(name), wanted.one_owner(name)
        course.group = wanted.group(name)
        return course

    def _even_memory_s(self, bands: dict[str, list[Band]]) -> list[float]:
        """How long devices are busy with rows that are on all of them: hot ones are not even."""
        fixed = {name: tuple(mine) for name, mine in bands.items()}
        cost = step_cost(fixed, self.profile, self.cluster, None, self.cost)
        busy_s: list[float] = cost.time.memory_s[: self.cluster.num_devices].tolist()
        return busy_s

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

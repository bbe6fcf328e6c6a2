"""From choices at prices to bands: divide, pack, spread, fill.

Every table has chosen which rows have owners (`rows.py`). Large tables are divided among owners in
one of several ways (`ways.py`), all pieces are packed onto devices (`pack.py`), rows that are
spread anyway level what is left uneven (`spread.py`), and what is left of fast memory is filled
(`fill.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.memory import Ints, Room, band_bytes, row_bytes
from rowtier.cost.options import CostOptions
from rowtier.cost.step import StepCost, step_cost
from rowtier.cost.tree import tree_of
from rowtier.plan.joint.dual import Priced
from rowtier.plan.joint.place.bands import bands_of
from rowtier.plan.joint.place.fill import fill, joined, tidied
from rowtier.plan.joint.place.menu import Menu
from rowtier.plan.joint.place.nodes import with_places
from rowtier.plan.joint.place.placing import Placed, Placing
from rowtier.plan.joint.place.rows import Pinned, PlacedRows, Setting
from rowtier.plan.joint.place.spread import Spread
from rowtier.plan.options import PlanOptions
from rowtier.plan.watch import ALONE
from rowtier.profile.curve import Floats
from rowtier.profile.profile import Profile

LEVELLED = 4  # rounds of spreading unevenly
WORTH_LEVELLING = 5e-3  # of a step, that the busiest memory must be above the mean


@dataclass(frozen=True, eq=False)
class Maker:
    """Turns choices into bands."""

    profile: Profile
    cluster: Cluster
    options: PlanOptions
    cost: CostOptions
    stop: Callable[[], bool] = ALONE.stop

    def bands(
        self, menus: Sequence[Menu], priced: Priced, scarce: Floats, *, evenly: bool = True
    ) -> tuple[Bands, StepCost] | None:
        """The bands that were chosen and their cost; a table that finds no owner goes without one.

        `scarce` are prices at which owners run out of memory. If what should be spread unevenly
        does not fit so, it is spread evenly, or, without `evenly`, nothing is made.
        """
        setting = Setting(self.profile, self.cluster, self.cost, priced.prices, scarce)
        tables = [
            PlacedRows.of(setting, index, menu, self._pinned(menu))
            for index, menu in enumerate(menus)
        ]
        plan = Placing(setting, tables, self.options.reserved, priced.seconds, self.stop).best()
        return None if plan is None else self._levelled(tables, plan, evenly)

    def _levelled(
        self, tables: Sequence[PlacedRows], plan: Placed, evenly: bool
    ) -> tuple[Bands, StepCost] | None:
        """Bands with what is spread anyway spread so that devices end alike.

        How busy memory is shows when it is filled; what is more than was counted on is counted
        on in the next round.
        """
        load, best = plan.packed.load.copy(), None
        for _ in range(LEVELLED):
            spread = plan.levelling.spread(load, plan.packed.free_bytes)
            found = self._made(tables, plan, spread)
            if found is None or (best is not None and found[1].step_s >= best[1].step_s):
                break
            best = found
            time = found[1].time
            more_s = time.memory_s - time.memory_s.mean()
            if not spread.sets or more_s.max() <= WORTH_LEVELLING * time.step_s:
                break
            load[:, 2 * len(self.cluster.levels) :] += more_s[: len(load), None]
        return best or (self._made(tables, plan, Spread()) if evenly else None)

    def _made(
        self, tables: Sequence[PlacedRows], plan: Placed, spread: Spread
    ) -> tuple[Bands, StepCost] | None:
        """The bands of a way to spread what is spread, with fast memory filled."""
        made = bands_of(tables, plan.divisions, plan.divided, plan.packed, spread)
        whole = {name: joined(mine) for name, mine in made.items()}
        bands = self._filled(with_places(whole, self.profile, self.cluster, self.cost))
        if bands is None:
            return None
        return bands, step_cost(bands, self.profile, self.cluster, None, self.cost)

    def _pinned(self, menu: Menu) -> Pinned:
        wanted, name = self.options.constraints, menu.stats.table.name
        whole = wanted.one_owner(name)
        return Pinned(wanted.device(name), whole, wanted.pin(name).tier, wanted.group(name))

    def refilled(self, bands: Bands) -> Bands | None:
        """Bands that fit, with what is left of fast memory filled."""
        return self._filled({name: list(mine) for name, mine in bands.items()})

    def _filled(self, bands: dict[str, list[Band]]) -> Bands | None:
        room = Room(self.cluster, self.options.reserved)
        self._take(room, bands)
        pins = self.options.constraints.tables
        pinned = frozenset(name for name, pin in pins.items() if pin.tier is not None)
        filled = fill(bands, self.profile, self.cluster, room, self.cost, pinned)
        # Where a spread band begins and ends decides who has a row more, so look again.
        unjoined = {name: tuple(sorted(b, key=_place)) for name, b in filled.items()}
        for candidate in (tidied(filled), unjoined, tidied(bands)):
            if self.fits(candidate):
                return candidate
        return None

    def with_ends_joined(self, bands: Bands) -> Bands | None:
        """The last rows of as many tables as there is room for, kept as those before them are.

        Rows that are hardly looked up gain nothing in fast memory, but a band takes work.
        """
        tables = {stats.table.name: stats.table for stats in self.profile.stats}
        longer = {name: one for name, mine in bands.items() if (one := _end_joined(mine))}
        ends = {name: bands[name][-1] for name in longer}
        names = sorted(ends, key=lambda n: ends[n].rows * row_bytes(tables[n], ends[n]))
        fitting, least, most = None, 1, len(names)
        while least <= most:
            count = (least + most + 1) // 2
            changed = {**bands, **{name: longer[name] for name in names[:count]}}
            if self.fits(changed):
                fitting, least = changed, count + 1
            else:
                most = count - 1
        return fitting

    def fits(self, bands: Mapping[str, Sequence[Band]]) -> bool:
        """Whether there is room for all rows."""
        left = Room(self.cluster, self.options.reserved)
        self._take(left, bands)
        return all(left.free_on(tier).min() >= 0 for tier in self.cluster.tier_names)

    def _take(self, room: Room, bands: Mapping[str, Sequence[Band]]) -> None:
        """Take what bands need; less than nothing is left where they do not fit."""
        tree = tree_of(self.cluster)
        used: Ints = np.zeros((len(tree.columns), tree.holders), dtype=np.int64)
        for stats in self.profile.stats:
            for band in bands[stats.table.name]:
                mine = used[tree.columns[band.tier]]
                if len(band.members) == 1 and band.scope == self.cluster.top:
                    mine[band.members[0]] += band.rows * row_bytes(stats.table, band)
                else:
                    mine += band_bytes(stats.table, band, self.cluster)
        for tier, column in tree.columns.items():
            room.take(used[column], tier)


def _end_joined(bands: Sequence[Band]) -> tuple[Band, ...] | None:
    """The last band kept as the one before; None if there is none, or other columns lie beside."""
    if len(bands) < 2 or bands[-1].columns or bands[-2].columns:
        return None
    return (*bands[:-2], bands[-2].model_copy(update={"stop": bands[-1].stop}))


def _place(band: Band) -> tuple[int, tuple[int, int]]:
    return band.start, band.columns or (0, 0)

"""`joint`: exchange, scope, members, columns and tier together, for the least step time.

1. price every way to keep a row, per table and bucket (solve/menu.py);
2. find prices for memory at which everything fits; they prove a lower bound;
3. let every table choose: rows that go by partial sums get one owner each, and owners are
   balanced; everything else is spread over all devices alike;
4. compare with what the other methods give, by the same cost model, and return the best:
   joint is never worse than any of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.memory import Room, band_bytes, row_bytes
from rowtier.cost.options import CostOptions
from rowtier.cost.step import step_cost
from rowtier.errors import InfeasibleError
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Certificate, Plan
from rowtier.plan.solve.menu import Menu, memories, menu_of, sums_seconds
from rowtier.plan.solve.prices import Priced, best_prices
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile
from rowtier.units import show_bytes

SLACKS = (1.0, 0.97, 0.9)  # of memory that prices may fill: owners never fill it evenly
PIECES = (1, 2, 4)  # per device: more of them are easier to balance, but repeat ids
LEAST_COLUMNS = 8
MOST_WITHOUT_OWNER = 24


def plan(profile: Profile, cluster: Cluster, options: PlanOptions) -> Plan:
    """Place every row for the least step time, with a bound on how much less is possible."""
    cost = CostOptions()
    menus = [menu_of(stats, profile, cluster, cost) for stats in profile.stats]
    capacity = np.array([size for _, size in memories(cluster, options.reserve)])
    priced, bound = best_prices(menus, capacity)
    found: list[Bands] = []
    maker = _Maker(profile, cluster, options, cost)
    scarce = bool((priced.used_bytes > min(SLACKS) * capacity).any())
    for slack in SLACKS if scarce else SLACKS[:1]:
        choice = priced if slack == 1.0 else best_prices(menus, slack * capacity)[0]
        found += [bands for pieces in PIECES if (bands := maker.bands(menus, choice, pieces))]
    even = [menu.without_sums() for menu in menus]
    found += filter(None, [maker.bands(even, best_prices(even, capacity)[0], 1)])
    found += _other_methods(profile, cluster, options)
    if not found:
        raise _infeasible(profile, cluster, options.reserve)
    costs = [step_cost(bands, profile, cluster, None, cost).step_s for bands in found]
    best = int(np.argmin(costs))
    certificate = Certificate(
        view="step",
        objective=costs[best],
        bound=max(0.0, min(bound, costs[best])),
        binding=_binding(priced, capacity, cluster),
    )
    return Plan.build("joint", profile, cluster, found[best], certificate)


def _other_methods(profile: Profile, cluster: Cluster, options: PlanOptions) -> list[Bands]:
    from rowtier.plan.make import METHODS, planner

    found = []
    for method in METHODS:
        if method == "joint" or method.endswith("milp"):
            continue
        try:
            found.append(planner(method)(profile, cluster, options).bands)
        except InfeasibleError:
            continue
    return found


@dataclass(frozen=True, eq=False)
class _Owned:
    """What one owner is to hold of a table: some columns of the rows that go by sums."""

    menu: Menu
    bands: tuple[Band, ...]  # of the table, without owner and columns
    columns: tuple[int, int] | None
    seconds: Floats  # that the owner is busy with it: memory, ids that come, sums that go

    def needs(self, tiers: dict[str, str]) -> dict[str, int]:
        """Bytes of each tier, where rows of a tier are kept in `tiers[it]`."""
        table, needed = self.menu.stats.table, dict.fromkeys(tiers.values(), 0)
        for band in self.bands:
            cut = band.model_copy(update={"columns": self.columns})
            needed[tiers[band.tier]] += band.rows * row_bytes(table, cut)
        return needed


@dataclass(frozen=True, eq=False)
class _Maker:
    """Turns choices into bands."""

    profile: Profile
    cluster: Cluster
    options: PlanOptions
    cost: CostOptions

    def bands(self, menus: list[Menu], priced: Priced, pieces: int) -> Bands | None:
        """The bands that were chosen; a table that finds no owner goes without one."""
        menus, choices = list(menus), list(priced.choices)
        for _ in range(MOST_WITHOUT_OWNER):
            found = self._try(menus, choices, pieces)
            if not isinstance(found, str):
                return found
            index = next(i for i, m in enumerate(menus) if m.stats.table.name == found)
            menus[index] = menus[index].without_sums()
            choices[index] = menus[index].choose(priced.prices, 0)
        return None

    def _try(self, menus: list[Menu], choices: list[Ints], pieces: int) -> Bands | str | None:
        """The bands, the name of a table that found no owner, or None if rows do not fit."""
        room = Room(self.cluster, self.options.reserve)
        bands: dict[str, list[Band]] = {}
        owned: list[_Owned] = []
        for index, (menu, choice) in enumerate(zip(menus, choices, strict=True)):
            table, mine = menu.stats.table, list(_runs(menu, choice, offset=index))
            bands[table.name] = [b for b in mine if b.exchange == "rows"]
            sums = tuple(b for b in mine if b.exchange == "sums")
            if sums:
                seconds = _owner_seconds(menu, choice, self.profile, self.cluster, self.cost)
                owned.append(_Owned(menu, sums, None, seconds))
            for band in bands[table.name]:
                needed = band_bytes(table, band, self.cluster)
                if not room.fits(needed, band.tier):
                    return None
                room.take(needed, band.tier)
        cut = list(_cut(owned, pieces, self.cluster))
        without = _find_owners(cut, bands, room, self.cluster)
        if without is not None:
            return without
        return {name: tuple(sorted(b, key=_place)) for name, b in bands.items()}


def _place(band: Band) -> tuple[int, tuple[int, int]]:
    return band.start, band.columns or (0, 0)


def _runs(menu: Menu, choice: Ints, offset: int) -> Iterator[Band]:
    """One band for every run of buckets with the same home."""
    edges = np.flatnonzero(np.diff(choice)) + 1
    for first, last in pairwise([0, *edges.tolist(), len(choice)]):
        start = int(menu.stops[first - 1]) if first else 0
        home = menu.homes[int(choice[first])].band
        changes = {"start": start, "stop": int(menu.stops[last - 1]), "offset": offset}
        yield home.model_copy(update=changes)


def _owner_seconds(
    menu: Menu, choice: Ints, profile: Profile, cluster: Cluster, cost: CostOptions
) -> Floats:
    """How long the owner of a table's sums is busy for it: memory, ids that come, sums that go."""
    by_sums = menu.by_sums[choice] == 1
    buckets = np.arange(len(choice))[by_sums]
    homes, widths = choice[by_sums], menu.widths[by_sums]
    memory_s = float(menu.memory_s[homes, buckets] @ widths)
    asking_s = float((menu.seconds - menu.memory_s)[homes, buckets] @ widths)
    mass = np.array(float(menu.mass[by_sums] @ widths))
    sums_s = float(sums_seconds(menu.stats, profile, cluster, cost, np.minimum(mass, 1.0)))
    return np.array([memory_s, asking_s, sums_s]) * cluster.num_devices


def _find_owners(
    pieces: list[_Owned], bands: dict[str, list[Band]], room: Room, cluster: Cluster
) -> str | None:
    """Give the heaviest piece first, where the peaks of all loads together rise the least.

    Returns the name of a table that there is no room for, if there is one.
    """
    busy = np.zeros((3, cluster.num_devices))
    for piece in sorted(pieces, key=lambda one: -float(one.seconds.sum())):
        peaks = np.maximum(busy + piece.seconds[:, None], busy.max(axis=1, keepdims=True))
        order = np.lexsort((busy.sum(axis=0), peaks.sum(axis=0)))
        placed = _give(piece, order, room, cluster)
        if placed is None:
            return piece.menu.stats.table.name
        owner, mine = placed
        busy[:, owner] += piece.seconds
        bands[piece.menu.stats.table.name] += mine
    return None


def _cut(owned: list[_Owned], pieces: int, cluster: Cluster) -> Iterator[_Owned]:
    """Pieces of columns, each a fraction of what a device can take of time and of memory."""
    mean = sum((one.seconds for one in owned), np.zeros(3)) / cluster.num_devices
    same = {tier.name: tier.name for tier in cluster.device.tiers}
    for one in owned:
        parts = list(one.seconds / np.maximum(mean, 1e-30))
        for tier in cluster.device.tiers:
            parts.append(one.needs(same).get(tier.name, 0) / tier.capacity_bytes)
        dim = one.menu.stats.table.embedding_dim
        count = int(np.clip(np.ceil(pieces * max(parts)), 1, max(1, dim // LEAST_COLUMNS)))
        for first, last in pairwise([dim * index // count for index in range(count + 1)]):
            share = np.array([(last - first) / dim, 1.0, (last - first) / dim])
            columns = None if count == 1 else (first, last)
            yield replace(one, columns=columns, seconds=one.seconds * share)


def _give(
    piece: _Owned, by_load: Ints, room: Room, cluster: Cluster
) -> tuple[int, list[Band]] | None:
    """The first device with room; where none has it, rows go one memory further out."""
    names = [tier.name for tier in cluster.device.tiers]
    for outwards in range(len(names)):
        tiers = {t: names[min(i + outwards, len(names) - 1)] for i, t in enumerate(names)}
        needed = piece.needs(tiers)
        for owner in by_load.tolist():
            if all(room.free_bytes(owner, tier) >= amount for tier, amount in needed.items()):
                for tier, amount in needed.items():
                    room.take_from(owner, tier, amount)
                changes = {"members": (owner,), "columns": piece.columns}
                mine = [
                    band.model_copy(update={**changes, "tier": tiers[band.tier]})
                    for band in piece.bands
                ]
                return owner, _joined(mine)
    return None


def _joined(bands: list[Band]) -> list[Band]:
    """Neighbouring bands that came to be alike are one."""
    joined: list[Band] = []
    for band in bands:
        last = joined[-1] if joined else None
        if last and last.stop == band.start and last.tier == band.tier:
            joined[-1] = last.model_copy(update={"stop": band.stop})
        else:
            joined.append(band)
    return joined


def _binding(priced: Priced, capacity: Floats, cluster: Cluster) -> str:
    """What stops the plan from being better, in words."""
    names = [name for name, _ in memories(cluster)]
    dearest = int(np.argmax(priced.prices * capacity))
    if priced.used_bytes[dearest] > 0.99 * capacity[dearest]:
        saved_s = priced.prices[dearest] * 2**30
        return f"capacity of {names[dearest]}: one more GiB per device saves {saved_s:.3g} s a step"
    return "bandwidths and latencies: more memory would save nothing"


def _infeasible(profile: Profile, cluster: Cluster, reserve: float) -> InfeasibleError:
    needed = sum(stats.table.stored_bytes for stats in profile.stats)
    there = sum(size for _, size in memories(cluster, reserve)) * cluster.num_devices
    less = f" (with {reserve:.0%} reserved)" if reserve else ""
    return InfeasibleError(
        f"the tables need {show_bytes(needed)} and {cluster.name!r} has {show_bytes(there)}{less}: "
        "add capacity, a tier or devices"
    )

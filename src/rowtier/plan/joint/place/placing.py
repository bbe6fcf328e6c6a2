"""Tables divided and packed, in a few ways: the one that promises the least step time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rowtier.cost.memory import Reserve, Room
from rowtier.plan.joint.place.pack import pack
from rowtier.plan.joint.place.pieces import Divided, TableParts, divided, parts_of
from rowtier.plan.joint.place.rows import MULTIPLES, PlacedRows, Setting
from rowtier.plan.joint.place.spread import Levelling, Spreadable, may_be_uneven
from rowtier.plan.joint.place.vectors import Aim, Packed, Space, peaks
from rowtier.plan.joint.place.ways import (
    HEAVY,
    Division,
    Means,
    Ways,
    Wish,
    choose,
    joined_ways,
    ways_of,
)
from rowtier.plan.watch import ALONE
from rowtier.profile.curve import Floats, Ints

SCALE = 0.01  # of a step: an excess over the aims that is large
GRAVEL = 0.06  # of a device: tables that are cheap to cut by rows are cut as small
CHEAP = 1.03  # times as many sums if a table is cut into eight runs: next to none is repeated
WITHOUT_ROOM = 48  # tables that may lose their owners as they find no room
# How large pieces may be before they are hard to pack: what is best differs, so some are tried.
WISHES = (
    Wish(0.5, 0.8, 0.4, 0.01),
    Wish(0.35, 1.0, 0.5, 0.004),
    Wish(0.4, 0.7, 0.3, 0.008),
    Wish(0.4, 0.4, 0.25, 0.008),
    Wish(0.5, 1.0, 0.5, 0.002),
    Wish(0.25, 0.25, 0.25, 0.1),
    Wish(1.0, 1.0, 0.6, 0.02),
)
ROUNDS = (  # wishes that are tried, proposals for each of their pieces, and at most
    (len(WISHES), 300, 300_000),
    (3, 1_200, 1_200_000),
)
FINALISTS = 3  # divisions that are searched for longest, as the order among them may change
LAST = (4_000, 3_000_000)  # proposals for each of their pieces, and at most
TRIED = (600, 500_000)  # the same for a table that is divided otherwise
OTHERWISE = 3_000_000  # of these proposals, for one table after the other
WAYS_TRIED, FEWEST = 150, 12  # of other ways, at most, and what is worth beginning with


class Placed(NamedTuple):
    """Divisions of all tables, and their pieces on devices."""

    divisions: Sequence[Division]
    divided: Divided
    packed: Packed
    levelling: Levelling
    peaks_s: float  # above what all devices have on average
    cost_s: float  # about what a step takes, but for what all have alike


class _Whole(NamedTuple):
    """What tables ask of one owner, by table."""

    ids_s: Floats  # at the widest level
    sums_s: Floats
    memory_s: Floats  # by price
    bytes: Floats
    mass: Floats


@dataclass(frozen=True, eq=False)
class Placing:
    """Tables that are to be placed."""

    setting: Setting
    tables: Sequence[PlacedRows]
    reserve: Reserve
    step_s: float  # about what a step takes
    stop: Callable[[], bool] = ALONE.stop  # whether what was found is to do

    def best(self) -> Placed | None:
        """The most promising way to divide and pack; None without room.

        Those that promise most are searched for longer.
        """
        found: list[tuple[Placed, Wish]] = []
        wishes: Sequence[Wish] = WISHES
        for count, for_each, most in ROUNDS if len(self._heavy) else ((1, *LAST),):
            tried = set()
            for wish in wishes[:count]:
                if found and self.stop():
                    return found[0][0]
                divisions = self._divisions(wish)
                if tuple(divisions) in tried:
                    continue
                tried.add(tuple(divisions))
                placed = self._placed(divisions, for_each, most)
                if placed is not None:
                    found.append((placed, wish))
            found.sort(key=lambda one: one[0].cost_s)
            wishes = list(dict.fromkeys(wish for _, wish in found))
        if not found or not len(self._heavy):
            return found[0][0] if found else None
        best = self._otherwise(found[0][0])
        others = [one for one, _ in found if one.divisions != found[0][0].divisions]
        unlike = list(dict.fromkeys(tuple(one.divisions) for one in (best, *others)))
        for ways in unlike[:FINALISTS]:
            if self.stop():
                break
            longer = self._placed(list(ways), *LAST)
            best = best if longer is None else min(best, longer, key=lambda one: one.cost_s)
        return best

    def _otherwise(self, best: Placed) -> Placed:
        """Tables divided in other ways, one after the other, where that promises less.

        At best, all peaks vanish.
        """
        count = max(1, len(best.divided.pieces.load))
        tries = min(WAYS_TRIED, OTHERWISE // (TRIED[0] * count))
        tried = 0
        for place, division, cost_s in self._by_promise(best) if tries >= FEWEST else ():
            if tried == tries or self.stop():
                break
            now_s = self._cost_s(place, best.divisions[place])
            if division == best.divisions[place] or cost_s - now_s >= best.peaks_s:
                continue
            tried += 1
            others = list(best.divisions)
            others[place] = division
            found = self._placed(others, *TRIED)
            if found is not None and found.cost_s < best.cost_s:
                best = found
        return best

    def _by_promise(self, best: Placed) -> list[tuple[int, Division, float]]:
        """The cheapest way of every kind for every heavy table, those that may save most first."""
        found: dict[tuple[int, ...], tuple[float, Division]] = {}
        ways = self._ways if len(self._heavy) else None
        for way in range(0 if ways is None else len(ways.table)):
            assert ways is not None
            place, division = int(ways.table[way]), Division(*ways.division[way].tolist())
            key, cost_s = (place, *division[1:]), float(ways.cost_s[way])
            if key not in found or cost_s < found[key][0]:
                found[key] = cost_s, division
        more_s = {
            key: cost_s - self._cost_s(key[0], best.divisions[key[0]])
            for key, (cost_s, _) in found.items()
        }
        order = sorted(found, key=lambda key: more_s[key])
        return [(key[0], found[key][1], found[key][0]) for key in order]

    def _placed(self, divisions: list[Division], for_each: int, most: int) -> Placed | None:
        """Tables that find no room go without owners."""
        for _ in range(WITHOUT_ROOM):
            parts = [self._parts(place, one) for place, one in enumerate(divisions)]
            pieces = divided(self.tables, parts, self._tiers)
            levelling = self._levelling(divisions)
            proposals = min(most, for_each * len(pieces.pieces.load))
            found = self._packed(pieces, divisions, levelling, proposals)
            if not isinstance(found, int):
                packed, peaks_s = found
                cost_s = sum(
                    self._cost_s(place, divisions[place]) for place in self._heavy.tolist()
                )
                return Placed(divisions, pieces, packed, levelling, peaks_s, cost_s + peaks_s)
            place = int(pieces.group_table[found])
            if not self.tables[place].may_spread:
                return None
            divisions = [*divisions[:place], Division(0), *divisions[place + 1 :]]
        return None

    @cached_property
    def _known_parts(self) -> dict[tuple[int, Division], TableParts]:
        return {}

    def _parts(self, place: int, division: Division) -> TableParts:
        """The pieces of a table, which mostly is divided as before."""
        key = (place, division)
        if key not in self._known_parts:
            self._known_parts[key] = parts_of(self.tables[place], division, self.means)
        return self._known_parts[key]

    @cached_property
    def _known_use(self) -> dict[tuple[int, int], Floats]:
        return {}

    @cached_property
    def _whole(self) -> _Whole:
        link_s, share = self.setting.widest_s, self.setting.widest_share
        asked = np.array([rows.owned_parts[:, : rows.count].sum(axis=1) for rows in self.tables])
        mass = np.clip(asked[:, 1], 0.0, 1.0)
        sums = [
            r.bags.sums(m[None])[0] * r.sum_bytes for r, m in zip(self.tables, mass, strict=True)
        ]
        each = np.array([rows.menu.stats.table.stored_row_bytes for rows in self.tables])
        return _Whole(
            asked[:, 0] * share, link_s * np.array(sums), asked[:, 5:], asked[:, 2] * each, mass
        )

    @cached_property
    def _free_bytes(self) -> Floats:
        """By device and tier, for rows of any kind; of what is shared, a device's part."""
        cluster, room = self.setting.cluster, Room(self.setting.cluster, self.reserve)
        found = []
        for tier in cluster.device.tiers:
            level = 0 if tier.shared_by is None else cluster.level_of(tier.shared_by)
            found.append(
                room.free_on(tier.name)[: self.setting.devices] / cluster.group_size(level)
            )
        return np.array(found).T

    def _left_bytes(self, divisions: Sequence[Division]) -> Floats:
        """The same for rows with owners."""
        used = np.zeros(len(self.setting.prices))
        for place, division in enumerate(divisions):
            key = (place, division.buckets)
            if key not in self._known_use:
                self._known_use[key] = self.tables[place].even_bytes(division.buckets)
            used += self._known_use[key]
        return np.asarray(self._free_bytes - used[: self._free_bytes.shape[1]])

    @cached_property
    def _undivided(self) -> list[Division]:
        return [Division(rows.count) for rows in self.tables]

    @cached_property
    def means(self) -> Means:
        """What a device is busy with if every table had one owner."""
        setting, whole = self.setting, self._whole
        priced_s = np.maximum(whole.memory_s.sum(axis=0) / setting.devices, 1e-300)
        left = np.maximum(self._left_bytes(self._undivided).mean(axis=0), 0.0)
        worth_s = MULTIPLES * float(setting.scarce[: len(left)] @ left)
        levelling = self._levelling(self._undivided)
        return Means(
            float(whole.ids_s.sum()) / setting.devices,
            float(whole.sums_s.sum()) / setting.devices + levelling.sums_s,
            float((priced_s - worth_s).max()) + levelling.memory_s,
            worth_s,
            priced_s,
            self.step_s,
            setting.devices,
        )

    @cached_property
    def _size(self) -> Floats:
        """How much of a device each table is, in what it is most of."""
        whole, means = self._whole, self.means
        parts = [whole.ids_s / max(means.ids_s, 1e-300), whole.sums_s / max(means.sums_s, 1e-300)]
        parts.append((whole.memory_s / means.priced_s).max(axis=1))
        alone_s = (whole.memory_s - means.worth_s).max(axis=1)
        if means.memory_s > 0:
            parts.append(alone_s / means.memory_s)
        parts.append(whole.bytes / float(self._free_bytes.sum(axis=1).min()))
        return np.asarray(np.max(parts, axis=0))

    @cached_property
    def _heavy(self) -> Ints:
        """Tables that are a large part of a device."""
        may = [rows.count > 0 and not rows.pinned.whole for rows in self.tables]
        if self.setting.devices == 1:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero((self._size > HEAVY) & may)

    @cached_property
    def _ways(self) -> Ways:
        capacity = float(self._free_bytes.sum(axis=1).min())
        return joined_ways(
            [
                ways_of(
                    place,
                    self.tables[place],
                    self.means,
                    capacity,
                    min(self.setting.devices, max(16, int(8 * self._size[place]) + 1)),
                )
                for place in self._heavy.tolist()
            ]
        )

    @cached_property
    def _known_cost_s(self) -> dict[tuple[int, ...], float]:
        ways = self._ways
        rows = np.column_stack([ways.table, ways.division]).tolist()
        return dict(zip(map(tuple, rows), ways.cost_s.tolist(), strict=True))

    def _cost_s(self, place: int, division: Division) -> float:
        """What a heavy table costs in a way, for a device on average."""
        key = (place, *division)
        if key not in self._known_cost_s:
            parts, links = self._parts(place, division), 2 * self.setting.levels
            links_s = parts.load[:, :links].sum() + self.setting.node * parts.node[:, :links].sum()
            owned_s = float(self.tables[place].cost_s[division.buckets])
            self._known_cost_s[key] = owned_s + float(links_s) / self.setting.devices
        return self._known_cost_s[key]

    def _divisions(self, wish: Wish) -> list[Division]:
        """One division for each table."""
        found = list(self._undivided)
        if len(self._heavy):
            light_s = np.delete(self._whole.ids_s, self._heavy).sum() / self.setting.devices
            chosen = choose(self._ways, float(light_s), self.means, wish)
            for place, way in zip(self._heavy.tolist(), chosen.tolist(), strict=True):
                found[place] = Division(*self._ways.division[way].tolist())
        return [self._gravel(place, one) for place, one in enumerate(found)]

    def _gravel(self, place: int, division: Division) -> Division:
        """Tables whose runs repeat next to no sums are cut small, which is easy to pack."""
        rows, size = self.tables[place], float(self._size[place])
        if self.setting.devices == 1 or rows.pinned.whole or size <= 2 * GRAVEL:
            return division
        if division.members != 1 or not division.buckets:
            return division
        mass = self._whole.mass[place : place + 1]
        if not mass[0] or 8 * rows.bags.sums(mass / 8)[0] > CHEAP * rows.bags.sums(mass)[0]:
            return division
        return Division(rows.count, max(division.runs, int(np.ceil(size / GRAVEL))))

    @cached_property
    def _spreadable(self) -> Spreadable:
        return Spreadable.of(self.tables, self.setting)

    def _levelling(self, divisions: Sequence[Division]) -> Levelling:
        if not may_be_uneven(self.setting):
            return Levelling(None, self.setting)
        amounts = self._spreadable.amounts([division.buckets for division in divisions])
        return Levelling(amounts, self.setting)

    @cached_property
    def _tiers(self) -> list[str]:
        """Tiers that pins name."""
        named = {rows.pinned.tier for rows in self.tables}
        return [tier.name for tier in self.setting.cluster.device.tiers if tier.name in named]

    def _space(self, left: Floats) -> Space:
        """Bytes for rows with owners: of each device, and in what devices share."""
        cluster, devices = self.setting.cluster, self.setting.devices
        tiers = cluster.device.tiers
        levels = [0 if t.shared_by is None else cluster.level_of(t.shared_by) for t in tiers]
        size = cluster.group_size(max(levels))
        group = np.arange(devices) // size
        own, pool = np.zeros((devices, 0)), np.zeros((devices // size, 0))
        for named in (None, *self._tiers):
            mine, shared = np.zeros(devices), np.zeros(devices)
            for tier, level, bytes_left in zip(tiers, levels, left.T, strict=True):
                if named in (None, tier.name):
                    mine += bytes_left if not level else 0.0
                    shared += bytes_left if level else 0.0
            own = np.column_stack([own, mine])
            pool = np.column_stack([pool, np.bincount(group, shared)])
        return Space(own, pool, group)

    def _packed(
        self,
        found: Divided,
        divisions: Sequence[Division],
        levelling: Levelling,
        proposals: int,
    ) -> tuple[Packed, float] | int:
        """Pieces on devices and what the peaks take; or a group without room."""
        setting, pieces, groups = self.setting, found.pieces, found.groups
        devices, levels, top = setting.devices, setting.levels, 2 * setting.levels - 1
        left, back = self._left_bytes(divisions), levelling.given_back
        base = np.zeros((devices, 2 * levels + len(MULTIPLES)))
        worth_s = left @ setting.scarce[: left.shape[1]]
        base[:, 2 * levels :] = -worth_s[:, None] * MULTIPLES
        total = pieces.load.sum(axis=0) + setting.node * groups.node.sum(axis=0)
        usual = total / devices
        base += back * (total[top] / devices if levels else 0.0)
        if levels:
            pieces = pieces._replace(
                load=pieces.load - back * pieces.load[:, top : top + 1],
                unit=pieces.unit - back * pieces.unit[:, top : top + 1],
            )
            groups = groups._replace(node=groups.node - back * groups.node[:, top : top + 1])
        total = pieces.load.sum(axis=0) + setting.node * groups.node.sum(axis=0)
        mean = base.mean(axis=0) + total / devices
        if levels:
            mean[top] += levelling.sums_s
            usual[top] += levelling.sums_s
        links_s = mean[:levels] + mean[levels : 2 * levels]
        memory_s = float(mean[2 * levels :].max())
        scale_s, slack_s = SCALE * max(self.step_s, 1e-300), levelling.memory_s
        aim = Aim(mean[: 2 * levels], links_s, memory_s, scale_s, slack_s, usual)
        packed = pack(pieces, groups, base, self._space(left), aim, setting.node, proposals)
        if isinstance(packed, int):
            return packed
        return packed, float((peaks(packed.load, aim) - np.append(links_s, memory_s)).sum())

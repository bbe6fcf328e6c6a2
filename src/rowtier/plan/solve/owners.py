"""Owners of rows that lie on one device: dealt out, and levelled.

The heaviest piece (shares.py) is given first, to where the peaks of memory, ids and sums rise
the least; then pieces are moved and swapped away from the peaks (peaks.py). Where that does not
help any more, tables are cut in other ways (cuts.py), and pieces at the peaks in two. Which memory
of its owner a row lies in is decided afterwards, by filling: here memory is paid for, so that a
device that has more to fill is busier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rowtier.cluster import Cluster
from rowtier.cost.memory import Room
from rowtier.plan.solve.cuts import Cut
from rowtier.plan.solve.peaks import (
    SQUARINGS,
    Dealt,
    Load,
    Norms,
    lower_peaks,
    norms_of,
    shake,
    summed_up,
)
from rowtier.plan.solve.shares import Course, Piece
from rowtier.profile.curve import Floats

LEAST_GAIN = 2e-5  # of a step; less is not worth another band
WAYS_TRIED = 150  # to cut tables
TRIED_ON_ALL = 30_000  # the same times devices
ROUNDS = 4  # over all ways to cut all tables
_NOISE = 1e-7  # of a step, that is not worth anything
TRIALS = 60  # of cuts
KICKS = 40  # of what the search has settled in
_PIECES_TRIED = 3  # of a device at a peak, to be cut
_STEPS = 40  # moves and swaps per device, at most
_DEPTH = 4  # of halving a piece that has no room


@dataclass(eq=False)
class Owners:
    """Pieces and their owners, while they are dealt out."""

    cluster: Cluster
    room: Room
    memory_s: Floats  # device, price: what the pieces' memory is added to
    pieces: list[Piece] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    courses: dict[int, Course] = field(default_factory=dict)  # by table

    def __post_init__(self) -> None:
        ways = 2 * len(self.cluster.levels) + self.memory_s.shape[1]
        self.busy = np.zeros((self.cluster.num_devices, ways))
        self.busy[:, -self.memory_s.shape[1] :] = self.memory_s
        self._slowest_first = [tier.name for tier in self.cluster.device.tiers][::-1]

    def deal(self, cuts: Sequence[Cut]) -> int | None:
        """Give the heaviest piece first, where the peaks rise the least.

        Returns the index of a table that there is no room for, if there is one.
        """
        units: dict[object, list[Piece]] = {}
        for cut in cuts:
            self.courses[cut.course.index] = cut.course
            for number, unit in enumerate(_units(cut)):
                key: object = (cut.course.index, number)
                if cut.course.group is not None:
                    key = cut.course.group
                units.setdefault(key, []).extend(unit)
        weight = {key: sum(one.weight for one in unit) for key, unit in units.items()}
        for key in sorted(units, key=lambda key: -weight[key]):
            unit = units[key]
            if unit[0].node:
                given = self._give_node(unit) or self._give(replace(unit[0], place=None), _DEPTH)
            else:
                given = self._give(unit[0], _DEPTH) if len(unit) == 1 else self._give_all(unit)
            if not given:
                return unit[0].course.index
        return None

    def _give_node(self, unit: list[Piece]) -> bool:
        """Give each device of a node one of the pieces, where the peaks rise the least."""
        size = len(unit)
        for first in dict.fromkeys(device // size * size for device in self._by_load(unit[0])):
            room = self.room.copy()  # which devices may share
            for place, piece in enumerate(unit):
                if not self._has_room(piece, first + place, room):
                    break
                self._take(piece, first + place, room)
            else:
                self.room = room
                for place, piece in enumerate(unit):
                    self._put(piece, first + place)
                return True
        return False

    def _give_all(self, unit: list[Piece]) -> bool:
        """Give several pieces to one owner, which they then keep."""
        owner = next((one for one in self._by_load(unit[0]) if self._fit(unit, one)), None)
        if owner is None:
            return False
        for piece in unit:
            piece.course.owner = owner
            self._add(piece, owner)
        return True

    def _give(self, piece: Piece, depth: int) -> bool:
        owner = next((one for one in self._by_load(piece) if self._fit([piece], one)), None)
        if owner is not None:
            self._add(piece, owner)
            return True
        if not depth or piece.course.whole or piece.last - piece.first == 1:
            return False
        halves = piece.cut(piece.course.halves(piece.first, piece.last))
        return len(halves) > 1 and all(self._give(half, depth - 1) for half in halves)

    def _by_load(self, piece: Piece) -> list[int]:
        if piece.course.owner is not None:
            return [piece.course.owner]
        levels = len(self.cluster.levels)
        now, then = summed_up(self.busy, levels), summed_up(self.busy + piece.busy, levels)
        peaks = np.maximum(then, now.max(axis=0)).sum(axis=1)
        order: list[int] = np.lexsort((now.sum(axis=1), peaks)).tolist()
        return order

    def _fit(self, unit: list[Piece], owner: int) -> bool:
        room = self.room.copy() if len(unit) > 1 else self.room
        for piece in unit:
            if not self._has_room(piece, owner, room):
                return False
            if len(unit) > 1:
                self._take(piece, owner, room)
        return True

    def _has_room(self, piece: Piece, owner: int, room: Room) -> bool:
        return piece.bytes <= sum(room.free_bytes(owner, tier) for tier in self._tiers(piece))

    def _tiers(self, piece: Piece) -> list[str]:
        """The memories that it may lie in."""
        tier = piece.course.tier
        return self._slowest_first if tier is None else [tier]

    def _take(self, piece: Piece, owner: int, room: Room) -> None:
        left = piece.bytes
        for tier in self._tiers(piece):
            taken = min(left, room.free_bytes(owner, tier))
            if taken:
                room.take_from(owner, tier, taken)
                left -= taken

    def _add(self, piece: Piece, owner: int) -> None:
        self._put(piece, owner)
        self._take(piece, owner, self.room)

    def _put(self, piece: Piece, owner: int) -> None:
        self.pieces.append(piece)
        self.owners.append(owner)
        self.busy[owner] += piece.busy

    def level(self, ways: Sequence[Sequence[Cut]] = ()) -> None:
        """Lower the peaks until neither moves, nor swaps, nor other ways to cut tables help."""
        if not self.pieces or self.cluster.num_devices == 1:
            return
        load = Load(self.busy, self._free_bytes(), len(self.cluster.levels))
        for squarings in SQUARINGS:
            self._swap(load, squarings)
        free = [cuts for cuts in ways if len(cuts) > 1 and cuts[0].course.tier is None]
        self._cut_otherwise(load, free)
        tried = TRIALS
        while tried > 0:
            used, helped = self._cut(load, tried)
            if not helped:
                break
            tried -= used
        self._swap(load, SQUARINGS[-1], kicks=KICKS)

    def _cut_otherwise(self, load: Load, ways: Sequence[Sequence[Cut]]) -> None:
        """Cut tables in other ways, one after the other, where that saves time."""
        now = {cuts[0].course.index: cuts[0] for cuts in ways}
        best_s, uneven_s, tried = self._step_s(load), _unevenness_s(load), 0
        for _ in range(ROUNDS):
            before_s = best_s
            for index, cut in self._by_promise(now, ways):
                # At best all peaks vanish but those of the table itself.
                more_s = cut.cost_s + cut.peaks_s - now[index].cost_s
                if cut is now[index] or more_s >= uneven_s:
                    continue
                if tried == self._most_tried:
                    return
                tried += 1
                more = max(0, len(cut.pieces) - len(now[index].pieces))
                aim_s = best_s * (1 - LEAST_GAIN * more - _NOISE)
                found_s = self._recut(load, cut, aim_s)
                if found_s < aim_s:
                    now[index], best_s, uneven_s = cut, found_s, _unevenness_s(load)
            if best_s >= before_s * (1 - LEAST_GAIN):
                return

    def _step_s(self, load: Load) -> float:
        """What a step takes, but for what does not depend on how tables are cut."""
        even_s = sum(course.even_s for course in self.courses.values())
        return norms_of(load, SQUARINGS[-1]).peaks_s + even_s

    def _recut(self, load: Load, cut: Cut, aim_s: float) -> float:
        """Cut a table in another way and lower the peaks again; undone if it misses the aim."""
        index, found_s = cut.course.index, np.inf
        kept = load.busy.copy(), load.free.copy(), self.pieces, self.owners
        before = self.courses[index]
        if self._replace(load, cut):
            self._swap(load, SQUARINGS[-1])
            self.courses[index] = cut.course
            found_s = self._step_s(load)
        if found_s >= aim_s:
            load.busy[:], load.free[:], self.pieces, self.owners = kept
            self.courses[index] = before
        return found_s

    @property
    def _most_tried(self) -> int:
        return min(WAYS_TRIED, TRIED_ON_ALL // self.cluster.num_devices)

    def _by_promise(
        self, now: dict[int, Cut], ways: Sequence[Sequence[Cut]]
    ) -> list[tuple[int, Cut]]:
        """Other ways to cut tables, those that may save most first."""
        found = [(cuts[0].course.index, cut) for cuts in ways for cut in cuts]
        return sorted(found, key=lambda one: one[1].cost_s + one[1].peaks_s - now[one[0]].cost_s)

    def _replace(self, load: Load, cut: Cut) -> bool:
        """Take a table's pieces back and deal it out anew, cut in another way."""
        index, old = cut.course.index, self.courses[cut.course.index]
        kept = []
        for piece, owner in zip(self.pieces, self.owners, strict=True):
            if piece.course.index != index:
                kept.append((piece, owner))
                continue
            load.busy[owner] -= piece.busy
            load.free[owner] += piece.bytes
        self.pieces, self.owners = [p for p, _ in kept], [o for _, o in kept]
        load.busy[:] += cut.course.even_busy - old.even_busy
        load.free[:] -= cut.course.even_bytes - old.even_bytes
        if load.free.min() < 0:
            return False
        for unit in _units(cut):
            size = len(unit)
            order = self._by_load(unit[0])
            firsts = dict.fromkeys(device // size * size for device in order)
            needed = max(piece.bytes for piece in unit)
            first = next((f for f in firsts if load.free[f : f + size].min() >= needed), None)
            if first is None:
                return False
            for place, piece in enumerate(unit):
                self._put(piece, first + place)
                load.free[first + place] -= piece.bytes
        return True

    def _free_bytes(self) -> Floats:
        """Bytes that each device has left, and its part of what it shares."""
        free = np.zeros(self.cluster.num_devices)
        for tier in self.cluster.device.tiers:
            level = 0 if tier.shared_by is None else self.cluster.level_of(tier.shared_by)
            mine = self.room.free_on(tier.name)[: len(free)]
            free += mine / self.cluster.group_size(level)
        return free

    def _swap(self, load: Load, squarings: int, kicks: int = 0) -> None:
        if not self.pieces:
            return
        dealt = Dealt(
            np.stack([piece.busy for piece in self.pieces]),
            np.array([float(piece.bytes) for piece in self.pieces]),
            np.array(self.owners),
            np.array([piece.stays for piece in self.pieces]),
        )
        steps = _STEPS * self.cluster.num_devices
        if kicks:
            shake(load, dealt, squarings, steps, kicks)
        else:
            lower_peaks(load, dealt, squarings, steps)
        self.owners = dealt.owners.tolist()

    def _cut(self, load: Load, most: int) -> tuple[int, bool]:
        """Cut a piece at a peak in two and lower the peaks again.

        How many were tried, and whether one helped.
        """
        norms = norms_of(load, SQUARINGS[-1])
        aim = norms.peaks_s * (1 - LEAST_GAIN)
        kept = load.busy.copy(), load.free.copy(), self.pieces, self.owners
        tried = 0
        for index in self._at_peaks(norms):
            for halves in self.pieces[index].halved:
                if tried == most:
                    return tried, False
                tried += 1
                self._part(load, index, halves)
                self._swap(load, SQUARINGS[-1])
                if norms_of(load, SQUARINGS[-1]).peaks_s < aim:
                    return tried, True
                load.busy[:], load.free[:], self.pieces, self.owners = kept
        return tried, False

    def _at_peaks(self, norms: Norms) -> list[int]:
        """The heaviest pieces of the devices with the longest memory and link times."""
        found: list[int] = []
        for device in norms.highest[:, 0].tolist():
            mine = [i for i, owner in enumerate(self.owners) if owner == device]
            mine = [i for i in mine if not self.pieces[i].stays]
            found += sorted(mine, key=lambda i: -self.pieces[i].weight)[:_PIECES_TRIED]
        return list(dict.fromkeys(found))

    def _part(self, load: Load, index: int, halves: tuple[Piece, Piece]) -> None:
        piece, owner = self.pieces[index], self.owners[index]
        load.busy[owner] += halves[0].busy + halves[1].busy - piece.busy
        load.free[owner] -= halves[0].bytes + halves[1].bytes - piece.bytes
        self.pieces = [*self.pieces[:index], halves[0], *self.pieces[index + 1 :], halves[1]]
        self.owners = [*self.owners, owner]


def _units(cut: Cut) -> Iterator[list[Piece]]:
    """Pieces one by one; those of a node together."""
    found: list[Piece] = []
    for piece in cut.pieces:
        if found and not piece.place:
            yield found
            found = []
        found.append(piece)
    if found:
        yield found


def _unevenness_s(load: Load) -> float:
    """How much longer a step takes than if all devices were loaded alike."""
    levels = load.levels
    links = load.busy[:, : 2 * levels]
    mean_s = links.mean(axis=0).sum() + load.busy[:, 2 * levels :].mean(axis=0).max()
    return norms_of(load, SQUARINGS[-1]).peaks_s - float(mean_s)

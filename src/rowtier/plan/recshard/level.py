"""Make devices even by handing over runs of ranks.

Pieces on devices are never quite even. A run of ranks can be as short as one row, so a
device that holds too many bytes of a memory, or takes too long, hands a run to another
device, which keeps it in the same memory.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from rowtier.plan.recshard.fill import fill_tiers, time_of_cuts
from rowtier.plan.recshard.heat import Heat, Ints
from rowtier.plan.recshard.layout import PieceLayout, Slice
from rowtier.plan.recshard.machine import Machine
from rowtier.plan.recshard.pieces import needs_of, read_between, rows_between, run_worth

_RECEIVERS = 8  # devices that are asked to take a run
_ENOUGH = 1e-7  # of the limit: devices that exceed it by less are left alone


class RunLevelling:
    """Bytes and seconds per device while runs of ranks change hands."""

    def __init__(self, heat: Heat, machine: Machine, layout: PieceLayout):
        self.heat, self.machine, self.layout = heat, machine, layout
        pieces, owner, devices = layout.pieces, layout.owner, machine.devices
        self._on: list[list[int]] = [[] for _ in range(devices)]  # pieces
        self._homes: dict[int, set[int]] = defaultdict(set)  # devices, by item
        self._slices: dict[int, list[Slice]] = defaultdict(list)  # by item
        for piece, (item, device) in enumerate(zip(pieces.item, owner, strict=True)):
            self._on[int(device)].append(piece)
            self._homes[int(item)].add(int(device))
        seconds, held = needs_of(heat, pieces, layout.cuts, machine.costs)
        self.seconds = np.bincount(owner, seconds, devices)
        self.used = np.zeros((devices, len(machine.sizes)), dtype=np.int64)
        np.add.at(self.used, owner, held)
        # The ranks of each piece in each memory that its owner still has to give.
        edges = np.concatenate((np.zeros((1, heat.items), dtype=np.int64), layout.cuts))
        self._begin = edges[:-1, pieces.item].T.copy()
        self._end = edges[1:, pieces.item].T.copy()

    @property
    def fits(self) -> bool:
        """Whether no memory holds too much."""
        return bool((self.used <= self.machine.sizes).all())

    def refill(self) -> None:
        """Let every device fill its memories anew with the items that it holds as a whole."""
        ways = self.layout.pieces.ways[self.layout.pieces.item]
        for device in range(self.machine.devices):
            whole = np.array([p for p in self._on[device] if ways[p] == 1], dtype=np.int64)
            if len(whole):
                self._refill(device, whole)

    def _refill(self, device: int, whole: Ints) -> None:
        heat, cuts, costs = self.heat, self.layout.cuts, self.machine.costs
        items = self.layout.pieces.item[whole]
        before, seconds = cuts[:, items], time_of_cuts(heat, items, costs, cuts)
        others = self.used[device] - _held(heat, items, before)
        room = np.maximum(self.machine.sizes - others, 0)
        if fill_tiers(heat, items, room, cuts) > 0:
            cuts[:, items] = before
            return
        self.used[device] = others + _held(heat, items, cuts[:, items])
        self.seconds[device] += time_of_cuts(heat, items, costs, cuts) - seconds
        self._begin[whole, 1:] = cuts[:-1, items].T
        self._end[whole] = cuts[:, items].T

    def fit(self) -> None:
        """Hand over the coldest ranks of every memory that holds too much."""
        for tier in range(len(self.machine.sizes)):
            for device in np.argsort(-self.used[:, tier], kind="stable").tolist():
                if self._surplus(device, tier) <= 0:
                    break
                self._fit(device, tier)

    def _surplus(self, device: int, tier: int) -> int:
        return int(self.used[device, tier] - self.machine.sizes[tier])

    def _fit(self, device: int, tier: int) -> None:
        for piece in self._givers(device, tier):
            for receiver in np.argsort(self.used[:, tier], kind="stable")[:_RECEIVERS].tolist():
                surplus, room = self._surplus(device, tier), -self._surplus(receiver, tier)
                if surplus <= 0:
                    return
                self._give_coldest(piece, tier, receiver, surplus, room)

    def _givers(self, device: int, tier: int) -> list[int]:
        """Pieces with ranks to give; those of few ways first, because they make fewer bands."""
        ways, item = self.layout.pieces.ways, self.layout.pieces.item
        runs = ((p, int(self._end[p, tier] - self._begin[p, tier])) for p in self._on[device])
        return [p for _, _, p in sorted((ways[item[p]], -run, p) for p, run in runs if run > 0)]

    def _may_take(self, device: int, item: int, start: int, stop: int) -> bool:
        """Whether a device holds nothing else of these ranks: a band has a member once."""
        return device not in self._homes[item] and not any(
            taken.device == device and taken.start < stop and start < taken.stop
            for taken in self._slices[item]
        )

    def _give_coldest(self, piece: int, tier: int, to: int, surplus: int, room: int) -> None:
        item, ways, _, row_bytes = self._piece(piece)
        rows = min(-(-surplus // row_bytes), room // row_bytes)
        end = int(self._end[piece, tier])
        start = max(int(self._begin[piece, tier]), end - rows * ways)
        if start < end and self._may_take(to, item, start, end):
            self._end[piece, tier] = start
            self._give(piece, tier, start, end, to)

    def even_out(self, limit: float) -> None:
        """Devices that take longer than `limit` hand ranks to those that do not."""
        for device in np.argsort(-self.seconds, kind="stable").tolist():
            if self.seconds[device] <= limit * (1 + _ENOUGH):
                return
            self._relieve(device, limit)

    def _relieve(self, device: int, limit: float) -> None:
        for tier in reversed(range(len(self.machine.sizes))):
            for piece in self._givers(device, tier):
                for receiver in np.argsort(self.seconds, kind="stable")[:_RECEIVERS].tolist():
                    if self.seconds[device] <= limit * (1 + _ENOUGH):
                        return
                    excess = float(self.seconds[device]) - limit
                    amount = min(excess, limit - float(self.seconds[receiver]))
                    if amount > 0:
                        self._give_worth(piece, tier, receiver, amount)

    def _give_worth(self, piece: int, tier: int, to: int, seconds: float) -> None:
        item, ways, residue, row_bytes = self._piece(piece)
        begin, end = int(self._begin[piece, tier]), int(self._end[piece, tier])
        if begin == end:
            return
        read = seconds / float(self.machine.costs[tier])
        start, stop = run_worth(self.heat, item, ways, residue, begin, end, read)
        if start == stop or not self._may_take(to, item, start, stop):
            return
        moved = rows_between(ways, residue, start, stop) * row_bytes
        giver, room = int(self.layout.owner[piece]), max(0, -self._surplus(to, tier))
        if moved > room and not self._make_room(to, tier, moved, giver):
            stop = min(stop, start + room // row_bytes * ways)
        if start < stop:
            self._begin[piece, tier] = stop
            self._give(piece, tier, start, stop, to)

    def _make_room(self, device: int, tier: int, moved: int, giver: int) -> bool:
        """Have a device give its coldest ranks for those it gets; False if they do not fit."""
        short = moved + self._surplus(device, tier)
        spare = moved - self._surplus(giver, tier)
        for piece in self._givers(device, tier):
            item, ways, _, row_bytes = self._piece(piece)
            rows, end = -(-short // row_bytes), int(self._end[piece, tier])
            start = end - rows * ways
            fits = rows * row_bytes <= spare and start >= self._begin[piece, tier]
            if fits and self._may_take(giver, item, start, end):
                self._give_coldest(piece, tier, giver, short, spare)
                return True
        return False

    def _piece(self, piece: int) -> tuple[int, int, int, int]:
        """The item that a piece is of, its ways and residue, and bytes of a row."""
        pieces = self.layout.pieces
        item = int(pieces.item[piece])
        row_bytes = int(self.heat.row_bytes[item])
        return item, int(pieces.ways[item]), int(pieces.residue[piece]), row_bytes

    def _give(self, piece: int, tier: int, start: int, stop: int, to: int) -> None:
        item, ways, residue, row_bytes = self._piece(piece)
        giver = int(self.layout.owner[piece])
        moved = rows_between(ways, residue, start, stop) * row_bytes
        read = read_between(self.heat, item, ways, residue, start, stop)
        for device, sign in ((giver, -1), (to, 1)):
            self.used[device, tier] += sign * moved
            self.seconds[device] += sign * read * float(self.machine.costs[tier])
        self._slices[item].append(Slice(piece, start, stop, to))
        self.layout.slices.append(self._slices[item][-1])


def _held(heat: Heat, items: Ints, cuts: Ints) -> Ints:
    """Bytes per memory."""
    return np.asarray(np.diff(cuts, axis=0, prepend=0) @ heat.row_bytes[items])

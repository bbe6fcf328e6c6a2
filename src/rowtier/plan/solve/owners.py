"""Owners of rows that lie on one device: dealt out, and levelled.

Each way in which pieces (shares.py) keep their owners busy has its own peak over the devices,
and the peaks add up to what uneven owners cost. The heaviest piece is given first, to where
the peaks rise the least; then pieces are moved, cut and swapped away from the peaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rowtier.cluster import Cluster
from rowtier.cost.memory import Room
from rowtier.plan.solve.shares import WAYS, Piece
from rowtier.profile.curve import Floats, Ints

LEAST_GAIN = 1e-5  # of all peaks; less is not worth another band
_PIECES_TRIED = 8  # of a device at its peak
_ROUNDS = 8  # of changes, per device
_MOST_ROUNDS = 600
_TARGETS = 2  # for each of the ways
_NORM = 24  # of the loads: high enough to be nearly their peak
_DEPTH = 4  # of halving a piece that has no room


@dataclass(eq=False)
class Owners:
    """Pieces and their owners, while they are dealt out."""

    cluster: Cluster
    room: Room
    memory_s: Sequence[float] = ()  # that devices are busy with rows of all
    pieces: list[Piece] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.busy = np.zeros((WAYS, self.cluster.num_devices))
        if len(self.memory_s):
            self.busy[0] = self.memory_s
        self._tiers = [tier.name for tier in self.cluster.device.tiers]

    def deal(self, pieces: list[Piece]) -> int | None:
        """Give the heaviest piece first, where the peaks rise the least.

        Returns the index of a table that there is no room for, if there is one.
        """
        units: dict[object, list[Piece]] = {}
        for number, piece in enumerate(pieces):
            group = piece.course.group
            units.setdefault(("group", group) if group is not None else number, []).append(piece)
        loads = {key: sum(float(one.load.sum()) for one in unit) for key, unit in units.items()}
        for _, unit in sorted(units.items(), key=lambda entry: -loads[entry[0]]):
            given = self._give(unit[0], _DEPTH) if len(unit) == 1 else self._give_all(unit)
            if not given:
                return unit[0].course.index
        return None

    def _give_all(self, unit: list[Piece]) -> bool:
        """Give several pieces to one owner, which they then keep."""
        order = self._by_load(unit[0])
        for outwards in range(len(self._tiers)):
            moved = [replace(piece, outwards=outwards) for piece in unit]
            needed = np.sum([piece.bytes for piece in moved], axis=0)
            owner = next((device for device in order if self._fits(needed, device)), None)
            if owner is not None:
                for piece in moved:
                    piece.course.owner = owner
                    self._add(piece, owner)
                return True
        return False

    def _give(self, piece: Piece, depth: int) -> bool:
        order = self._by_load(piece)
        owner = self._with_room(piece, order)
        if owner is None and depth and not piece.course.whole and piece.last - piece.first > 1:
            halves = piece.cut(piece.course.halves(piece.first, piece.last))
            return len(halves) > 1 and all(self._give(half, depth - 1) for half in halves)
        outwards = 0
        while owner is None and outwards + 1 < len(self._tiers):
            outwards += 1
            piece = replace(piece, outwards=outwards)
            owner = self._with_room(piece, order)
        if owner is None:
            return False
        self._add(piece, owner)
        return True

    def _by_load(self, piece: Piece) -> list[int]:
        if piece.course.owner is not None:
            return [piece.course.owner]
        peaks = np.maximum(self.busy + piece.load[:, None], self.busy.max(axis=1, keepdims=True))
        order: list[int] = np.lexsort((self.busy.sum(axis=0), peaks.sum(axis=0))).tolist()
        return order

    def _with_room(self, piece: Piece, order: list[int]) -> int | None:
        return next((owner for owner in order if self._fits(piece.bytes, owner)), None)

    def _fits(self, needed: Floats, owner: int) -> bool:
        pairs = zip(self._tiers, needed, strict=True)
        return all(self.room.free_bytes(owner, tier) >= amount for tier, amount in pairs)

    def _add(self, piece: Piece, owner: int) -> None:
        self.pieces.append(piece)
        self.owners.append(owner)
        self._take(piece, owner, 1)

    def _take(self, piece: Piece, owner: int, sign: int) -> None:
        self.busy[:, owner] += sign * piece.load
        for tier, amount in zip(self._tiers, piece.bytes, strict=True):
            self.room.take_from(owner, tier, sign * int(np.ceil(amount)))

    def level(self) -> None:
        """Move or swap pieces, or parts of them, away from the peaks until it helps no more."""
        for _ in range(min(_ROUNDS * self.cluster.num_devices + 64, _MOST_ROUNDS)):
            if not self.pieces or not self._improve():
                return

    def _improve(self) -> bool:
        """Make the one change that helps most; False if none does."""
        ways = [*self.busy, self.busy.sum(axis=0)]
        targets = {int(d) for way in ways for d in np.argsort(way, kind="stable")[:_TARGETS]}
        view = _View.of(self)
        best = _Change(view.total * (1 - LEAST_GAIN), -1)
        for device in sorted({int(way.argmax()) for way in ways}):
            others = np.array(sorted(targets - {device}), dtype=np.int64)
            mine = [i for i, owner in enumerate(self.owners) if owner == device]
            mine = [i for i in mine if self.pieces[i].course.owner is None]
            mine.sort(key=lambda i: -float(self.pieces[i].load.sum()))
            for index in mine[:_PIECES_TRIED]:
                if len(others):
                    best = min(best, self._best_move(view, index, others), key=lambda c: c.total)
                best = min(best, self._best_swap(view, index), key=lambda c: c.total)
        if best.index < 0:
            return False
        self._apply(best)
        return True

    def _best_move(self, view: _View, index: int, targets: Ints) -> _Change:
        """Move a piece, or a part of it, to one of the targets."""
        piece, device = self.pieces[index], self.owners[index]
        ranges, goes, stays, needed = piece.parts
        left = (self.busy[:, device] - piece.load)[:, None, None] + stays[:, :, None]
        right = self.busy[:, None, targets] + goes[:, :, None]
        totals = view.totals(device, targets, left, right)
        totals[(needed[:, :, None] > view.free[:, None, targets]).any(axis=0)] = np.inf
        part, target = np.unravel_index(int(np.argmin(totals)), totals.shape)
        return _Change(
            float(totals[part, target]), index, target=int(targets[target]), part=ranges[part]
        )

    def _best_swap(self, view: _View, index: int) -> _Change:
        """Swap a piece with one of another device."""
        piece, device = self.pieces[index], self.owners[index]
        change = view.loads - piece.load[:, None]
        left, right = self.busy[:, [device]] + change, self.busy[:, view.owners] - change
        totals = view.totals(device, view.owners, left, right)
        more = view.needed - piece.bytes[:, None]
        lacks = (more > view.free[:, [device]]) | (-more > view.free[:, view.owners])
        totals[lacks.any(axis=0) | (view.owners == device) | view.fixed] = np.inf
        other = int(np.argmin(totals))
        return _Change(float(totals[other]), index, other=other)

    def _apply(self, change: _Change) -> None:
        index, piece, device = change.index, self.pieces[change.index], self.owners[change.index]
        self._take(piece, device, -1)
        if change.other is not None:
            other, owner = self.pieces[change.other], self.owners[change.other]
            self._take(other, owner, -1)
            self.owners[index], self.owners[change.other] = owner, device
            self._take(piece, owner, 1)
            self._take(other, device, 1)
            return
        assert change.target is not None
        start, stop = change.part
        going = replace(piece, first=start, last=stop)
        if (start, stop) == (piece.first, piece.last):
            self.pieces[index], self.owners[index] = going, change.target
            self._take(going, change.target, 1)
            return
        staying = replace(piece, first=stop) if start == piece.first else replace(piece, last=start)
        self.pieces[index] = staying
        self._take(staying, device, 1)
        self._add(going, change.target)


@dataclass(frozen=True, eq=False)
class _View:
    """Pieces and devices as arrays, while one change is looked for."""

    powers: Floats  # of the devices' loads
    sums: Floats
    loads: Floats  # of the pieces
    needed: Floats  # bytes of each tier
    owners: Ints
    fixed: NDArray[np.bool_]
    free: Floats  # bytes of each tier on each device

    @classmethod
    def of(cls, owners: Owners) -> _View:
        # Peaks that two devices share fall only with two moves, so near-peaks count as well.
        powers, devices = owners.busy**_NORM, owners.cluster.num_devices
        tiers = [tier.name for tier in owners.cluster.device.tiers]
        return cls(
            powers,
            powers.sum(axis=1)[:, None],
            np.stack([piece.load for piece in owners.pieces], axis=1),
            np.stack([piece.bytes for piece in owners.pieces], axis=1),
            np.array(owners.owners),
            np.array([piece.course.owner is not None for piece in owners.pieces]),
            np.stack([owners.room.free_on(tier)[:devices] for tier in tiers]).astype(np.float64),
        )

    @property
    def total(self) -> float:
        """The sum of near-peaks."""
        return float((self.sums ** (1 / _NORM)).sum())

    def totals(self, device: int, targets: Ints, left: Floats, right: Floats) -> Floats:
        """The same if `device` has the load `left` and each of `targets` `right`."""
        rest = self.sums - self.powers[:, [device]] - self.powers[:, targets]
        rest = np.maximum(rest, 0.0).reshape(WAYS, *(1,) * (left.ndim - 2), -1)
        changed = np.maximum(left, 0.0) ** _NORM + np.maximum(right, 0.0) ** _NORM
        return np.asarray(((changed + rest) ** (1 / _NORM)).sum(axis=0))


@dataclass(frozen=True)
class _Change:
    """A move of a part of a piece to a target, or a swap with another piece."""

    total: float  # the sum of near-peaks after it
    index: int
    target: int | None = None
    part: tuple[int, int] = (0, 0)
    other: int | None = None

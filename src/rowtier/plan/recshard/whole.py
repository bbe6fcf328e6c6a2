"""Items that stay whole: balance vectors, fill exactly, refine the prices, repeat."""

from __future__ import annotations

import numpy as np

from rowtier.plan.recshard.balance import balance_of, drown, improve
from rowtier.plan.recshard.bound import SAFETY, Bound, alone_times, apart_bound, whole_bound
from rowtier.plan.recshard.exhaust import try_all
from rowtier.plan.recshard.fill import best_read, fill_devices, fill_tiers, prices_of
from rowtier.plan.recshard.heat import Floats, Heat, Ints
from rowtier.plan.recshard.layout import PieceLayout, Solution
from rowtier.plan.recshard.machine import Machine
from rowtier.plan.recshard.pieces import shares_of, whole_pieces
from rowtier.plan.recshard.place import place

_FEW = 12  # items up to which every placement is tried
_STARTS = 20_000  # greedy starts times items; at least 2 starts, at most 48
_NOISE = (0.3, 1.0)  # of the sizes that order the items of a start, in their logarithm
_FLOODS, _PROPOSALS = 2, 2000  # great deluges from the best, and their steps per item
_STEPS = 2000  # moves and swaps of a start, at most
_REFINEMENTS = 3  # of the prices, in a start
_MOST_PRICES = 96
# Multiples of the pooled price: far apart over all that may matter, close around it.
_FAR, _NEAR = 2.0 ** np.linspace(-8, 8, 33), 2.0 ** np.linspace(-0.4, 0.4, 17)
_MULTIPLES = np.unique(np.concatenate(([0.0], _FAR, _NEAR)))


def solve_whole(
    heat: Heat, machine: Machine, tolerance: float, seed: int, wanted: float = np.inf
) -> Solution | None:
    """A device for every item, within `tolerance` of the bound if the search gets there.

    It is given up as soon as the bound shows that no placement takes `wanted` seconds or
    less. None if no way is found to pack the items' bytes.
    """
    search = _Search(heat, machine, tolerance)
    random = np.random.default_rng(seed)
    for start in range(max(2, min(48, _STARTS // heat.items))):
        noise = _NOISE[start % 2] * random.standard_normal(heat.items) if start else 0.0
        owner = search.start(noise)
        if owner is not None:
            search.settle(owner)
        if start == 0:
            search.exhaust()
            search.sharpen_bound()
        if search.done or search.bound.seconds > wanted:
            return search.solution()
    for flood in range(_FLOODS):
        if search.owner is not None and not search.done:
            search.settle(search.owner.copy(), flood=seed + flood + 1)
    search.sharpen_bound()
    return search.solution()


class _Search:
    """The best placement so far, the prices of the grid, and the bound."""

    def __init__(self, heat: Heat, machine: Machine, tolerance: float):
        self.heat, self.machine, self.tolerance = heat, machine, tolerance
        self.bound = whole_bound(heat, machine)
        self.owner: Ints | None = None
        self.seconds = np.inf
        self.done = False
        self._prices = first_prices(heat, machine)
        self._needs, self._held = _needs(heat, machine, self.bound.seconds)
        # At each boundary between memories less than a row may stay free.
        lost = (len(machine.sizes) - 1) * (int(heat.row_bytes.max()) - 1)
        self._room = int(machine.sizes.sum()) - lost

    def start(self, noise: float | Floats) -> Ints | None:
        """A greedy placement."""
        items, bytes_first = np.arange(self.heat.items), self._held.astype(np.float64)
        size = self._needs.max(axis=1) * np.exp(noise)
        room, full = self._room, int(self.machine.sizes.sum())
        for most, by in ((room, size), (room, bytes_first), (full, bytes_first)):
            owner = place(self._needs, items, self._held, self.machine.devices, most, by)
            if owner is not None:
                return owner
        return None

    def settle(self, owner: Ints, flood: int | None = None) -> None:
        """Improve a placement until the grid of prices tells its true time."""
        heat, machine = self.heat, self.machine
        for _ in range(_REFINEMENTS):
            state = balance_of(heat, owner, machine, self._prices, self._room)
            if flood is not None:
                drown(state, self.bound.seconds, _PROPOSALS * heat.items, flood)
            improve(state, _STEPS)
            supposed = float(state.time.max())
            if supposed >= self.seconds:
                return
            times, _ = fill_devices(heat, owner, machine.sizes, machine.costs, machine.devices)
            self._keep(owner, float(times.max()))
            if self.done or times.max() <= supposed * (1 + self.tolerance / 4):
                return
            self._add_prices(owner, np.argsort(-times, kind="stable")[:6])

    def _keep(self, owner: Ints, seconds: float) -> None:
        if seconds < self.seconds:
            self.owner, self.seconds = owner.copy(), seconds
        self.done = self.seconds <= self.bound.seconds * (1 + self.tolerance)

    def _add_prices(self, owner: Ints, devices: Ints) -> None:
        if self._prices.shape[1] < _MOST_PRICES:
            sizes = self.machine.sizes
            new = [prices_of(self.heat, np.flatnonzero(owner == d), sizes) for d in devices]
            self._prices = np.sort(np.column_stack((self._prices, *new)), axis=1)

    def exhaust(self) -> None:
        """Try every placement, if there are few; nothing is left to search then."""
        if self.heat.items > _FEW:
            return
        order = np.argsort(-alone_times(self.heat, self.machine.sizes, self.machine.costs))
        tried = try_all(self.heat, self.machine, order, self.seconds)
        if tried is None:
            return
        if len(tried.owner):
            self._keep(tried.owner, tried.seconds)
        # A shared memory could be divided unevenly, which was not tried.
        if (self.machine.largest == self.machine.sizes).all():
            self._raise_bound(Bound(tried.least * SAFETY, "tried"))
        self.done = True

    def sharpen_bound(self) -> None:
        """Spend more on the bound, if the quick one does not show that the search is done."""
        if not self.done and self.owner is not None:
            found = apart_bound(self.heat, self.machine, self._prices, self.bound, self.seconds)
            self._raise_bound(found)

    def _raise_bound(self, bound: Bound) -> None:
        if bound.seconds > self.bound.seconds:
            self.bound = bound
        self.done = self.seconds <= self.bound.seconds * (1 + self.tolerance)

    def solution(self) -> Solution | None:
        """The best placement with its exact cuts."""
        if self.owner is None:
            return None
        heat, machine, owner = self.heat, self.machine, self.owner
        _, cuts = fill_devices(heat, owner, machine.sizes, machine.costs, machine.devices)
        return Solution(PieceLayout(whole_pieces(heat), cuts, owner), self.seconds, self.bound)


def first_prices(heat: Heat, machine: Machine) -> Floats:
    """Prices around that of a byte if all memories were one; a row per boundary."""
    items = np.arange(heat.items, dtype=np.int64)
    rows = []
    for tier in range(len(machine.sizes) - 1):
        size = int(machine.sizes[: tier + 1].sum())
        _, price = best_read(heat, items, machine.devices * size, size)
        if not price:  # all that is read fits if it is well divided
            _, price = best_read(heat, items, machine.devices * size // 2, size)
        rows.append((price or 1.0) * _MULTIPLES)
    return np.array(rows)


def _needs(heat: Heat, machine: Machine, seconds: float) -> tuple[Floats, Ints]:
    """The shares that items take of a device's seconds and memories, and their bytes."""
    cuts = np.zeros((len(machine.sizes), heat.items), dtype=np.int64)
    items = np.arange(heat.items, dtype=np.int64)
    fill_tiers(heat, items, machine.sizes * machine.devices, cuts)
    return shares_of(heat, whole_pieces(heat), machine, cuts, seconds)

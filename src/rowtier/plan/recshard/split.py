"""Items that may be cut: pieces on devices, evened out until rounding is all that is left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rowtier.plan.recshard.bound import Bound
from rowtier.plan.recshard.fill import NO_LIMIT, fill_tiers
from rowtier.plan.recshard.heat import Heat, Ints
from rowtier.plan.recshard.layout import PieceLayout, Solution
from rowtier.plan.recshard.level import RunLevelling
from rowtier.plan.recshard.machine import Machine
from rowtier.plan.recshard.pieces import ItemPieces, pieces_of, shares_of, whole_pieces
from rowtier.plan.recshard.place import place

# An item that takes more than this share of a device, in anything, is dealt out. Where that
# leaves devices uneven (few large items, many devices), finer shares are tried.
SHARES = (1 / 4, 1 / 16, 1 / 64, 1 / 1024)


def solve_split(heat: Heat, machine: Machine, bound: Bound, tolerance: float) -> Solution | None:
    """Pieces of items on devices, within `tolerance` of the bound if rows are small enough.

    None if no way is found to fit everything in.
    """
    cuts = _pool_cuts(heat, machine)
    best: Solution | None = None
    for share in SHARES:
        pieces = _pieces(heat, machine, cuts, bound.seconds, share)
        needs, held = shares_of(heat, pieces, machine, cuts, bound.seconds)
        owner = place(needs, pieces.item, held, machine.devices, NO_LIMIT)
        assert owner is not None
        for layout in _levelled(heat, machine, PieceLayout(pieces, cuts, owner), bound, tolerance):
            if best is None or layout.seconds < best.seconds:
                best = layout
            if best.seconds <= bound.seconds * (1 + tolerance):
                return best
    return best


def _levelled(
    heat: Heat, machine: Machine, start: PieceLayout, bound: Bound, tolerance: float
) -> Iterator[Solution]:
    """Even devices out: with whole items refilled, which needs fewer slices, then without."""
    for refill in (True, False):
        layout = PieceLayout(start.pieces, start.cuts.copy(), start.owner)
        level = RunLevelling(heat, machine, layout)
        if refill:
            # Where levels differ a little, whole items absorb it: no slice, hardly any loss.
            level.refill()
        level.fit()
        mean = float(level.seconds.mean())
        if not refill or mean <= bound.seconds * (1 + tolerance):
            level.even_out(max(mean, bound.seconds * (1 + tolerance / 2)))
        if level.fits:
            yield Solution(layout, float(level.seconds.max()), bound)


def _pool_cuts(heat: Heat, machine: Machine) -> Ints:
    """The cuts of all items if all memories of a kind were one."""
    cuts = np.zeros((len(machine.sizes), heat.items), dtype=np.int64)
    # A row's room is left on every device, so that a row never fits nowhere.
    sizes = machine.devices * np.maximum(machine.sizes - heat.row_bytes.max(), 0)
    sizes[-1] = machine.devices * machine.sizes[-1]
    items = np.arange(heat.items, dtype=np.int64)
    if fill_tiers(heat, items, sizes, cuts) > 0:
        fill_tiers(heat, items, machine.devices * machine.sizes, cuts)
    cuts[-1] = heat.rows
    return cuts


def _pieces(heat: Heat, machine: Machine, cuts: Ints, seconds: float, most: float) -> ItemPieces:
    """Deal out every item that would take too much of a device."""
    needs, _ = shares_of(heat, whole_pieces(heat), machine, cuts, seconds)
    share = needs.max(axis=1)
    ways = np.where(share > most, np.ceil(share / most), 1)
    possible = np.minimum(heat.rows, machine.devices)
    return pieces_of(np.minimum(ways, possible).astype(np.int64))

"""Pieces of items: every k-th rank of an item, and runs of ranks of those."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rowtier.jit import compiled
from rowtier.plan.recshard.heat import Floats, Heat, Ints, bucket_of
from rowtier.plan.recshard.machine import Machine


class ItemPieces(NamedTuple):
    """Item j is dealt out in `ways[j]` pieces: piece i holds the ranks r with r mod ways = i."""

    ways: Ints  # per item
    item: Ints  # per piece, in the order of the items
    residue: Ints  # per piece

    @property
    def first(self) -> Ints:
        """The first piece of each item."""
        return np.cumsum(self.ways) - self.ways


def pieces_of(ways: Ints) -> ItemPieces:
    """All pieces, item by item."""
    item = np.repeat(np.arange(len(ways), dtype=np.int64), ways)
    first = np.cumsum(ways) - ways
    return ItemPieces(ways, item, np.arange(len(item), dtype=np.int64) - first[item])


def whole_pieces(heat: Heat) -> ItemPieces:
    """Every item as one piece."""
    return pieces_of(np.ones(heat.items, dtype=np.int64))


@compiled
def rows_between(ways: int, residue: int, start: int, stop: int) -> int:
    """How many ranks from `start` to `stop` a piece holds."""
    return -((residue - stop) // ways) + (residue - start) // ways


@compiled
def read_between(heat: Heat, item: int, ways: int, residue: int, start: int, stop: int) -> float:
    """Bytes read per step of a piece's ranks from `start` to `stop`."""
    total = 0.0
    if stop <= start:
        return total
    bucket = bucket_of(heat, item, start)
    while start < stop:
        end = min(stop, heat.stops[bucket])
        total += rows_between(ways, residue, start, end) * heat.density[bucket]
        start = end
        bucket += 1
    return total * float(heat.row_bytes[item])


@compiled
def run_worth(
    heat: Heat, item: int, ways: int, residue: int, start: int, stop: int, amount: float
) -> tuple[int, int]:
    """The run of a piece's ranks that is read `amount` bytes per step, or a little less.

    It begins at `start`, or later at the first row that is read at most a quarter of that.
    """
    bucket = bucket_of(heat, item, start)
    row_bytes = heat.row_bytes[item]
    while heat.density[bucket] * row_bytes > amount / 4 and heat.stops[bucket] < stop:
        start = heat.stops[bucket]
        bucket += 1
    end = start
    while end < stop:
        until = min(stop, heat.stops[bucket])
        rows = rows_between(ways, residue, end, until)
        rate = heat.density[bucket] * row_bytes
        if rows * rate > amount:
            return start, end + int(amount / rate) * ways
        amount -= rows * rate
        end = until
        bucket += 1
    return start, end


@compiled
def needs_of(heat: Heat, pieces: ItemPieces, cuts: Ints, costs: Floats) -> tuple[Floats, Ints]:
    """Seconds per step of every piece, and its bytes per memory."""
    seconds = np.zeros(len(pieces.item))
    held = np.zeros((len(pieces.item), len(costs)), dtype=np.int64)
    for piece in range(len(pieces.item)):
        item, residue = pieces.item[piece], pieces.residue[piece]
        ways, before = pieces.ways[item], np.int64(0)
        for tier in range(len(costs)):
            stop = cuts[tier, item]
            if stop > before:
                read = read_between(heat, item, ways, residue, int(before), stop)
                seconds[piece] += read * costs[tier]
                rows = rows_between(ways, residue, int(before), stop)
                held[piece, tier] = rows * heat.row_bytes[item]
                before = stop
    return seconds, held


def shares_of(
    heat: Heat, pieces: ItemPieces, machine: Machine, cuts: Ints, device_seconds: float
) -> tuple[Floats, Ints]:
    """What share of a device's seconds and of each of its memories pieces take, and their bytes."""
    seconds, held = needs_of(heat, pieces, cuts, machine.costs)
    full = np.concatenate(([device_seconds], machine.sizes.astype(np.float64)))
    needs = np.column_stack((seconds, held.astype(np.float64)))
    shares = np.divide(needs, full, out=np.zeros_like(needs), where=full > 0)
    return shares, held.sum(axis=1)

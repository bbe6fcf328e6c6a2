"""How hot the rows of many items are: an item is a table, or a piece of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.jit import compiled, inner

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Item(NamedTuple):
    """Rows in order of hotness: `rates[b]` bytes are read per step of each row of a bucket."""

    stops: Ints  # ranks at which the buckets end
    rates: Floats  # bytes read per row and step, falling
    rows: int  # all rows; those after the last stop are never read
    row_bytes: int  # bytes that keeping a row takes


class Heat(NamedTuple):
    """The buckets of all items one after the other; those of item j begin at `first[j]`.

    Every item's last bucket ends with its last row, so there is at least one.
    """

    first: Ints
    stops: Ints
    density: Floats  # bytes read per step and stored byte, falling within an item
    read: Floats  # bytes read per step of all ranks up to the bucket's stop
    row_bytes: Ints
    rows: Ints

    @property
    def items(self) -> int:
        """How many items there are."""
        return len(self.rows)


def heat_of(items: Sequence[Item]) -> Heat:
    """Put items one after the other."""
    tails = np.array([not len(i.stops) or i.stops[-1] < i.rows for i in items], dtype=np.int64)
    lengths = np.array([len(item.stops) for item in items], dtype=np.int64) + tails
    first = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    stops = np.empty(first[-1], dtype=np.int64)
    rates = np.zeros(first[-1])
    for item, start in zip(items, first[:-1].tolist(), strict=True):
        stop = start + len(item.stops)
        stops[start:stop], rates[start:stop] = item.stops, item.rates
    rows = np.array([item.rows for item in items], dtype=np.int64)
    stops[first[1:] - 1] = rows  # the last stop, or the tail of rows that are never read
    row_bytes = np.array([item.row_bytes for item in items], dtype=np.int64)
    density, read = _sums(first, stops, rates, row_bytes)
    return Heat(first, stops, density, read, row_bytes, rows)


@compiled
def _sums(first: Ints, stops: Ints, rates: Floats, row_bytes: Ints) -> tuple[Floats, Floats]:
    density, read = np.empty(len(stops)), np.empty(len(stops))
    for item in range(len(first) - 1):
        before, total, least = 0, 0.0, np.inf
        for bucket in range(first[item], first[item + 1]):
            total += rates[bucket] * (stops[bucket] - before)
            before = stops[bucket]
            # Profiles may rise by rounding errors; the searches need a falling density.
            least = min(least, rates[bucket] / row_bytes[item])
            density[bucket], read[bucket] = least, total
    return density, read


@compiled
def rows_hotter(heat: Heat, item: int, price: float) -> int:
    """How many rows of an item have a density above a price."""
    low, high = heat.first[item], heat.first[item + 1]
    begin = low
    while low < high:
        middle = (low + high) // 2
        if heat.density[middle] > price:
            low = middle + 1
        else:
            high = middle
    return int(heat.stops[low - 1]) if low > begin else 0


@inner
def bucket_of(heat: Heat, item: int, rank: int) -> int:
    """The bucket that a rank falls into."""
    low, high = heat.first[item], heat.first[item + 1] - 1
    while low < high:
        middle = (low + high) // 2
        if heat.stops[middle] > rank:
            high = middle
        else:
            low = middle + 1
    return int(low)


@compiled
def read_until(heat: Heat, item: int, rank: float) -> float:
    """Bytes read per step of the rows before a rank, which may lie within a row."""
    if rank <= 0:
        return 0.0
    bucket = bucket_of(heat, item, int(np.ceil(rank)) - 1)
    rate = heat.density[bucket] * heat.row_bytes[item]
    return float(heat.read[bucket] - (heat.stops[bucket] - rank) * rate)

"""Rows in RAM that leave, and rows that arrive, such that both together take no more than either.

Rows leave in any order. What is left of them is moved to the front, and the memory behind it is
given back to the system. Rows that arrive are written one after the other, so memory is taken
only as they come, and are brought into the order of their slots in the end.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowtier.jit import compiled
from rowtier.runtime.store.storage import Shard

Ints = NDArray[np.int64]
Places = NDArray[Any]  # int32, or int64 above 2³¹ rows
MAP_BYTES = 4  # of one row in one list of places, in all but enormous shards
_DONT_NEED = 4  # madvise


class LeavingRows:
    """The rows of a shard, fewer with every round."""

    maps = 2  # lists of places

    def __init__(self, shard: Shard):
        rows = shard.piece.rows_here
        self._shard, self._left = shard, rows
        self._place = np.arange(rows, dtype=_type_of(rows))  # by slot
        self._slot = self._place.copy()  # by place

    def places(self, slots: Ints) -> Ints:
        """Where rows that have not left lie by now."""
        return self._place[slots].astype(np.int64)

    def leave(self, slots: Ints) -> None:
        """Forget rows, and give their memory back."""
        gone = self._place[slots]
        self._place[slots] = -1
        before, self._left = self._left, self._left - len(slots)
        last = self._slot[self._left : before]
        stay = last[self._place[last] >= 0]
        holes = gone[gone < self._left]
        for array in _arrays(self._shard):
            array[holes] = array[self._place[stay]]
            give_back(array, self._left, before)
        self._slot[holes], self._place[stay] = stay, holes


class ArrivingRows:
    """The rows of a shard as they come."""

    maps = 1

    def __init__(self, shard: Shard):
        rows = shard.piece.rows_here
        self._shard, self._come = shard, 0
        self._place = np.full(rows, -1, dtype=_type_of(rows))  # by slot

    def arrive(self, slots: Ints) -> None:
        """Have places for rows that come now."""
        first, self._come = self._come, self._come + len(slots)
        self._place[slots] = np.arange(first, self._come)

    def places(self, slots: Ints) -> Ints:
        """Where rows that have come lie."""
        return self._place[slots].astype(np.int64)

    def settle(self) -> None:
        """Bring all rows to their slots."""
        assert self._come == len(self._place)
        for array in _arrays(self._shard):
            in_order(array.view(np.uint8), self._place.copy())


def give_back(array: NDArray[Any], first: int, last: int) -> None:
    """Return the memory of some rows of an array to the system, whole pages of it."""
    if sys.platform != "linux" or not len(array):
        return
    page, row_bytes, start = mmap.PAGESIZE, array.strides[0], array.ctypes.data
    begin = -(-(start + first * row_bytes) // page) * page
    size = (start + last * row_bytes) // page * page - begin
    if size > 0:
        _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), _DONT_NEED)


def forget_rows(shard: Shard) -> None:
    """Give back the memory of all rows of a shard, if they are in RAM."""
    if not shard.on_disk:
        for array in _arrays(shard):
            give_back(array, 0, len(array))


def _arrays(shard: Shard) -> Iterator[NDArray[Any]]:
    yield shard.weights
    yield from shard.state.values()


def _type_of(rows: int) -> str:
    return "i4" if rows < 2**31 else "i8"


@compiled
def in_order(rows: NDArray[np.uint8], place: Places) -> None:
    """Bring the row that lies at `place[slot]` to every slot; the places are used up."""
    kept = np.empty(rows.shape[1], dtype=np.uint8)
    for first in range(len(place)):
        if place[first] < 0 or place[first] == first:
            continue
        kept[:] = rows[first]
        slot = first
        while place[slot] != first:
            source = place[slot]
            rows[slot] = rows[source]
            place[slot] = -1
            slot = source
        rows[slot] = kept
        place[slot] = -1


_libc = ctypes.CDLL(None, use_errno=True)

"""Compiled loops of growing vocabularies: find, place and remove ids, count them, mark rows.

An id is a key of one or two 64-bit numbers: a whole number itself, or the 128-bit hash of a
string. Keys lie in an open-addressing table with linear probing; a place holds the key and its row
plus 1, so that memory of zeros is an empty table, and finding an id reads one place of memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rowtier.jit import compiled
from rowtier.splitmix import STEP, mix

Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]  # keys × numbers of a key
Sketch = NDArray[np.uint16]  # lines × counters


@compiled
def _home(key: np.uint64, mask: np.uint64) -> np.uint64:
    """Where a key's place is, if nobody else is there."""
    return mix(key + STEP) & mask


@compiled
def _place_of(keys: Keys, at: int, held: Keys) -> np.uint64:
    """The place of a key, or the empty one where it would be."""
    width = keys.shape[1]
    mask = np.uint64(len(held) - 1)
    place = _home(keys[at, 0], mask)
    while held[place, width]:
        same = True
        for c in range(width):
            same &= held[place, c] == keys[at, c]
        if same:
            break
        place = (place + np.uint64(1)) & mask
    return place


@compiled
def find_rows(keys: Keys, held: Keys) -> Ints:
    """The row of every key; −1 for those that have none."""
    found = np.empty(len(keys), dtype=np.int64)
    for i in range(len(keys)):
        found[i] = np.int64(held[_place_of(keys, i, held), keys.shape[1]]) - 1
    return found


@compiled
def put_keys(keys: Keys, new_rows: Ints, held: Keys, row_keys: Keys) -> None:
    """Give keys that have no row one each."""
    width = keys.shape[1]
    for i in range(len(keys)):
        place = _place_of(keys, i, held)
        held[place, width] = np.uint64(new_rows[i] + 1)
        for c in range(width):
            held[place, c] = keys[i, c]
            row_keys[new_rows[i], c] = keys[i, c]


@compiled
def remove_rows(gone: Ints, held: Keys, row_keys: Keys) -> None:
    """Take the keys of rows out; those behind them move up, so that searches stay short."""
    mask, one, width = np.uint64(len(held) - 1), np.uint64(1), row_keys.shape[1]
    for i in range(len(gone)):
        hole = _place_of(row_keys, gone[i], held)
        place = (hole + one) & mask
        while held[place, width]:
            home = _home(held[place, 0], mask)
            # Whether the key's home is at the hole or before it, going round.
            if ((place - home) & mask) >= ((place - hole) & mask):
                for c in range(width + 1):
                    held[hole, c] = held[place, c]
                hole = place
            place = (place + one) & mask
        held[hole, width] = np.uint64(0)


@compiled
def distinct_keys(keys: Keys, weights: Ints) -> tuple[Ints, Ints]:
    """Where each key is seen first, in this order, and the sum of its weights."""
    size = 8
    while size < 2 * len(keys):
        size *= 2
    mask = np.uint64(size - 1)
    slots = np.zeros(size, dtype=np.int64)  # number among the distinct, plus 1
    first = np.empty(len(keys), dtype=np.int64)
    sums = np.empty(len(keys), dtype=np.int64)
    count = 0
    for i in range(len(keys)):
        place = _home(keys[i, 0], mask)
        while slots[place]:
            other, same = first[slots[place] - 1], True
            for c in range(keys.shape[1]):
                same &= keys[other, c] == keys[i, c]
            if same:
                break
            place = (place + np.uint64(1)) & mask
        if slots[place]:
            sums[slots[place] - 1] += weights[i]
        else:
            first[count], sums[count] = i, weights[i]
            count += 1
            slots[place] = count
    return first[:count], sums[:count]


@compiled
def count_seen(keys: Keys, weights: Ints, sketch: Sketch) -> Ints:
    """Count keys in a count-min sketch; at least how often each was seen, this time included.

    Only the counters that say least are raised (conservative update), which keeps them close.
    """
    lines, most = sketch.shape[0], np.int64(65535)
    mask = np.uint64(sketch.shape[1] - 1)
    found = np.empty(len(keys), dtype=np.int64)
    places = np.empty(lines, dtype=np.uint64)
    for i in range(len(keys)):
        key = keys[i, 0]
        for c in range(1, keys.shape[1]):
            key ^= keys[i, c] * np.uint64(0x9E3779B97F4A7C15)
        least = most
        for line in range(lines):
            salt = np.uint64(line + 1) * np.uint64(0xD6E8FEB86659FD93)
            places[line] = _home(key ^ salt, mask)
            least = min(least, np.int64(sketch[line, places[line]]))
        least = min(least + weights[i], most)
        for line in range(lines):
            if sketch[line, places[line]] < least:
                sketch[line, places[line]] = least
        found[i] = least
    return found


@compiled
def mark_rows(used: Ints, clock: int, marks: Ints, touched: Ints, num_touched: int) -> int:
    """Note which rows were used, how often and when; how many rows have notes now."""
    for i in range(len(used)):
        row = used[i]
        if row < 0 or row >= len(marks):
            continue
        if marks[row, 0] == 0:
            touched[num_touched] = row
            num_touched += 1
        marks[row, 0] += 1
        marks[row, 1] = clock
    return num_touched


@compiled
def add_marks(rows: Ints, when: Ints, often: Ints, last: Ints, counts: Ints) -> None:
    """Add notes of one rank to what is known of all."""
    for i in range(len(rows)):
        last[rows[i]] = max(last[rows[i]], when[i])
        counts[rows[i]] += often[i]

"""Loops over ids, ranks and spots: which are distinct, of which band, for whom, and where.

A row's number in a lane (see `row_loops.py`) is its *spot*. Nothing here reads a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowtier.jit import compiled

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
_LOW = 0xFFFFFFFF
_FEW_WORDS = 1 << 14


def distinct(address: NDArray[Any], rows: int | None = None) -> tuple[NDArray[Any], Ints]:
    """The distinct addresses, rising, and for each lookup which of them it is.

    `rows` says that all are below it: a bit for each, set and counted, is faster than sorting
    unless there are far more rows than lookups.
    """
    if not len(address):
        return address, np.empty(0, dtype=np.int64)
    if rows is not None and rows // 64 <= _FEW_WORDS + 4 * len(address):
        return _mark(address, rows)
    if address.dtype != np.int32:
        if rows is not None and rows <= 2**31:
            narrow, inverse = distinct(address.astype(np.int32), rows)
            return narrow.astype(address.dtype), inverse
        found, inverse = np.unique(address, return_inverse=True)
        return found, inverse.astype(np.int64)
    # Address and position in one number: numpy sorts those several times faster than an argsort.
    keys = (address.astype(np.int64) << 32) | np.arange(len(address))
    keys.sort()
    found, inverse = np.empty(len(keys), dtype=np.int32), np.empty(len(keys), dtype=np.int64)
    return found[: _number(keys, found, inverse)], inverse


@compiled
def _ones(word: np.uint64) -> np.uint64:
    """How many bits are set."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + (
        (word >> np.uint64(2)) & np.uint64(0x3333333333333333)
    )
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@compiled
def _mark(address: NDArray[Any], rows: int) -> tuple[NDArray[Any], Ints]:
    """Distinct addresses by a bit each; the bits below one tell which of them it is."""
    one, low = np.uint64(1), np.uint64(63)
    words = np.zeros(rows // 64 + 1, dtype=np.uint64)
    for entry in address:
        words[entry >> 6] |= one << (np.uint64(entry) & low)
    before = np.empty(len(words), dtype=np.int64)
    count = 0
    for w in range(len(words)):
        before[w] = count
        if words[w]:
            count += int(_ones(words[w]))
    found = np.empty(count, dtype=address.dtype)
    inverse = np.empty(len(address), dtype=np.int64)
    for i in range(len(address)):
        entry = address[i]
        below = words[entry >> 6] & ((one << (np.uint64(entry) & low)) - one)
        place = before[entry >> 6] + np.int64(_ones(below))
        inverse[i] = place
        found[place] = entry
    return found, inverse


@compiled
def _number(keys: Ints, found: NDArray[np.int32], inverse: Ints) -> int:
    count, last = 0, np.int64(-1)
    for key in keys:
        address = key >> 32
        if address != last:
            found[count] = address
            last = address
            count += 1
        inverse[key & _LOW] = count - 1
    return count


@compiled
def group(ranks: Ints, size: int) -> tuple[Ints, Ints]:
    """The order that brings entries together rank by rank, each rank's as they were; counts."""
    counts = np.zeros(size, dtype=np.int64)
    for rank in ranks:
        counts[rank] += 1
    at = np.zeros(size, dtype=np.int64)
    for rank in range(1, size):
        at[rank] = at[rank - 1] + counts[rank - 1]
    order = np.empty(len(ranks), dtype=np.int64)
    for i in range(len(ranks)):
        order[at[ranks[i]]] = i
        at[ranks[i]] += 1
    return order, counts


@compiled
def spots(starts: Ints, counts: Ints) -> Ints:
    """The rows of each rank, one after the other from the rank's start."""
    total, i = np.int64(0), 0
    for count in counts:
        total += count
    found = np.empty(total, dtype=np.int64)
    for rank in range(len(counts)):
        for k in range(counts[rank]):
            found[i] = starts[rank] + k
            i += 1
    return found


@compiled
def take_spots(at: Ints, inverse: Ints) -> Ints:
    """The spot of every lookup's row."""
    found = np.empty(len(inverse), dtype=np.int64)
    for i in range(len(inverse)):
        found[i] = at[inverse[i]]
    return found


@compiled
def present(at: Ints, edges: Ints, weights: Floats) -> tuple[Ints, Ints, Floats]:
    """Spots, edges of bags and weights without the lookups that have no spot.

    Done once, for the loops over rows would have to guess at every lookup.
    """
    found, left = np.empty(len(at), dtype=np.int64), np.zeros(len(edges), dtype=np.int64)
    chosen, weighted, count = np.empty(len(weights), dtype=np.float32), len(weights) > 0, 0
    for bag in range(len(edges) - 1):
        for i in range(edges[bag], edges[bag + 1]):
            found[count] = at[i]
            if weighted:
                chosen[count] = weights[i]
            count += at[i] >= 0
        left[bag + 1] = count
    return found[:count].copy(), left, chosen[: count if weighted else 0].copy()


@compiled
def edges_within(chosen: Ints, edges: Ints) -> Ints:
    """Edges of bags in which only some lookups, rising, are left."""
    left, count = np.zeros(len(edges), dtype=np.int64), 0
    for bag in range(1, len(edges)):
        while count < len(chosen) and chosen[count] < edges[bag]:
            count += 1
        left[bag] = count
    return left


@compiled
def inside(address: NDArray[Any], bands: Ints) -> Ints:
    """Which addresses lie in bands, lines of start and stop."""
    found, count = np.empty(len(address), dtype=np.int64), 0
    for i in range(len(address)):
        entry, here = np.int64(address[i]), False
        for band in range(len(bands)):
            here |= (entry >= bands[band, 0]) & (entry < bands[band, 1])
        found[count] = i
        count += here
    return found[:count].copy()


@compiled
def move_addresses(
    address: NDArray[Any], ends: Ints, tables: Ints, edges: Ints, lines: Ints, owners: Ints
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Move addresses of tables to their bundle, and find who is asked for each.

    Part by part, of the tables given, up to `ends`. The bands of a table are the lines between
    two `edges`: stop, what is added, what is added per block, first place (offset included),
    members, and rows of a block (0: spread). Finding the band of an address has no branches,
    as no processor could guess where they go.
    """
    to, asked = np.empty(len(address), dtype=np.int32), np.empty(len(address), dtype=np.int32)
    i = 0
    for part in range(len(ends)):
        first, last = edges[tables[part]], edges[tables[part] + 1]
        stops = lines[first : last - 1, 0].copy()
        added, apart = lines[first:last, 1].copy(), lines[first:last, 2].copy()
        starts, members = lines[first:last, 3].copy(), lines[first:last, 4].copy()
        blocks, owner = lines[first:last, 5].copy(), owners[first:last, 0].copy()
        plain = members.max() == 1 and blocks.max() == 0
        for k in range(i, ends[part]):
            entry, band = np.int64(address[k]), 0
            for stop in stops:
                band += entry >= stop
            moved, whom = entry + added[band], owner[band]
            if not plain:
                place, block = entry - starts[band], blocks[band]
                position = place // block if block else place % members[band]
                if block:
                    moved += apart[band] * position
                if members[band] > 1:
                    whom = owners[first + band, position]
            to[k] = moved
            asked[k] = whom
        i = ends[part]
    return to, asked


@compiled
def count_spans(entries: NDArray[Any], counts: Ints, starts: Ints) -> Ints:
    """Spans × ranks: how many entries of each rank lie between the starts of two spans.

    Entries stand rank by rank, and for each about in the order of spans.
    """
    found = np.zeros((len(starts) - 1, len(counts)), dtype=np.int64)
    i = 0
    for rank in range(len(counts)):
        span = 0
        for _ in range(counts[rank]):
            entry = np.int64(entries[i])
            while entry >= starts[span + 1]:
                span += 1
            while entry < starts[span]:
                span -= 1
            found[span, rank] += 1
            i += 1
    return found


@compiled
def count_rising(entries: Ints, counts: Ints, starts: Ints) -> Ints:
    """What `count_spans` gives for entries of which every rank's rise."""
    found, first = np.empty((len(starts) - 1, len(counts)), dtype=np.int64), 0
    for rank in range(len(counts)):
        here = entries[first : first + counts[rank]]
        found[:, rank] = np.diff(np.searchsorted(here, starts))
        first += counts[rank]
    return found


@compiled
def owners_of(address: NDArray[Any], bands: Ints, owners: Ints, ranks: int) -> NDArray[np.int32]:
    """The rank that is asked for each address; `ranks`: none, for it is of none of the bands.

    Bands are lines of start, stop, offset, rows of a block (0: spread) and members, by start.
    """
    starts, band = bands[:, 0].copy(), 0
    start, stop, offset, block, members = bands[0]
    found = np.full(len(address), ranks, dtype=np.int32)
    for i in range(len(address)):
        entry = np.int64(address[i])
        if not start <= entry < stop:  # mostly the band of the one before
            band = max(0, int(np.searchsorted(starts, entry, side="right")) - 1)
            start, stop, offset, block, members = bands[band]
            if not start <= entry < stop:
                continue
        position = np.int64(0)
        if block:
            position = (entry - start) // block
        elif members > 1:
            position = (entry - start + offset) % members
        found[i] = owners[band, position]
    return found


@compiled
def ask_bags(
    address: NDArray[Any], asked: NDArray[np.int32], edges: Ints, ranks: int, marked: NDArray[Any]
) -> tuple[Ints, Ints, Ints, Ints]:
    """Lookups for every rank that is asked for them, bag by bag.

    How many, which, their bags, and which begin one. `marked`, as long as `address`, takes the
    addresses, the top bit set where a bag begins. What nobody is asked for stands last in it.
    """
    counts, last = np.zeros(ranks + 1, dtype=np.int64), np.full(ranks + 1, -1, dtype=np.int64)
    for rank in asked:
        counts[rank] += 1
    at = np.zeros(ranks + 1, dtype=np.int64)
    for rank in range(1, ranks + 1):
        at[rank] = at[rank - 1] + counts[rank - 1]
    total = at[ranks]
    lookups = np.empty(len(address), dtype=np.int64)
    bags, new = np.empty(len(address), dtype=np.int64), np.empty(len(address), dtype=np.bool_)
    bit = np.uint64(8 * marked.itemsize - 1)
    for bag in range(len(edges) - 1):
        for i in range(edges[bag], edges[bag + 1]):
            rank = asked[i]
            place, first = at[rank], last[rank] != bag
            lookups[place] = i
            bags[place] = bag
            new[place] = first
            marked[place] = np.uint64(address[i]) | (np.uint64(first) << bit)
            last[rank] = bag
            at[rank] = place + 1
    starts = np.flatnonzero(new[:total])
    return counts[:ranks].copy(), lookups[:total].copy(), bags[:total].copy(), starts


@compiled
def own_bags(
    marked: NDArray[Any], counts: Ints, bands: Ints
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """What the ranks look up here; bands as in `owners_of`.

    Of every lookup its address, bag, band and slot; and where each bag begins.
    """
    total = len(marked)
    address, bag = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    which, slots = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    firsts = np.empty(total, dtype=np.int64)
    bit, one = np.uint64(8 * marked.itemsize - 1), np.uint64(1)
    band, start, stop, block, members = 0, np.int64(0), np.int64(0), np.int64(0), np.int64(1)
    count = np.int64(0)
    for i in range(counts.sum()):
        raw = np.uint64(marked[i])
        entry = np.int64(raw & ((one << bit) - one))
        if (entry < start) | (entry >= stop):
            band = int(np.searchsorted(bands[:, 0], entry, side="right")) - 1
            start, stop, _, block, members = bands[band]
        firsts[count] = i
        count += np.int64(raw >> bit)
        address[i], bag[i], which[i] = entry, count - 1, band
        slots[i] = (entry - start) % block if block else (entry - start) // members
    return address, bag, which, slots, firsts[:count].copy()


@compiled
def number_bags(counts: Ints, bags: Ints, inside: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """Number the bags that each rank's entries inside belong to.

    Entries stand rank by rank and bag by bag. Which of the numbered bags each entry is of (−1:
    outside), how many every rank has, and the bag of each.
    """
    number = np.full(len(bags), -1, dtype=np.int64)
    found = np.zeros(len(counts), dtype=np.int64)
    of = np.empty(len(bags), dtype=np.int64)
    total, i = 0, 0
    for rank in range(len(counts)):
        last = np.int64(-1)
        for _ in range(counts[rank]):
            if inside[i]:
                if bags[i] != last:
                    last = bags[i]
                    of[total] = last
                    total += 1
                    found[rank] += 1
                number[i] = total - 1
            i += 1
    return number, found, of[:total].copy()


def segments(slots: Ints, rows: int) -> tuple[Ints, Ints, Ints]:
    """Distinct slots, rising, where the entries of each begin, and the entries, as they came."""
    found, inverse = distinct(slots, rows)
    order, counts = group(inverse, len(found))
    return found, np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts))), order


@compiled
def merge_runs(entries: Ints, edges: Ints) -> tuple[Ints, Ints, Ints]:
    """Distinct slots of runs that rise, where each one's entries begin, and the entries.

    What `segments` gives, without sorting: every run is one rank's requests, in order.
    """
    total, runs = len(entries), len(edges) - 1
    slots, starts = np.empty(total, dtype=np.int64), np.empty(total + 1, dtype=np.int64)
    order, at = np.empty(total, dtype=np.int64), edges[:-1].copy()
    count, done = 0, 0
    while done < total:
        least = np.int64(2**62)
        for run in range(runs):
            if at[run] < edges[run + 1] and entries[at[run]] < least:
                least = entries[at[run]]
        slots[count] = least
        starts[count] = done
        count += 1
        for run in range(runs):
            while at[run] < edges[run + 1] and entries[at[run]] == least:
                order[done] = at[run]
                done += 1
                at[run] += 1
    starts[count] = total
    return slots[:count].copy(), starts[: count + 1].copy(), order

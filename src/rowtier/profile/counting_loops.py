"""Compiled inner loops of counting: lookups, repeats within a sample, and time slices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rowtier.jit import compiled
from rowtier.profile.bits import bit_length, prefetch_to_write
from rowtier.profile.order import NarrowInts
from rowtier.profile.windows import BINS

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
_FARTHEST = 2**24 - 2  # samples that fit into a row's last sample
_NEAR = 2**17  # rows whose counters the cache holds anyway
_AHEAD = 24  # lookups; from 16 to 32 it makes no difference that can be measured


@compiled
def seen_since(words: Words, start: int, found: Ints) -> int:
    """Places that were seen from a sample on, and when last; how many, if there is no room."""
    count, room = 0, found.shape[1]
    for i in range(len(words)):
        last = np.int64(words[i] >> np.uint32(8))
        if last > start:
            if room:
                found[0, count] = i
                found[1, count] = last - 1
            count += 1
    return count


@compiled
def gather(low: Bytes, rows: NarrowInts, first_row: int, found: Bytes) -> None:
    """Read the counters of rows."""
    for i in range(len(rows)):
        found[i] = low[rows[i] - first_row]


@compiled
def move_base(words: Words, by: int) -> None:
    """Count last samples from a later base; those before it were never."""
    moved = np.uint32(by) << np.uint32(8)
    for i in range(len(words)):
        lookups = words[i] & np.uint32(255)
        last = words[i] ^ lookups
        words[i] = lookups | (last - moved if last > moved else np.uint32(0))


@compiled
def count_single(
    rows: Ints, first_row: int, at: int, words: Words, bins: Ints, over: Ints, new: Ints
) -> tuple[int, int]:
    """Count one row per sample; how many ran over, and how many were new."""
    size, own = np.uint64(len(words)), np.zeros((4, 33), dtype=np.int64)
    far, overs, news = len(words) > _NEAR, 0, 0
    for i in range(len(rows)):
        if far and i + _AHEAD < len(rows):
            ahead = np.uint64(rows[i + _AHEAD] - first_row)
            if ahead < size:
                prefetch_to_write(words, ahead)
        place = np.uint64(rows[i] - first_row)  # unsigned: a row before the first is too large
        if place < size:
            word, now = words[place], np.uint32(at + i + 1)
            seen = (word + np.uint32(1)) & np.uint32(255)
            words[place] = (now << np.uint32(8)) | seen
            if seen == 0:
                over[overs] = place
                overs += 1
            if word == 0:
                new[news] = place
                news += 1
            last = word >> np.uint32(8)
            # Never is 0, and one less has all 32 bits: far away.
            own[i & 3, bit_length((last - np.uint32(1)) ^ (now - np.uint32(1)))] += 1
    add_bins(own, bins)
    return overs, news


@compiled
def count_bags(
    rows: Ints,
    first_row: int,
    at: int,
    words: Words,
    bins: Ints,
    over: Ints,
    new: Ints,
    lengths: Ints,
    repeats: Bytes,
    again: Ints,
) -> tuple[int, int, int]:
    """Count samples of any length; how many ran over, were new, and ran over as repeats."""
    size, one, own = np.uint64(len(words)), np.uint8(1), np.zeros((4, 33), dtype=np.int64)
    far, overs, news, agains, i = len(words) > _NEAR, 0, 0, 0, 0
    for sample in range(len(lengths)):
        now = np.uint32(at + sample + 1)
        for _ in range(lengths[sample]):
            if far and i + _AHEAD < len(rows):
                ahead = np.uint64(rows[i + _AHEAD] - first_row)
                if ahead < size:
                    prefetch_to_write(words, ahead)
            place = np.uint64(rows[i] - first_row)
            i += 1
            if place >= size:
                continue
            word = words[place]
            seen = (word + np.uint32(1)) & np.uint32(255)
            words[place] = (now << np.uint32(8)) | seen
            if seen == 0:
                over[overs] = place
                overs += 1
            if word == 0:
                new[news] = place
                news += 1
            last = word >> np.uint32(8)
            own[i & 3, bit_length((last - np.uint32(1)) ^ (now - np.uint32(1)))] += 1
            if last == now:
                repeated = np.uint8(repeats[place] + one)
                repeats[place] = repeated
                if repeated == 0:
                    again[agains] = place
                    agains += 1
    add_bins(own, bins)
    return overs, news, agains


@compiled
def add_bins(own: Ints, bins: Ints) -> None:
    """Add lookups by bits, of which four take turns, so that none waits for the one before."""
    for turn in range(len(own)):
        for bits in range(own.shape[1]):
            bins[min(bits, BINS - 1)] += own[turn, bits]

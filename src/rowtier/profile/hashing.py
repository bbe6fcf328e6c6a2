"""XXH64 of whole numbers and of strings, compiled; bit for bit that of the xxhash library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rowtier.jit import compiled

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Hashes = NDArray[np.uint64]

_P1 = np.uint64(11400714785074694791)
_P2 = np.uint64(14029467366897019727)
_P3 = np.uint64(1609587929392839161)
_P4 = np.uint64(9650029242287828579)
_P5 = np.uint64(2870177450012600261)


@compiled
def _rotate(x: np.uint64, bits: int) -> np.uint64:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@compiled
def _round(lane: np.uint64, word: np.uint64) -> np.uint64:
    return _rotate(lane + word * _P2, 31) * _P1


@compiled
def _mixed(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> np.uint64(33))) * _P2
    x = (x ^ (x >> np.uint64(29))) * _P3
    return x ^ (x >> np.uint64(32))


@compiled
def hash_ints(values: Ints, seed: np.uint64) -> Hashes:
    """XXH64 of every integer's eight little-endian bytes, as the xxhash library gives it."""
    hashes = np.empty(len(values), dtype=np.uint64)
    for i in range(len(values)):
        lane = _rotate(np.uint64(values[i]) * _P2, 31) * _P1
        x = _rotate((seed + _P5 + np.uint64(8)) ^ lane, 27) * _P1 + _P4
        hashes[i] = _mixed(x)
    return hashes


def hash_strings(values: Any, seed: int) -> Hashes:
    """XXH64 of every string's UTF-8, as the xxhash library gives it."""
    offsets, data = string_parts(values)
    return _hash_bytes(offsets, data, np.uint64(seed))


def string_parts(values: Any) -> tuple[Ints, Bytes]:
    """The bytes of an Arrow array of strings without nulls, and where each string begins."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not pa.types.is_large_string(values.type):
        values = values.cast(pa.large_string())
    _, offsets, data = values.buffers()
    if not len(values):
        return np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.uint8)
    edges: Ints = np.frombuffer(offsets, dtype=np.int64)
    edges = edges[values.offset : values.offset + len(values) + 1]
    if data is None or not data.size:
        return edges, np.empty(0, dtype=np.uint8)
    return edges, np.frombuffer(data, dtype=np.uint8)


def strings_of(starts: Ints, data: Bytes) -> pa.Array:
    """The Arrow array of strings that has these parts."""
    buffers = [None, pa.py_buffer(starts.tobytes()), pa.py_buffer(data.tobytes())]
    return pa.Array.from_buffers(pa.large_string(), len(starts) - 1, buffers)


@compiled
def _word(data: Bytes, at: int, size: int) -> np.uint64:
    """Some bytes as a little-endian number."""
    word = np.uint64(0)
    for i in range(size):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word


@compiled
def _hash_bytes(offsets: Ints, data: Bytes, seed: np.uint64) -> Hashes:
    hashes = np.empty(len(offsets) - 1, dtype=np.uint64)
    for i in range(len(offsets) - 1):
        hashes[i] = _hash_one(data, offsets[i], offsets[i + 1], seed)
    return hashes


@compiled
def _hash_one(data: Bytes, start: int, stop: int, seed: np.uint64) -> np.uint64:
    at, size = start, stop - start
    if size >= 32:
        a, b, c, d = seed + _P1 + _P2, seed + _P2, seed + np.uint64(0), seed - _P1
        while stop - at >= 32:
            a = _round(a, _word(data, at, 8))
            b = _round(b, _word(data, at + 8, 8))
            c = _round(c, _word(data, at + 16, 8))
            d = _round(d, _word(data, at + 24, 8))
            at += 32
        x = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
        x = (x ^ _round(np.uint64(0), a)) * _P1 + _P4
        x = (x ^ _round(np.uint64(0), b)) * _P1 + _P4
        x = (x ^ _round(np.uint64(0), c)) * _P1 + _P4
        x = (x ^ _round(np.uint64(0), d)) * _P1 + _P4
    else:
        x = seed + _P5
    x += np.uint64(size)
    while stop - at >= 8:
        x = _rotate(x ^ _round(np.uint64(0), _word(data, at, 8)), 27) * _P1 + _P4
        at += 8
    if stop - at >= 4:
        x = _rotate(x ^ (_word(data, at, 4) * _P1), 23) * _P2 + _P3
        at += 4
    while at < stop:
        x = _rotate(x ^ (np.uint64(data[at]) * _P5), 11) * _P1
        at += 1
    return _mixed(x)

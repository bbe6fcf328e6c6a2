"""From the ids in the data to the rows of a table.

`as_is` takes the id as the row, `modulo` its remainder, `hash` the remainder of XXH64 with
the table's seed: of the eight little-endian bytes of an integer, or of a string's UTF-8.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from rowtier.jit import compiled
from rowtier.tables import Table

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]
OutOfRange = Literal["error", "clip", "drop", "hash"]

_P1 = np.uint64(11400714785074694791)
_P2 = np.uint64(14029467366897019727)
_P3 = np.uint64(1609587929392839161)
_P4 = np.uint64(9650029242287828579)
_P5 = np.uint64(2870177450012600261)


@compiled
def _rotate(x: np.uint64, bits: int) -> np.uint64:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@compiled
def hash_ints(values: Ints, seed: np.uint64) -> Hashes:
    """XXH64 of every integer's eight little-endian bytes, as the xxhash library gives it."""
    hashes = np.empty(len(values), dtype=np.uint64)
    for i in range(len(values)):
        lane = _rotate(np.uint64(values[i]) * _P2, 31) * _P1
        x = _rotate((seed + _P5 + np.uint64(8)) ^ lane, 27) * _P1 + _P4
        x = (x ^ (x >> np.uint64(33))) * _P2
        x = (x ^ (x >> np.uint64(29))) * _P3
        hashes[i] = x ^ (x >> np.uint64(32))
    return hashes


def hash_strings(values: Any, seed: int) -> Hashes:
    """XXH64 of every string; each distinct one of a chunk is hashed once."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    encoded = values if isinstance(values, pa.DictionaryArray) else values.dictionary_encode()
    words = encoded.dictionary.cast(pa.large_binary()).to_pylist()
    hashes = np.fromiter(
        (xxhash.xxh64_intdigest(word, seed) for word in words), dtype=np.uint64, count=len(words)
    )
    found: Hashes = hashes[encoded.indices.to_numpy(zero_copy_only=False)]
    return found


@compiled
def first_outside(rows: Ints, num_embeddings: int) -> int:
    """The position of the first row that the table does not have, or −1."""
    for i in range(len(rows)):
        if rows[i] < 0 or rows[i] >= num_embeddings:
            return i
    return -1


def hashed_rows(hashes: Hashes, table: Table) -> Ints:
    """The rows that hashes fall on."""
    return (hashes % np.uint64(table.num_embeddings)).astype(np.int64)

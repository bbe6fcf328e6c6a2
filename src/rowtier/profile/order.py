"""The hotness order: count descending, ties by row id, untouched rows last in id order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Whole numbers in four bytes each where the largest fits, else in eight.
NarrowInts = NDArray[np.signedinteger[Any]]

# Per table its touched rows, hottest first; the untouched ones follow from the row count.
RowOrder = Mapping[str, NarrowInts]


def rows_by_position(touched: NarrowInts, num_embeddings: int) -> NDArray[np.int64]:
    """All row ids of a table by position: touched rows hottest first, then the rest by id."""
    rest = np.ones(num_embeddings, dtype=bool)
    rest[touched] = False
    return np.concatenate([touched, np.flatnonzero(rest)])


def narrow(array: NDArray[np.integer[Any]]) -> NarrowInts:
    """The same numbers in the narrowest form, so that equal numbers are equal bytes."""
    dtype: type[np.signedinteger[Any]] = np.int32
    if array.dtype != np.int32:
        dtype = narrow_dtype(int(array.min(initial=0)), int(array.max(initial=0)))
    return np.ascontiguousarray(array, dtype=dtype)


def narrow_dtype(least: int, most: int) -> type[np.signedinteger[Any]]:
    """The type that `narrow` gives numbers of this range."""
    limits = np.iinfo(np.int32)
    return np.int32 if limits.min <= least and most <= limits.max else np.int64

"""The hotness order: count descending, ties by row id, untouched rows last in id order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

# Per table its touched rows, hottest first; the untouched ones follow from the row count.
RowOrder = Mapping[str, NDArray[np.int64]]


def rows_by_rank(touched: NDArray[np.int64], num_embeddings: int) -> NDArray[np.int64]:
    """All row ids of a table by rank: touched rows hottest first, then the rest by id."""
    rest = np.ones(num_embeddings, dtype=bool)
    rest[touched] = False
    return np.concatenate([touched, np.flatnonzero(rest)])

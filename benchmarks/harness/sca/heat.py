"""sca.py: how hot rows are, by a formula or as real data counted it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from numpy.typing import NDArray

from harness.folders import DATA
from rowtier import (
    Curve,
    FeatureStats,
    Profile,
    RowCounts,
    Table,
    Tables,
    TableStats,
    make_profile,
)

Ints = NDArray[np.int64]

ROWS, DIM, SEED = 1_000_000, 64, 7
REAL = (("bookcrossing", "isbn"), ("bookcrossing", "user_id"), ("diginetica", "item"),
        ("nowplaying", "item"))  # fmt: skip
_PARTS = 1e12  # a distribution in whole numbers


@dataclass(frozen=True, eq=False)
class Heat:
    """How likely a lookup is to hit each row of a table, hottest first, in whole numbers."""

    name: str
    counts: Ints

    def profile(self, batch_size: int) -> Profile:
        """The distribution as a profile: one lookup a sample, and hot rows lie anywhere.

        The curve is the distribution itself. One that rowtier makes from counts expects rows
        to come that were never counted, and no such row is ever drawn here.
        """
        rows, total = len(self.counts), int(self.counts.sum())
        table = Table(name="t", num_embeddings=rows, embedding_dim=DIM, features=("f",))
        feature = FeatureStats(name="f", present=total, lookups=total)
        ids = np.random.default_rng(SEED).permutation(rows)
        order = np.lexsort((ids, -self.counts))
        counted = RowCounts(ids[order], self.counts[order])
        curve = Curve.from_counts(counted.counts)
        return Profile(batch_size, (TableStats(table, total, (feature,), curve, counted),))

    def draw(self, size: int, seed: int) -> Ints:
        """Ranks of so many independent lookups."""
        ends = np.cumsum(self.counts)
        places = np.random.default_rng(seed).integers(0, ends[-1], size)
        return np.searchsorted(ends, places, side="right")


def in_parts(name: str, weights: NDArray[Any]) -> Heat:
    """A distribution given by weights in any order."""
    ordered = np.sort(weights)[::-1]
    counts = np.rint(ordered / ordered.sum() * _PARTS).astype(np.int64)
    return Heat(name, counts[counts > 0])


def stated() -> Iterator[Heat]:
    """The distributions that a formula states."""
    rank = np.arange(1, ROWS + 1, dtype=np.float64)
    for exponent in (0.8, 1.0, 1.2):
        yield in_parts(f"zipf {exponent}", rank**-exponent)
    yield in_parts("uniform", np.ones(ROWS))
    yield in_parts("zipf-mandelbrot 1.1, shift 100", (rank + 100) ** -1.1)
    slots = np.random.default_rng(SEED).integers(0, ROWS, ROWS)
    yield in_parts("zipf 1.05 hashed", np.bincount(slots, rank**-1.05, ROWS))


def real() -> Iterator[Heat]:
    """What whole real datasets counted; batches are drawn from that, not in their order."""
    for name, column in REAL:
        path = DATA / f"{name}.parquet"
        if not path.exists():
            print(f"no real data: there is no {path}; set ROWTIER_DATA", file=sys.stderr)
            continue
        ids = pq.read_table(path, columns=[column]).column(0).combine_chunks()
        most = pa.compute.max(ids.flatten() if pa.types.is_list(ids.type) else ids).as_py()
        table = Table(name=column, num_embeddings=most + 1, embedding_dim=DIM, features=(column,))
        stats = make_profile(path, Tables(batch_size=1, tables=(table,))).stats[0]
        assert stats.counts is not None
        yield Heat(f"{name} {column}", stats.counts.counts.astype(np.int64))

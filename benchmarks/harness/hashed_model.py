"""A small model of the kind RecShard is about: hash tables of all sizes, many of their rows unused.

rm2 (src/rowtier/synth/rm.py) scaled down until it can really be trained: 40 tables, their rows
log-normal, sigma 2, none above 9 % of all. Half as many distinct values as rows, give or take a
factor of e, are hashed into them, which leaves half of the rows or more unused. Ids a sample are
log-normal around 4, clipped to 1 to 200, and coverage is uniform .05 to 1, both per table; that
makes 130 to 320 lookups a sample. One Zipf exponent for all tables, so that it can be varied.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rowtier import FeatureStats, Profile, RowCounts, Table, TableStats

TABLES, DIM = 40, 64
LARGEST_SHARE = 0.09
VALUES_PER_ROW = 0.5
PROFILED_SAMPLES = 1_000_000  # 30 to 80 lookups a row of 1 GiB; rm2's own profile states 83
Ints = NDArray[np.int64]
Batch = dict[str, tuple[Ints, Ints]]  # feature → ids of all samples, and how many each has


@dataclass(frozen=True, eq=False)
class HashedTable:
    """Values with a popularity, and the row that each of them is hashed to."""

    name: str
    rows: int
    rows_of_values: NDArray[np.int32]  # most popular first
    alpha: float
    ids_per_sample: float  # of samples that have the feature
    coverage: float

    @property
    def feature(self) -> str:
        """What reads it."""
        return f"f_{self.name}"

    @property
    def table(self) -> Table:
        """How it is declared."""
        return Table(
            name=self.name, num_embeddings=self.rows, embedding_dim=DIM, pooling="sum",
            features=(self.feature,), optimizer="sgd",
        )  # fmt: skip

    @cached_property
    def popularity(self) -> NDArray[np.float64]:
        """How likely a lookup is of each value."""
        weights = np.arange(1, len(self.rows_of_values) + 1, dtype=np.float64) ** -self.alpha
        return np.asarray(weights / weights.sum())

    @cached_property
    def _cumulated(self) -> NDArray[np.float64]:
        return np.cumsum(self.popularity)

    def draw(self, random: np.random.Generator, samples: int) -> tuple[Ints, Ints]:
        """Ids of so many samples, one after the other, and how many each of them has."""
        whole = int(self.ids_per_sample)
        present = random.random(samples) < self.coverage
        more = random.random(samples) < self.ids_per_sample - whole
        lengths = np.where(present, whole + more, 0)
        at = np.searchsorted(self._cumulated, random.random(int(lengths.sum())))
        at = np.minimum(at, len(self.rows_of_values) - 1)  # the last sum may be just below 1
        return self.rows_of_values[at].astype(np.int64), lengths

    def count(self, random: np.random.Generator, samples: int) -> TableStats:
        """Statistics of so many samples: as if they were drawn and counted, but without ids."""
        whole = int(self.ids_per_sample)
        present = int(random.binomial(samples, self.coverage))
        more = int(random.binomial(present, self.ids_per_sample - whole))
        seen = random.multinomial(present * whole + more, self.popularity)
        counts = np.bincount(self.rows_of_values, weights=seen, minlength=self.rows)
        feature = FeatureStats(
            name=self.feature, present=present, lookups=int(seen.sum()),
            lengths=((whole, present - more), (whole + 1, more)),
        )  # fmt: skip
        dense = RowCounts.from_dense(counts.astype(np.int64))
        return TableStats.counted(self.table, samples, (feature,), dense)


@dataclass(frozen=True)
class HashedModel:
    """All tables of a seed and a Zipf exponent."""

    seed: int
    alpha: float
    total_bytes: int

    @cached_property
    def tables(self) -> tuple[HashedTable, ...]:
        """The tables. Seeds differ in all their properties, exponents in popularity alone."""
        random = np.random.default_rng(self.seed)
        rows = np.maximum(_shares(random) * self.total_bytes / (4 * DIM), 2).astype(np.int64)
        values = rows * VALUES_PER_ROW * np.exp(random.standard_normal(TABLES))
        pooling = np.clip(4 * np.exp(1.4 * random.standard_normal(TABLES)), 1, 200)
        coverage = random.uniform(0.05, 1.0, TABLES)
        return tuple(
            HashedTable(
                name=f"t{index:02d}",
                rows=int(rows[index]),
                rows_of_values=random.integers(
                    0, rows[index], max(1, int(values[index])), dtype=np.int32
                ),
                alpha=self.alpha,
                ids_per_sample=float(pooling[index]),
                coverage=float(coverage[index]),
            )
            for index in range(TABLES)
        )

    def profile(self, batch_size: int, samples: int = PROFILED_SAMPLES) -> Profile:
        """Statistics of samples other than those trained on."""
        random = np.random.default_rng((self.seed, 1))
        return Profile(batch_size, tuple(table.count(random, samples) for table in self.tables))

    def batch(self, number: int, rank: int, samples: int) -> Batch:
        """One batch of one rank, the same for all who ask for it."""
        random = np.random.default_rng((self.seed, 2, number, rank))
        return {table.feature: table.draw(random, samples) for table in self.tables}


def _shares(random: np.random.Generator) -> NDArray[np.float64]:
    """Shares of all bytes, none above the largest that is allowed."""
    weights = random.lognormal(sigma=2.0, size=TABLES)
    shares = weights / weights.sum()
    capped = np.zeros(TABLES, dtype=bool)
    while (shares > LARGEST_SHARE * (1 + 1e-9)).any():
        capped |= shares >= LARGEST_SHARE
        free = 1 - LARGEST_SHARE * capped.sum()
        shares = np.where(capped, LARGEST_SHARE, weights * free / weights[~capped].sum())
    return np.asarray(shares)

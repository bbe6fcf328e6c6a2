"""Small models whose steps are timed to find out what work costs: tables, batches and plans.

They differ in what the coefficients of `work:` are counted by: tables, rounds, lookups, rows,
bytes and updates. Rows are drawn with Zipf's law, as in most data, so that caches help as much as
they do in training.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.plan.plan import Plan
from rowtier.profile.profile import FeatureStats, Profile, RowCounts, TableStats
from rowtier.tables import Optimizer, Table

Ints = NDArray[np.int64]
ALPHA = 1.05
HOT = 50  # every so-manieth row is placed otherwise, where some are
_COUNTED = 1e7  # lookups that the law is rounded to


@dataclass(frozen=True)
class Shape:
    """Tables that are alike but for their width, and a batch of one rank."""

    tables: int
    rows: int
    dim: int
    length: int  # lookups of a sample
    batch: int
    pooled: bool = True
    optimizer: Optimizer = "sgd"
    other_dim: int | None = None  # of every other table, which then are a bundle of their own

    def dim_of(self, table: int) -> int:
        """How wide a table is."""
        return self.other_dim if self.other_dim is not None and table % 2 else self.dim

    @cached_property
    def heat(self) -> NDArray[np.float64]:
        """Probability that a lookup hits the row of each rank."""
        heat = np.arange(1, self.rows + 1, dtype=np.float64) ** -ALPHA
        return np.asarray(heat / heat.sum())

    def rows_by_position(self, table: int) -> Ints:
        """Hot rows lie anywhere in a table."""
        return np.random.default_rng(table).permutation(self.rows)

    def ids(self, table: int, random: np.random.Generator) -> Ints:
        """What a batch looks up, samples × lookups."""
        ranks = np.searchsorted(np.cumsum(self.heat), random.random((self.batch, self.length)))
        return self.rows_by_position(table)[np.minimum(ranks, self.rows - 1)]

    @property
    def is_small(self) -> bool:
        """Whether a step is over before its rows matter."""
        return self.tables * self.batch * self.length <= 10_000

    def has(self, way: str) -> bool:
        """Whether a way to place the tables tells something new about them."""
        if way in ("sums", "plain"):  # pooled rows are not fetched lookup by lookup
            return self.pooled == (way == "sums")
        if way == "mixed":
            return self.pooled and self.tables > 1 and self.optimizer == "sgd"
        return way != "only copies" or self.is_small

    @property
    def profile(self) -> Profile:
        """The statistics that batches are drawn from."""
        samples = int(_COUNTED) // self.length
        stats = [self._stats(table, samples) for table in range(self.tables)]
        return Profile(self.batch, tuple(stats))

    def _stats(self, number: int, samples: int) -> TableStats:
        table = Table(
            name=f"t{number}",
            num_embeddings=self.rows,
            embedding_dim=self.dim_of(number),
            pooling="sum" if self.pooled else "none",
            features=(f"t{number}",),
            optimizer=self.optimizer,
        )
        counts = np.zeros(self.rows, dtype=np.int64)
        order, lookups = self.rows_by_position(number), samples * self.length
        counts[order] = np.maximum(1, np.rint(self.heat * lookups))
        counts[order[0]] += lookups - counts.sum()  # what rounding left
        feature = FeatureStats(
            name=table.name,
            present=samples,
            lookups=lookups,
            lengths=((self.length, samples),),
        )
        return TableStats.counted(table, samples, (feature,), RowCounts.from_dense(counts))


SHAPES = (
    Shape(1, 10_000, 16, 1, 32),
    Shape(26, 10_000, 16, 1, 32),
    Shape(12, 10_000, 64, 1, 32, other_dim=16),
    Shape(26, 20_000, 64, 3, 64),
    Shape(1, 20_000, 64, 5, 32, pooled=False),
    Shape(4, 20_000, 64, 5, 32, pooled=False),
    Shape(4, 50_000, 64, 1, 64),
    Shape(4, 50_000, 64, 10, 256),
    Shape(8, 50_000, 64, 10, 1024),
    Shape(8, 50_000, 16, 10, 2048),
    Shape(4, 50_000, 128, 10, 512),
    Shape(26, 20_000, 64, 1, 2048),
    Shape(8, 500, 16, 1, 4096),
    Shape(4, 50_000, 64, 20, 512, pooled=False),
    Shape(2, 100_000, 64, 20, 2048, pooled=False),
    Shape(4, 50_000, 64, 10, 1024, optimizer="adagrad"),
    Shape(4, 50_000, 64, 10, 1024, optimizer="rowwise_adagrad"),
    Shape(4, 50_000, 64, 10, 1024, optimizer="adam"),
)
WAYS = ("owners", "rows", "plain", "sums", "mixed", "copies", "only copies")


def plans(shape: Shape, cluster: Cluster) -> Iterator[Plan]:
    """Ways to place the tables of a shape that differ in what ranks have to do."""
    profile = shape.profile
    for way in ("alone",) if cluster.num_devices == 1 else WAYS:
        if shape.has(way):
            yield _placed(way, shape, profile, cluster)


def _placed(way: str, shape: Shape, profile: Profile, cluster: Cluster) -> Plan:
    bands: Bands = {
        stats.table.name: tuple(_bands(way, shape, number, cluster))
        for number, stats in enumerate(profile.stats)
    }
    return Plan.build(way, profile, cluster, bands)


def _bands(way: str, shape: Shape, number: int, cluster: Cluster) -> Iterator[Band]:
    tier, rows = cluster.device.tiers[0].name, shape.rows
    exchange = "sums" if shape.pooled else "rows"
    hot = rows if way == "only copies" else max(1, rows // HOT)
    whole = Band(start=0, stop=rows, scope=cluster.top, tier=tier, offset=number)
    if way == "alone":
        yield whole
    elif way == "owners":
        owner = (number % cluster.num_devices,)
        changes = {"members": owner, "exchange": exchange, "coalesced": exchange == "rows"}
        yield whole.model_copy(update={**changes, "offset": 0})
    elif way == "rows":
        yield whole.model_copy(update={"coalesced": True})
    elif way == "plain":
        yield whole
    elif way == "sums":
        yield whole.model_copy(update={"exchange": "sums"})
    elif way == "mixed":
        yield whole.model_copy(update={"stop": hot, "coalesced": True})
        yield whole.model_copy(update={"start": hot, "exchange": "sums"})
    else:
        copies = {"stop": hot, "scope": "device", "coalesced": True, "sync": "sparse", "offset": 0}
        yield whole.model_copy(update=copies)
        if hot < rows:
            yield whole.model_copy(update={"start": hot, "coalesced": True})

"""What the sequences of `flexshard.py` hold: drawn from a Zipf law, or real sessions in time order.

Batches follow from a seed, the rank and the number of the step, so that ranks draw their own and
replay sees the very same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import rowtier
from harness.folders import DATA
from rowtier import Profile, Table, Tables

Ints = NDArray[np.int64]
Batch = tuple[Ints, Ints]  # ids of all samples, and how many each sample has
FEATURE, TABLE, DIM = "seen", "item", 64
ROWS = 1_000_000
PROFILED_BATCHES = 64
PROFILED_SHARE = 0.6  # of real sessions; training goes on with the others


class Data(ABC):
    """Sequences, sample after sample."""

    name: str
    rows: int
    batch_size: int

    @abstractmethod
    def batch(self, rank: int, world: int, step: int) -> Batch:
        """What a rank trains on in a step."""

    @abstractmethod
    def profiled(self) -> Iterator[Batch]:
        """What was seen before."""

    @abstractmethod
    def most_steps(self, world: int) -> int:
        """How many steps there are at most."""

    def profile(self, world: int, dtype: Literal["fp32", "fp16"] = "fp32") -> Profile:
        """Statistics of what was seen; every rank can have as many rows (TorchRec must)."""
        rows = -(-self.rows // world) * world
        table = Table(
            name=TABLE, num_embeddings=rows, embedding_dim=DIM, pooling="none", dtype=dtype,
            features=(FEATURE,), optimizer="sgd",
        )  # fmt: skip
        tables = Tables(batch_size=self.batch_size, tables=(table,))
        return rowtier.make_profile([{FEATURE: batch} for batch in self.profiled()], tables)


@dataclass(frozen=True)
class Zipf(Data):
    """Ids of a Zipf law; hot rows lie anywhere in the table."""

    alpha: float
    batch_size: int
    length: int = 50
    rows: int = ROWS

    @property
    def name(self) -> str:  # type: ignore[override]
        """How the row of results is called."""
        return f"zipf {self.alpha}"

    def batch(self, rank: int, world: int, step: int) -> Batch:  # noqa: ARG002
        """Drawn with a seed of its own."""
        return self._draw((1 + step) * 1000 + rank)

    def profiled(self) -> Iterator[Batch]:
        """Batches that are never trained on."""
        return (self._draw(number) for number in range(PROFILED_BATCHES))

    def most_steps(self, world: int) -> int:  # noqa: ARG002
        """As many as one likes."""
        return 2**31

    def _draw(self, seed: int) -> Batch:
        cdf, places = self._tables
        random = np.random.default_rng((int(self.alpha * 1000), seed))
        ranks = np.searchsorted(cdf, random.random(self.batch_size * self.length) * cdf[-1])
        return places[ranks], np.full(self.batch_size, self.length, dtype=np.int64)

    @cached_property
    def _tables(self) -> tuple[NDArray[np.float64], Ints]:
        cdf = np.cumsum(np.arange(1, self.rows + 1, dtype=np.float64) ** -self.alpha)
        return cdf, np.random.default_rng(0).permutation(self.rows)


@dataclass(frozen=True, eq=False)
class Sessions(Data):
    """Real sessions, each a sample; ranks take turns, batch by batch."""

    name: str
    ids: Ints
    edges: Ints
    batch_size: int

    @classmethod
    def load(cls, name: str, batch_size: int) -> Sessions:
        """Read one of the real data sets."""
        import pyarrow.parquet as pq

        column = pq.read_table(DATA / f"{name}.parquet").column("item").combine_chunks()
        lengths = np.diff(column.offsets.to_numpy())
        ids = column.flatten().to_numpy().astype(np.int64)
        return cls(name, ids, np.concatenate(([0], np.cumsum(lengths))), batch_size)

    @property
    def rows(self) -> int:  # type: ignore[override]
        """One for every item."""
        return int(self.ids.max()) + 1

    @property
    def _profiled_samples(self) -> int:
        return int(PROFILED_SHARE * (len(self.edges) - 1))

    def batch(self, rank: int, world: int, step: int) -> Batch:
        """The next sessions after those that were seen."""
        first = self._profiled_samples + (step * world + rank) * self.batch_size
        return self._samples(first, first + self.batch_size)

    def profiled(self) -> Iterator[Batch]:
        """The first sessions."""
        yield self._samples(0, self._profiled_samples)

    def most_steps(self, world: int) -> int:
        """Until the sessions end."""
        left = len(self.edges) - 1 - self._profiled_samples
        return left // (self.batch_size * world)

    def _samples(self, first: int, last: int) -> Batch:
        edges = self.edges[first : last + 1]
        return self.ids[edges[0] : edges[-1]], np.diff(edges)


def distinct_by_node(data: Data, nodes: int, ranks: int, step: int) -> list[int]:
    """How many rows the ranks of each node look up in a step, each counted once."""
    world = nodes * ranks
    return [
        len(np.unique(np.concatenate([data.batch(n * ranks + r, world, step)[0]
                                      for r in range(ranks)])))
        for n in range(nodes)
    ]  # fmt: skip


def step_batches(data: Data, world: int, steps: list[int]) -> list[dict[str, Any]]:
    """All ranks' batches of some steps, in the order in which replay deals them out."""
    return [{FEATURE: data.batch(rank, world, step)} for step in steps for rank in range(world)]

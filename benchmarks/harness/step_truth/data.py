"""What `step_truth.py` trains on: ids of a Zipf law, or the second half of real data.

Batches follow from the rank and their number, so that ranks make their own.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from real_data import lookups_of, tables_of

from harness.folders import DATA
from rowtier import Profile, ProfileOptions, Table, Tables, make_profile
from rowtier.profile.readers import TimeWindow, open_source
from rowtier.tables import Pooling

Ints = NDArray[np.int64]
Bags = tuple[Ints, Ints]  # rows of all samples, and how many each sample has
DIM, ALPHA = 64, 1.05
PROFILED_BATCHES, PROFILED_SAMPLES = 40, 4096
REAL = ("diginetica", "rentals")


class Workload(ABC):
    """Tables, statistics of what was seen before, and batches to train on."""

    name: str

    @abstractmethod
    def profile(self) -> Profile:
        """Statistics of the first part; any batch size may be put into it."""

    @abstractmethod
    def batch(self, rank: int, world: int, number: int, samples: int) -> dict[str, Bags]:
        """What a rank trains on, by feature; every feature reads one table."""


@dataclass(frozen=True)
class Drawn(Workload):
    """Tables that are read by a Zipf law; hot rows lie anywhere in them."""

    name: str
    pooling: Pooling
    lengths: tuple[int, ...]  # mean of each table; a sample has half as many to half as many more
    rows: int = 100_000

    @property
    def tables(self) -> Tables:
        """One table for every length."""
        tables = tuple(
            Table(
                name=f"t{index}", num_embeddings=self.rows, embedding_dim=DIM,
                pooling=self.pooling, features=(f"f{index}",), optimizer="sgd",
            )
            for index in range(len(self.lengths))
        )  # fmt: skip
        return Tables(batch_size=PROFILED_SAMPLES, tables=tables)

    def profile(self) -> Profile:
        """Of batches that are never trained on."""
        seen = [self._draw((0, number), PROFILED_SAMPLES) for number in range(PROFILED_BATCHES)]
        return make_profile(seen, self.tables)

    def batch(self, rank: int, world: int, number: int, samples: int) -> dict[str, Bags]:
        """Fresh ones."""
        return self._draw((1, number * world + rank), samples)

    def _draw(self, seed: tuple[int, int], samples: int) -> dict[str, Bags]:
        random = np.random.default_rng(seed)
        bags = {}
        for index, mean in enumerate(self.lengths):
            lengths = random.integers((mean + 1) // 2, 3 * mean // 2 + 1, samples)
            cdf = self._cdf
            at = np.searchsorted(cdf, random.random(int(lengths.sum())) * cdf[-1])
            bags[f"f{index}"] = self._by_heat[index][at], lengths
        return bags

    @cached_property
    def _cdf(self) -> NDArray[np.float64]:
        return np.cumsum(np.arange(1, self.rows + 1, dtype=np.float64) ** -ALPHA)

    @cached_property
    def _by_heat(self) -> list[Ints]:
        count = range(len(self.lengths))
        return [np.random.default_rng(i).permutation(self.rows) for i in count]


@dataclass(frozen=True)
class Recorded(Workload):
    """Real data: the first half is profiled; the second, shuffled, is trained on repeatedly."""

    name: str
    path: str
    tables: Tables

    def profile(self) -> Profile:
        """Of the first half."""
        return make_profile(self.path, self.tables, ProfileOptions(before="50%"))

    def batch(self, rank: int, world: int, number: int, samples: int) -> dict[str, Bags]:
        """The next samples; after the last one the first comes again."""
        total, bags = self._second
        first = (number * world + rank) * samples
        chosen = self._shuffled[np.arange(first, first + samples) % total]
        return {feature: _taken(rows, edges, chosen) for feature, (rows, edges) in bags.items()}

    @cached_property
    def _second(self) -> tuple[int, dict[str, Bags]]:
        """How many samples there are, and by feature their rows and where each sample begins."""
        features = [table.features[0] for table in self.tables]
        source = TimeWindow(after="50%").of(open_source(self.path, features))
        bags = {}
        for name, found in lookups_of(source, self.tables).items():
            feature = next(t.features[0] for t in self.tables if t.name == name)
            assert found.lengths is not None
            bags[feature] = found.rows, np.concatenate(([0], np.cumsum(found.lengths)))
            samples = found.samples
        return samples, bags

    @cached_property
    def _shuffled(self) -> Ints:
        return np.random.default_rng(0).permutation(self._second[0])


def _taken(rows: Ints, edges: Ints, samples: Ints) -> Bags:
    """The rows of some samples, one after the other."""
    lengths = np.diff(edges)[samples]
    ends = np.cumsum(lengths)
    at = np.arange(ends[-1]) + np.repeat(edges[samples] - ends + lengths, lengths)
    return rows[at], lengths


def workloads(quick: bool) -> Iterator[Workload]:
    """All of them; quick: small ones that are drawn."""
    if quick:
        yield Drawn("pooled", "sum", (1, 2, 4), rows=2_000)
        yield Drawn("sequence", "none", (20,), rows=2_000)
        return
    yield Drawn("pooled", "sum", tuple((1, 1, 2, 4)[i % 4] for i in range(26)))
    yield Drawn("sequence", "none", (20, 20, 20, 20))
    for name in REAL:
        path = DATA / f"{name}.parquet"
        if path.exists():
            yield Recorded(name, str(path), _real_tables(path))
        else:
            print(f"no {name}: {DATA} does not have it; set ROWTIER_DATA", file=sys.stderr)


def _real_tables(path: Path) -> Tables:
    """As its description says; without one, lists are sequences of rows as wide as the drawn."""
    described = path.with_suffix(".tables.yaml")
    found = Tables.load(described) if described.exists() else tables_of(path)
    changes: dict[str, object] = {"optimizer": "sgd"}
    if not described.exists():
        changes |= {"pooling": "none", "embedding_dim": DIM}
    tables = tuple(table.model_copy(update=changes) for table in found)
    return found.model_copy(update={"tables": tables})

"""What contenders train on: samples in time order, the first ones profiled, others trained."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from real_data import lookups_of, tables_of

import rowtier
from harness.folders import DATA
from harness.step_truth.data import Bags, _taken
from rowtier import Profile, Tables, make_profile
from rowtier.profile.readers import open_source

PROFILED = 0.2  # of all samples
# Samples of a rank: as many as make a step of one table more than what any step takes, and few
# where there is little data, so that there are thousands of steps.
DRIFT_BATCH, REAL_BATCH = 2048, 16
RATE = 1.0  # of `synth drift`: share of the ranks that change owner over the data


@dataclass(frozen=True, eq=False)
class Stream:
    """Rows that samples look up, in time order; every feature reads one table."""

    name: str
    tables: Tables
    bags: dict[str, Bags]  # by feature: rows, and where each sample begins
    samples: int

    @property
    def first(self) -> int:
        """The first sample that is trained on."""
        return int(PROFILED * self.samples)

    def part(self, start: int, stop: int) -> dict[str, Bags]:
        """Some samples, as batches are given."""
        chosen = np.arange(start, stop)
        return {name: _taken(rows, edges, chosen) for name, (rows, edges) in self.bags.items()}

    def profile(self, start: int, stop: int) -> Profile:
        """Statistics of some samples."""
        return make_profile([self.part(start, stop)], self.tables)


def streams(quick: bool) -> Iterator[tuple[Stream, int]]:
    """All of them with the batch size of a rank; quick: a small one that is drawn."""
    with tempfile.TemporaryDirectory() as folder:
        samples, rows = (20_000, 5_000) if quick else (16_000_000, 200_000)
        rowtier.make_workload(
            "drift", folder, samples=samples, rows=rows, rate=RATE, embedding_dim=64
        )
        tables = Tables.load(Path(folder) / "tables.yaml")
        yield (
            _stream("drift", Path(folder), tables, batch_size := 64 if quick else DRIFT_BATCH),
            batch_size,
        )
    for name in () if quick else ("rentals", "diginetica"):
        path = DATA / f"{name}.parquet"
        if not path.exists():
            print(f"no {name}: {DATA} does not have it; set ROWTIER_DATA", file=sys.stderr)
            continue
        described = path.with_suffix(".tables.yaml")
        known = Tables.load(described) if described.exists() else tables_of(path)
        yield _stream(name, path, known, REAL_BATCH), REAL_BATCH


def _stream(name: str, path: Path, tables: Tables, batch_size: int) -> Stream:
    source = open_source(path, [feature for table in tables for feature in table.features])
    bags, samples = {}, 0
    for table, found in lookups_of(source, tables).items():
        assert found.lengths is not None
        bags[table] = found.rows, np.concatenate(([0], np.cumsum(found.lengths)))
        samples = found.samples
    changes = {"optimizer": "sgd", "ids": "as_is", "pooling": "sum"}
    placed = tuple(
        table.model_copy(update={**changes, "features": (table.name,)}) for table in tables
    )
    return Stream(name, Tables(batch_size=batch_size, tables=placed), bags, samples)

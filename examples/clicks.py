"""Clicks for examples/dlrm.py: generated, or read from a file in Criteo's format."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import rowtier

NUM_DENSE = 13  # of Criteo
CATEGORIES = tuple(f"C{i + 1}" for i in range(26))
SIGNAL = 2.5  # standard deviation of the hidden model's log-odds

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bags = dict[str, tuple[Ints, Ints]]  # feature → ids, ids per sample


@dataclass(frozen=True, eq=False)
class Data:
    """Samples in the order of time; a feature's ids lie one sample after the other."""

    labels: Floats
    dense: Floats
    features: Bags

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def _edges(self) -> dict[str, Ints]:
        return {
            name: np.concatenate(([0], np.cumsum(lengths)))
            for name, (_, lengths) in self.features.items()
        }

    def bags(self, start: int, stop: int) -> Bags:
        """The ids of some samples, as `make_profile`, `replay` and the module take them."""
        return {
            name: (ids[self._edges[name][start] : self._edges[name][stop]], lengths[start:stop])
            for name, (ids, lengths) in self.features.items()
        }


def generated(args: argparse.Namespace) -> tuple[Data, rowtier.Tables]:
    """Clicks of the workload `criteo`; every id and every number has a hidden effect on the label.

    What is drawn depends on the seed alone, so all processes draw the same.
    """
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as folder:
        rowtier.make_workload(
            "criteo", folder, seed=args.seed, samples=args.samples, scale=args.scale,
            embedding_dim=args.embedding_dim, batch_size=args.batch_size,
        )  # fmt: skip
        columns = pq.read_table(Path(folder) / "data")
        tables = rowtier.Tables.load(Path(folder) / "tables.yaml")
    random = np.random.default_rng(args.seed)
    dense = random.standard_normal((args.samples, NUM_DENSE), dtype=np.float32)
    odds = dense @ random.standard_normal(NUM_DENSE) / NUM_DENSE**0.5
    features: Bags = {}
    for table in tables:
        (name,) = table.features
        column = columns.column(name).combine_chunks()
        lists = hasattr(column, "value_lengths")  # features with one id a sample are plain
        ids = (column.values if lists else column).to_numpy()
        lengths = column.value_lengths().to_numpy() if lists else np.ones(len(column), np.int64)
        effects = random.standard_normal(table.num_embeddings)[ids]
        at = np.repeat(np.arange(len(lengths)), lengths)
        odds += np.bincount(at, effects / lengths[at], len(lengths))
        features[name] = (ids, lengths.astype(np.int64))
    odds *= SIGNAL / odds.std()
    clicked = random.random(len(odds)) < 1 / (1 + np.exp(-odds))
    return Data(clicked.astype(np.float32), dense, features), tables


def criteo(args: argparse.Namespace) -> tuple[Data, rowtier.Tables]:
    """Criteo's display ads: label, 13 whole numbers, 26 hexadecimal ids; fields may be empty."""
    with Path(args.data).open() as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    wanted = 1 + NUM_DENSE + len(CATEGORIES)
    for number, fields in enumerate(lines, 1):
        if len(fields) != wanted:
            raise rowtier.UserError(
                f"{args.data}, line {number}: {len(fields)} fields, and Criteo's format has "
                f"{wanted}, with tabs between: give its train.txt, or leave --data away"
            )
    numbers = np.array([[float(f or 0) for f in fields[1 : 1 + NUM_DENSE]] for fields in lines])
    features: Bags = {}
    for column, name in enumerate(CATEGORIES, 1 + NUM_DENSE):
        texts = [fields[column] for fields in lines]
        ids = np.array([int(text, 16) for text in texts if text], dtype=np.int64)
        features[name] = (ids, np.array([bool(text) for text in texts], dtype=np.int64))
    tables = tuple(
        rowtier.Table(
            name=name,
            num_embeddings=args.rows,
            embedding_dim=args.embedding_dim,
            features=(name,),
            ids="hash",
        )
        for name in CATEGORIES
    )
    labels = np.array([float(fields[0]) for fields in lines], dtype=np.float32)
    dense = np.log1p(np.maximum(numbers, 0)).astype(np.float32)
    return Data(labels, dense, features), rowtier.Tables(batch_size=args.batch_size, tables=tables)

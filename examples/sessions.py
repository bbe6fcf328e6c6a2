"""Sessions for examples/sequence.py: generated, or read from a Parquet file."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import rowtier

ZIPF = 0.8  # skew of generated items
FOLLOWED = 0.7  # of generated items are followed by their partner

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sessions:
    """Items of all sessions one after the other; session i is `items[edges[i]:edges[i + 1]]`."""

    items: Ints
    edges: Ints

    @classmethod
    def of(cls, items: Ints, lengths: Ints, longest: int) -> Sessions:
        """The last items of sessions that have at least two."""
        ends = np.cumsum(lengths)
        from_end = np.repeat(ends, lengths) - np.arange(len(items))
        kept = np.repeat(lengths > 1, lengths) & (from_end <= longest)
        lengths = np.minimum(lengths[lengths > 1], longest)
        return cls(items[kept], np.concatenate(([0], np.cumsum(lengths))))

    def __len__(self) -> int:
        return len(self.edges) - 1

    def part(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """Items and lengths of some sessions."""
        edges = self.edges[start : stop + 1]
        return self.items[edges[0] : edges[-1]], np.diff(edges)


def generated(args: argparse.Namespace) -> Sessions:
    """Sessions of the workload `sequence`, rewritten so that items follow each other.

    An item's partner is its neighbour by popularity, so the skew stays as it was. What is drawn
    depends on the seed alone, so all processes draw the same.
    """
    with tempfile.TemporaryDirectory() as folder:
        rowtier.make_workload(
            "sequence", folder, seed=args.seed, samples=args.samples, rows=args.rows, users=10,
            zipf=ZIPF, mean_length=args.max_length / 2, max_length=args.max_length,
        )  # fmt: skip
        items, lengths = read_lists(Path(folder) / "data", "history")
    ranked = np.argsort(-np.bincount(items, minlength=args.rows), kind="stable")
    partner = np.arange(args.rows)
    pairs = ranked[: args.rows // 2 * 2].reshape(-1, 2)
    partner[pairs[:, 0]], partner[pairs[:, 1]] = pairs[:, 1], pairs[:, 0]
    follows = np.random.default_rng(args.seed).random(len(items)) < FOLLOWED
    begins = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    for place in range(1, args.max_length):
        at = begins[lengths > place] + place
        at = at[follows[at]]
        items[at] = partner[items[at - 1]]
    return Sessions.of(items, lengths, args.max_length)


def read(args: argparse.Namespace) -> Sessions:
    """Sessions of a file, lists of item numbers in its first column of lists."""
    return Sessions.of(*read_lists(Path(args.data)), args.max_length)


def read_lists(path: Path, column: str | None = None) -> tuple[Ints, Ints]:
    """Values and lengths of a column of lists; of the first one, if it is not named."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    lists = [field.name for field in table.schema if pa.types.is_list(field.type)]
    if not lists:
        raise rowtier.UserError(
            f"{path}: no column holds lists, there are {', '.join(table.column_names)}; give "
            "sessions as lists of item numbers"
        )
    found = table.column(column or lists[0]).combine_chunks()
    return found.flatten().to_numpy().copy(), found.value_lengths().to_numpy().astype(np.int64)

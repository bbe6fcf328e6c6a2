"""`drift`: one table whose popularity moves while the data goes by.

At any moment the popularity of positions is the same Zipf curve; what changes is which row
holds which position. Position r is paired with position n−1−r, a hot with a cold one, and each pair
swaps rows once, at a hashed time spread evenly over dataset length / `rate`. So over the
dataset a share `rate` of the positions changes owner, and the hottest K rows at its start
and at its end have a share 1 − rate in common, for every K up to half the table.
"""

from __future__ import annotations

from rowtier.synth.columns import Column, Drifting, Fixed, Zipf
from rowtier.synth.options import DriftOptions
from rowtier.synth.seed import key_of
from rowtier.synth.workload import Dataset
from rowtier.tables import Table, Tables


def drift(options: DriftOptions, seed: int) -> Dataset:
    """The recipe of the dataset."""
    item = Table(
        name="item",
        num_embeddings=options.rows,
        embedding_dim=options.embedding_dim,
        features=("item",),
    )
    column = Column(
        "item",
        Fixed(1),
        Zipf(options.rows, options.zipf, key_of(seed, "drift", "ranks")),
        Drifting(options.rows, options.rate / options.samples, key_of(seed, "drift", "rows")),
    )
    tables = Tables(batch_size=options.batch_size, tables=(item,))
    return Dataset(tables, options.samples, (column,), {"order": "samples are in time order"})

"""`criteo`: 26 features with the sizes of MLPerf's DLRM v2 on Criteo Terabyte.

Rows and ids per sample are MLPerf's, each multiplied by `scale` (rows never below
min(rows, 10), ids per sample never below 1). The skew of the five big features is that
of Criteo Terabyte's tails; the small ones, whose skew matters little, get 1.05.
"""

from __future__ import annotations

import math

from rowtier.synth.columns import Column, Fixed, Hashed, Scattered, Zipf
from rowtier.synth.options import CriteoOptions
from rowtier.synth.seed import key_of
from rowtier.synth.workload import Dataset
from rowtier.tables import Table, Tables

CARDINALITIES = (
    40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956,
    405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152,
    12_973, 108, 36,
)  # fmt: skip
IDS_PER_SAMPLE = (
    3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1
)  # fmt: skip
BIG_ZIPF = {"C1": 0.92, "C10": 0.97, "C20": 0.90, "C21": 1.12, "C22": 0.93}
OTHER_ZIPF = 1.05
LEAST_ROWS = 10


def criteo(options: CriteoOptions, seed: int) -> Dataset:
    """The recipe of the dataset."""
    tables, columns, facts = [], [], {}
    for index, (cardinality, ids) in enumerate(zip(CARDINALITIES, IDS_PER_SAMPLE, strict=True)):
        name = f"C{index + 1}"
        rows = max(math.ceil(cardinality * options.scale), min(cardinality, LEAST_ROWS))
        size = max(1, round(ids * options.scale))
        zipf = BIG_ZIPF.get(name, OTHER_ZIPF) if options.zipf is None else options.zipf
        tables.append(
            Table(
                name=name,
                num_embeddings=rows,
                embedding_dim=options.embedding_dim,
                features=(name,),
            )
        )
        place = Hashed if options.hashed else Scattered
        columns.append(
            Column(
                name,
                Fixed(size),
                Zipf(rows, zipf, key_of(seed, "criteo", name, "ranks")),
                place(rows, key_of(seed, "criteo", name, "rows")),
            )
        )
        facts[name] = {"rows": rows, "ids_per_sample": size, "zipf": zipf}
    return Dataset(
        tables=Tables(batch_size=options.batch_size, tables=tuple(tables)),
        samples=options.samples,
        columns=tuple(columns),
        facts={"features": facts},
    )

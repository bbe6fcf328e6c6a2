"""How many of the distinct ids of a table share their row with another id.

Hashed ids whose hashes are all known are counted. Where only their number D is known, an id is
alone on its row with probability (1 − 1/n)^(D−1), as hashing spreads ids evenly over n rows. Of
`ids: modulo` the rows of single ids are not kept, only how many rows T were touched: the estimate
takes the numbers of ids on touched rows for a Poisson distribution without zero, of mean D/T.
It is exact where every touched row has one id, and never less than D − T, nor more than twice that.
"""

from __future__ import annotations

import math

import numpy as np

from rowtier.profile.ids import hashed_rows
from rowtier.profile.profile import TableStats

_HALVINGS = 60


def sharing_ids(stats: TableStats) -> int:
    """Ids that share their row with another; exact for hashes that are known."""
    distinct, table = stats.distinct_ids, stats.table
    assert distinct is not None
    if table.has_vocabulary:
        assert stats.counts is not None
        own = int(np.count_nonzero(stats.counts.rows < table.num_own))  # a row for each id
        return sharing_by_chance(max(0, distinct.count - own), table.num_shared)
    if table.ids == "modulo":
        return sharing_by_rows(distinct.count, stats.touched)
    if distinct.hashes is None:
        return sharing_by_chance(distinct.count, table.num_embeddings)
    _, ids = np.unique(hashed_rows(distinct.hashes, table), return_counts=True)
    return int(ids[ids > 1].sum())


def sharing_by_chance(ids: int, rows: int) -> int:
    """The expected number, if ids fall on rows evenly."""
    if ids < 2 or rows < 2:
        return ids if ids > 1 and rows else 0
    return round(-ids * math.expm1((ids - 1) * math.log1p(-1 / rows)))


def sharing_by_rows(ids: int, touched: int) -> int:
    """An estimate from the number of touched rows; between `ids − touched` and twice that."""
    if not touched or ids <= touched:
        return 0
    mean = ids / touched
    low, high = 0.0, mean  # rate / (1 − e^−rate) = mean, which grows with the rate
    for _ in range(_HALVINGS):
        rate = (low + high) / 2
        low, high = (rate, high) if rate < -mean * math.expm1(-rate) else (low, rate)
    alone = touched * high / math.expm1(high) if high < 700 else 0.0
    return min(round(ids - alone), 2 * (ids - touched), ids)

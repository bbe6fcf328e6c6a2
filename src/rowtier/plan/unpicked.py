"""A plan's rows on counts that they were not picked from: as hot as they were counted.

Rows that are picked from counts look hotter in them than they will be, so counts are scored on what
is picked without them (`profile/coverage.py`). Rows that an earlier plan picked from earlier data
have no such luck in later counts: what they were looked up is what to expect of them, and a score
that takes luck off would see them colder than they are. With few counts that is the difference
between staying and moving for nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rowtier.plan.carried import statistics_of
from rowtier.plan.plan import Plan
from rowtier.profile.order import rows_by_position
from rowtier.profile.profile import Profile, TableStats


def unpicked_statistics(plan: Plan, profile: Profile) -> Profile:
    """Counts by positions in a plan's row order, if the plan was made without them."""
    arranged = statistics_of(plan, profile)
    pairs = zip(arranged.stats, profile.stats, strict=True)
    return replace(profile, stats=tuple(_as_counted(plan, *pair) for pair in pairs))


def _as_counted(plan: Plan, arranged: TableStats, counted: TableStats) -> TableStats:
    """Statistics whose bands have the lookups that were counted on their rows."""
    name, rows = counted.table.name, counted.table.num_embeddings
    counts, curve = counted.counts, arranged.curve
    assert counts is not None
    assert plan.order is not None
    if not arranged.arranged or not len(curve.stops):
        return arranged  # the order is that of the counts: picked from them
    position = np.empty(rows, dtype=np.int64)
    position[rows_by_position(plan.order[name], rows)] = np.arange(rows)
    stops = np.array(sorted({band.stop for band in plan.bands[name]}))
    seen = np.bincount(
        np.searchsorted(stops, position[counts.rows], side="right"), counts.counts, len(stops)
    )
    band = np.searchsorted(stops, curve.stops)  # of each bucket; no bucket lies in two
    expected = np.bincount(band, curve.lookups, len(stops))
    factor = np.divide(seen, expected, out=np.zeros(len(stops)), where=expected > 0)
    lookups = np.maximum(curve.lookups * factor[band], np.finfo(np.float64).tiny)
    return replace(arranged, bucketed=replace(curve, lookups=lookups))

"""A profile as the constraints that TorchRec's planner takes and nobody fills.

Its planner asks for pooling factors per feature and, to size caches, for the miss ratio of
an LRU cache at every size. The miss ratio follows from the curve by Che's approximation:
a cache of C rows holds a row as long as it is asked for again within T lookups, where T
is such that Σ (1 − e^(−p·T)) = C; it then serves Σ p (1 − e^(−p·T)) of the lookups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rowtier.errors import UserError
from rowtier.profile.curve import Curve, Floats
from rowtier.profile.forecast import distinct_of

if TYPE_CHECKING:
    from rowtier.profile.profile import Profile

COPIES = "data_parallel"  # the one sharding in which readers see rows of pooled tables
ONLY_ROWS = (
    "its readers must see the rows, as for weights of lookups that are learned, and TorchRec pools "
    f"rows where they lie unless it is {COPIES}"
)
BINS = 100
STEP = 0.1  # of the logarithm of time


def to_torchrec_constraints(profile: Profile, world_size: int) -> dict[str, Any]:
    """`ParameterConstraints` by table name, for `EmbeddingShardingPlanner(constraints=…)`.

    A table whose lookups have learned weights may only be copied: all else pools rows at owners,
    and TorchRec brings no gradients back from there.
    """
    try:
        import torch
        from torchrec.distributed.planner.shard_estimators import EmbeddingOffloadStats
        from torchrec.distributed.planner.types import ParameterConstraints
        from torchrec.distributed.types import CacheParams
    except ImportError:
        raise UserError("TorchRec is not installed: pip install 'rowtier[torchrec]'") from None
    constraints = {}
    for stats in profile.stats:
        rows = stats.table.num_embeddings
        hits = lru_hit_ratio(stats.curve, np.linspace(0, rows, BINS + 1))
        distinct = distinct_of(stats, profile.batch_size * world_size).value
        offload = EmbeddingOffloadStats(
            cacheability=float(1 - (hits[1:] + hits[:-1]).mean() / 2),
            expected_lookups=round(distinct),
            mrc_hist_counts=torch.tensor(np.diff(hits) * distinct),
            height=rows,
        )
        samples = max(1, stats.samples)
        constraints[stats.table.name] = ParameterConstraints(
            sharding_types=[COPIES] if stats.table.weights == "learned" else None,
            pooling_factors=[feature.lookups / samples for feature in stats.features],
            num_poolings=[1.0] * len(stats.features),
            batch_sizes=[profile.batch_size] * len(stats.features),
            cache_params=CacheParams(stats=offload),
        )
    return constraints


def lru_hit_ratio(curve: Curve, cache_rows: Floats) -> Floats:
    """Share of lookups that an LRU cache of each size serves (Che's approximation).

    Sizes and shares are computed for times T in steps of a tenth and drawn between them.
    """
    p, widths = curve.probabilities, curve.widths
    if not len(p):
        return np.zeros(len(cache_rows))
    # From a time in which hardly any row is asked for to one in which every row is.
    times = np.exp(np.arange(np.log(1e-3 / p[0]), np.log(40 / p[-1]) + STEP, STEP))
    held = -np.expm1(-np.minimum(np.outer(times, p), 50.0))
    sizes = np.concatenate(([0.0], held @ widths, [curve.positions]))
    shares = np.concatenate(([0.0], held @ (widths * p), [1.0]))
    return np.asarray(np.interp(cache_rows, sizes, shares))

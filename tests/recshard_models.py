"""Models and clusters that tests of recshard plan for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rowtier import Cluster, FeatureStats, Plan, Profile, Table, TableStats
from rowtier.profile.curve import Curve, bucket_stops


def flat_cluster(devices: int, *tiers: tuple[int, float], shared: str | None = None) -> Cluster:
    listed = [
        {"name": f"m{i}", "capacity": size, "bandwidth": speed}
        for i, (size, speed) in enumerate(tiers)
    ]
    if shared is not None:
        listed[-1]["shared_by"] = shared
    return Cluster.model_validate(
        {
            "name": "test",
            "levels": [{"name": "node", "size": devices, "bandwidth": 1e9}],
            "device": {"tiers": listed},
        }
    )


def small_table(index: int, rows: int, dim: int = 4, optimizer: str = "sgd", **more: str) -> Table:
    return Table(
        name=f"t{index}", num_embeddings=rows, embedding_dim=dim, features=(f"f{index}",),
        optimizer=optimizer, **more,
    )  # fmt: skip


def curve_table(index: int, rows: int, dim: int, lookups: float, exponent: float) -> TableStats:
    """A table of any number of rows, known by its curve alone."""
    stops = bucket_stops(rows)
    heat = np.minimum.accumulate((1.0 + stops) ** -exponent) * np.diff(stops, prepend=0)
    total = round(lookups * 10**6)
    feature = FeatureStats(name=f"f{index}", present=10**6, lookups=max(total, 10**6))
    table = small_table(index, rows, dim, optimizer="rowwise_adagrad")
    curve = Curve(stops, heat / heat.sum() * feature.lookups)
    return TableStats(table, 10**6, (feature,), curve)


def skewed_model(
    random: np.random.Generator, tables: int, rows: float = 1e5, dims: Sequence[int] = (16, 32, 64)
) -> Profile:
    """Skewed tables of very different sizes."""
    stats = [
        curve_table(
            index,
            rows=max(1, int(rows * random.lognormal(sigma=1.5))),
            dim=int(random.choice(dims)),
            lookups=float(1 + random.lognormal(1.0)),
            exponent=float(random.uniform(0.1, 1.3)),
        )
        for index in range(tables)
    ]
    return Profile(64, tuple(stats))


def total_bytes(profile: Profile) -> int:
    return sum(stats.table.stored_bytes for stats in profile.stats)


def objective_of(plan: Plan) -> float:
    assert plan.certificate is not None
    return plan.certificate.objective

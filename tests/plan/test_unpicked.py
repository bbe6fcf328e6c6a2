"""Rows that were not picked from counts are as hot as they were counted."""

import numpy as np

import rowtier
from rowtier import Band, Plan, Table, Tables
from rowtier.plan.carried import carried, statistics_of
from rowtier.plan.unpicked import unpicked_statistics

TABLE = Table(name="t", num_embeddings=2000, embedding_dim=4, features=("f",))
BANDS = (
    Band(start=0, stop=300, scope="cluster", tier="dram"),
    Band(start=300, stop=2000, scope="cluster", tier="dram"),
)


def profile_of(seed: int, samples: int) -> rowtier.Profile:
    ids = np.random.default_rng(seed).zipf(1.2, samples) % 2000
    return rowtier.make_profile([{"f": ids}], Tables(batch_size=64, tables=(TABLE,)))


def share(statistics: rowtier.Profile) -> float:
    """Of the lookups, on the rows of the first band."""
    curve = statistics["t"].curve
    first = curve.stops <= 300
    return float(curve.lookups[first].sum() / curve.lookups.sum())


def test_a_hot_set_of_earlier_data_serves_what_was_counted() -> None:
    cluster = rowtier.Cluster.local(1)
    bands = tuple(
        band.model_copy(update={"scope": cluster.top, "tier": cluster.tier_names[0]})
        for band in BANDS
    )
    old = Plan.build("by hand", profile_of(0, 20_000), cluster, {"t": bands})
    few = profile_of(1, 1000)
    kept = carried(old, few)
    counts = few["t"].counts
    assert counts is not None
    assert old.order is not None
    hot = np.isin(counts.rows, old.order["t"][:300])
    counted = float(counts.counts[hot].sum() / counts.counts.sum())
    found = unpicked_statistics(kept, few)
    assert abs(share(found) - counted) < 1e-12
    assert abs(found["t"].curve.lookups.sum() - few["t"].lookups) < 1e-6
    truth = share(statistics_of(carried(old, profile_of(2, 500_000)), profile_of(2, 500_000)))
    assert abs(counted - truth) < abs(share(statistics_of(kept, few)) - truth)


def test_an_order_that_was_made_from_the_counts_is_scored_as_ever() -> None:
    cluster, few = rowtier.Cluster.local(1), profile_of(1, 1000)
    plan = rowtier.make_plan(few, cluster, "row-wise-coalesced")
    kept = carried(plan, few)
    found, usual = (one(kept, few)["t"] for one in (unpicked_statistics, statistics_of))
    for mine, theirs in zip(found.curve.arrays(), usual.curve.arrays(), strict=True):
        np.testing.assert_array_equal(mine, theirs)

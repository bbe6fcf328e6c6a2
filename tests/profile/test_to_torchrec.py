import numpy as np
import pytest
from strategies import counted

from rowtier import Curve, FeatureStats, Profile, Table, TableStats
from rowtier.profile.forecast import distinct_of
from rowtier.profile.to_torchrec import lru_hit_ratio


def test_lru_hit_ratio_agrees_with_a_simulated_cache() -> None:
    p = 1 / np.arange(1, 501) ** 1.0
    p /= p.sum()
    curve = Curve(np.arange(1, 501), p * 1e6)
    ids = np.random.default_rng(0).choice(500, 60_000, p=p)
    for size in (20, 100, 300):
        held: dict[int, None] = {}
        hits = 0
        for row in ids.tolist():
            hits += row in held
            held.pop(row, None)
            held[row] = None
            if len(held) > size:
                held.pop(next(iter(held)))
        assert lru_hit_ratio(curve, np.array([float(size)]))[0] == pytest.approx(
            hits / len(ids), abs=0.01
        )
    drawn = np.mean([len(np.unique(ids[i : i + 1000])) for i in range(0, 60_000, 1000)])
    table = Table(name="t", num_embeddings=500, embedding_dim=4, features=("f",))
    feature = FeatureStats(name="f", present=10**6, lookups=10**6)
    stats = TableStats(table, 10**6, (feature,), curve)
    assert distinct_of(stats, 1000).value == pytest.approx(drawn, rel=0.01)


def test_torchrecs_planner_takes_the_constraints() -> None:
    pytest.importorskip("torchrec", reason="needs TorchRec: pip install rowtier[torchrec]")
    heat = np.random.default_rng(1).zipf(1.4, 2000) % 500
    table = Table(name="t", num_embeddings=2000, embedding_dim=16, features=("f",))
    profile = Profile(64, (counted(table, heat, samples=int(heat.sum()) // 3),))
    constraint = profile.to_torchrec_constraints(world_size=4)["t"]
    assert constraint.pooling_factors == [pytest.approx(3, rel=0.01)]
    stats = constraint.cache_params.stats
    rates = [stats.expected_miss_rate(share) for share in (0.0, 0.1, 0.5, 1.0)]
    assert rates[0] == 1.0
    assert rates[-1] == pytest.approx(0.0, abs=1e-6)
    assert rates == sorted(rates, reverse=True)
    assert rates[1] < 0.9
    assert 0 < stats.expected_lookups < 64 * 4 * 3
    assert 0 < stats.cacheability < 1
    assert constraint.sharding_types is None
    learned = counted(table.model_copy(update={"weights": "learned"}), heat)
    copied = Profile(64, (learned,)).to_torchrec_constraints(world_size=4)["t"]
    assert copied.sharding_types == ["data_parallel"]

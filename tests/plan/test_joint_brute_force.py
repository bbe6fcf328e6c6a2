"""Tiny problems in which every placement can be tried."""

from itertools import product

import numpy as np
import pytest
from strategies import counted

from rowtier import (
    Band,
    Cluster,
    Constraints,
    InfeasibleError,
    Profile,
    Table,
    TableStats,
    make_plan,
)
from rowtier.cost.load import Load, chosen, stacked, total_load
from rowtier.cost.memory import pools
from rowtier.cost.options import DEFAULTS, CostOptions
from rowtier.plan.options import PlanOptions
from rowtier.plan.verify import verify

PARTS, INSTANCES = 8, 25  # 200 problems
ANYTHING = Constraints()


def _profile(rng: np.random.Generator, learned: bool = False) -> Profile:
    """Two tables; lookups of the second, if it is pooled, may have learned weights."""
    stats = []
    for index in range(2):
        rows = 2 if index or rng.random() < 0.75 else 3
        heat = rng.integers(1, 60, rows) ** int(rng.integers(1, 3))
        table = Table(
            name=f"t{index}",
            num_embeddings=rows,
            embedding_dim=int(rng.choice([4, 16])),
            features=(f"f{index}",),
            pooling="sum" if rng.random() < 0.7 else "none",
        )
        if learned and index and table.pooling != "none":
            table = table.model_copy(update={"weights": "learned"})
        samples = max(1, int(heat.sum()) // int(rng.integers(1, 6)))
        stats.append(counted(table, heat, samples=samples))
    return Profile(int(rng.integers(1, 30)), tuple(stats))


def _waiting(rng: np.random.Generator) -> dict[str, float]:
    return {
        "message": float(rng.choice([0.0, 1e-6])),
        "exchange_efficiency": float(rng.choice([0.5, 1.0])),
        "sync_efficiency": float(rng.choice([0.3, 1.0])),
    }


def _work(rng: np.random.Generator) -> dict[str, object]:
    """Some seconds of everything, from far less than bytes take to far more."""
    scale = float(10 ** rng.uniform(-2, 2))
    return {
        "step": scale * 1e-6,
        "round": scale * float(rng.choice([0.0, 1e-6])),
        "table": scale * 1e-7,
        "band": scale * float(rng.choice([0.0, 2e-7])),
        "lookup": scale * 1e-8,
        "row": scale * float(rng.choice([1e-9, 5e-8])),
        "buffer": 1e9 / scale,
        "update": {"sgd": scale * 2e-8, "rowwise_adagrad": scale * 4e-8},
        "hidden": float(rng.choice([0.0, 0.5, 1.0])),
    }


def _cluster(profile: Profile, rng: np.random.Generator, working: bool = False) -> Cluster:
    stored = sum(s.table.stored_bytes for s in profile.stats)
    fast = int(stored * rng.choice([0.3, 0.6, 1.2]))
    return Cluster.model_validate(
        {
            "name": "two",
            "levels": [
                {
                    "name": "node",
                    "size": 2,
                    "bandwidth": float(10 ** rng.uniform(6, 10)),
                    "latency": float(rng.choice([0.0, 1e-6])),
                    **(_waiting(rng) if working else {}),
                }
            ],
            "device": {
                "tiers": [
                    {"name": "fast", "capacity": fast, "bandwidth": 1e9},
                    {"name": "slow", "capacity": 2 * stored, "bandwidth": 1e8},
                ]
            },
            "overlap": [["fast", "slow"]] if working and rng.random() < 0.3 else [],
            "work": _work(rng) if working else {},
        }
    )


def _ways(table: Table, wanted: Constraints) -> list[dict[str, object]]:
    """All homes a row can have; every row of a table chooses one on its own."""
    pin = wanted.pin(table.name).exchange
    rows = pin != "sums"
    sums = table.pooling != "none" and table.weights == "given" and pin != "rows"
    found: list[dict[str, object]] = []
    for tier in ("fast", "slow"):
        found += [{"scope": "device", "sync": s, "tier": tier} for s in ("dense", "sparse")]
        found += [{"scope": "node", "coalesced": True, "tier": tier}] * rows
        for owner in (0, 1):
            one = {"scope": "node", "members": (owner,), "tier": tier}
            found += [{**one, "coalesced": True}] * rows
            found += [{**one, "exchange": "sums"}] * sums
    return found


def _placements(stats: TableStats, profile: Profile, cluster: Cluster, wanted: Constraints) -> Load:
    rows, ways = stats.table.num_embeddings, _ways(stats.table, wanted)
    bands = [[Band(start=r, stop=r + 1, **w) for w in ways] for r in range(rows)]  # type: ignore[arg-type]

    def load(*some: Band) -> Load:
        return Load.of(stats, some, profile, cluster)

    alone = [[load(band) for band in some] for some in bands]
    loads = []
    for picks in product(range(len(ways)), repeat=rows):
        mine = [some[pick] for some, pick in zip(bands, picks, strict=True)]
        owners = [band.members for band in mine if band.exchange == "sums"]
        if len(set(owners)) == len(owners):
            parts = [some[pick] for some, pick in zip(alone, picks, strict=True)]
            loads.append(total_load(parts))
        else:  # an owner sends one sum for all its rows
            loads.append(load(*mine))
    return stacked(loads)


def _least_s(
    profile: Profile, cluster: Cluster, options: CostOptions = DEFAULTS,
    wanted: Constraints = ANYTHING,
) -> float:  # fmt: skip
    """The best of all placements, one table's against all of the other's."""
    first, second = (_placements(stats, profile, cluster, wanted) for stats in profile.stats)
    best = np.inf
    for index in range(second.kept.shape[-1]):
        both = first + chosen(second, np.array([index]))
        values = both.step_s(cluster, options)
        for pool in pools(cluster):
            tier = cluster.tier_names.index(pool.tier)
            values[both.kept[list(pool.holders), tier].sum(axis=0) > pool.capacity_bytes] = np.inf
        best = min(best, float(values.min()))
    return best


@pytest.mark.parametrize("part", range(PARTS))
def test_joint_is_the_best_of_all_placements_of_nearly_every_tiny_problem(part: int) -> None:
    optimal, worst = 0, 0.0
    for seed in range(part * INSTANCES, (part + 1) * INSTANCES):
        rng = np.random.default_rng(seed)
        profile = _profile(rng)
        cluster = _cluster(profile, rng)
        least_s = _least_s(profile, cluster)
        try:
            certificate = make_plan(profile, cluster, "joint").certificate
        except InfeasibleError:
            assert not np.isfinite(least_s)
            optimal += 1
            continue
        assert certificate is not None
        assert certificate.bound <= least_s * (1 + 1e-9), seed
        excess = certificate.objective / least_s - 1
        assert excess <= certificate.gap + 1e-9, seed
        worst = max(worst, excess)
        optimal += excess <= 1e-6
    assert optimal >= 0.95 * INSTANCES, (optimal, worst)


def test_joint_is_the_best_of_all_placements_that_keep_to_the_exchange() -> None:
    optimal, count = 0, 12
    for seed in range(count):
        rng = np.random.default_rng(2000 + seed)
        profile = _profile(rng, learned=True)
        cluster = _cluster(profile, rng)
        word = str(rng.choice(["rows", "sums"][: len(profile.stats[0].table.exchanges)]))
        wanted = Constraints.model_validate({"tables": {"t0": {"exchange": word}}})
        least_s = _least_s(profile, cluster, wanted=wanted)
        try:
            plan = make_plan(profile, cluster, "joint", PlanOptions(constraints=wanted))
        except InfeasibleError:
            assert not np.isfinite(least_s)
            optimal += 1
            continue
        assert plan.certificate is not None
        assert plan.certificate.bound <= least_s * (1 + 1e-9), seed
        assert plan.certificate.objective <= least_s * (1 + plan.certificate.gap + 1e-9), seed
        verdict = verify(plan)
        assert verdict.holds, (seed, verdict.mistakes)
        assert verdict.proved is not None
        optimal += plan.certificate.objective <= least_s * (1 + 1e-6)
    assert optimal >= 0.95 * count


@pytest.mark.parametrize("seed", range(40))
def test_no_placement_beats_the_bound_where_work_and_waiting_count(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    profile = _profile(rng)
    cluster = _cluster(profile, rng, working=True)
    dense_s = float(rng.choice([0.0, 1e-6, 1e-3]))
    least_s = _least_s(profile, cluster, CostOptions(dense_s=dense_s))
    try:
        plan = make_plan(profile, cluster, "joint", PlanOptions(dense_s=dense_s))
    except InfeasibleError:
        assert not np.isfinite(least_s)
        return
    assert plan.certificate is not None
    assert plan.certificate.bound <= least_s * (1 + 1e-9)
    assert plan.certificate.objective <= least_s * (1 + plan.certificate.gap) * (1 + 1e-9)
    verdict = verify(plan)
    assert not verdict.mistakes, verdict.mistakes

"""RowtierPlanner and TorchRec's own planner, on the same statistics."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from backends.torchrec_cases import machine, statistics, tables
from torchrec.distributed.planner.constants import DEFAULT_PERF_ESTIMATOR
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders

import rowtier.torchrec as rt
from rowtier import Cluster, InfeasibleError, MismatchError, Profile, Tables, UserError
from rowtier.backends.enumerate import DistinctShards, load_factors
from rowtier.backends.method import run_planner
from rowtier.backends.modules import model_of
from rowtier.backends.planner import quiet, reservation
from rowtier.backends.score import scored
from rowtier.backends.statistics import constraints_of
from rowtier.backends.topology import topology_of

MIXED = tables((200_000, 64, "sum"), (9_000, 256, "mean"), (50_000, 32, "none"), (40, 16, "sum"))


def random_case(seed: int) -> tuple[Profile, Cluster]:
    """Up to nine tables of any size on up to eight devices, with much or little fast memory."""
    random = np.random.default_rng(seed)
    shapes = [
        (int(10 ** random.uniform(2, 7)), int(random.choice([32, 64, 128, 256])), kind)
        for kind in random.choice(["sum", "sum", "sum", "none"], random.integers(1, 10))
    ]
    wanted = tables(*shapes)
    nodes, devices = int(random.choice([1, 2])), int(random.choice([1, 2, 4]))
    each = sum(t.stored_bytes for t in wanted) / (nodes * devices) / 1e9
    gigabytes = 0.1 + each * 10 ** random.uniform(-0.7, 1.0)
    return statistics(wanted, seed), machine(nodes, devices, gigabytes=gigabytes)


def kinds(plan: object) -> dict[str, tuple[str, str]]:
    return {
        name: (sharding.sharding_type, sharding.compute_kernel)
        for part in plan.plan.values()  # type: ignore[attr-defined]
        for name, sharding in part.items()
    }


@pytest.mark.parametrize("seed", range(8))
def test_torchrecs_estimator_never_prefers_torchrecs_plan(seed: int) -> None:
    profile, cluster = random_case(seed)
    planner = rt.RowtierPlanner(profile, cluster)
    ours = planner.plan(model_of(profile.tables))
    theirs = run_planner(profile, cluster, time_limit_s=30)
    assert planner.score is not None
    assert planner.bound is not None
    assert planner.bound <= planner.score * (1 + 1e-9)
    assert planner.score <= theirs.score * (1 + 1e-9)
    assert rt.score(ours, profile, cluster) == pytest.approx(planner.score, rel=1e-9)
    assert rt.score(theirs.sharding_plan, profile, cluster) == pytest.approx(theirs.score)


def test_the_plan_keeps_to_the_memory_that_torchrec_reserves() -> None:
    profile, cluster = statistics(MIXED), machine(gigabytes=0.008)
    model = model_of(MIXED)
    plan = rt.RowtierPlanner(profile, cluster).plan(model)
    topology = topology_of(cluster)
    constraints = constraints_of(profile, topology.world_size)
    with quiet():
        room = reservation().reserve(
            topology, profile.batch_size, model, get_default_sharders(), constraints
        )
        options = scored(plan, profile, topology)
    for device in room.devices:
        mine = [s.storage for o in options for s in o.shards if s.rank == device.rank]
        assert sum(storage.hbm for storage in mine) <= device.storage.hbm
        assert sum(storage.ddr for storage in mine) <= device.storage.ddr
    assert any("uvm" in kernel for _, kernel in kinds(plan).values())


def test_estimates_are_torchrecs_to_the_last_digit() -> None:
    profile, cluster = statistics(MIXED), machine()
    topology, constraints = topology_of(cluster), constraints_of(profile, cluster.num_devices)
    estimators = (
        EmbeddingPerfEstimatorFactory.create(
            DEFAULT_PERF_ESTIMATOR, topology=topology, constraints=constraints
        ),
        DistinctShards(topology, constraints),
    )
    found = []
    for estimator in estimators:
        with quiet():
            enumerator = EmbeddingEnumerator(topology, 64, constraints, [estimator])
            options = enumerator.enumerate(model_of(MIXED), get_default_sharders())
        listed = [(o.name, o.sharding_type, o.compute_kernel) for o in options]
        found.append(dict(zip(listed, ([s.perf for s in o.shards] for o in options), strict=True)))
    assert found[0] == found[1]


def test_load_factors_are_where_the_curve_covers_much() -> None:
    stats = statistics(tables((100_000, 64, "sum"))).stats[0]
    factors = load_factors(stats)
    assert factors == sorted(factors)
    assert all(0 < factor < 1 for factor in factors)
    covered = [float(stats.curve.share(factor * 100_000)) for factor in factors]
    assert covered[0] == pytest.approx(0.5, abs=0.02)


def test_plans_are_repeatable() -> None:
    profile, model = statistics(MIXED), model_of(MIXED)
    plans = [rt.RowtierPlanner(profile, machine()).plan(model) for _ in range(2)]
    assert plans[0] == plans[1]


def test_wishes_are_kept() -> None:
    profile = statistics(MIXED)
    wishes = {
        "t0": ParameterConstraints(sharding_types=["row_wise"], compute_kernels=["fused_uvm"]),
        "t1": ParameterConstraints(sharding_types=["column_wise"], min_partition=64),
    }
    plan = rt.RowtierPlanner(profile, machine(), constraints=wishes).plan(model_of(MIXED))
    assert kinds(plan)["t0"] == ("row_wise", "fused_uvm")
    assert kinds(plan)["t1"][0] == "column_wise"


def test_tables_with_learned_weights_are_copied_or_the_wish_is_refused() -> None:
    learned = MIXED.tables[0].model_copy(update={"weights": "learned"})
    wanted = MIXED.model_copy(update={"tables": (learned, *MIXED.tables[1:])})
    for wishes in ({}, {"t0": ParameterConstraints(compute_kernels=["dense"])}):
        planner = rt.RowtierPlanner(statistics(wanted), machine(), constraints=wishes)
        assert kinds(planner.plan(model_of(wanted)))["t0"] == ("data_parallel", "dense")
    wishes = {"t0": ParameterConstraints(sharding_types=["row_wise"])}
    planner = rt.RowtierPlanner(statistics(wanted), machine(), constraints=wishes)
    with pytest.raises(UserError, match=r"\['row_wise'\] of table 't0'.*leave it open"):
        planner.plan(model_of(wanted))


def test_on_cpus_only_what_runs_there_is_chosen() -> None:
    wanted = tables(*[(1000 + i, 64, "none" if i % 2 else "sum") for i in range(12)])
    cluster = machine(1, 2, fast="ram")
    plan = rt.RowtierPlanner(statistics(wanted), cluster).plan(model_of(wanted))
    for table in wanted:
        way, kernel = kinds(plan)[table.name]
        assert kernel == ("dense" if way == "data_parallel" else "fused")
        assert table.pooling != "none" or way != "data_parallel"


def test_what_does_not_fit_is_said() -> None:
    profile, model = statistics(MIXED), model_of(MIXED)
    tiers = machine().device.tiers
    small = tuple(tier.model_copy(update={"capacity_bytes": 10**6}) for tier in tiers)
    tiny = machine().model_copy(
        update={"device": machine().device.model_copy(update={"tiers": small})}
    )
    with pytest.raises(InfeasibleError, match=r"fits|leaves no memory"):
        rt.RowtierPlanner(profile, tiny).plan(model)


def test_models_that_were_not_profiled_are_named() -> None:
    planner = rt.RowtierPlanner(statistics(MIXED), machine())
    with pytest.raises(MismatchError, match="num_embeddings is 7 in the model"):
        planner.plan(model_of(tables((7, 64, "sum"))))
    five = Tables(batch_size=64, tables=(*MIXED.tables, MIXED.tables[0].model_copy(
        update={"name": "new", "features": ("new",)})))  # fmt: skip
    with pytest.raises(MismatchError, match="'new'"):
        planner.plan(model_of(five))
    with pytest.raises(MismatchError, match="init_process_group"):
        planner.collective_plan(model_of(MIXED))


def test_a_model_is_trained_with_the_plan_on_two_processes(tmp_path: Path) -> None:
    script = Path(__file__).parent / "train_with_planner.py"
    command = [
        sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", "2", str(script), str(tmp_path),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    losses = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for loss in losses:
        assert loss["sharded"][0] == pytest.approx(loss["alone"]["loss"], rel=1e-5)
        assert loss["sharded"][1] < loss["sharded"][0]
        # Lookups with learned weights are planned so that TorchRec has gradients for them.
        assert loss["kinds"]["t5"][0] == "data_parallel"
        assert torch.allclose(loss["of_weights"][0], loss["alone"]["of_weights"], atol=1e-6)
    assert losses[0]["kinds"] == losses[1]["kinds"]
    assert len({way for way, _ in losses[0]["kinds"].values()}) > 1

"""TorchRec's plans as ours, and back."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from backends.torchrec_cases import machine, statistics, tables
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    grid_shard,
    row_wise,
    table_row_wise,
    table_wise,
)
from torchrec.distributed.types import CacheParams, ShardingPlan

import rowtier
import rowtier.torchrec as rt
from rowtier import Band, Constraints, MismatchError, Plan, PlanOptions, UserError, predict
from rowtier.backends.modules import model_of
from rowtier.plan.check import find_mistakes

WORLD, HOST = 8, 4
WAYS = {
    "table_wise": table_wise(rank=5),
    "column_wise": column_wise(ranks=[1, 6]),
    "row_wise": row_wise(),
    "table_row_wise": table_row_wise(host_index=1),
    "grid_shard": grid_shard(host_indexes=[1, 0]),
    "data_parallel": data_parallel(),
}
POOLED = tables((1003, 256, "sum"))
SEQUENCE = tables((1003, 64, "none"))


def cut(wanted: rowtier.Tables, way: str, kernel: str | None = None) -> ShardingPlan:
    """A TorchRec plan that cuts the only table in one way."""
    model, name = model_of(wanted), wanted.tables[0].name
    (path, part), *_ = model.named_children()
    pooled = wanted.tables[0].pooling != "none"
    made = construct_module_sharding_plan(
        part,
        per_param_sharding={name: WAYS[way]},
        sharder=EmbeddingBagCollectionSharder() if pooled else EmbeddingCollectionSharder(),
        local_size=HOST,
        world_size=WORLD,
        device_type="cuda",
    )
    if kernel is not None:
        made[name].compute_kernel = kernel
    return ShardingPlan({path: made})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kernel", ["fused", "fused_uvm", "fused_uvm_caching"])
def test_a_plan_comes_back_as_it_went_in(way: str, kernel: str, tmp_path: Path) -> None:
    theirs = cut(POOLED, way, None if way == "data_parallel" else kernel)
    if kernel == "fused_uvm_caching":
        next(iter(theirs.plan.values()))["t0"].cache_params = CacheParams(load_factor=0.25)
    ours = rt.from_plan(theirs, POOLED, statistics(POOLED), machine())
    assert not list(find_mistakes(ours))
    assert rt.to_plan(ours) == theirs
    ours.save(tmp_path / "plan")
    assert rt.to_plan(Plan.load(tmp_path / "plan")) == theirs


@pytest.mark.parametrize("way", ["table_wise", "column_wise", "row_wise", "data_parallel"])
def test_a_plan_of_a_sequence_comes_back(way: str) -> None:
    theirs = cut(SEQUENCE, way)
    ours = rt.from_plan(theirs, SEQUENCE, statistics(SEQUENCE), machine())
    assert all(band.exchange == "rows" for band in ours.bands["t0"])
    assert rt.to_plan(ours) == theirs


@pytest.mark.parametrize("way", WAYS)
def test_type_and_kernel_follow_from_the_placement_alone(way: str) -> None:
    theirs = cut(POOLED, way, None if way == "data_parallel" else "fused")
    ours = rt.from_plan(theirs, POOLED, statistics(POOLED), machine())
    nobody_said = replace(ours, origin={})
    assert rt.to_plan(nobody_said, module=model_of(POOLED)) == theirs


def test_every_part_of_a_cache_and_every_wish_comes_back() -> None:
    theirs = cut(POOLED, "row_wise", "fused_uvm_caching")
    profile = statistics(POOLED)
    sharding = next(iter(theirs.plan.values()))["t0"]
    sharding.cache_params = profile.to_torchrec_constraints(WORLD)["t0"].cache_params
    sharding.stochastic_rounding = True
    back = rt.to_plan(rt.from_plan(theirs, POOLED, profile, machine()))
    found = next(iter(back.plan.values()))["t0"]
    assert found.stochastic_rounding is True
    mine, other = found.cache_params.stats, sharding.cache_params.stats
    assert torch.equal(mine.hist, other.hist)
    assert (mine.height, mine.expected_lookups) == (other.height, other.expected_lookups)


def test_a_cache_holds_the_hottest_rows_in_fast_memory() -> None:
    theirs = cut(POOLED, "table_wise", "fused_uvm_caching")
    next(iter(theirs.plan.values()))["t0"].cache_params = CacheParams(load_factor=0.1)
    hot, cold = rt.from_plan(theirs, POOLED, cluster=machine()).bands["t0"]
    assert (hot.start, hot.stop, hot.tier) == (0, 100, "hbm")
    assert (cold.start, cold.stop, cold.tier) == (100, 1003, "dram")


def test_without_profile_and_cluster_there_is_still_a_plan() -> None:
    plan = rt.from_plan(cut(POOLED, "row_wise"), POOLED)
    assert plan.cluster.num_devices == WORLD
    assert predict(plan).step_s > 0


def test_what_differs_is_named() -> None:
    theirs = cut(POOLED, "row_wise")
    with pytest.raises(MismatchError, match="t1 is not in the plan"):
        rt.from_plan(theirs, tables((1003, 256, "sum"), (5, 8, "sum")))
    with pytest.raises(MismatchError, match="profile this model"):
        rt.from_plan(theirs, POOLED, statistics(tables((1000, 256, "sum"))))
    with pytest.raises(MismatchError, match="uses rank 7"):
        rt.from_plan(theirs, POOLED, cluster=machine(nodes=1))


def test_uneven_rows_are_refused() -> None:
    theirs = cut(POOLED, "row_wise")
    shards = next(iter(theirs.plan.values()))["t0"].sharding_spec.shards
    shards[0].shard_sizes[0] += 1
    with pytest.raises(UserError, match="uneven"):
        rt.from_plan(theirs, POOLED)


@pytest.mark.parametrize(
    ("bands", "why"),
    [
        ([Band(start=0, stop=1003, scope="cluster", tier="hbm")], "spread by heat"),
        ([Band(start=0, stop=1003, scope="node", tier="hbm")], "copied"),
        (
            [
                Band(start=0, stop=9, scope="device", tier="hbm"),
                Band(start=9, stop=1003, scope="cluster", tier="hbm", order="blocks"),
            ],
            "copied",
        ),
        (
            [
                Band(start=0, stop=9, scope="cluster", members=(1,), tier="hbm"),
                Band(start=9, stop=1003, scope="cluster", members=(2,), tier="dram"),
            ],
            "different owners",
        ),
    ],
)
def test_what_torchrec_cannot_do_is_refused(bands: list[Band], why: str) -> None:
    plan = Plan.build("hand", statistics(POOLED), machine(), {"t0": tuple(bands)})
    with pytest.raises(UserError, match=why):
        rt.to_plan(plan, module=model_of(POOLED))


def test_a_table_whose_readers_need_rows_is_only_copied() -> None:
    table = POOLED.tables[0].model_copy(update={"weights": "learned"})
    wanted = POOLED.model_copy(update={"tables": (table,)})
    model, profile = model_of(wanted), statistics(wanted)
    pin = Constraints.model_validate({"tables": {"t0": {"exchange": "rows"}}})
    for plan in (
        rowtier.make_plan(profile, machine(), "table-wise"),
        rowtier.make_plan(
            statistics(POOLED), machine(), "table-wise", PlanOptions(constraints=pin)
        ),
    ):
        with pytest.raises(UserError, match=r"must see the rows.*data_parallel.*rowtier\.torch"):
            rt.to_plan(plan, module=model)
    copies = (Band(start=0, stop=1003, scope="device", tier="hbm"),)
    theirs = rt.to_plan(Plan.build("hand", profile, machine(), {"t0": copies}), module=model)
    assert rt.from_plan(theirs, POOLED, profile, machine()).bands["t0"] == copies
    with pytest.raises(UserError, match=r"'t0' is sharded by 'row_wise'.*weights: given"):
        rt.from_plan(cut(POOLED, "row_wise"), POOLED, profile, machine())


def test_plans_of_our_own_become_torchrecs() -> None:
    wanted = tables((5000, 64, "sum"), (700, 32, "mean"), (4000, 16, "none"))
    model, profile = model_of(wanted), statistics(wanted)
    for method, kinds in (("table-wise", {"table_wise"}), ("row-wise", {"row_wise"})):
        plan = rowtier.make_plan(profile, machine(), method)
        theirs = rt.to_plan(plan, module=model)
        assert {s.sharding_type for part in theirs.plan.values() for s in part.values()} == kinds
        assert rt.from_plan(theirs, wanted, profile, machine()).bands.keys() == plan.bands.keys()
    hot_and_cold = rowtier.make_plan(profile, machine(gigabytes=1e-4), "recshard")
    kernels = {
        s.compute_kernel
        for part in rt.to_plan(hot_and_cold, module=model).plan.values()
        for s in part.values()
    }
    assert "fused_uvm_caching" in kernels


def test_a_plan_without_modules_asks_for_the_model() -> None:
    plan = rowtier.make_plan(statistics(POOLED), machine(), "table-wise")
    with pytest.raises(UserError, match="module=model"):
        rt.to_plan(plan)

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import counted, plans

from rowtier import (
    Band,
    Cluster,
    Curve,
    Device,
    FeatureStats,
    Plan,
    Profile,
    Server,
    Table,
    TableStats,
    Tier,
)
from rowtier.cost.memory import host_memory, pools, used_bytes
from rowtier.cost.options import CostOptions
from rowtier.cost.step import step_cost


def profile(rows: int) -> Profile:
    table = Table(name="t", num_embeddings=rows, embedding_dim=4, features=("f",))
    feature = FeatureStats(name="f", present=100, lookups=100)
    return Profile(
        8, (TableStats(table, 100, (feature,), Curve(np.array([rows]), np.array([100.0]))),)
    )


def remap(cluster: Cluster, rows: int, cuts: tuple[int, ...] = (), **home: Any) -> np.ndarray:
    options = CostOptions(remap=home.pop("remap", "array"))
    edges = [0, *cuts, rows]
    home = {"scope": cluster.top, "tier": cluster.device.tiers[0].name, **home}
    bands = tuple(Band(start=a, stop=b, **home) for a, b in pairwise(edges))
    return step_cost({"t": bands}, profile(rows), cluster, options=options).memory.remap


@given(plans())
@settings(max_examples=30, deadline=None)
def test_rows_kept_equal_the_bytes_that_planners_count(plan: Plan) -> None:
    cost = step_cost(plan.bands, plan.profile, plan.cluster, plan.order)
    assert (cost.memory.rows == used_bytes(plan.bands, plan.profile, plan.cluster)).all()


def test_remap_tables_lie_once_per_node_in_host_memory() -> None:
    found = remap(Cluster.preset("recshard-16"), 10**6, cuts=(1000,))
    assert (found[:, 0] == 0).all()
    assert found[:, 1].tolist() == [4 * 10**6 // 8] * 16


def test_rows_beyond_four_byte_numbers_take_eight() -> None:
    found = remap(Cluster.preset("recshard-16"), 2**31 + 8, cuts=(1000,))
    assert found.sum() == 2 * 8 * (2**31 + 8)


def test_bitmaps_take_less() -> None:
    found = remap(Cluster.preset("recshard-16"), 10**6, cuts=(1000,), remap="bitmap")
    assert found.sum() == pytest.approx(2 * 0.14 * 10**6, rel=1e-3)


@pytest.mark.parametrize("home", [{"order": "blocks"}, {"members": (3,)}, {"scope": "device"}])
def test_no_remap_table_where_the_id_tells_the_place(home: dict) -> None:
    assert remap(Cluster.preset("recshard-16"), 1000, **home).sum() == 0


def test_host_memory_is_the_slowest_that_is_no_disk() -> None:
    found = {name: host_memory(Cluster.preset(name)) for name in ("dgx-h100-2", "local")}
    assert (found["dgx-h100-2"][0].name, found["dgx-h100-2"][1]) == ("dram", 8)
    assert (found["local"][0].name, found["local"][1]) == ("ram", 2)
    phones = host_memory(Cluster.preset("federated-1000"))
    assert (phones[0].name, phones[1]) == ("ram", 1)  # every phone needs its own


def test_shared_memories_are_one_pool() -> None:
    cluster = Cluster.preset("dgx-h100-2")
    shared = [pool for pool in pools(cluster) if pool.tier == "dram"]
    assert [pool.holders for pool in shared] == [tuple(range(8)), tuple(range(8, 16))]
    cost = step_cost(
        {"t": (Band(start=0, stop=800, scope="node", tier="dram"),)}, profile(800), cluster
    )
    used = {(pool.place, pool.tier): amount for pool, amount in cost.memory.in_pools(cluster)}
    assert used["node 0", "dram"] == 800 * 20 + 4 * 800  # rows with their state, and remap
    assert used["device 3", "hbm"] == (cost.memory.buffers + cost.memory.outputs)[3, 0]
    assert cost.memory.buffers[3, 0] > 0


def test_buffers_lie_in_the_first_memory_of_whoever_sends() -> None:
    cluster = Cluster(
        name="c",
        levels=Cluster.preset("local").levels,
        device=Device(tiers=Cluster.preset("local").device.tiers),
        servers=(
            Server(
                name="s",
                level="node",
                tiers=(
                    Tier(name="hot", capacity_bytes=10**9, bandwidth_bytes_per_s=1e9),
                    Tier(name="ram", capacity_bytes=10**9, bandwidth_bytes_per_s=1e9),
                ),
            ),
        ),
    )
    band = Band(start=0, stop=100, scope="node", members=(2,), tier="ram")
    found = step_cost({"t": (band,)}, profile(100), cluster).memory
    names = cluster.tier_names
    assert found.weights[2, names.index("ram")] == 1600
    assert found.buffers[2].tolist() == [0, 0, 2 * 8 * (16 + 8)]  # two readers, eight lookups
    assert found.buffers[0, names.index("ram")] == 8 * (16 + 8)


def test_outputs_are_a_row_per_bag_or_per_lookup_of_a_sequence() -> None:
    cluster = Cluster.preset("local")
    for pooling, lines in (("sum", 2 * 2), ("none", 8)):
        table = Table(
            name="t", num_embeddings=100, embedding_dim=4, pooling=pooling,
            features=("a", "b"), dtype="fp16",
        )  # fmt: skip
        one = counted(table, np.full(100, 4, dtype=np.int64), samples=100)
        band = Band(start=0, stop=100, scope="node", tier="ram")
        found = step_cost({"t": (band,)}, Profile(2, (one,)), cluster).memory.outputs
        assert found.tolist() == [[4 * 4 * lines, 0]] * 2

"""The presets of GPU machines: what their data sheets say, and that plans are made for them."""

import numpy as np
import pytest

from rowtier import (
    Cluster,
    Curve,
    FeatureStats,
    PlanOptions,
    Profile,
    Table,
    TableStats,
    make_plan,
)
from rowtier.cost.bundling import pieces_run
from rowtier.cost.step import step_cost
from rowtier.cost.tree import tree_of
from rowtier.plan.check import find_mistakes
from rowtier.plan.verify import verify
from rowtier.profile.curve import bucket_stops

LAUNCH_S = 5e-6
# GPUs of a node, GB and GB/s of HBM, GB/s of a link one way, GB/s of the host's memory for a GPU.
SHEETS = {
    "dgx-a100-2": (8, 80, 2039, 300, 16),
    "dgx-h100-2": (8, 80, 3350, 450, 55),
    "gb200-nvl72": (72, 186, 8000, 900, 225),
    "mi300x-8": (8, 192, 5300, 448, 64),
}


@pytest.mark.parametrize("name", SHEETS)
def test_figures_are_those_of_the_data_sheets(name: str) -> None:
    cluster = Cluster.preset(name)
    hbm, dram = cluster.device.tiers
    node = cluster.level_of("node")
    found = (
        cluster.group_size(node),
        hbm.capacity_bytes / 1e9,
        hbm.bandwidth_bytes_per_s / 1e9,
        cluster.levels[node - 1].bandwidth_bytes_per_s / 1e9,
        cluster.own_bandwidth(dram) / 1e9,
    )
    assert found == SHEETS[name]
    assert (hbm.granularity_bytes, dram.granularity_bytes) == (32, 64)
    assert hbm.shared_by is None
    assert cluster.sharers(dram) > 1
    assert cluster.work.buffer_bytes_per_s == hbm.bandwidth_bytes_per_s


@pytest.mark.parametrize("name", SHEETS)
def test_fixed_work_is_launches(name: str) -> None:
    """Launches of a step are those of its counts: no count of their own could be told apart."""
    cluster, profile = Cluster.preset(name), tables(6)
    work = cluster.work
    plan = make_plan(profile, cluster, "row-wise-coalesced")
    cost = step_cost(plan.bands, profile, cluster)
    placed = [(stats.table, plan.bands[stats.table.name]) for stats in profile.stats]
    pieces, rounds = pieces_run(placed, tree_of(cluster)), int(cost.links.phases.rounds)
    launches = 20 + 2 * rounds + 4 * pieces.bundles + 4 * pieces.pieces + 2 * pieces.copied
    parts = cost.work_parts()
    fixed_s = parts["the step"] + parts["rounds"] + parts["bands"]
    assert fixed_s == pytest.approx(launches * LAUNCH_S)
    assert parts["tables"] == pytest.approx(6 * work.table_s)
    assert rounds
    assert pieces.bundles


def tables(count: int, rows: int = 200_000) -> Profile:
    stops = bucket_stops(rows)
    lookups = np.diff(np.log1p(np.concatenate(([0], stops)).astype(float)))
    stats = []
    for index in range(count):
        table = Table(
            name=f"t{index}", num_embeddings=rows, embedding_dim=32, features=(f"f{index}",)
        )
        feature = FeatureStats(name=f"f{index}", present=10**6, lookups=4 * 10**6)
        curve = Curve(stops, lookups * (feature.lookups / lookups.sum()))
        stats.append(TableStats(table, 10**6, (feature,), curve))
    return Profile(1024, tuple(stats))


@pytest.mark.parametrize("name", SHEETS)
def test_joint_plans_and_proves_on_every_machine(name: str) -> None:
    profile, cluster = tables(3), Cluster.preset(name)
    plan = make_plan(profile, cluster)
    assert not list(find_mistakes(plan))
    assert verify(plan).holds
    certificate = plan.certificate
    assert certificate is not None
    assert certificate.bound <= certificate.objective * (1 + 1e-9)
    rival = make_plan(profile, cluster, "row-wise-coalesced")
    rival_s = step_cost(rival.bands, profile, cluster).step_s
    assert certificate.objective <= rival_s * (1 + PlanOptions().tolerance)

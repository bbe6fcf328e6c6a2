"""`sca`: coalescing and the best cache, on any tree (arXiv 2411.01611)."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import clusters, profiles

from rowtier import (
    Cluster,
    Curve,
    Device,
    FeatureStats,
    Level,
    PlanOptions,
    Profile,
    Server,
    Table,
    TableStats,
    Tier,
)
from rowtier.cost.options import CostOptions
from rowtier.cost.step import step_cost
from rowtier.cost.terms import row_terms
from rowtier.cost.touch import table_basis
from rowtier.cost.tree import tree_of
from rowtier.cost.views import objective
from rowtier.errors import InfeasibleError
from rowtier.plan.check import find_mistakes
from rowtier.plan.plan import Plan
from rowtier.plan.sca import plan, split_cost_rows
from rowtier.profile.curve import bucket_stops

OPTIONS = PlanOptions()
FORWARD = CostOptions(training=False)


def cluster(capacity: int, *, server_bytes: int = 0) -> Cluster:
    levels = (
        Level(name="node", size=4, bandwidth_bytes_per_s=1e10),
        Level(name="cluster", size=2, bandwidth_bytes_per_s=1e9),
    )
    ram = Tier(name="ram", capacity_bytes=capacity, bandwidth_bytes_per_s=1e11)
    far = Tier(name="far", capacity_bytes=max(1, server_bytes), bandwidth_bytes_per_s=1e11)
    servers = (Server(name="cloud", level="cluster", tiers=(far,)),) if server_bytes else ()
    return Cluster(name="c", levels=levels, device=Device(tiers=(ram,)), servers=servers)


def table(name: str, rows: int, *, zipf: float = 1.1, dim: int = 16, pool: int = 4) -> TableStats:
    stops = bucket_stops(rows)
    heat = np.arange(1, rows + 1, dtype=float) ** -zipf
    mass = np.diff(np.cumsum(heat)[stops - 1], prepend=0.0) / heat.sum()
    feature = FeatureStats(name=f"f_{name}", present=1000, lookups=1000 * pool)
    made = Table(name=name, num_embeddings=rows, embedding_dim=dim, features=(f"f_{name}",))
    return TableStats(made, 1000, (feature,), Curve(stops, mass * 1000 * pool))


def small(batch: int = 128) -> Profile:
    stats = (table("a", 20_000), table("b", 5_000, zipf=0.8, dim=64), table("c", 60_000, pool=1))
    return Profile(batch, stats)


def used_bytes(made: Plan, profile: Profile) -> int:
    memory = step_cost(made.bands, profile, made.cluster).memory
    return int((memory.rows + memory.buffers)[: made.cluster.num_devices, 0].max())


def cached_rows(made: Plan) -> dict[str, int]:
    return {
        name: sum(b.rows for b in bands if b.scope == "device")
        for name, bands in made.bands.items()
    }


@pytest.mark.parametrize("megabytes", [2, 3, 4, 6])
@pytest.mark.parametrize("server_bytes", [0, 2**40])
def test_rows_and_buffers_fit_into_every_device(megabytes: int, server_bytes: int) -> None:
    where = cluster(megabytes * 10**6, server_bytes=server_bytes)
    made = plan(small(), where, OPTIONS)
    assert not list(find_mistakes(made))
    assert used_bytes(made, small()) <= megabytes * 10**6
    assert sum(cached_rows(made).values()) > 0
    half = plan(small(), where, PlanOptions(reserve=0.2))
    assert used_bytes(half, small()) <= 0.8 * megabytes * 10**6


@pytest.mark.parametrize(("capacity", "server_bytes"), [(1_900_000, 0), (900_000, 2**40)])
def test_the_cache_holds_the_rows_that_save_most_per_byte_across_tables(
    capacity: int, server_bytes: int
) -> None:
    where = cluster(capacity, server_bytes=server_bytes)
    made = plan(small(), where, OPTIONS)
    cached, worst_kept, best_left = cached_rows(made), [], []
    for stats in small().stats:
        rows = cached[stats.table.name]
        assert 0 < rows < stats.table.num_embeddings
        worth = savings_per_byte(stats, made)
        worst_kept.append(worth[np.searchsorted(stats.curve.stops, rows - 1, side="right")])
        best_left.append(worth[np.searchsorted(stats.curve.stops, rows + 1, side="right")])
    assert min(worst_kept) >= 0.999 * max(best_left)


def savings_per_byte(stats: TableStats, made: Plan) -> np.ndarray:
    """Forward bytes that caching a row saves, over the memory that it then takes and frees."""
    copy, home = made.bands[stats.table.name]
    basis = table_basis(stats, small(), tree_of(made.cluster).sizes)
    forward = row_terms(home, stats.table, basis, made.cluster, FORWARD)
    at_home = row_terms(home, stats.table, basis, made.cluster)
    copies = [copy.model_copy(update={"sync": sync}) for sync in ("dense", "sparse")]
    copied = [row_terms(c, stats.table, basis, made.cluster) for c in copies]
    taken = np.min([c.buffer_bytes for c in copied], axis=0) + stats.table.stored_row_bytes
    freed = at_home.buffer_bytes / 2
    if home.members == "all":
        freed = at_home.buffer_bytes + at_home.stored_bytes
    saved = (forward.forward_bytes + forward.id_bytes).sum(axis=0)
    return saved / np.maximum(taken - freed / made.cluster.num_devices, 1e-9)


def test_the_certificate_is_the_forward_view_and_tight() -> None:
    for where in (cluster(3 * 10**6), cluster(3 * 10**6, server_bytes=2**40)):
        made = plan(small(), where, OPTIONS)
        certificate = made.certificate
        assert certificate is not None
        assert certificate.view == "sca"
        again = objective("sca", made.bands, made.profile, where, options=FORWARD)
        assert certificate.objective == pytest.approx(again, rel=1e-12)
        assert certificate.bound <= certificate.objective <= 1.02 * certificate.bound
        assert "capacity of ram" in certificate.binding


def test_more_memory_never_moves_more_bytes() -> None:
    sizes = (1_500_000, 2_000_000, 3_000_000, 5_000_000, 10_000_000, 10**9)
    moved = [plan(small(), cluster(size), OPTIONS).origin["sca"]["bytes"] for size in sizes]
    assert all(more <= less * (1 + 1e-6) for less, more in pairwise(moved))
    assert moved[-1] == 0.0


def test_coalescing_and_caching_each_move_fewer_bytes_but_not_under_training() -> None:
    facts = plan(small(), cluster(3 * 10**6), OPTIONS).origin["sca"]
    assert facts["bytes"] < facts["bytes_without_cache"] < facts["bytes_without_coalescing"]
    assert facts["bytes_with_sync"] > facts["bytes_with_sync_without_cache"]


@pytest.mark.parametrize("preset", ["federated-1000", "parameter-server"])
def test_servers_are_home_and_devices_cache(preset: str) -> None:
    where = Cluster.preset(preset)
    big = Profile(256, (table("a", 2_000_000, dim=64), table("b", 30_000, dim=64)))
    tier = where.device.tiers[0].model_copy(update={"capacity_bytes": 40_000_000})
    tight = where.model_copy(update={"device": Device(tiers=(tier,))})
    made = plan(big, tight, OPTIONS)
    assert not list(find_mistakes(made))
    assert used_bytes(made, big) <= 40_000_000
    for bands in made.bands.values():
        homes = [b for b in bands if b.scope != "device"]
        assert all(min(b.members) >= where.num_devices for b in homes if b.members != "all")
        assert all(b.members != "all" for b in homes)
    assert 0 < sum(cached_rows(made).values()) < 2_030_000
    certificate = made.certificate
    assert certificate is not None
    assert certificate.gap < 0.02
    facts = made.origin["sca"]
    assert facts["bytes"] < facts["bytes_without_cache"] < facts["bytes_without_coalescing"]


def test_servers_without_room_leave_the_rows_to_the_devices() -> None:
    made = plan(small(), cluster(4 * 10**6, server_bytes=1000), OPTIONS)
    assert all(b.members == "all" for bands in made.bands.values() for b in bands)


def test_expected_bytes_are_what_drawn_batches_move() -> None:
    rows, dim, batch, pool, devices, steps = 600, 8, 32, 2, 8, 400
    stats = table("t", rows, zipf=0.9, dim=dim, pool=pool)
    profile = Profile(batch, (stats,))
    where = cluster(12_000)
    made = plan(profile, where, OPTIONS)
    cached = cached_rows(made)["t"]
    assert 0 < cached < rows
    (home,) = (b for b in made.bands["t"] if b.scope != "device")
    p = np.repeat(stats.curve.probabilities, stats.curve.widths)
    random = np.random.default_rng(5)
    moved = 0
    for _ in range(steps):
        for device in range(devices):
            distinct = np.unique(random.choice(rows, size=batch * pool, p=p / p.sum()))
            fetched = distinct[distinct >= cached]
            owner = (fetched - cached + home.offset) % devices
            moved += int((owner != device).sum()) * (4 * dim + 8)
    assert made.origin["sca"]["bytes"] == pytest.approx(moved / steps, rel=0.01)


def test_splitting_a_batch_costs_what_the_paper_says() -> None:
    profile, workers = small(), 8
    expected = 0.0
    for stats in profile.stats:
        p = np.repeat(stats.curve.probabilities, stats.curve.widths)
        lookups = workers * profile.lookups_per_step(stats)
        together = (1 - (1 - p) ** lookups).sum()
        expected += workers * (1 - (1 - p) ** (lookups / workers)).sum() - together
    assert split_cost_rows(profile, workers) == pytest.approx(expected, rel=1e-9)
    assert split_cost_rows(profile, 1) == 0.0
    facts = plan(profile, cluster(3 * 10**6), OPTIONS).origin["sca"]
    assert facts["split_cost_rows"] == pytest.approx(expected, rel=1e-9)


def test_too_little_memory_says_how_much_is_missing() -> None:
    with pytest.raises(InfeasibleError, match=r"need 6\.4 MiB .* has 3\.8 MiB: .* is missing; add"):
        plan(small(), cluster(500_000), OPTIONS)


def test_equal_inputs_give_equal_plans() -> None:
    first, second = (plan(small(), cluster(3 * 10**6), OPTIONS) for _ in range(2))
    assert first.fingerprint == second.fingerprint


@settings(max_examples=40, deadline=None)
@given(profiles(), clusters(capacity_bytes=4000))
def test_any_plan_is_valid_and_above_its_bound(profile: Profile, where: Cluster) -> None:
    try:
        made = plan(profile, where, OPTIONS)
    except InfeasibleError:
        return
    assert not list(find_mistakes(made))
    certificate = made.certificate
    assert certificate is not None
    assert certificate.bound <= certificate.objective
    assert made.origin["sca"]["bytes"] <= made.origin["sca"]["bytes_without_cache"] * (1 + 1e-9)

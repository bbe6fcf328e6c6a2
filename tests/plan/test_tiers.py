"""Methods that spread tables evenly mix tiers: hot rows in fast memory, filled to the row."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import clusters, counted, profiles

from rowtier import (
    Band,
    Cluster,
    Constraints,
    Device,
    InfeasibleError,
    Level,
    Plan,
    PlanOptions,
    Profile,
    Server,
    Table,
    Tier,
    make_plan,
)
from rowtier.cost.memory import Room, band_bytes, pools
from rowtier.cost.options import CostOptions
from rowtier.cost.step import step_cost
from rowtier.cost.views import objective
from rowtier.plan.check import find_mistakes
from rowtier.plan.verify import verify

FORWARD = CostOptions(training=False)
METHODS = ("row-wise", "row-wise-coalesced", "flexshard", "sca")
ANY = settings(max_examples=30, deadline=None)
TREE = Cluster(
    name="tree",
    levels=(
        Level(name="node", size=4, bandwidth_bytes_per_s=1e10),
        Level(name="cluster", size=2, bandwidth_bytes_per_s=1e9),
    ),
    device=Device(tiers=(Tier(name="any", capacity_bytes=1, bandwidth_bytes_per_s=1e9),)),
)


def with_tiers(
    cluster: Cluster, fast_bytes: int, slow_bytes: int, shared: bool = False, server_bytes: int = 0
) -> Cluster:
    """The same levels; fast memory of each device, slow memory of each device or of all."""
    by = cluster.top if shared and cluster.levels else None
    fast = Tier(name="fast", capacity_bytes=fast_bytes, bandwidth_bytes_per_s=1e11)
    slow = Tier(name="slow", capacity_bytes=slow_bytes, bandwidth_bytes_per_s=1e10, shared_by=by)
    far = Tier(name="far", capacity_bytes=max(1, server_bytes), bandwidth_bytes_per_s=1e10)
    server = Server(name="store", level=cluster.top, tiers=(far,), count=2)
    servers = (server,) if server_bytes and cluster.levels else ()
    return Cluster(
        name="tiers", levels=cluster.levels, device=Device(tiers=(fast, slow)), servers=servers
    )


@st.composite
def even_profiles(draw: st.DrawFn, devices: int) -> Profile:
    """Curves of tables with equally many rows for each device."""
    stats = []
    for index in range(draw(st.integers(1, 3))):
        table = Table(
            name=f"t{index}",
            num_embeddings=devices * draw(st.integers(1, 20)),
            embedding_dim=draw(st.integers(1, 8)),
            features=(f"f{index}",),
            pooling=draw(st.sampled_from(["sum", "none", "none"])),
        )
        ranks = np.arange(1, table.num_embeddings + 1)
        heat = 500 * ranks ** -draw(st.floats(0.0, 2.0))
        stats.append(counted(table, heat.astype(np.int64), samples=200))
    return Profile(draw(st.integers(1, 64)), tuple(stats)).to_curve()


def stored_bytes(profile: Profile) -> int:
    return sum(stats.table.stored_bytes for stats in profile.stats)


def room_after(plan: Plan, options: PlanOptions) -> Room:
    room = Room(plan.cluster, options.reserved)
    for table, bands in plan:
        for band in bands:
            room.take(band_bytes(table, band, plan.cluster), band.tier)
    return room


@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
@ANY
def test_plans_are_valid_and_found_wherever_the_bytes_fit(method: str, data: st.DataObject) -> None:
    profile, base = data.draw(profiles()), data.draw(clusters())
    total = stored_bytes(profile)
    sizes = [data.draw(st.integers(1, total)) for _ in range(2)]
    server_bytes = data.draw(st.sampled_from([0, 0, total // 2]))
    cluster = with_tiers(base, *sizes, data.draw(st.booleans()), server_bytes)
    device = data.draw(st.integers(0, cluster.num_devices - 1))
    reserve = {"tier": "fast", "amount": data.draw(st.integers(1, sizes[0])), "device": device}
    options = PlanOptions(constraints=Constraints.model_validate({"reserve": [reserve]}))
    try:
        plan = make_plan(profile, cluster, method, options)
    except InfeasibleError:
        # Rows are not cut to fill a memory, so each may leave one of every table's rows empty.
        there = sum(pool.capacity_bytes for pool in pools(cluster)) - reserve["amount"]
        rows = sum(stats.table.stored_row_bytes for stats in profile.stats)
        assert total > there - rows * len(pools(cluster))
        return
    assert not list(find_mistakes(plan))
    assert verify(plan).holds
    room = room_after(plan, options)
    free = [
        room.free_bytes(d, tier) for d in range(cluster.num_devices) for tier in ("fast", "slow")
    ]
    assert min(free) >= 0


@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
@ANY
def test_fast_memory_is_filled_to_the_row_with_what_is_read(
    method: str, data: st.DataObject
) -> None:
    profile, base = data.draw(profiles()), data.draw(clusters())
    total = stored_bytes(profile)
    cluster = with_tiers(base, data.draw(st.integers(1, total)), total)
    plan = make_plan(profile, cluster, method)
    free = room_after(plan, PlanOptions()).free_of_each("fast")
    for table, bands in plan:
        touched = plan.profile[table.name].curve.positions
        read = [band for band in bands if band.tier == "slow" and band.start < touched]
        assert not read or free < table.stored_row_bytes


@pytest.mark.parametrize("method", METHODS[:2])
@given(data=st.data())
@ANY
def test_more_fast_memory_never_makes_memory_slower(method: str, data: st.DataObject) -> None:
    profile, base = data.draw(profiles()), data.draw(clusters())
    total = stored_bytes(profile)
    sizes = sorted(data.draw(st.lists(st.integers(1, total), min_size=2, max_size=5)))
    times = []
    for size in sizes:
        plan = make_plan(profile, with_tiers(base, size, total), method)
        times.append(step_cost(plan.bands, profile, plan.cluster).time.memory_s.sum())
    assert all(more <= less * (1 + 1e-9) for less, more in pairwise(times))


@pytest.mark.parametrize("method", METHODS[2:])
@given(data=st.data())
@ANY
def test_more_fast_memory_never_makes_the_objective_worse(method: str, data: st.DataObject) -> None:
    """From curves, where blocks of as many ids are equally hot, and all devices have as many."""
    base = data.draw(clusters())
    profile = data.draw(even_profiles(base.num_devices))
    total = stored_bytes(profile)
    sizes = sorted(data.draw(st.lists(st.integers(1, total), min_size=2, max_size=5)))
    plans = [make_plan(profile, with_tiers(base, size, total), method) for size in sizes]
    found = [plan.certificate.objective for plan in plans if plan.certificate is not None]
    assert all(more <= less * (1 + 1e-9) for less, more in pairwise(found))


def skewed(pooling: str = "none", rows: tuple[int, ...] = (4000, 1600), batch: int = 64) -> Profile:
    stats = []
    for index, count in enumerate(rows):
        heat = np.maximum(1, 20_000 / np.arange(1, count + 1) ** (1.2 - index / 5)).astype(np.int64)
        table = Table(
            name=f"t{index}", num_embeddings=count, embedding_dim=16 << index,
            features=(f"f{index}",), pooling=pooling,
        )  # type: ignore[arg-type]  # fmt: skip
        stats.append(counted(table, heat, samples=4000))
    return Profile(batch, tuple(stats)).to_curve()


def quarter(profile: Profile, slow_share: float = 1.0) -> Cluster:
    """Fast memory for a quarter of the model, and slow memory for so much of it."""
    each = stored_bytes(profile) // TREE.num_devices
    return with_tiers(TREE, each // 4, max(1, int(each * slow_share)))


@pytest.mark.parametrize("pooling", ["sum", "none"])
def test_row_wise_keeps_the_rows_in_fast_memory_that_are_read_most_per_byte(pooling: str) -> None:
    profile = skewed(pooling)
    plan = make_plan(profile, quarter(profile), "row-wise")
    worst_kept, best_left = [], []
    for table, (fast, slow) in plan:
        assert (fast.tier, slow.tier, fast.order, fast.members) == ("fast", "slow", "blocks", "all")
        heat = profile[table.name].curve.probabilities
        lookups = profile.lookups_per_step(profile[table.name])
        density = lookups * heat * table.row_bytes / table.stored_row_bytes
        stops = profile[table.name].curve.stops
        worst_kept.append(density[np.searchsorted(stops, fast.stop - 8)])
        best_left.append(density[np.searchsorted(stops, slow.start + 8)])
    assert min(worst_kept) >= 0.9 * max(best_left)  # buckets of a few rows, and rounds of reads


def test_flexshard_cuts_sequences_that_fast_memory_does_not_hold_as_if_it_did() -> None:
    profile = skewed()
    mixed = make_plan(profile, quarter(profile, 2.0), "flexshard")
    roomy = make_plan(profile, with_tiers(TREE, 2 * stored_bytes(profile), 1), "flexshard")
    bands = [band for mine in mixed.bands.values() for band in mine]
    assert {band.scope for band in bands} == {"device", "node", "cluster"}
    assert {band.tier for band in bands} == {"fast", "slow"}
    assert mixed.certificate is not None
    assert roomy.certificate is not None
    assert mixed.certificate.objective == pytest.approx(roomy.certificate.objective, rel=1e-9)
    assert mixed.certificate.bound == pytest.approx(roomy.certificate.bound, rel=1e-9)
    assert mixed.certificate.gap < 0.02
    plain = make_plan(profile, quarter(profile), "row-wise")
    assert peak_bytes(mixed) <= peak_bytes(plain)


def test_flexshard_prices_rows_where_they_have_no_more_room() -> None:
    """Buffers are many times the rows here, so the budget alone would allow copies of all."""
    profile = skewed()
    found = [make_plan(profile, quarter(profile, share), "flexshard") for share in (1.0, 1.2, 2.0)]
    certificates = [plan.certificate for plan in found if plan.certificate is not None]
    assert certificates[0].binding.startswith("memory for rows")
    assert [round(one.gap, 1) for one in certificates] == [0.0, 0.0, 0.0]
    assert all(more.bound < less.bound for less, more in pairwise(certificates))


def peak_bytes(plan: Plan) -> int:
    memory = step_cost(plan.bands, plan.profile, plan.cluster).memory
    return int((memory.rows + memory.buffers)[: plan.cluster.num_devices].sum(axis=1).max())


@pytest.mark.parametrize("slow_share", [1.5, 0.95])
def test_no_cache_beside_homes_in_two_tiers_moves_fewer_bytes_than_the_bound_of_sca(
    slow_share: float,
) -> None:
    profile = skewed("sum", rows=(4000, 1600), batch=1)
    plan = make_plan(profile, quarter(profile, slow_share), "sca")
    certificate, cluster = plan.certificate, plan.cluster
    assert certificate is not None
    assert sum(band.scope == "device" for bands in plan.bands.values() for band in bands) == 2
    random, fast, slow = np.random.default_rng(0), *(t.capacity_bytes for t in cluster.device.tiers)
    tried, best = 0, np.inf
    for _ in range(300):
        cached = [int(random.integers(0, 30)), int(random.integers(0, 50))]
        bands = {}
        for stats, count in zip(profile.stats, cached, strict=True):
            home = {"scope": "cluster", "tier": "slow", "coalesced": True}
            rows = Band(start=count, stop=stats.table.num_embeddings, **home)
            copy = Band(start=0, stop=max(1, count), scope="device", tier="fast", sync="sparse")
            bands[stats.table.name] = (copy, rows)[not count :]
        memory = step_cost(bands, profile, cluster).memory
        over = np.maximum(0, memory.rows[:, 1] - slow)  # has no room but in fast memory
        if (memory.rows[:, 0] + memory.buffers[:, 0] + over).max() <= fast:
            tried += 1
            best = min(best, objective("sca", bands, profile, cluster, options=FORWARD))
    assert tried > 20
    assert certificate.bound <= best
    assert certificate.objective <= 1.1 * best


@pytest.mark.parametrize("method", METHODS)
def test_pins_to_a_tier_are_kept_and_the_others_share_what_is_left(method: str) -> None:
    profile = skewed()
    pins = {"tables": {"t0": {"tier": "slow"}}}
    options = PlanOptions(constraints=Constraints.model_validate(pins))
    plan = make_plan(profile, quarter(profile), method, options)
    assert {band.tier for band in plan.bands["t0"]} == {"slow"}
    assert any(band.tier == "fast" for band in plan.bands["t1"])
    assert verify(plan).holds

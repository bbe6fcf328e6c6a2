"""What joint leaves out, and why that is never better."""

import numpy as np
import pytest
from cost.cost_cases import rich_bands, rich_clusters, rich_profiles
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recshard_models import flat_cluster, skewed_model, total_bytes
from strategies import counted

from rowtier import Band, Cluster, Profile, Table, make_plan
from rowtier.cost.load import Load, chosen, total_load
from rowtier.cost.options import CostOptions
from rowtier.cost.step import step_cost
from rowtier.plan.constraints import Constraints
from rowtier.plan.joint.bound import least_of
from rowtier.plan.joint.make import Planning
from rowtier.plan.joint.place.make import Maker
from rowtier.plan.joint.rivals import SURELY, Rivals
from rowtier.plan.joint.space import TableSpace
from rowtier.plan.options import PlanOptions
from rowtier.work import Work


@given(st.data(), rich_clusters(), rich_profiles(max_tables=3))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_some_tables_take_no_longer_than_all(
    data: st.DataObject, cluster: Cluster, profile: Profile
) -> None:
    bands = {s.table.name: data.draw(rich_bands(s.table, cluster)) for s in profile.stats}
    part = Profile(profile.batch_size, profile.stats[:1])
    some_s = step_cost(bands, part, cluster).step_s
    bands_s = cluster.work.band_s * sum(map(len, bands.values()))  # counted apart, at most
    assert some_s <= SURELY * (step_cost(bands, profile, cluster).step_s + bands_s)


@pytest.mark.parametrize("seed", range(3))
def test_flexshard_without_sequence_tables_is_row_wise(seed: int) -> None:
    profile = skewed_model(np.random.default_rng(seed), 5, rows=1e4)
    cluster = flat_cluster(4, (total_bytes(profile) // 8, 1e12), (total_bytes(profile), 1e10))
    flexshard, row_wise = (make_plan(profile, cluster, m) for m in ("flexshard", "row-wise"))
    assert flexshard.bands == row_wise.bands


def _half_cold(tables: int = 60) -> Profile:
    heat = np.concatenate((np.arange(50, 0, -1), np.zeros(50, dtype=np.int64)))
    stats = [
        counted(
            Table(name=f"t{i}", num_embeddings=100, embedding_dim=8, features=(f"f{i}",),
                  pooling="none"),
            heat,
        )
        for i in range(tables)
    ]  # fmt: skip
    return Profile(64, tuple(stats))


def _two(profile: Profile, share: float, **work: float) -> Cluster:
    stored = sum(s.table.stored_bytes for s in profile.stats)
    tiers = [
        {"name": "fast", "capacity": int(stored * share), "bandwidth": 1e11},
        {"name": "slow", "capacity": stored, "bandwidth": 1e9},
    ]
    level = {"name": "node", "size": 2, "bandwidth": 1e10}
    data = {"name": "two", "levels": [level], "device": {"tiers": tiers}, "work": work}
    return Cluster.model_validate(data)


@pytest.mark.parametrize("share", [0.3, 0.4, 1.0])
def test_ends_are_joined_of_as_many_tables_as_there_is_room_for(share: float) -> None:
    profile = _half_cold()
    cluster = _two(profile, share)
    hot = Band(start=0, stop=50, scope="node", tier="fast", coalesced=True)
    cold = Band(start=50, stop=100, scope="node", tier="slow", coalesced=True)
    maker = Maker(profile, cluster, PlanOptions(), PlanOptions().cost)
    joined = maker.with_ends_joined({s.table.name: (hot, cold) for s in profile.stats})
    assert joined is not None
    assert maker.fits(joined)
    # Half of all rows are hot; the other half of a table is 1/120 of them.
    whole = sum(len(bands) == 1 for bands in joined.values())
    assert whole == min(60, int((2 * share - 0.5) * 120 + 1e-9))


def test_cold_rows_get_no_band_of_their_own_where_bands_take_work() -> None:
    profile = _half_cold(3)
    plan = make_plan(profile, _two(profile, 1.0, band=1e-4))
    assert {len(bands) for bands in plan.bands.values()} == {1}


def test_methods_that_are_surely_slower_do_not_place_all_tables() -> None:
    profile = _half_cold()
    cluster = _two(profile, 1.0)
    rivals = Rivals(profile, cluster, PlanOptions(), CostOptions())
    least = least_of(profile, cluster, PlanOptions(), CostOptions())
    others = {"row-wise", "row-wise-coalesced", "table-wise", "recshard", "sca"}
    assert others <= set(rivals.hopeful(np.inf, least.without_owners_s))
    assert not list(rivals.hopeful(0.1 * least.seconds, least.without_owners_s))


def test_placements_of_a_table_take_the_work_that_their_bands_take() -> None:
    """A scope below the top that is the whole cluster has no copies to keep equal."""
    profile = _half_cold()
    two = _two(profile, 1.0)
    levels = (*two.levels, two.levels[-1].model_copy(update={"name": "all", "size": 1}))
    work = Work(band=1e-6, copied=1e-5)
    cluster = two.model_copy(update={"levels": levels, "work": work})
    table = profile.stats[0].table
    ways = [
        (Band(start=0, stop=1, scope=scope, tier="fast", members=members),)
        for scope in cluster.scopes
        for members in ("all", (0,))
    ]
    facts = (profile.stats[0], ways, ("rows",), profile, cluster, CostOptions(), [0])
    space = TableSpace(*facts)
    now = (Band(start=0, stop=table.num_embeddings, scope=cluster.scopes[1], tier="fast"),)
    found = space.placements(now)
    for at in range(found.loads.work_s.shape[-1]):
        whole = space.whole_load(found.bands(at))
        joined = len(found.bands(at)) > 1  # bands that lie side by side may be one
        if not joined:
            assert chosen(found.loads, at).work_s == pytest.approx(whole.work_s, abs=1e-12)


@given(st.data(), rich_clusters(), rich_profiles())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_an_evened_load_is_as_much_in_all_and_of_devices_alone_no_slower(
    data: st.DataObject, cluster: Cluster, profile: Profile
) -> None:
    bands = {s.table.name: data.draw(rich_bands(s.table, cluster)) for s in profile.stats}
    load = total_load(Load.of(s, bands[s.table.name], profile, cluster) for s in profile.stats)
    even = load.evened
    assert even.moved.sum() == pytest.approx(load.moved.sum())
    assert even.forward.sent.sum() == pytest.approx(load.forward.sent.sum())
    if not cluster.servers:
        assert even.step_s(cluster) <= load.step_s(cluster) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("pins", "share", "owners"),
    [
        ({"tables": {n: {"never_split": True} for n in ("t0", "t1")}}, 1.0, {(0,), (1,)}),
        ({"keep_together": [["t0", "t1"]]}, 1.0, {(0,)}),  # all of them, so nothing is gained
        ({"tables": {"t0": {"device": 0}, "t1": {"never_split": True}}}, 1.0, {(0,), (1,)}),
        ({"tables": {n: {"device": 0} for n in ("t0", "t1")}}, 1.0, {(0,)}),
        ({"tables": {n: {"never_split": True} for n in ("t0", "t1")}}, 0.4, {(0,)}),  # no room
    ],
)
def test_tables_that_pins_keep_whole_are_moved_where_that_is_faster(
    pins: dict[str, object], share: float, owners: set[tuple[int, ...]]
) -> None:
    profile = _half_cold(2)
    constraints = Constraints.model_validate(pins)
    planning = Planning(profile, _two(profile, share), PlanOptions(constraints=constraints))
    band = Band(start=0, stop=100, scope="node", members=(0,), tier="fast", coalesced=True)
    (start,) = planning.priced_candidates([{"t0": (band,), "t1": (band,)}])
    moved = planning._moved(start)
    assert {b.members for mine in moved.bands.values() for b in mine} == owners
    assert moved is start or moved.cost.step_s < start.cost.step_s
    assert not planning.violations(moved)

"""Owners inside every node: which place of it has which table."""

import numpy as np
import pytest
from recshard_models import skewed_model, total_bytes

from rowtier import Band, Cluster, Plan, PlanOptions, Profile
from rowtier.cost.load import Load
from rowtier.cost.options import DEFAULTS
from rowtier.cost.step import step_cost
from rowtier.plan.check import find_mistakes
from rowtier.plan.joint.bound import least_of
from rowtier.plan.joint.make import Planning
from rowtier.plan.joint.place.nodes import with_places

PROFILE = skewed_model(np.random.default_rng(1), 60, rows=3e3)


def _nodes(profile: Profile, per_node: int = 4, share: float = 1.0) -> Cluster:
    stored = total_bytes(profile)
    tiers = [
        {"name": "fast", "capacity": int(stored * share / 8), "bandwidth": 1e12},
        {"name": "slow", "capacity": stored, "bandwidth": 1e10},
    ]
    levels = [
        {"name": "node", "size": per_node, "bandwidth": 1e11},
        {"name": "cluster", "size": 2, "bandwidth": 1e9},
    ]
    return Cluster.model_validate({"name": "nodes", "levels": levels, "device": {"tiers": tiers}})


def _in_nodes(rows: int) -> list[Band]:
    """The first half with an owner in every node, the rest once."""
    half = rows // 2
    inside = Band(start=0, stop=half, scope="node", members=(0,), tier="slow", exchange="sums")
    return [inside, Band(start=half, stop=rows, scope="cluster", tier="slow", coalesced=True)]


@pytest.mark.parametrize("place", range(4))
def test_loads_of_another_place_are_those_of_its_holders(place: int) -> None:
    stats, cluster = PROFILE.stats[0], _nodes(PROFILE)
    first, *_ = _in_nodes(stats.table.num_embeddings)
    there = Load.of(stats, (first.model_copy(update={"members": (place,)}),), PROFILE, cluster)
    here = Load.of(stats, (first,), PROFILE, cluster)
    node, at = np.divmod(np.arange(8), 4)
    turned = here.of_holders(node * 4 + (at - place) % 4)
    for name in ("kept", "moved", "work_s"):
        np.testing.assert_allclose(getattr(turned, name), getattr(there, name))
    for name in ("ids", "forward", "sync"):
        np.testing.assert_allclose(getattr(turned, name).sent, getattr(there, name).sent)
        np.testing.assert_allclose(getattr(turned, name).received, getattr(there, name).received)


def test_every_table_gets_a_place_and_devices_as_much_to_do() -> None:
    cluster = _nodes(PROFILE)
    bands = {s.table.name: _in_nodes(s.table.num_embeddings) for s in PROFILE.stats}
    found = with_places(bands, PROFILE, cluster, DEFAULTS)
    first = {name: tuple(mine) for name, mine in bands.items()}
    placed = {name: tuple(mine) for name, mine in found.items()}
    used = {band.members for mine in placed.values() for band in mine if band.scope == "node"}
    assert used == {(place,) for place in range(4)}
    whole, balanced = (step_cost(b, PROFILE, cluster) for b in (first, placed))
    assert balanced.time.exchange_level_s[0] < 0.5 * whole.time.exchange_level_s[0]
    for stats in PROFILE.stats:  # the same rows and columns as before
        mine = [b for b in placed[stats.table.name] if b.scope == "node"]
        widths = sum(b.width(stats.table.embedding_dim) for b in mine)
        assert widths == stats.table.embedding_dim
        assert {(b.start, b.stop) for b in mine} == {(0, stats.table.num_embeddings // 2)}


def test_bands_of_servers_keep_their_memory() -> None:
    far = {"name": "far", "capacity": 10**9, "bandwidth": 1e9}
    cluster = _nodes(PROFILE)
    server = {"name": "server", "level": "cluster", "tiers": [far]}
    data = {**cluster.to_data(), "servers": [server]}
    served = Cluster.model_validate(data)
    members = served.server_members(served.servers[0])
    bands = {}
    for stats in PROFILE.stats:
        inside, rest = _in_nodes(stats.table.num_embeddings)
        bands[stats.table.name] = [
            inside,
            rest.model_copy(update={"members": tuple(members), "tier": "far"}),
        ]
    found = with_places(bands, PROFILE, served, DEFAULTS)
    assert {mine[-1].tier for mine in found.values()} == {"far"}
    step_cost({name: tuple(mine) for name, mine in found.items()}, PROFILE, served)


def test_a_table_that_is_most_of_all_is_cut_by_columns() -> None:
    one = Profile(64, PROFILE.stats[:1])
    bands = {one.stats[0].table.name: _in_nodes(one.stats[0].table.num_embeddings)}
    found = with_places(bands, one, _nodes(PROFILE), DEFAULTS)
    inside = [b for mine in found.values() for b in mine if b.scope == "node"]
    assert len(inside) > 1
    assert len({b.members for b in inside}) == len(inside)


def test_joint_makes_plans_with_sums_that_stay_in_nodes_and_others() -> None:
    cluster, options = _nodes(PROFILE), PlanOptions()
    planning = Planning(PROFILE, cluster, options)
    made = planning.made(least_of(PROFILE, cluster, options, options.cost))
    inside = [
        any(b.scope == "node" and b.exchange == "sums" for mine in one.bands.values() for b in mine)
        for one in made
    ]
    assert any(inside)
    assert not all(inside)
    for one in made:
        assert planning.fits(one.bands)
        assert not list(find_mistakes(Plan.build("joint", PROFILE, cluster, one.bands)))


def test_sums_of_servers_inside_nodes_stay_with_the_servers() -> None:
    nodes = _nodes(PROFILE).model_dump(by_alias=True)
    far = {"name": "far", "capacity": 10**9, "bandwidth": 1e9}
    servers = [{"name": "store", "count": 2, "level": "node", "tiers": [far]}]
    cluster = Cluster.model_validate({**nodes, "servers": servers})
    member = cluster.group_size(1)  # the first after a node's devices
    stats = PROFILE.stats[0]
    rows = stats.table.num_embeddings
    band = Band(start=0, stop=rows, scope="node", members=(member,), tier="far", exchange="sums")
    profile = Profile(PROFILE.batch_size, (stats,))
    bands = {stats.table.name: [band]}
    assert with_places(bands, profile, cluster, DEFAULTS) == bands

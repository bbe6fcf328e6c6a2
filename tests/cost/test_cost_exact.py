"""The bucketed model equals a walk over every row, reader and message."""

import numpy as np
import pytest
from cost_cases import cases
from cost_naive import Walk, table_of
from hypothesis import HealthCheck, given, settings
from strategies import counted, plans

from rowtier import Band, Cluster, Device, Level, Plan, Profile, Server, Table, Tier
from rowtier.cost.options import CostOptions
from rowtier.cost.step import StepCost, step_cost

FLOWS = ("ids", "forward", "sync", "sync_ids")


def near(expected):
    scale = float(np.abs(expected).max()) if np.size(expected) else 0.0
    return pytest.approx(expected, rel=1e-9, abs=1e-11 * scale)


def assert_equal(cost: StepCost, walk: Walk) -> None:
    holders, levels = walk.cluster.num_holders, walk.K
    tiers = len(walk.cluster.tier_names)
    assert cost.read_bytes == near(table_of(walk.read, holders, tiers))
    assert cost.written_bytes == near(table_of(walk.written, holders, tiers))
    walk.sent["sync"] = _together(walk.sent["sync up"], walk.sent["sync down"])
    walk.received["sync"] = _together(walk.received["sync up"], walk.received["sync down"])
    for name in FLOWS:
        flow = cost.links.flows[name]
        assert flow.sent == near(table_of(walk.sent[name], holders, levels, 1)), name
        assert flow.received == near(table_of(walk.received[name], holders, levels, 1)), name
    assert_tables_equal(cost, walk)
    assert_messages_equal(cost, walk)


def _together(first, second):
    return {key: first.get(key, 0.0) + second.get(key, 0.0) for key in {*first, *second}}


def assert_tables_equal(cost: StepCost, walk: Walk) -> None:
    for table in cost.tables:
        for name, found in (
            ("forward", table.forward_bytes),
            ("ids", table.id_bytes),
            ("sync", table.sync_bytes),
            ("sync_ids", table.sync_id_bytes),
        ):
            expected = [walk.by_table[table.name, name, level + 1] for level in range(walk.K)]
            assert found == near(np.array(expected)), name


def assert_messages_equal(cost: StepCost, walk: Walk) -> None:
    expected = np.zeros((walk.cluster.num_holders, walk.K))
    for phase, source, target in walk.pairs:
        if phase != "sync_ids":
            expected[source, walk.distance(source, target) - 1] += 1
        if phase == "forward" and walk.options.training:  # gradients return
            expected[target, walk.distance(source, target) - 1] += 1
    assert (cost.links.messages == expected).all()
    phases = {(p, walk.distance(a, b)) for p, a, b in walk.pairs}
    passes = 2 if walk.options.training else 1
    scopes = ["device", *(level.name for level in walk.cluster.levels)]
    staged = [
        scopes.index(band.scope)
        for bands in walk.bands.values()
        for band in bands
        if band.staged and band.exchange == "rows"
    ]
    for level in range(1, walk.K + 1):
        rounds = 0
        for phase, times in (("ids", 2), ("forward", passes)):
            widest = max((at for p, at in phases if p == phase), default=0)
            passed_on = level <= max(staged, default=0) and (phase, level) in phases
            rounds += times * (level == widest or passed_on)
        rounds += passes * (level in walk.extra_levels)
        assert cost.links.exchange_rounds[level - 1] == rounds
        assert cost.links.sync_rounds[level - 1] == 4 * (("sync up", level) in phases)


@given(cases())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_amount_equals_a_walk_over_every_message(case) -> None:
    bands, profile, cluster, options = case
    cost = step_cost(bands, profile, cluster, options=options)
    walk = Walk(bands, profile, cluster, None, options)
    assert_equal(cost, walk)
    assert_memory_equal(cost, walk)
    assert_times_equal(cost, walk)


@given(plans())
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_plan_with_its_row_order_equals_the_walk(plan: Plan) -> None:
    cost = step_cost(plan.bands, plan.profile, plan.cluster, plan.order)
    walk = Walk(plan.bands, plan.profile, plan.cluster, plan.order, CostOptions())
    assert_equal(cost, walk)


def deep_cluster() -> Cluster:
    """Three levels of 2, 3 and 2, with servers at every level."""
    tier = Tier(name="ram", capacity_bytes=2**40, bandwidth_bytes_per_s=1e9, granularity_bytes=8)
    return Cluster(
        name="deep",
        levels=tuple(
            Level(name=f"level{i}", size=size, bandwidth_bytes_per_s=1e8, latency_s=1e-5, per=per)
            for i, (size, per) in enumerate([(2, "device"), (3, "group"), (2, "group")], 1)
        ),
        device=Device(tiers=(tier,)),
        servers=tuple(
            Server(name=f"s{i}", level=f"level{i}", tiers=(tier,), bandwidth_bytes_per_s=rate)
            for i, rate in ((1, 2e7), (2, None), (3, 3e8))
        ),
    )


DEEP_MEMBERS = {  # positions: odd numbers of devices, servers alone, and both
    1: ["all", (1,), (2,), (0, 2)],
    2: ["all", (4,), (0, 3, 5), (6, 9), (9, 1, 7, 2, 3)],
    3: ["all", (7,), (0, 2, 5, 7, 9), (20,), (12, 18, 20, 3, 4)],
}
WAYS = [("rows", False), ("rows", True), ("sums", False), ("sums", True)]


@pytest.mark.parametrize("order", ["spread", "blocks"])
@pytest.mark.parametrize(("exchange", "staged"), WAYS)
@pytest.mark.parametrize("level", [1, 2, 3])
def test_members_of_every_kind_at_every_level_equal_the_walk(
    level: int, exchange: str, staged: bool, order: str
) -> None:
    cluster, rows = deep_cluster(), 17
    heat = np.array([9, 7, 7, 5, 3, 3, 3, 2, 2, 1, 1, 1, 0, 0, 1, 0, 4])
    table = Table(name="t", num_embeddings=rows, embedding_dim=2, features=("t",))
    profile = Profile(16, (counted(table, np.roll(heat, 5), samples=40),))
    inner = Band(start=0, stop=4, scope="level1", tier="ram", exchange=exchange, staged=staged)
    for members in DEEP_MEMBERS[level]:
        outer = Band(
            start=4,
            stop=rows,
            scope=f"level{level}",
            members=members,
            order=order,
            offset=1,
            tier="ram",
            exchange=exchange,
            staged=staged,
            sync="sparse",
        )
        options, bands = CostOptions(), {"t": (inner, outer)}
        walk = Walk(bands, profile, cluster, None, options)
        cost = step_cost(bands, profile, cluster, options=options)
        assert_equal(cost, walk)
        assert_times_equal(cost, walk)


def assert_memory_equal(cost: StepCost, walk: Walk) -> None:
    holders, tiers = walk.cluster.num_holders, len(walk.cluster.tier_names)
    for name in ("weights", "state"):
        kept = {(h, c): n for (h, c, what), n in walk.rows.items() if what == name}
        assert (getattr(cost.memory, name) == table_of(kept, holders, tiers)).all()
    expected = np.zeros((holders, tiers))
    for holder in range(holders):
        first = walk.cluster.tier_names.index(walk.cluster.tiers_of(holder)[0].name)
        expected[holder, first] = walk.waiting[holder] + sum(
            amount
            for way in (walk.sent, walk.received)
            for phase in ("ids", "forward")
            for (who, _), amount in way[phase].items()
            if who == holder
        )
    assert (cost.memory.buffers >= expected * (1 - 1e-9)).all()
    assert (cost.memory.buffers <= expected * (1 + 1e-9) + 1).all()


def assert_times_equal(cost: StepCost, walk: Walk) -> None:
    names = walk.cluster.tier_names
    slowest = 0.0
    for holder in range(walk.cluster.num_holders):
        total = sum(
            (walk.read[holder, names.index(t.name)] + walk.written[holder, names.index(t.name)])
            / t.bandwidth_bytes_per_s
            for t in walk.cluster.tiers_of(holder)
        )
        slowest = max(slowest, total)
    options, expected = walk.options, slowest
    phases = ["ids", "forward"] + ["backward"] * options.training
    walk.sent["backward"], walk.received["backward"] = (
        walk.received["forward"],
        walk.sent["forward"],
    )
    for way in (walk.sent, walk.received):
        way["all sync"] = _together(way["sync"], way["sync_ids"])
    for index, level in enumerate(walk.cluster.levels):
        exchange = _link_s(walk, index, phases) / options.exchange_efficiency
        sync = _link_s(walk, index, ["all sync"]) / options.sync_efficiency
        assert cost.time.exchange_s[:, index] == near(exchange)
        assert cost.time.sync_s[:, index] == near(sync)
        expected += exchange.max() + cost.links.exchange_rounds[index] * level.latency_s
        waited = cost.links.sync_rounds[index] * level.latency_s
        expected += (1 - options.overlap) * (sync.max() + waited)
    assert cost.step_s == pytest.approx(expected, rel=1e-9)


def _link_s(walk: Walk, index: int, phases: list[str]) -> np.ndarray:
    """How long each holder's link of a level is busy, phase after phase, unless it is shared."""
    cluster, level = walk.cluster, walk.cluster.levels[index]
    own = {}
    first = walk.W
    for server in cluster.servers:
        count = server.count * cluster.num_groups(cluster.level_of(server.level))
        for holder in range(first, first + count):
            own[holder] = server.bandwidth_bytes_per_s
        first += count
    busy = np.zeros(cluster.num_holders)
    for holder in range(cluster.num_holders):
        group = next((g for g in walk.groups[index] if holder in g), None)
        shared = level.per == "group" and group is not None
        for phase in phases:
            ways = []
            for way in (walk.sent, walk.received):
                mine = way[phase].get((holder, index + 1), 0.0)
                alone = mine / (own.get(holder) or level.bandwidth_bytes_per_s)
                if shared:
                    both = sum(way[phase].get((h, index + 1), 0.0) for h in group)
                    alone = max(both / level.bandwidth_bytes_per_s, alone * bool(own.get(holder)))
                ways.append(alone)
            busy[holder] += max(ways)
    return busy

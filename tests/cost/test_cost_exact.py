"""The bucketed model equals a walk over every row, reader and message."""

import numpy as np
import pytest
from cost_cases import cases
from cost_naive import Walk, table_of
from hypothesis import HealthCheck, given, settings
from strategies import counted, plans

from rowtier import Band, Cluster, Device, Level, Plan, Profile, Server, Table, Tier
from rowtier.cost.bundling import bundle_key, pieces_run
from rowtier.cost.load import Load, total_load
from rowtier.cost.options import CostOptions
from rowtier.cost.step import StepCost, step_cost
from rowtier.cost.tree import Tree, tree_of
from rowtier.work import UpdateWork, Work

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
        assert table.work_s == pytest.approx(walk.table_work[table.name], rel=1e-9, abs=1e-15)


def assert_messages_equal(cost: StepCost, walk: Walk) -> None:
    expected = np.zeros((walk.cluster.num_holders, walk.K))
    for phase, source, target in walk.pairs:
        if phase != "sync_ids":
            expected[source, walk.distance(source, target) - 1] += 1
        if phase == "forward" and walk.options.training:  # gradients return
            expected[target, walk.distance(source, target) - 1] += 1
    assert (cost.links.messages == expected).all()
    for level, (exchange, sync) in enumerate(rounds(walk)):
        assert cost.links.phases.exchange_rounds[level] == exchange
        assert cost.links.phases.sync_rounds[level] == sync
    assert sum(cost.phases().values()) == sum(map(sum, rounds(walk)))


def rounds(walk: Walk) -> list[tuple[int, int]]:
    """Per level the rounds of exchange and of sync."""
    phases = {(p, walk.distance(a, b)) for p, a, b in walk.pairs}
    staged = _gateways_up_to(walk)
    found = []
    for level in range(1, walk.K + 1):
        exchange = (1 + walk.passes) * (level in walk.extra_levels)
        for phase, times in (("ids", 1), ("forward", walk.passes)):
            widest = max((at for p, at in phases if p == phase), default=0)
            passed_on = level <= staged and (phase, level) in phases
            exchange += times * (level == widest or passed_on)
        found.append((exchange, 2 * (("sync up", level) in phases)))
    return found


def _gateways_up_to(walk: Walk) -> int:
    """The widest level at which gateways pass rows on."""
    levels = [
        walk.cluster.level_of(band.scope)
        for bands in walk.bands.values()
        for band in bands
        if band.staged and band.exchange == "rows"
    ]
    return max(levels, default=0)


def messages(walk: Walk) -> list[tuple[int, int]]:
    """Per level the messages of a device for exchange and for sync: one to each of its peers.

    Where gateways pass things on, and where copies meet, a device has a peer in each other
    group below; what goes directly has all devices there for peers.
    """
    phases = {(p, walk.distance(a, b)) for p, a, b in walk.pairs}
    found = []
    for level in range(1, walk.K + 1):
        devices = [h for h in walk.groups[level][0] if h < walk.W]
        apart = [h for h in devices if h not in walk.groups[level - 1][0]]
        beside = len(walk.children(level, 0)) - 1
        peers = beside if level <= _gateways_up_to(walk) else len(apart)
        sent = peers * (("ids", level) in phases)
        sent += walk.passes * peers * (("forward", level) in phases)
        sent += (1 + walk.passes) * beside * (level in walk.extra_levels)
        found.append((sent, 2 * beside * (("sync up", level) in phases)))
    return found


@given(cases())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_amount_equals_a_walk_over_every_message(case) -> None:
    bands, profile, cluster, options = case
    cost = step_cost(bands, profile, cluster, options=options)
    walk = Walk(bands, profile, cluster, None, options)
    assert_equal(cost, walk)
    assert_memory_equal(cost, walk)
    assert_times_equal(cost, walk)


@given(cases())
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_loads_of_tables_add_up_to_the_step(case) -> None:
    bands, profile, cluster, options = case
    placed, tree = [(s.table, bands[s.table.name]) for s in profile.stats], tree_of(cluster)
    known = frozenset().union(*(pieces_run([one], tree).mixed for one in placed))
    if pieces_run(placed, tree).mixed != known:
        # A table does not know what else the tables fetch that it runs with.
        once = cluster.work.model_copy(update={"lookup_s": 0.0})
        cluster = cluster.model_copy(update={"work": once})
    loads = [Load.of(s, bands[s.table.name], profile, cluster, options) for s in profile.stats]
    cost = step_cost(bands, profile, cluster, options=options)
    tree, tables = tree_of(cluster), [s.table for s in profile.stats]
    alone = [t for t in tables if bundle_key(t, bands[t.name], tree) is None]
    every = cost.pieces.work_s(cluster.work, options.training)
    own = pieces_run([(t, bands[t.name]) for t in alone], tree)
    shared_s = every - own.work_s(cluster.work, options.training)
    expected = cost.step_s - shared_s  # without the bands that tables have together
    assert total_load(loads).step_s(cluster, options) == pytest.approx(expected, rel=1e-9)


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
            Level(
                name=f"level{i}",
                size=size,
                bandwidth_bytes_per_s=1e8,
                latency_s=1e-5,
                message_s=1e-6,
                per=per,
                sync_efficiency=0.5,
            )
            for i, (size, per) in enumerate([(2, "device"), (3, "group"), (2, "group")], 1)
        ),
        device=Device(tiers=(tier,)),
        servers=tuple(
            Server(name=f"s{i}", level=f"level{i}", tiers=(tier,), bandwidth_bytes_per_s=rate)
            for i, rate in ((1, 2e7), (2, None), (3, 3e8))
        ),
        work=Work(
            round_s=1e-5,
            band_s=2e-6,
            lookup_s=1e-7,
            plain_s=2e-7,
            row_s=3e-7,
            buffer_bytes_per_s=1e8,
            update=UpdateWork(sgd=2e-7, rowwise_adagrad=2e-7),
            hidden=0.5,
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
        options, bands = CostOptions(dense_s=1e-5), {"t": (inner, outer)}
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
    cluster, options = walk.cluster, walk.options
    phases = ["ids", "forward"] + ["backward"] * options.training
    walk.sent["backward"], walk.received["backward"] = (
        walk.received["forward"],
        walk.sent["forward"],
    )
    for way in (walk.sent, walk.received):
        way["all sync"] = _together(way["sync"], way["sync_ids"])
    memory, work = _memory_s(walk), _work_s(walk)
    assert cost.time.memory_s == near(memory)
    assert cost.time.work_s == near(work)
    exchange_s, sync_s = {}, {}
    for index, level in enumerate(cluster.levels):
        exchange = _link_s(walk, index, phases) / level.exchange_efficiency
        sync = _link_s(walk, index, ["all sync"]) / level.sync_efficiency
        assert cost.time.exchange_s[:, index] == near(exchange)
        assert cost.time.sync_s[:, index] == near(sync)
        waits = [
            turns * level.latency_s + told * level.message_s
            for turns, told in zip(rounds(walk)[index], messages(walk)[index], strict=True)
        ]
        assert cost.time.exchange_latency_s[index] == pytest.approx(waits[0])
        assert cost.time.sync_latency_s[index] == pytest.approx(waits[1])
        exchange_s[level.name] = exchange.max() + waits[0]
        sync_s[level.name] = sync.max() + waits[1]
    hidden_s = options.dense_s * cluster.work.hidden
    visible_s = max(0.0, _in_turn(sync_s, cluster) - hidden_s)
    expected = (memory + work).max() + _in_turn(exchange_s, cluster) + visible_s
    assert cost.step_s == pytest.approx(expected, rel=1e-9)
    assert cost.time.slowest_work_s == pytest.approx((memory + work).max() - memory.max())
    kept = visible_s / _in_turn(sync_s, cluster) if visible_s else 0.0
    assert cost.time.sync_kept == pytest.approx(kept, rel=1e-6, abs=1e-9)


def _in_turn(seconds: dict[str, float], cluster: Cluster) -> float:
    """One after the other, but for what runs side by side."""
    left, total = dict(seconds), 0.0
    for together in cluster.overlap:
        total += max((left.pop(name, 0.0) for name in together), default=0.0)
    return total + sum(left.values())


def _memory_s(walk: Walk) -> np.ndarray:
    """Seconds of every holder's memories; of one that a group shares, all wait for all."""
    cluster, names = walk.cluster, walk.cluster.tier_names
    found = []
    for holder in range(cluster.num_holders):
        seconds = {}
        for tier in cluster.tiers_of(holder):
            sharers = [holder]
            if tier.shared_by is not None:
                group = walk.group_of(holder, cluster.level_of(tier.shared_by))
                sharers = walk.groups[cluster.level_of(tier.shared_by)][group]
            at = names.index(tier.name)
            moved = sum(walk.read[h, at] + walk.written[h, at] for h in sharers if h < walk.W)
            if holder >= walk.W:
                moved = walk.read[holder, at] + walk.written[holder, at]
            seconds[tier.name] = moved / tier.bandwidth_bytes_per_s
        found.append(_in_turn(seconds, cluster))
    return np.array(found)


def _work_s(walk: Walk) -> np.ndarray:
    """What every holder did, and what a step, rounds, tables and bands take beside."""
    work, tree = walk.cluster.work, tree_of(walk.cluster)
    placed = [(stats.table, walk.bands[stats.table.name]) for stats in walk.profile.stats]
    fixed = work.step_s + work.round_s * sum(map(sum, rounds(walk)))
    fixed += work.table_s * len(walk.bands) + _bands_s(walk, placed, tree)
    return np.array([walk.work[h] + fixed for h in range(walk.cluster.num_holders)])


def _bands_s(walk: Walk, placed: list, tree: Tree) -> float:
    run, work = pieces_run(placed, tree), walk.cluster.work
    fixed = work.bundle_s * run.bundles + work.band_s * run.pieces
    return fixed + work.copied_s * run.copied * walk.options.training


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

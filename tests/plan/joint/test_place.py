"""What joint gives to owners: loads that are true, divisions that are complete, peaks that fall."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import counted

from rowtier import Band, Cluster, Plan, Profile, Table, make_plan
from rowtier.cost.memory import NOTHING_RESERVED, Room, band_bytes, used_bytes
from rowtier.cost.options import CostOptions
from rowtier.cost.step import StepCost, step_cost
from rowtier.cost.time import link_s_per_byte
from rowtier.cost.tree import tree_of
from rowtier.plan.joint.dual import MASSES, best_prices
from rowtier.plan.joint.place.bands import bands_of
from rowtier.plan.joint.place.fill import fill
from rowtier.plan.joint.place.menu import Menu
from rowtier.plan.joint.place.pack import pack
from rowtier.plan.joint.place.pieces import Divided, divided, parts_of
from rowtier.plan.joint.place.placing import Placing
from rowtier.plan.joint.place.rows import MULTIPLES, Pinned, PlacedRows, Setting
from rowtier.plan.joint.place.spread import Levelling, Spread, SpreadAmounts
from rowtier.plan.joint.place.vectors import Aim, Groups, Packed, Pieces, Space, peaks
from rowtier.plan.joint.place.ways import Division, ways_of
from rowtier.plan.joint.problem import Pricing
from rowtier.plan.options import PlanOptions
from rowtier.plan.verify import verify
from rowtier.synth.rm import rm_profile
from rowtier.work import Work

LEVELS = 2
FREE = 2 * LEVELS + int(np.flatnonzero(MULTIPLES == 0)[0])  # memory that costs nothing


def _cluster(fast_bytes: int = 10**9, sizes: tuple[int, int] = (4, 2)) -> Cluster:
    levels = [
        {"name": "node", "size": sizes[0], "bandwidth": 1e10},
        {"name": "cluster", "size": sizes[1], "bandwidth": 1e9},
    ]
    tiers = [
        {"name": "fast", "capacity": fast_bytes, "bandwidth": 1e11},
        {"name": "slow", "capacity": 10**10, "bandwidth": 1e9},
    ]
    return Cluster.model_validate({"name": "c", "levels": levels, "device": {"tiers": tiers}})


def _profile(pooling: tuple[float, ...] = (30.0,), dim: int = 32, rows: int = 4000) -> Profile:
    stats = []
    for index, lookups in enumerate(pooling):
        heat = np.maximum(1, 1e5 / np.arange(1, rows + 1) ** 0.8).astype(np.int64)
        table = Table(
            name=f"t{index}", num_embeddings=rows, embedding_dim=dim, features=(f"f{index}",)
        )
        stats.append(counted(table, heat, samples=max(1, int(heat.sum() / lookups))))
    return Profile(512, tuple(stats))


def _tables(profile: Profile, cluster: Cluster) -> list[PlacedRows]:
    """All rows of all tables by sums, at whatever prices memory has."""
    pricing = Pricing.of(profile, cluster, PlanOptions(), CostOptions())
    tables = pricing.tables(np.ones(1), MASSES, cut=False)
    priced, allowed = best_prices(tables)[0], np.ones(len(tables.shelves))
    setting = Setting(profile, cluster, CostOptions(), priced.prices, priced.prices)
    found = []
    for index in range(tables.count):
        menu = Menu.of(pricing, tables, priced, allowed, index)
        sums = np.flatnonzero(menu.by_sums)
        paid = menu.busy_s[sums] + (menu.memory_bytes @ priced.prices)[sums, None]
        by_sums = replace(menu, choice=sums[paid.argmin(axis=0)])
        found.append(PlacedRows.of(setting, index, by_sums, Pinned()))
    return found


def _placing(profile: Profile, cluster: Cluster) -> Placing:
    return Placing(_tables(profile, cluster)[0].setting, _tables(profile, cluster),
                   NOTHING_RESERVED, 1.0)  # fmt: skip


def _divided(tables: list[PlacedRows], divisions: list[Division], placing: Placing) -> Divided:
    pairs = zip(tables, divisions, strict=True)
    return divided(tables, [parts_of(rows, one, placing.means) for rows, one in pairs], [])


def _bands(
    tables: list[PlacedRows], divisions: list[Division], found: Divided, owner: np.ndarray
) -> dict[str, tuple[Band, ...]]:
    width = found.pieces.width
    load = np.zeros((8, 2 * LEVELS + len(MULTIPLES)))
    packed = Packed(owner, width, load, np.zeros(8))
    made = bands_of(tables, divisions, found, packed, Spread())
    return {name: tuple(mine) for name, mine in made.items()}


def _links_s(cost: StepCost, cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of ids that come, and of sums that go and whose gradients come, by device, level."""
    rate = link_s_per_byte(tree_of(cluster))
    links = cost.links
    return links.ids.received * rate, (links.forward.sent + links.backward.received) * rate


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_a_piece_asks_of_its_owner_what_the_cost_model_says(runs: int, columns: int) -> None:
    profile, cluster = _profile(), _cluster()
    placing = _placing(profile, cluster)
    tables, divisions = list(placing.tables), [Division(placing.tables[0].count, runs, columns)]
    found = _divided(tables, divisions, placing)
    assert len(found.pieces.load) == runs * columns
    # One piece each, so that what a device does is what its piece asks for.
    bands = {
        "t0": tuple(
            band.model_copy(update={"tier": "slow"})
            for band in _bands(tables, divisions, found, np.arange(runs * columns) % 8)["t0"]
        )
    }
    for device in range(min(8, runs * columns)):
        mine = np.flatnonzero(np.arange(runs * columns) % 8 == device)
        if len(mine) > 1:
            continue
        cost = step_cost(
            {"t0": tuple(b for b in bands["t0"] if b.members == (device,))}, profile, cluster
        )
        ids_s, sums_s = _links_s(cost, cluster)
        load = found.pieces.load[mine[0]]
        assert load[:LEVELS] == pytest.approx(ids_s[device], rel=1e-9)
        assert load[LEVELS : 2 * LEVELS] == pytest.approx(sums_s[device], rel=1e-9)
        held = used_bytes({"t0": tuple(b for b in bands["t0"] if b.members == (device,))},
                          profile, cluster)[device].sum()  # fmt: skip
        assert found.pieces.need[mine[0], 0] == pytest.approx(held, abs=1)


@pytest.mark.parametrize(("columns", "members"), [(1, 4), (1, 2), (2, 3)])
def test_devices_of_a_node_have_the_part_that_the_cost_model_says(
    columns: int, members: int
) -> None:
    profile, cluster = _profile(), _cluster()
    placing = _placing(profile, cluster)
    tables, count = list(placing.tables), placing.tables[0].count
    divisions = [Division(count, 1, columns, members)]
    found = _divided(tables, divisions, placing)
    owner = np.concatenate([4 * column + np.arange(members) for column in range(columns)])
    bands = _bands(tables, divisions, found, owner)
    assert {len(band.members) for band in bands["t0"]} == {members}
    cost = step_cost(bands, profile, cluster)
    ids_s, sums_s = _links_s(cost, cluster)
    for piece, device in enumerate(owner.tolist()):
        load = found.pieces.load[piece] + found.groups.node[piece // members]
        assert load[:LEVELS] == pytest.approx(ids_s[device], rel=1e-9)
        assert load[LEVELS : 2 * LEVELS] == pytest.approx(sums_s[device], rel=0.02)
    if columns == 1:
        memory_s = found.pieces.load[:, FREE].sum()
        assert memory_s == pytest.approx(cost.time.memory_s.sum(), rel=1e-9)
    passing = [device for device in range(4) if device not in owner.tolist()]
    for device in passing:  # they pass sums on
        node = found.groups.node[0][LEVELS : 2 * LEVELS]
        assert node == pytest.approx(sums_s[device], rel=0.02)


def test_a_division_costs_what_its_pieces_and_its_other_rows_do() -> None:
    profile, cluster = _profile((150.0, 30.0, 3.0), dim=64), _cluster(10**5)
    placing = _placing(profile, cluster)
    kinds = set()
    for place, rows in enumerate(placing.tables):
        ways = ways_of(place, rows, placing.means, 1e12, 16)
        for way, numbers in enumerate(ways.division.tolist()):
            division = Division(*numbers)
            if not division.buckets:
                assert ways.cost_s[way] == pytest.approx(rows.cost_s[0])
                continue
            kinds.add((division.columns > 1, division.members > 1))
            divisions = [Division(0)] * len(placing.tables)
            divisions[place] = division
            found = _divided(list(placing.tables), divisions, placing)
            main = 2 * LEVELS
            links = found.pieces.load[:, :main].sum()
            links += 4 * found.groups.node[:, :main].sum()
            total_s = rows.cost_s[division.buckets] + links / cluster.num_devices
            assert ways.cost_s[way] == pytest.approx(total_s, rel=0.05)
            most = found.pieces.load[:, 1].max()
            assert most <= 2 * ways.ids_s[way]  # hot rows are not even
    assert kinds == {(False, False), (True, False), (False, True), (True, True)}


def test_rows_of_a_table_that_is_cut_by_columns_go_by_sums_less_often() -> None:
    profile, cluster = _profile((20.0,), dim=64), _cluster(10**5)
    placing = _placing(profile, cluster)
    ways = ways_of(0, placing.tables[0], placing.means, 1e12, 16)
    best = {}
    for division, cost_s in zip(ways.division.tolist(), ways.cost_s.tolist(), strict=True):
        buckets, runs, columns, members = division
        if (runs, members) == (1, 1):
            best[columns] = min(best.get(columns, (np.inf, 0)), (cost_s, buckets))
    owned = [best[columns][1] for columns in (1, 2, 4, 8) if columns in best]
    assert owned == sorted(owned, reverse=True)
    assert owned[-1] < owned[0]


def _random_pieces(
    random: np.random.Generator, devices: int, node: int, count: int
) -> tuple[Pieces, Groups]:
    size = np.where(random.random(count) < 0.3, random.integers(1, node + 1, count), 1)
    total, ways = int(size.sum()), 2 * LEVELS + 3
    load = random.exponential(size=(total, ways))
    fixed, first = np.full(total, -1), np.cumsum(size) - size
    alone = first[size == 1]
    fixed[alone] = np.where(random.random(len(alone)) < 0.2, random.integers(0, devices), -1)
    after = np.full(total, -1)
    ring = alone[: 2 * (len(alone) // 2)]
    after[ring] = ring.reshape(-1, 2)[:, ::-1].ravel()
    pieces = Pieces(
        load,
        random.integers(1, 10, (total, 1)).astype(float),
        load * 0.1,
        np.full((total, 1), 0.5),
        random.integers(1, 4, total),
        after,
        fixed,
    )
    shared = random.random((count, ways)) * (size > 1)[:, None]
    return pieces, Groups(first, size, shared, np.arange(count))


@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 25), st.booleans())
@settings(max_examples=60, deadline=None)
def test_peaks_fall_and_nothing_is_lost(seed: int, nodes: int, count: int, shared: bool) -> None:
    random, node = np.random.default_rng(seed), 2
    devices = nodes * node
    pieces, groups = _random_pieces(random, devices, node, count)
    base = random.random((devices, pieces.load.shape[1]))
    each = 12.0 * count / devices + 20
    own = np.full((devices, 1), each / 2 if shared else each)
    size = devices if shared else 1
    pool = np.full((devices // size, 1), devices * each / 2 if shared else 0.0)
    space = Space(own, pool, np.arange(devices) // size)
    total = pieces.load.sum(axis=0) + node * groups.node.sum(axis=0)
    mean = base.mean(axis=0) + total / devices
    links_s = mean[:LEVELS] + mean[LEVELS : 2 * LEVELS]
    aim = Aim(mean[: 2 * LEVELS], links_s, float(mean[2 * LEVELS]), 0.1, 0.0, mean)
    dealt = pack(pieces, groups, base, space, aim, node, 0)
    found = pack(pieces, groups, base, space, aim, node, 3000)
    assert isinstance(dealt, int) == isinstance(found, int)
    if isinstance(dealt, int) or isinstance(found, int):
        return
    assert peaks(found.load, aim).sum() <= peaks(dealt.load, aim).sum() * (1 + 1e-9)
    assert (found.owner[pieces.fixed >= 0] == pieces.fixed[pieces.fixed >= 0]).all()
    wider = (found.width - pieces.width)[:, None]
    load, held = base.copy(), np.zeros((devices, 1))
    np.add.at(load, found.owner, pieces.load + wider * pieces.unit)
    np.add.at(held, found.owner, pieces.need + wider * pieces.unit_need)
    for first, members, shared_load in zip(groups.first, groups.size, groups.node, strict=True):
        mine = found.owner[first : first + members]
        assert len(set(mine.tolist())) == members
        assert len(set((mine // node).tolist())) == 1
        load[mine[0] // node * node : mine[0] // node * node + node] += shared_load
    assert found.load == pytest.approx(load)
    spilt = np.bincount(space.group, np.maximum(held - own, 0)[:, 0])
    assert (spilt <= pool[:, 0] + 1e-9).all()
    assert found.width.sum() == pieces.width.sum()
    assert found.width.min() >= 1


def test_equal_pieces_are_levelled_wholly() -> None:
    ways = 2 * LEVELS + 1
    nothing = np.zeros((12, ways))
    pieces = Pieces(np.ones((12, ways)), np.ones((12, 1)), nothing, np.zeros((12, 1)),
                    np.ones(12, dtype=np.int64), np.full(12, -1), np.full(12, -1))  # fmt: skip
    groups = Groups(np.arange(12), np.ones(12, dtype=np.int64), nothing, np.arange(12))
    space = Space(np.full((4, 1), 3.0), np.zeros((4, 1)), np.arange(4))
    aim = Aim(np.full(2 * LEVELS, 3.0), np.full(LEVELS, 6.0), 3.0, 0.1, 0.0, np.full(ways, 3.0))
    found = pack(pieces, groups, np.zeros((4, ways)), space, aim, 1, 1000)
    assert isinstance(found, Packed)
    assert np.bincount(found.owner).tolist() == [3, 3, 3, 3]
    small = space._replace(own=np.full((4, 1), 2.9))
    assert isinstance(pack(pieces, groups, np.zeros((4, ways)), small, aim, 1, 1000), int)


def test_fast_memory_is_filled_to_the_row_with_what_gains_most() -> None:
    profile, cluster = _profile((30.0, 10.0)), _cluster(100_000)
    band = Band(start=0, stop=4000, scope="cluster", tier="slow", members=(3,), exchange="sums")
    room = Room(cluster)
    found = fill({"t0": (band,), "t1": (band,)}, profile, cluster, room, CostOptions())
    row = profile.stats[0].table.stored_row_bytes
    assert 0 <= room.free_bytes(3, "fast") < row
    fast = {name: sum(b.rows for b in mine if b.tier == "fast") for name, mine in found.items()}
    assert fast["t0"] > fast["t1"] > 0  # of the same heat, but looked up more often
    assert sum(fast.values()) == 100_000 // row


def test_what_devices_share_leaves_a_memory_that_it_does_not_fit() -> None:
    profile, cluster = _profile((30.0,)), _cluster(100_000)
    both = Band(start=0, stop=4000, scope="cluster", tier="fast", members=(2, 3), exchange="sums")
    room = Room(cluster)
    room.take(band_bytes(profile.stats[0].table, both, cluster), "fast")
    assert room.free_bytes(3, "fast") < 0
    found = fill({"t0": (both,)}, profile, cluster, room, CostOptions())
    row = profile.stats[0].table.stored_row_bytes
    assert 0 <= room.free_bytes(3, "fast") < 2 * row
    assert sum(b.rows for b in found["t0"]) == 4000


def test_rows_that_are_spread_level_what_pieces_leave_uneven() -> None:
    profile, cluster = _profile((30.0,) * 12), _cluster(sizes=(2, 8))
    placing = _placing(profile, cluster)
    levelling = placing._levelling([Division(0)] * 12)
    assert levelling.amounts is not None
    load = np.zeros((16, 2 * LEVELS + len(MULTIPLES)))
    sent_s = float(levelling.amounts.fast[0])
    load[:4, 2 * LEVELS - 1] = sent_s  # four devices send as much of their own
    spread = levelling.spread(load, np.full(16, np.inf))
    share = np.zeros(16)
    for place in range(12):
        for members in spread.sets.get((place, 0), [None]):
            held = list(members) if members is not None else list(range(16))
            share[held] += levelling.amounts.by_table[place, 0, 0] / sent_s * 16 / len(held)
    assert share[:4].max() < 0.5
    assert share[4:].min() > 1.0
    assert Levelling(None, placing.setting).spread(load, np.zeros(16)).sets == {}


def test_devices_without_room_hold_no_more_of_what_is_spread_than_all_do() -> None:
    setting = _placing(_profile((30.0,) * 12), _cluster(sizes=(2, 8))).setting
    amounts = np.zeros((1, 2, 4))
    amounts[0] = (1.0, 0.0, 0.0, 0.0), (0.1, 1.0, 1000.0, 0.0)  # sent, memory, bytes, inside
    load = np.zeros((16, 2 * LEVELS + len(MULTIPLES)))
    load[:8, 2 * LEVELS :] = 1.0  # half of the devices are busy with their own rows
    free_bytes = np.full(16, 1e9)
    free_bytes[8:10] = 0.0
    in_slow = Levelling(SpreadAmounts(amounts), setting)._shares(load, free_bytes)[1]
    assert in_slow[8:10].max() <= 1.0 + 1e-9
    assert in_slow[10:].min() > 1.1


def _joint(profile: Profile, cluster: Cluster) -> Plan:
    plan = make_plan(profile, cluster, "joint")
    assert verify(plan).holds
    return plan


def test_a_table_that_is_too_much_for_one_device_goes_to_a_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profile = _profile((200.0, *([3.0] * 20)), dim=64, rows=100_000)
    cluster = _cluster(sizes=(4, 2))
    fast = cluster.levels[0].model_copy(update={"bandwidth_bytes_per_s": 1e11})
    cluster = cluster.model_copy(update={"levels": (fast, cluster.levels[1])})
    plan = _joint(profile, cluster)
    first = [b for b in plan.bands["t0"] if b.members != "all" and len(b.members) > 1]
    assert first
    assert all(band.staged and band.exchange == "sums" for band in first)
    monkeypatch.setattr(Setting, "node", 1)
    without = _joint(profile, cluster)
    assert plan.certificate is not None
    assert without.certificate is not None
    assert plan.certificate.objective < without.certificate.objective


def test_no_device_runs_out_of_memory_that_all_together_have_plenty_of() -> None:
    profile, cluster = rm_profile("rm2", seed=0), Cluster.preset("recshard-16")
    cluster = cluster.model_copy(update={"work": Work()})  # of each band, no bound knows
    plan = make_plan(profile, cluster, "joint")
    assert plan.certificate is not None
    # A quarter more if memory costs nothing while owners are levelled.
    assert plan.certificate.objective < 0.0432
    assert plan.certificate.gap < 0.05
    fast, slow = step_cost(plan.bands, profile, cluster).read_bytes.sum(axis=0)
    assert slow < 1e-4 * fast

"""What joint gives to owners: loads that are true, cuts that are complete, peaks that fall."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import counted

from rowtier import Cluster, Plan, Profile, Table, make_plan
from rowtier.cost.memory import Room, used_bytes
from rowtier.cost.options import CostOptions
from rowtier.cost.step import StepCost, step_cost
from rowtier.cost.time import link_s_per_byte
from rowtier.cost.tree import tree_of
from rowtier.plan.solve.cuts import _Knife, cut_tables
from rowtier.plan.solve.homes import best_homes
from rowtier.plan.solve.menu import Cutting, memories, menu_of
from rowtier.plan.solve.owners import Owners
from rowtier.plan.solve.peaks import Dealt, Load, lower_peaks, norms_of, shake
from rowtier.plan.solve.prices import best_prices
from rowtier.plan.solve.shares import MULTIPLES, Course, Piece
from rowtier.plan.solve.together import Saving, shared_bytes
from rowtier.plan.verify import verify
from rowtier.synth.rm import rm_profile
from rowtier.work import Work

LEVELS = 2


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


def _courses(profile: Profile, cluster: Cluster) -> list[Course]:
    """All rows of all tables by sums, at whatever prices memory has."""
    menus = [menu_of(s, profile, cluster, CostOptions()) for s in profile.stats]
    capacity = np.array([size for _, size in memories(cluster)])
    prices = best_prices(menus, capacity)[0].prices
    found = []
    for index, menu in enumerate(menus):
        sums = [i for i, home in enumerate(menu.homes) if home.by_sums]
        priced = menu.busy_s[sums] + (menu.memory_bytes @ prices)[sums, None]
        choice = np.array(sums)[priced.argmin(axis=0)]
        found.append(Course(menu, choice, index, prices, prices, profile, cluster, CostOptions()))
    return found


def _links_s(cost: StepCost, cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of ids that come, and of sums that go and whose gradients come, by device, level."""
    rate = link_s_per_byte(tree_of(cluster))
    links = cost.links
    return links.ids.received * rate, (links.forward.sent + links.backward.received) * rate


@pytest.mark.parametrize("columns", [None, (0, 8), (8, 32)])
def test_a_piece_asks_of_its_owner_what_the_cost_model_says(
    columns: tuple[int, int] | None,
) -> None:
    profile, cluster = _profile(), _cluster()
    course = _courses(profile, cluster)[0]
    buckets = len(course.choice)
    for first, last in ((0, buckets), (0, 20), (20, buckets)):
        piece = Piece(course, first, last, columns)
        cost = step_cost({"t0": tuple(piece.bands(3))}, profile, cluster)
        ids_s, sums_s = _links_s(cost, cluster)
        assert piece.busy[:LEVELS] == pytest.approx(ids_s[3], rel=1e-9)
        assert piece.busy[LEVELS : 2 * LEVELS] == pytest.approx(sums_s[3], rel=1e-9)
        free = 2 * LEVELS + int(np.flatnonzero(MULTIPLES == 0)[0])
        # With columns, optimizer state is taken to be read as often as weights.
        off = 1e-9 if columns is None else 0.1
        assert piece.busy[free] == pytest.approx(cost.time.memory_s[3], rel=off)
        held = used_bytes({"t0": tuple(piece.bands(3))}, profile, cluster)[3].sum()
        assert piece.bytes == pytest.approx(held, abs=1)


@pytest.mark.parametrize("columns", [None, (0, 16)])
def test_each_device_of_a_node_has_the_part_that_the_cost_model_says(
    columns: tuple[int, int] | None,
) -> None:
    profile, cluster = _profile(), _cluster()
    course = _courses(profile, cluster)[0]
    buckets = len(course.choice)
    for first, last in ((0, buckets), (20, buckets)):
        pieces = [Piece(course, first, last, columns, place) for place in range(4)]
        assert list(pieces[1].bands(5)) == []  # the node's first device stands for all of them
        bands = tuple(pieces[0].bands(4))
        assert {band.members for band in bands} == {(4, 5, 6, 7)}
        cost = step_cost({"t0": bands}, profile, cluster)
        ids_s, sums_s = _links_s(cost, cluster)
        assert ids_s[:4].sum() == 0
        free = 2 * LEVELS + int(np.flatnonzero(MULTIPLES == 0)[0])
        for place, piece in enumerate(pieces):
            assert piece.busy[:LEVELS] == pytest.approx(ids_s[4 + place], rel=1e-9)
            assert piece.busy[LEVELS : 2 * LEVELS] == pytest.approx(sums_s[4 + place], rel=0.02)
        memory_s = cost.time.memory_s[4:].mean()
        off = 1e-9 if columns is None else 0.1  # of optimizer state, as above
        assert pieces[0].busy[free] == pytest.approx(memory_s, rel=off)


def test_cuts_hold_every_row_and_column_once() -> None:
    profile, cluster = _profile((40.0, 20.0, 10.0, 5.0), dim=64), _cluster(10**5)
    courses = _courses(profile, cluster)
    kinds = set()
    for cuts, course in zip(cut_tables(courses, 2.0, cluster), courses, strict=True):
        for cut in cuts:
            owned = cut.course.owned > 0
            held = np.zeros((len(course.choice), 64), dtype=int)
            for piece in cut.pieces:
                if piece.place in (None, 0):
                    left, right = piece.columns or (0, 64)
                    held[piece.first : piece.last, left:right] += 1
            assert (held[owned] == 1).all()
            assert bool(cut.pieces) == owned.any()
            kinds |= {(piece.node, piece.columns is None) for piece in cut.pieces}
    assert len(kinds) == 4  # nodes and devices, all columns and some


def test_a_cut_costs_what_its_pieces_and_its_other_rows_do() -> None:
    profile, cluster = _profile((150.0, 30.0, 3.0), dim=64), _cluster(10**5)
    for cuts in cut_tables(_courses(profile, cluster), 2.0, cluster):
        for cut in cuts:
            main = 2 * LEVELS + 1
            pieces_s = sum(float(piece.busy[:main].sum()) for piece in cut.pieces)
            total_s = cut.course.even_cost_s + pieces_s / cluster.num_devices
            assert cut.cost_s == pytest.approx(total_s, rel=0.05)
            for piece in cut.pieces:
                assert (piece.busy[:main] <= cut.most * 1.5 + 1e-12).all()


def test_rows_of_a_table_that_is_cut_by_columns_go_by_sums_less_often() -> None:
    profile, cluster = _profile((150.0,), dim=64), _cluster(10**5)
    course = _courses(profile, cluster)[0]
    owned = [course.when_cut(Cutting(1, columns)).owned.sum() for columns in (1, 2, 4, 8)]
    assert owned == sorted(owned, reverse=True)
    assert owned[-1] < owned[0]


@given(st.integers(0, 10_000), st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_what_owners_share_is_where_the_slowest_of_them_is_fastest(seed: int, owners: int) -> None:
    random = np.random.default_rng(seed)
    shared = Saving.of(random.random(9), random.random(9))
    own = [Saving.of(random.random(8), random.random(8)) for _ in range(owners)]
    free, busy = 4 * random.random(owners), 5 + random.random(owners)

    def slowest_s(taken: float) -> float:
        each = zip(busy, own, free - taken, strict=True)
        return max(one_s - saving.at(left) for one_s, saving, left in each) - shared.at(taken)

    taken = shared_bytes(shared, own, free, busy)
    most = min(float(shared.bytes[-1]), float(free.min()))
    assert 0 <= taken <= most
    for other in np.linspace(0, most, 50):
        assert slowest_s(taken) <= slowest_s(float(other)) + 1e-6


def test_a_table_can_be_cut_into_as_many_pieces_as_it_needs() -> None:
    knife = _Knife(_courses(_profile(), _cluster())[0], 8)
    for count in range(1, 50):
        tried = {cutting.rows * cutting.columns for cutting in knife._cuttings(count, count)}
        assert count in tried


@pytest.mark.parametrize("sharing", [None, "node"])
def test_a_node_gets_no_more_than_its_devices_have_room_for_together(sharing: str | None) -> None:
    profile, cluster = _profile((30.0, 30.0)), _cluster()
    stored = profile.stats[0].table.stored_bytes
    size = stored // 2 if sharing else stored // 8  # half a table, for four devices
    tiers = tuple(
        tier.model_copy(update={"capacity_bytes": size // 2, "shared_by": sharing})
        for tier in cluster.device.tiers
    )
    small = cluster.model_copy(
        update={"device": cluster.device.model_copy(update={"tiers": tiers})}
    )
    course = _courses(profile, small)[0]
    unit = [Piece(course, 0, len(course.choice), None, place) for place in range(4)]
    owners = Owners(small, Room(small), np.zeros((8, len(MULTIPLES))))
    assert not owners._give_node(unit)
    assert not owners.pieces
    half = [Piece(course, 0, len(course.choice), (0, 8), place) for place in range(4)]
    assert owners._give_node(half)
    assert len(owners.pieces) == 4


def test_dealt_pieces_keep_to_the_memory_that_is_there() -> None:
    profile = _profile((40.0, 20.0, 10.0, 5.0, 2.0))
    stored = sum(s.table.stored_bytes for s in profile.stats)
    cluster = _cluster(stored // 40)
    tiers = (*cluster.device.tiers[:1], cluster.device.tiers[1].model_copy(
        update={"capacity_bytes": stored // 8}))  # fmt: skip
    cluster = cluster.model_copy(
        update={"device": cluster.device.model_copy(update={"tiers": tiers})}
    )
    owners = Owners(cluster, Room(cluster), np.zeros((8, len(MULTIPLES))))
    ways = cut_tables(_courses(profile, cluster), 2.0, cluster)
    even_s = sum(cuts[0].course.even_busy for cuts in ways)
    owners.busy += even_s
    assert owners.deal([cuts[0] for cuts in ways]) is None
    owners.level(ways)
    held = np.zeros(8)
    for piece, owner in zip(owners.pieces, owners.owners, strict=True):
        held[owner] += piece.bytes
    assert held.max() <= stored // 40 + stored // 8
    even = sum(course.even_bytes for course in owners.courses.values())
    assert held.sum() + 8 * even >= stored * (1 - 1e-9)
    busy = np.zeros_like(owners.busy) + sum(c.even_busy for c in owners.courses.values())
    for piece, owner in zip(owners.pieces, owners.owners, strict=True):
        busy[owner] += piece.busy
    assert owners.busy == pytest.approx(busy)


@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 25), st.booleans())
@settings(max_examples=60, deadline=None)
def test_peaks_fall_and_nothing_is_lost(seed: int, devices: int, count: int, kick: bool) -> None:
    random = np.random.default_rng(seed)
    loads = random.exponential(size=(count, 2 * LEVELS + 3))
    needed, room = random.integers(1, 10, count).astype(float), 40.0
    owners = random.integers(0, devices, count)
    fixed = random.random(count) < 0.2
    base = random.random((devices, loads.shape[1]))
    busy, free = base.copy(), np.full(devices, room)
    np.add.at(busy, owners, loads)
    np.subtract.at(free, owners, needed)
    free = np.maximum(free, 0.0)
    load, dealt = Load(busy, free.copy(), LEVELS), Dealt(loads, needed, owners.copy(), fixed)
    before = norms_of(load, 6).total
    if kick:
        shake(load, dealt, 6, 100, 5)
    else:
        lower_peaks(load, dealt, 6, 100)
    assert norms_of(load, 6).total <= before * (1 + 1e-12)
    assert (dealt.owners[fixed] == owners[fixed]).all()
    found = base.copy()
    np.add.at(found, dealt.owners, loads)
    assert load.busy == pytest.approx(found)
    came = np.zeros(devices)
    np.add.at(came, dealt.owners, needed)
    np.subtract.at(came, owners, needed)
    assert load.free == pytest.approx(free - came)
    assert (load.free >= -1e-9).all()


def test_equal_pieces_are_levelled_wholly() -> None:
    loads = np.ones((12, 2 * LEVELS + 1))
    load = Load(np.zeros((4, 2 * LEVELS + 1)), np.full(4, 1e9), LEVELS)
    load.busy[0] = 12
    dealt = Dealt(loads, np.ones(12), np.zeros(12, dtype=np.int64), np.zeros(12, dtype=bool))
    lower_peaks(load, dealt, 4, 100)
    assert np.bincount(dealt.owners).tolist() == [3, 3, 3, 3]


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(0, 3), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_homes_are_the_best_of_all_lines(seed: int, rows: int, sums: int, buckets: int) -> None:
    random = np.random.default_rng(seed)
    seconds, paid = random.random((rows + sums, buckets)), random.random(rows + sums)
    by_sums = random.permutation(np.repeat([0.0, 1.0], [rows, sums]))
    widths, mass = random.random(buckets) + 0.1, random.random(buckets)
    lines = random.random((4 if sums else 0, 2))
    cost, line, choice, held = best_homes(seconds, paid, by_sums, widths, mass, lines)
    priced = seconds + paid[:, None]
    totals = [
        start + (priced + by_sums[:, None] * slope * mass).min(axis=0) @ widths
        for start, slope in (lines if sums else np.zeros((1, 2)))
    ]
    assert cost == pytest.approx(min(totals))
    slope = lines[line, 1] if sums else 0.0
    at = priced[choice, np.arange(buckets)] + by_sums[choice] * slope * mass
    assert (lines[line, 0] if sums else 0.0) + at @ widths == pytest.approx(cost)
    assert held == pytest.approx(np.bincount(choice, weights=widths, minlength=rows + sums))


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
    first = [b for b in plan.bands["t0"] if b.members != "all" and len(b.members) == 4]
    assert first
    assert all(band.staged and band.exchange == "sums" for band in first)
    monkeypatch.setattr(Course, "fits_a_node", False)
    without = _joint(profile, cluster)
    assert plan.certificate is not None
    assert without.certificate is not None
    assert plan.certificate.objective < without.certificate.objective


def test_tables_are_cut_in_other_ways_where_that_lowers_the_peaks() -> None:
    profile = _profile((180.0, 120.0, 60.0, 20.0, 8.0, 4.0, *([2.0] * 12)), dim=64)
    cluster = _cluster(10**5)
    ways = cut_tables(_courses(profile, cluster), 2.0, cluster)
    found = []
    for others in ([], ways):
        owners = Owners(cluster, Room(cluster), np.zeros((8, len(MULTIPLES))))
        owners.busy += sum(cuts[0].course.even_busy for cuts in ways)
        assert owners.deal([cuts[0] for cuts in ways]) is None
        owners.level(others)
        peaks_s = norms_of(Load(owners.busy, np.zeros(8), LEVELS), 8).peaks_s
        found.append(peaks_s + sum(course.even_s for course in owners.courses.values()))
        held = dict.fromkeys(owners.courses, 0.0)
        for piece in owners.pieces:
            held[piece.course.index] += piece.bytes
            assert piece.course is owners.courses[piece.course.index]
        for cuts in ways:
            course = owners.courses[cuts[0].course.index]
            stored = course.menu.stats.table.stored_bytes
            assert held[course.index] + 8 * course.even_bytes >= stored * (1 - 1e-9)
    assert found[1] < found[0]


def test_no_device_runs_out_of_memory_that_all_together_have_plenty_of() -> None:
    profile, cluster = rm_profile("rm2", seed=0), Cluster.preset("recshard-16")
    cluster = cluster.model_copy(update={"work": Work()})  # of each band, no bound knows
    plan = make_plan(profile, cluster, "joint")
    assert plan.certificate is not None
    assert plan.certificate.gap < 0.02  # .22 if memory costs nothing while owners are levelled
    fast, slow = step_cost(plan.bands, profile, cluster).read_bytes.sum(axis=0)
    assert slow < 1e-4 * fast

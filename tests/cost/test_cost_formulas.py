"""The figures of the design, written out for two levels, and what must hold of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rowtier import (
    Band,
    Cluster,
    Curve,
    Device,
    FeatureStats,
    Level,
    Profile,
    Table,
    TableStats,
    Tier,
)
from rowtier.cost.options import CostOptions
from rowtier.cost.step import StepCost, step_cost
from rowtier.cost.touch import BagLengths
from rowtier.work import Work

N1, N2, BATCH = 4, 12, 32
ROWS = 2400


def cluster(**level: Any) -> Cluster:
    tiers = (
        Tier(name="fast", capacity_bytes=2**40, bandwidth_bytes_per_s=1e12, granularity_bytes=32),
        Tier(name="slow", capacity_bytes=2**40, bandwidth_bytes_per_s=1e10, granularity_bytes=4096),
    )
    levels = (
        Level(name="node", size=N1, bandwidth_bytes_per_s=3e11, latency_s=5e-6),
        Level(name="cluster", size=N2 // N1, **{"bandwidth_bytes_per_s": 2e10, **level}),
    )
    return Cluster(name="c", levels=levels, device=Device(tiers=tiers))


def profile(zipf: float = 1.0, dim: int = 16, pooling: str = "sum") -> Profile:
    weights = np.arange(1, ROWS + 1, dtype=float) ** -zipf
    lookups = 3_000_000 * weights / weights.sum()
    table = Table(
        name="t", num_embeddings=ROWS, embedding_dim=dim, pooling=pooling, features=("f",)
    )
    feature = FeatureStats(
        name="f",
        present=800_000,
        lookups=3_000_000,
        lengths=((1, 500_000), (5, 100_000), (10, 200_000)),
    )
    curve = Curve(np.arange(1, ROWS + 1), lookups)
    return Profile(BATCH, (TableStats(table, 1_000_000, (feature,), curve),))


def place(**home: Any) -> Mapping[str, tuple[Band, ...]]:
    home = {"scope": "cluster", "tier": "fast", **home}
    return {"t": (Band(start=0, stop=ROWS, **home),)}


def cost(zipf: float = 1.0, options: CostOptions | None = None, **home: Any) -> StepCost:
    return step_cost(place(**home), profile(zipf), cluster(), options=options or CostOptions())


P = profile().stats[0].curve.probabilities
LOOKUPS = BATCH * 3.0
S = 16 * 4


def u(devices: int) -> np.ndarray:
    return 1 - (1 - P) ** (LOOKUPS * devices)


def per_device(flow_total: np.ndarray) -> np.ndarray:
    return flow_total / N2


def test_plain_rows_move_what_the_design_says() -> None:
    found = per_device(cost().links.forward.total)
    expected = [S * LOOKUPS * (N1 - 1) / N2, S * LOOKUPS * (N2 - N1) / N2]
    assert found == pytest.approx(expected)


def test_coalesced_rows_move_what_the_design_says() -> None:
    found = per_device(cost(coalesced=True).links.forward.total)
    expected = [S * u(1).sum() * (N1 - 1) / N2, S * u(1).sum() * (N2 - N1) / N2]
    assert found == pytest.approx(expected)


def test_staged_rows_move_what_the_design_says() -> None:
    found = per_device(cost(staged=True).links.forward.total)
    inside = S * u(1).sum() * (N1 - 1) / N1
    between = S * u(N1).sum() / N1 * (N2 - N1) / N2
    assert found == pytest.approx([inside, between])


def test_ids_cost_eight_bytes_a_hop_unless_narrowed() -> None:
    for home in ({}, {"coalesced": True}, {"staged": True}):
        wide, rows = cost(**home).links, S
        assert wide.ids.total == pytest.approx(wide.forward.total / rows * 8)
        narrow = cost(options=CostOptions(ids="narrow"), **home).links
        assert narrow.ids.total == pytest.approx(wide.ids.total / 2)


def test_ids_are_narrowed_only_where_the_rows_fit() -> None:
    narrow = CostOptions(ids="narrow", weighted=frozenset({"t"}))
    small, large = (
        Table(name="t", num_embeddings=rows, embedding_dim=1, features=("f",))
        for rows in (2**31, 2**31 + 1)
    )
    assert [narrow.id_bytes(small), narrow.id_bytes(large)] == [4, 8]
    assert [narrow.bag_id_bytes(small), narrow.bag_id_bytes(large)] == [8, 12]


@pytest.mark.parametrize("sync", ["dense", "sparse"])
def test_replica_sync_moves_what_the_design_says(sync: str) -> None:
    top, one = u(N2), np.ones_like(P)
    for scope, levels in (("device", {1: 1, N1: N2}), ("node", {N1: N2})):
        links = cost(scope=scope, sync=sync).links
        expected = []
        for below, here in ((1, N1), (N1, N2)):
            legs = u(below) + top if sync == "sparse" else 2 * one
            meet = below in levels
            expected.append(meet * S * legs.sum() / below * (here - below) / here)
        assert per_device(links.sync.total) == pytest.approx(expected)
        ids = np.array(expected) / S * 8 * (sync == "sparse")
        assert per_device(links.sync_ids.total) == pytest.approx(ids)


def test_sums_move_what_the_design_says_device_by_device() -> None:
    links = cost(exchange="sums").links
    bags = BagLengths.of(profile().stats[0])
    owner = np.array([P[device::N2].sum() for device in range(N2)])
    v = bags.sums(owner)
    sent = S * BATCH * np.outer(v, [N1 - 1, N2 - N1])
    assert links.forward.sent == pytest.approx(sent)
    for reader in range(N2):
        node = reader // N1 * N1
        inside = v[node : node + N1].sum() - v[reader]
        between = v.sum() - v[node : node + N1].sum()
        assert links.forward.received[reader] == pytest.approx(
            [S * BATCH * inside, S * BATCH * between]
        )


def test_staged_sums_move_what_the_design_says() -> None:
    bags = BagLengths.of(profile().stats[0])
    owner = np.array([P[device::N2].sum() for device in range(N2)])
    v0 = bags.sums(owner).mean()
    v1 = bags.sums(owner.reshape(-1, N1).sum(axis=1)).mean()
    inside = S * BATCH * v0 * ((N1 - 1) + (N2 - N1) * (N1 - 1) / N1)
    between = S * BATCH * v1 * (N2 / N1 - 1)
    found = per_device(cost(exchange="sums", staged=True).links.forward.total)
    assert found == pytest.approx([inside, between])


def test_bands_of_one_owner_send_one_sum() -> None:
    together = cost(exchange="sums", members=(3,))
    halves = tuple(
        Band(
            start=a, stop=b, scope="cluster", members=(3,), exchange="sums", tier=tier
        )
        for a, b, tier in ((0, 100, "fast"), (100, ROWS, "slow"))
    )  # fmt: skip
    apart = step_cost({"t": halves}, profile(), cluster())
    assert apart.links.forward.total == pytest.approx(together.links.forward.total)


def test_hot_replicas_thin_out_partial_sums() -> None:
    hot = Band(start=0, stop=200, scope="device", tier="fast")
    cold = Band(start=200, stop=ROWS, scope="cluster", tier="fast", exchange="sums")
    thin = step_cost({"t": (hot, cold)}, profile(), cluster())
    assert (thin.links.forward.total < 0.8 * cost(exchange="sums").links.forward.total).all()


@given(st.floats(0.3, 1.6), st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_between_nodes_staged_is_at_most_coalesced_is_at_most_plain(zipf: float, by: int) -> None:
    between = [
        cost(zipf, offset=by, **home).links.forward.total[1]
        for home in ({"staged": True}, {"coalesced": True}, {})
    ]
    assert between == sorted(between)
    assert between[0] < between[2]


@given(
    st.floats(0.3, 1.6), st.sampled_from(["device", "node"]), st.sampled_from(["dense", "sparse"])
)
@settings(max_examples=20, deadline=None)
def test_a_replica_never_moves_fewer_bytes_than_one_staged_copy(
    zipf: float, scope: str, sync: str
) -> None:
    def rows(links: Any) -> np.ndarray:
        return links.forward.total + links.backward.total + links.sync.total

    single = rows(cost(zipf, staged=True).links)
    copies = rows(cost(zipf, staged=True, scope=scope, sync=sync).links)
    assert (copies >= single * (1 - 1e-12)).all()


def test_one_staged_copy_moves_the_least_that_a_static_placement_can() -> None:
    links = cost(staged=True).links
    least = (2 * S * u(N1) / N1 * (N2 - N1) / N2).sum()
    assert per_device(links.forward.total + links.backward.total)[1] == pytest.approx(least)


def test_the_holder_of_rank_zero_is_the_busiest_unless_rows_are_coalesced() -> None:
    rows = 10**6  # on 16 devices, at Zipf 1.05: 2.25 times the mean
    ranks = np.concatenate(([0.0], np.cumsum(np.arange(1, rows + 1, dtype=float) ** -1.05)))
    stops = np.unique(np.geomspace(1, rows, 900).astype(np.int64))
    lookups = np.diff(ranks[stops], prepend=0.0)
    table = Table(name="t", num_embeddings=rows, embedding_dim=16, features=("f",))
    feature = FeatureStats(name="f", present=10**6, lookups=20 * 10**6)
    stats = TableStats(table, 10**6, (feature,), Curve(stops, lookups * 20 * 10**6 / lookups.sum()))

    def sent(**home: Any) -> np.ndarray:
        band = Band(start=0, stop=rows, scope="cluster", tier="hbm", **home)
        recshard = Cluster.preset("recshard-16")
        flow = step_cost({"t": (band,)}, Profile(4096, (stats,)), recshard).links.forward
        return flow.sent[:, 1] / flow.sent[:, 1].mean()

    assert sent().max() == pytest.approx(2.25, abs=0.01)
    assert sent(coalesced=True).max() < 1.001
    assert int(sent(offset=5).argmax()) == 5


def test_an_owner_alone_sends_what_all_others_receive() -> None:
    flow = cost(members=(2,), coalesced=True).links.forward
    rows = S * u(1).sum()
    assert flow.sent[2] == pytest.approx([rows * (N1 - 1), rows * (N2 - N1)])
    assert flow.received[2] == pytest.approx([0, 0])
    assert flow.received[3] == pytest.approx([rows, 0])
    assert flow.received[N1] == pytest.approx([0, rows])
    time = cost(members=(2,), coalesced=True).time
    assert int(time.exchange_s[:, 1].argmax()) == 2  # its outgoing link is the busiest


def test_links_of_a_group_carry_the_sum_over_its_devices() -> None:
    alone = step_cost(place(), profile(), cluster())
    shared = step_cost(place(), profile(), cluster(per="group"))
    node = alone.links.forward.sent[:, 1].reshape(-1, N1).sum(axis=1)
    back = alone.links.forward.received[:, 1].reshape(-1, N1).sum(axis=1)
    ids = alone.links.ids.sent[:, 1].reshape(-1, N1).sum(axis=1)
    asked = alone.links.ids.received[:, 1].reshape(-1, N1).sum(axis=1)
    expected = (2 * np.maximum(node, back) + np.maximum(ids, asked)) / 2e10
    assert shared.time.exchange_s[:, 1] == pytest.approx(np.repeat(expected, N1))


def test_the_rest_of_the_model_hides_as_much_of_sync_as_the_cluster_says() -> None:
    machine = cluster().model_copy(update={"work": Work(hidden=0.5)})

    def at(dense_s: float, **home: Any) -> StepCost:
        options = CostOptions(dense_s=dense_s)
        return step_cost(place(**home), profile(), machine, options=options)

    copies = {"scope": "node", "sync": "sparse"}
    seen = at(0.0, **copies)
    sync_s = float(seen.time.sync_level_s.sum())
    assert seen.step_s - at(sync_s / 2, **copies).step_s == pytest.approx(sync_s / 4)
    assert seen.step_s - at(9 * sync_s, **copies).step_s == pytest.approx(sync_s)
    assert at(9 * sync_s).step_s == at(0.0).step_s  # there are no copies
    assert cost(options=CostOptions(dense_s=1.0), **copies).step_s == cost(**copies).step_s


def test_rows_that_pass_one_level_cost_the_same_work_staged_or_not() -> None:
    work = Work(lookup_s=1e-7, row_s=1e-7, buffer_bytes_per_s=1e9)
    machine = cluster().model_copy(update={"levels": cluster().levels[:1], "work": work})
    direct, staged = (
        step_cost(place(scope="node", coalesced=True, staged=by_gateways), profile(), machine)
        for by_gateways in (False, True)
    )
    assert staged.time.work_s == pytest.approx(direct.time.work_s)


def test_memory_that_a_node_shares_is_as_busy_as_all_its_devices_keep_it() -> None:
    machine = cluster()
    tiers = [t.model_copy(update={"shared_by": "node"}) for t in machine.device.tiers]
    shared = machine.model_copy(update={"device": Device(tiers=tuple(tiers))})
    home = {"members": (0, 5), "tier": "slow"}
    own_s = step_cost(place(**home), profile(), machine).time.memory_s
    found_s = step_cost(place(**home), profile(), shared).time.memory_s
    assert found_s == pytest.approx(np.repeat(own_s.reshape(-1, N1).sum(axis=1), N1))


def test_what_runs_side_by_side_takes_as_long_as_the_longest() -> None:
    machine = cluster()
    for names in (("fast", "slow"), ("node", "cluster")):
        beside = machine.model_copy(update={"overlap": (names,)})
        apart, found = (step_cost(place(tier="slow"), profile(), c) for c in (machine, beside))
        if names[0] == "fast":
            assert found.time.slowest_memory_s < apart.time.slowest_memory_s
        else:
            assert found.time.links_s == pytest.approx(apart.time.exchange_level_s.max())


def test_without_training_only_the_forward_pass_is_left() -> None:
    links = cost(scope="node", options=CostOptions(training=False)).links
    assert links.backward.total.sum() == links.sync.total.sum() == 0
    assert links.forward.total[0] > 0
    assert cost(options=CostOptions(training=False)).written_bytes.sum() == 0


def test_slow_memory_is_read_once_per_touched_row_and_written_back_with_its_state() -> None:
    found = cost(tier="slow", coalesced=True)
    touched = u(N2).sum() * 4096  # a row and its state fill less than one unit
    assert found.read_bytes[:, 1].sum() == pytest.approx(touched)
    assert found.written_bytes[:, 1].sum() == pytest.approx(touched)
    assert found.read_bytes[:, 0].sum() == pytest.approx(u(N2).sum() * 64)


def test_fast_memory_is_read_once_whoever_asks_and_updated_once() -> None:
    found = cost()
    updated = u(N2).sum() * 96  # 64 bytes and 4 of state, in units of 32
    assert found.read_bytes[:, 0].sum() == pytest.approx(u(N2).sum() * 64 + updated)
    assert found.written_bytes[:, 0].sum() == pytest.approx(updated)


@given(st.floats(0.3, 1.6), st.sampled_from([{}, {"coalesced": True}, {"staged": True}]))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_slow_memory_is_never_the_faster_one(zipf: float, home: dict) -> None:
    fast, slow = (cost(zipf, tier=tier, **home).time.memory_s for tier in ("fast", "slow"))
    assert (fast < slow).all()


def test_the_same_rows_in_other_buckets_cost_the_same() -> None:
    table = profile().stats[0]
    flat = np.full(ROWS, table.lookups / ROWS)
    one = Curve(np.array([ROWS]), np.array([flat.sum()]))
    many = Curve(np.arange(1, ROWS + 1), flat)
    for home in ({}, {"staged": True, "offset": 3}, {"exchange": "sums", "members": (1, 5, 7)}):
        found = [
            step_cost(
                place(**home),
                Profile(BATCH, (TableStats(table.table, table.samples, table.features, curve),)),
                cluster(),
            )
            for curve in (one, many)
        ]
        assert found[0].links.forward.sent == pytest.approx(found[1].links.forward.sent, rel=1e-9)
        assert found[0].step_s == pytest.approx(found[1].step_s, rel=1e-9)

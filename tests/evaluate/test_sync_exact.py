"""Keeping copies equal, row by row and group by group, as the runtime's rule says it."""

import os
from collections import defaultdict
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from evaluate.test_replay_exact import fast_steps
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import counted

from rowtier import Band, Cluster, Device, Level, Plan, Profile, Table, Tier
from rowtier.cost.options import CostOptions
from rowtier.cost.tree import tree_of
from rowtier.evaluate.homes import homes_of
from rowtier.evaluate.replay import replay

EXAMPLES = 300 if "ROWTIER_RANDOM_TESTS" in os.environ else 100
ROWS, DIM = 23, 3


def cluster_of(fans: list[int]) -> Cluster:
    tiers = (Tier(name="ram", capacity_bytes=2**40, bandwidth_bytes_per_s=1e9),)
    levels = tuple(
        Level(name=f"level{i}", size=fan, bandwidth_bytes_per_s=1e9, latency_s=0.0)
        for i, fan in enumerate(fans)
    )
    return Cluster(name="small", levels=levels, device=Device(tiers=tiers))


def table_of(rows: int = ROWS) -> Table:
    return Table(name="t", num_embeddings=rows, embedding_dim=DIM, features=("f",))


@st.composite
def bands_of(draw: st.DrawFn, cluster: Cluster) -> tuple[Band, ...]:
    cuts = sorted({0, ROWS, *draw(st.sets(st.integers(1, ROWS - 1), max_size=2))})
    bands = []
    for start, stop in pairwise(cuts):
        scope = draw(st.sampled_from(cluster.scopes))
        group = list(range(cluster.group_size(cluster.level_of(scope))))
        listed = tuple(draw(st.permutations(group))[: draw(st.integers(1, len(group)))])
        bands.append(
            Band(
                start=start,
                stop=stop,
                scope=scope,
                members=draw(st.sampled_from(["all", listed])),
                order=draw(st.sampled_from(["spread", "blocks"])),
                offset=draw(st.integers(0, 9)),
                tier="ram",
                coalesced=True,
                staged=draw(st.booleans()),
                sync=draw(st.sampled_from(["sparse", "dense"])),
            )
        )
    return tuple(bands)


def brute_force(
    plan: Plan, touched: list[set[int]], id_bytes: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Sent and received per device and level, from the rows that each device touched."""
    cluster = plan.cluster
    K, W = len(cluster.levels), cluster.num_devices
    sizes = [cluster.group_size(level) for level in range(K + 1)]
    fan = [0] + [sizes[j] // sizes[j - 1] for j in range(1, K + 1)]
    flows = {name: (np.zeros((W, K)), np.zeros((W, K))) for name in ("sync", "sync_ids")}

    def send(name: str, source: int, target: int, level: int, amount: int) -> None:
        flows[name][0][source, level - 1] += amount
        flows[name][1][target, level - 1] += amount

    by_rank = plan.rows_in_order("t").tolist()
    for band in plan.bands["t"]:
        k = cluster.level_of(band.scope)
        members = band.member_list(sizes[k])
        n = len(members)
        rows = by_rank[band.start : band.stop]
        block = -(-len(rows) // n)
        for rank, row in enumerate(rows):
            if band.order == "spread":
                member, q = members[(rank + band.offset) % n], rank // n
            else:
                place = sorted(rows).index(row)
                member, q = members[place // block], place - place // block * block
            digit = {j: q // prod(fan[k + 1 : j]) % fan[j] for j in range(k + 1, K + 1)}

            def delegate(j: int, group: int, k: int = k, d: dict = digit, m: int = member) -> int:
                inside = sum(d[i] * sizes[i - 1] // sizes[k] for i in range(k + 1, j))
                return (group * (sizes[j - 1] // sizes[k]) + inside) * sizes[k] + m

            for j in range(k + 1, K + 1):
                for group in range(W // sizes[j]):
                    adder = delegate(j, group * fan[j] + digit[j])
                    for child in range(group * fan[j], (group + 1) * fan[j]):
                        if child == group * fan[j] + digit[j]:
                            continue
                        other = delegate(j, child)
                        devices = range(child * sizes[j - 1], (child + 1) * sizes[j - 1])
                        dense = band.sync == "dense"
                        up = dense or any(row in touched[d] for d in devices)
                        down = dense or any(row in seen for seen in touched)
                        send("sync", other, adder, j, up * 4 * DIM)
                        send("sync", adder, other, j, down * 4 * DIM)
                        send("sync_ids", other, adder, j, (up and not dense) * id_bytes)
                        send("sync_ids", adder, other, j, (down and not dense) * id_bytes)
    return flows


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_copies_are_kept_equal_by_whole_rows(data: st.DataObject) -> None:
    fans = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    while prod(fans) > 18:
        fans.remove(max(fans))
    cluster = cluster_of(fans)
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    stats = counted(table_of(), random.integers(0, 4, ROWS))
    bands = data.draw(bands_of(cluster))
    plan = Plan.build("random", Profile(2, (stats,)), cluster, {"t": bands})
    options = CostOptions(ids=data.draw(st.sampled_from(["wide", "narrow"])))
    samples = 2 * 2 * cluster.num_devices
    bags = [random.integers(0, ROWS, random.integers(0, 4)).tolist() for _ in range(samples)]
    steps = fast_steps(plan, {"f": bags}, 2, options, data.draw(st.integers(1, samples)))
    assert len(steps) == 2
    for number, found in enumerate(steps):
        touched: dict[int, set[int]] = defaultdict(set)
        for at in range(samples // 2):
            touched[at // 2] |= set(bags[number * samples // 2 + at])
        seen = [touched[device] for device in range(cluster.num_devices)]
        expected = brute_force(plan, seen, options.id_bytes(table_of()))
        for name, (sent, received) in expected.items():
            assert found.flows[name].sent.tolist() == sent.tolist()
            assert found.flows[name].received.tolist() == received.tolist()


@pytest.mark.parametrize("order", ["spread", "blocks"])
@pytest.mark.parametrize(
    ("scope", "members", "most"),
    [("device", "all", 4096), ("level0", "all", 4096), ("level0", (0, 5, 3), 3 * 512)],
)
@pytest.mark.parametrize("rows", [1, 10, 4097, 20_000])
def test_there_are_never_more_classes_than_rows_or_copies(
    order: str, scope: str, members: object, most: int, rows: int
) -> None:
    cluster = cluster_of([8, 16, 32])
    band = Band(
        start=0, stop=rows, scope=scope, members=members, order=order, tier="ram", sync="sparse"
    )
    touched = np.arange(rows)[::-1].copy()
    homes = homes_of(table_of(rows), [band], touched, tree_of(cluster), CostOptions())
    (layer,) = homes.layers
    assert len(layer.facts) <= min(rows, most)
    assert layer.rows.sum() == rows
    assert layer.rows.min() >= 1
    forward = homes_of(
        table_of(rows), [band], touched, tree_of(cluster), CostOptions(training=False)
    )
    assert forward.classes <= 8  # nothing is added up


def test_a_turn_that_is_not_full_is_inside_the_interval() -> None:
    cluster = cluster_of([2, 4])
    stats = counted(table_of(), np.full(ROWS, 40), samples=40 * ROWS)
    kept = {"tier": "ram", "coalesced": True}
    bands = (
        Band(start=0, stop=3, scope="device", sync="dense", **kept),
        Band(start=3, stop=10, scope="level0", sync="sparse", **kept),
        Band(start=10, stop=ROWS, scope="level1", **kept),
    )
    plan = Plan.build("by hand", Profile(50, (stats,)), cluster, {"t": bands})
    ids = np.random.default_rng(0).integers(0, ROWS, 4000)
    data = {"f": (ids, np.ones(4000, dtype=np.int64))}
    found = replay(plan, [data], batches="in_time_order")
    names = [f"{flow} {way}" for flow in ("sync", "sync_ids") for way in ("sent", "received")]
    synced = [figure for figure in found.figures if figure.label.name in names]
    assert len(synced) > 16
    assert any(abs(figure.error) > 0.1 for figure in synced)
    assert all(figure.as_expected for figure in synced)

"""Within one percent of real batches: ids drawn, distinct rows and partial sums counted."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

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
from rowtier.cost.step import StepCost, step_cost

ROWS, DIM, BATCH, STEPS = 1500, 4, 256, 600
N1, W = 3, 6
S, ID = 4 * DIM, 8
LENGTHS = ((0, 300), (1, 350), (3, 200), (8, 150))  # in 1000 samples; 0: no such feature
CLUSTER = Cluster(
    name="c",
    levels=(
        Level(name="node", size=N1, bandwidth_bytes_per_s=1e9),
        Level(name="cluster", size=W // N1, bandwidth_bytes_per_s=1e8),
    ),
    device=Device(tiers=(Tier(name="ram", capacity_bytes=2**40, bandwidth_bytes_per_s=1e9),)),
)
HEAT = np.arange(1, ROWS + 1, dtype=float) ** -0.9
HEAT /= HEAT.sum()


def profile() -> Profile:
    lengths = tuple((length, samples * 1000) for length, samples in LENGTHS if length)
    lookups = sum(length * samples for length, samples in lengths)
    feature = FeatureStats(
        name="f", present=sum(s for _, s in lengths), lookups=lookups, lengths=lengths
    )
    table = Table(name="t", num_embeddings=ROWS, embedding_dim=DIM, features=("f",))
    curve = Curve(np.arange(1, ROWS + 1), HEAT * lookups)
    return Profile(BATCH, (TableStats(table, 10**6, (feature,), curve),))


def predicted(**home: Any) -> StepCost:
    home = {"scope": "cluster", "tier": "ram", **home}
    return step_cost({"t": (Band(start=0, stop=ROWS, **home),)}, profile(), CLUSTER)


class Trace:
    """Real batches: which device looked up which row for which sample."""

    def __init__(self) -> None:
        random = np.random.default_rng(7)
        lengths, samples = np.array(LENGTHS).T
        per_sample = random.choice(lengths, size=STEPS * W * BATCH, p=samples / samples.sum())
        self.sample = np.repeat(np.arange(STEPS * W * BATCH), per_sample)
        self.reader = self.sample // BATCH  # step and device in one number
        self.row = random.choice(ROWS, size=len(self.sample), p=HEAT)
        self.device = self.reader % W
        self.owner = self.row % W

    def distinct(self, *keys: np.ndarray) -> tuple[np.ndarray, ...]:
        code = np.zeros(len(self.row), dtype=np.int64)
        for key in keys:
            code = code * (int(key.max()) + 1) + key
        _, first = np.unique(code, return_index=True)
        return tuple(key[first] for key in keys)


TRACE = Trace()


def count(source: np.ndarray, target: np.ndarray) -> Mapping[str, np.ndarray]:
    """Transfers per step from device to device, as sent and received per level."""
    sent, received = np.zeros((W, 2)), np.zeros((W, 2))
    away = source != target
    source, target = source[away], target[away]
    level = (source // N1 != target // N1).astype(int)
    np.add.at(sent, (source, level), 1 / STEPS)
    np.add.at(received, (target, level), 1 / STEPS)
    return {"sent": sent, "received": received}


def assert_close(flow: Any, *counts: Mapping[str, np.ndarray], size: int = S) -> None:
    for way in ("sent", "received"):
        found = sum(counted[way] for counted in counts) * size
        total = getattr(flow, way).sum(axis=0)
        assert total == pytest.approx(found.sum(axis=0), rel=0.01)
        assert getattr(flow, way) == pytest.approx(found, rel=0.01, abs=0.01 * found.max())


def test_plain_rows_like_real_batches() -> None:
    counted = count(TRACE.owner, TRACE.device)
    cost = predicted()
    assert_close(cost.links.forward, counted)
    assert_close(cost.links.ids.back, counted, size=ID)
    assert_close(cost.links.backward.back, counted)
    touched = TRACE.distinct(TRACE.reader // W, TRACE.row)
    assert cost.written_bytes.sum() == pytest.approx((S + 4) * len(touched[0]) / STEPS, rel=0.01)
    read_bytes = cost.read_bytes.sum() - cost.written_bytes.sum()  # beside updates: once a step
    assert read_bytes == pytest.approx(S * len(touched[0]) / STEPS, rel=0.01)


def test_coalesced_rows_like_real_batches() -> None:
    reader, row = TRACE.distinct(TRACE.reader, TRACE.row)
    assert_close(predicted(coalesced=True).links.forward, count(row % W, reader % W))


def test_staged_rows_like_real_batches() -> None:
    reader, row = TRACE.distinct(TRACE.reader, TRACE.row)
    device, owner = reader % W, row % W
    gateway = np.where(device // N1 == owner // N1, owner, device // N1 * N1 + owner % N1)
    inside = count(gateway, device)
    node, row = TRACE.distinct(TRACE.reader // N1, TRACE.row)
    node, owner = node % (W // N1), row % W
    away = node != owner // N1
    between = count(owner[away], (node * N1 + owner % N1)[away])
    assert_close(predicted(staged=True).links.forward, inside, between)


def test_partial_sums_like_real_batches() -> None:
    sample, owner = TRACE.distinct(TRACE.sample, TRACE.owner)
    cost = predicted(exchange="sums")
    assert_close(cost.links.forward, count(owner, sample // BATCH % W))
    assert_close(cost.links.ids.back, count(TRACE.owner, TRACE.device), size=ID)


def test_staged_partial_sums_like_real_batches() -> None:
    sample, owner = TRACE.distinct(TRACE.sample, TRACE.owner)
    device = sample // BATCH % W
    near = owner // N1 == device // N1
    direct = count(owner[near], device[near])
    collector = owner // N1 * N1 + device % N1
    inside = count(owner[~near], collector[~near])
    sample, node = TRACE.distinct(TRACE.sample, TRACE.owner // N1)
    device = sample // BATCH % W
    away = node != device // N1
    between = count((node * N1 + device % N1)[away], device[away])
    assert_close(predicted(exchange="sums", staged=True).links.forward, direct, inside, between)


def test_sparse_sync_of_node_copies_like_real_batches() -> None:
    _, row = TRACE.distinct(TRACE.reader // N1, TRACE.row)
    up = np.bincount(row % N1, minlength=N1) / STEPS  # touched copies, by position in the node
    _, row = TRACE.distinct(TRACE.reader // W, TRACE.row)
    down = np.bincount(row % N1, minlength=N1) / STEPS
    # Of two copies one adds up: half of what either node touched is sent, half the totals.
    per_holder = (np.tile(up, W // N1) / 2 + np.tile(down, W // N1)) / 2 * S
    flow = predicted(scope="node", sync="sparse").links.sync
    assert flow.sent[:, 1] == pytest.approx(per_holder, rel=0.01)
    assert flow.received[:, 1] == pytest.approx(per_holder, rel=0.01)
    assert (flow.sent[:, 0] == 0).all()


def test_sparse_sync_of_replicas_like_real_batches() -> None:
    device = len(TRACE.distinct(TRACE.reader, TRACE.row)[0]) / STEPS
    node = len(TRACE.distinct(TRACE.reader // N1, TRACE.row)[0]) / STEPS
    whole = len(TRACE.distinct(TRACE.reader // W, TRACE.row)[0]) / STEPS
    nodes = W // N1
    # Level by level: all copies but the one that adds up send, and get the total back.
    inside = (device + W * whole) * (N1 - 1) / N1
    between = (node + nodes * whole) * (nodes - 1) / nodes
    found = predicted(scope="device", sync="sparse").links.sync.total
    assert found == pytest.approx([inside * S, between * S], rel=0.01)


def test_as_many_messages_as_real_batches_need() -> None:
    pairs = TRACE.distinct(TRACE.reader // W, TRACE.owner, TRACE.device)
    step, owner, device = pairs
    assert len(step)
    counted = count(owner, device)
    cost = predicted(coalesced=True)
    expected = 2 * counted["received"] + counted["sent"]  # ids and gradients out, rows out
    assert cost.links.messages == pytest.approx(expected, rel=0.01)

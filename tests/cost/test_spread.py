"""Steps differ: variances by hand and from drawn batches, and what follows from them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from cost_cases import cases
from hypothesis import HealthCheck, given, settings

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
from rowtier.cost.normal import larger_of_two, largest
from rowtier.cost.options import CostOptions
from rowtier.cost.spread import StepSpread
from rowtier.cost.step import step_cost

DIM = 4
S, ID = 4 * DIM, 8
MEMORY, LINK = 1e9, 1e8  # bytes a second


def cluster(nodes: int, devices: int) -> Cluster:
    tier = Tier(name="ram", capacity_bytes=2**40, bandwidth_bytes_per_s=MEMORY)
    levels = [Level(name="node", size=devices, bandwidth_bytes_per_s=LINK)]
    if nodes > 1:
        levels.append(Level(name="cluster", size=nodes, bandwidth_bytes_per_s=LINK / 2))
    return Cluster(name="c", levels=tuple(levels), device=Device(tiers=(tier,)))


def profile(heat: np.ndarray, lengths: tuple[tuple[int, int], ...], batch: int) -> Profile:
    """Of 1000 samples, those of each length."""
    lookups = sum(length * samples for length, samples in lengths)
    present = sum(samples for _, samples in lengths)
    feature = FeatureStats(name="f", present=present, lookups=lookups, lengths=lengths)
    table = Table(name="t", num_embeddings=len(heat), embedding_dim=DIM, features=("f",))
    curve = Curve(np.arange(1, len(heat) + 1), heat / heat.sum() * lookups)
    return Profile(batch, (TableStats(table, 1000, (feature,), curve),))


def spread(found: Profile, machine: Cluster, training: bool = True, **home: object) -> StepSpread:
    rows = found.stats[0].table.num_embeddings
    scope = machine.top
    band = Band(start=0, stop=rows, **{"scope": scope, "tier": "ram", **home})  # type: ignore
    options = CostOptions(training=training)
    return step_cost({"t": (band,)}, found, machine, None, options).spread


def test_two_devices_by_hand() -> None:
    # Half of the samples bring two ids, so their number varies as that of single events does.
    found = profile(np.ones(2), ((2, 500),), batch=4)
    made = spread(found, cluster(1, 2), training=False, coalesced=True)
    here, both = 1 - 0.5**4, 1 - 0.5**8  # a device, or any of the two, touches a row
    busy_s = S * math.sqrt(both * (1 - both)) / MEMORY
    rows_s, ids_s = (size * math.sqrt(here * (1 - here)) / LINK for size in (S, ID))
    assert made.busy_deviation_s == pytest.approx([busy_s] * 2)
    # The larger of two alike is σ/√π above their mean and varies by σ²(1 − 1/π): of what is
    # sent and received, rows and ids each, and then of both devices.
    late = 1 / math.sqrt(math.pi)
    link_s = (rows_s + ids_s) * math.sqrt(1 - 1 / math.pi)
    assert made.link_deviation_s == pytest.approx(np.full((2, 1), link_s))
    mean_s = S * both / MEMORY + (S + ID) * here / LINK
    expected_s = mean_s + late * (busy_s + rows_s + ids_s + link_s)
    assert made.expected_s == pytest.approx(expected_s, rel=1e-6)


def test_one_owner_of_ids_that_never_repeat_is_equally_busy_in_all_steps() -> None:
    heat = np.ones(10**5)
    one_each = spread(profile(heat, ((1, 1000),), 50), cluster(1, 4), members=(0,))
    as_events = spread(profile(heat, ((2, 500),), 50), cluster(1, 4), members=(0,))
    moved_s = (S + 2 * (S + 4)) * math.sqrt(200) / MEMORY  # read, then updated with 4 of state
    assert as_events.busy_deviation_s[0] == pytest.approx(moved_s, rel=0.01)
    assert one_each.busy_deviation_s[0] < 0.05 * moved_s


HEAT = np.arange(1, 121, dtype=float) ** -0.8
LENGTHS = ((1, 500), (4, 300))  # and none in 200 of 1000 samples
BATCH, STEPS, DEVICES = 16, 4000, 4


def drawn(exchange: str, coalesced: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Busy seconds and link seconds of every holder in drawn steps, and the steps' seconds."""
    random = np.random.default_rng(5)
    samples = STEPS * DEVICES * BATCH
    lengths = random.choice([0, 1, 4], size=samples, p=[0.2, 0.5, 0.3])
    sample = np.repeat(np.arange(samples), lengths)
    row = random.choice(len(HEAT), size=len(sample), p=HEAT / HEAT.sum())
    step, reader, owner = sample // (BATCH * DEVICES), sample // BATCH % DEVICES, row % DEVICES

    def count(*keys: np.ndarray) -> np.ndarray:
        """Distinct keys by step, owner and reader, the first three of them."""
        found = np.zeros((STEPS, DEVICES, DEVICES))
        distinct = np.unique(np.stack(keys), axis=1)
        np.add.at(found, tuple(distinct[:3]), 1)
        return found

    touched = count(step, owner, np.zeros_like(row), row)[:, :, 0]
    busy_s = touched * (S + 2 * (S + 4)) / MEMORY
    asked = row if coalesced else np.arange(len(row))
    ids = count(step, owner, reader, asked)
    rows = count(step, owner, reader, sample if exchange == "sums" else asked)
    exchange_s = np.zeros((STEPS, DEVICES))
    for counted, size in ((ids, ID), (rows, 2 * S)):
        away = counted * (1 - np.eye(DEVICES))
        exchange_s += np.maximum(away.sum(axis=1), away.sum(axis=2)) * size / LINK
    return busy_s, exchange_s, busy_s.max(axis=1) + exchange_s.max(axis=1)


@pytest.mark.parametrize(
    ("exchange", "coalesced"), [("rows", False), ("rows", True), ("sums", False)]
)
def test_like_drawn_batches(exchange: str, coalesced: bool) -> None:
    busy_s, exchange_s, step_s = drawn(exchange, coalesced)
    machine = cluster(1, DEVICES)
    found = profile(HEAT, LENGTHS, BATCH)
    made = spread(found, machine, exchange=exchange, coalesced=coalesced)
    assert made.busy_deviation_s == pytest.approx(busy_s.std(axis=0), rel=0.06)
    assert made.link_deviation_s[:, 0] == pytest.approx(exchange_s.std(axis=0), rel=0.06)
    assert made.expected_s == pytest.approx(step_s.mean(), rel=0.03)
    p50_s, p99_s = np.percentile(step_s, [50, 99])
    assert made.p50_s == pytest.approx(p50_s, rel=0.03)
    assert made.p99_s == pytest.approx(p99_s, rel=0.06)
    assert made.p99_s - made.p50_s == pytest.approx(p99_s - p50_s, rel=0.3)


@given(cases())
@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
def test_steps_are_no_faster_than_mean_loads(case) -> None:
    bands, found, machine, options = case
    cost = step_cost(bands, found, machine, None, options)
    made = cost.spread
    for deviations in (made.busy_deviation_s, made.link_deviation_s):
        assert np.isfinite(deviations).all()
        assert (deviations >= 0).all()
    assert math.isfinite(made.p99_s)
    assert made.p99_s >= made.p50_s > -1e-15
    assert made.expected_s >= cost.step_s


def test_large_batches_take_what_mean_loads_take() -> None:
    found = profile(HEAT, LENGTHS, BATCH)
    bands = {"t": (Band(start=0, stop=120, scope="cluster", tier="ram"),)}
    above = []
    for batch in (10, 1000, 100_000):
        cost = step_cost(bands, replace(found, batch_size=batch), cluster(2, 2))
        above.append(cost.spread.expected_s / cost.step_s - 1)
    assert above[0] > 0.01
    assert above[0] > 5 * above[1] > 25 * above[2]


def test_the_larger_of_two_and_the_largest_of_two_are_one() -> None:
    random = np.random.default_rng(1)
    for mean, variance in zip(random.random((20, 2)), random.random((20, 2)), strict=True):
        one, other = (np.array([value]) for value in mean)
        expected, square = larger_of_two(one, variance[:1], other, variance[1:])
        found = largest(mean, variance)
        assert found.mean == pytest.approx(float(expected[0]), rel=1e-5)
        assert found.deviation**2 == pytest.approx(float(square[0]), rel=1e-5)


def test_the_largest_of_some_that_do_not_vary() -> None:
    found = largest(np.array([1.0, 3.0, 2.0]), np.array([0.0, 0.0, 0.01]))
    assert found.mean == pytest.approx(3.0)
    assert found.deviation == pytest.approx(0.0, abs=1e-6)
    assert found.p99 == pytest.approx(3.0)

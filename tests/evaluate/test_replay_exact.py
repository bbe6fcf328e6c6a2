"""Fast replay equals a replay in plain Python, to the last byte, for every kind of band."""

import os

import numpy as np
import pytest
from cost.cost_cases import rich_bands, rich_clusters, works
from evaluate.replay_naive import NaiveStep, naive_steps
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import counted, tables

from rowtier import (
    Band,
    Cluster,
    Device,
    Level,
    Plan,
    Profile,
    Server,
    Table,
    TableStats,
    Tier,
)
from rowtier.cost.bundling import pieces_run
from rowtier.cost.options import CostOptions
from rowtier.cost.tree import tree_of
from rowtier.evaluate.batches import Wanted, windows
from rowtier.evaluate.counting import Counter
from rowtier.evaluate.figures import StepFacts
from rowtier.profile.readers import open_source

FLOWS = ("ids", "forward")
EXAMPLES = 150 if "ROWTIER_RANDOM_TESTS" in os.environ else 80


@st.composite
def _stats(draw: st.DrawFn, name: str) -> TableStats:
    table: Table = draw(tables(name))
    features = tuple(f"{name}_{i}" for i in range(draw(st.integers(1, 2))))
    rows = min(table.num_embeddings, 16)
    table = table.model_copy(update={"num_embeddings": rows, "features": features})
    heat = draw(st.lists(st.integers(0, 5), min_size=rows, max_size=rows))
    stats = counted(table, np.array(heat, dtype=np.int64))
    first = stats.features[0].model_copy(update={"name": features[0]})
    more = [
        first.model_copy(update={"name": other, "present": 0, "lookups": 0, "lengths": ()})
        for other in features[1:]
    ]
    return TableStats.counted(table, stats.samples, (first, *more), stats.counts)


@st.composite
def deep_clusters(draw: st.DrawFn) -> Cluster:
    """Two or three levels that all join something, with servers at any of them."""
    sizes = draw(st.sampled_from([(2, 2), (3, 2), (2, 3), (2, 2, 2), (3, 2, 2), (2, 2, 3)]))
    tiers = (Tier(name="ram", capacity_bytes=2**40, bandwidth_bytes_per_s=1e9),)
    levels = [
        Level(name=f"level{i}", size=size, bandwidth_bytes_per_s=1e9, latency_s=10.0**-i)
        for i, size in enumerate(sizes)
    ]
    servers = [
        Server(name=f"server{i}", level=f"level{at}", tiers=tiers)
        for i, at in enumerate(draw(st.lists(st.integers(0, len(sizes) - 1), max_size=2)))
    ]
    device = Device(tiers=tiers)
    return Cluster(
        name="deep",
        levels=tuple(levels),
        device=device,
        servers=tuple(servers),
        work=draw(works()),
    )


@st.composite
def far_bands(draw: st.DrawFn, table: Table, cluster: Cluster) -> tuple[Band, ...]:
    """Bands in stages over several levels, rows or partial sums, with servers among the members."""
    rows = table.num_embeddings
    cut = draw(st.integers(0, rows - 1))
    bands = []
    for start, stop in ((0, cut), (cut, rows)):
        scope = draw(st.sampled_from(cluster.scopes[1:][::-1]))
        holders = range(len(cluster.members(cluster.level_of(scope))))
        listed = tuple(draw(st.permutations(holders))[: draw(st.integers(2, len(holders)))])
        if start < stop:
            exchange = draw(st.sampled_from(["sums", "sums", "rows"]))
            band = Band(
                start=start, stop=stop, scope=scope, members=draw(st.sampled_from([listed, "all"])),
                tier="ram", exchange="rows" if table.pooling == "none" else exchange,
                staged=draw(st.sampled_from([True, True, False])), offset=draw(st.integers(0, 5)),
                sync=draw(st.sampled_from(["sparse", "dense"])),
                order=draw(st.sampled_from(["spread", "blocks"])),
            )  # fmt: skip
            bands.append(band)
    return tuple(bands)


@st.composite
def replays(draw: st.DrawFn) -> tuple[Plan, dict[str, list[list[int]]], int, CostOptions, int]:
    """A plan, bags per feature, a batch size, options, and samples per chunk of the data."""
    stats = tuple(draw(_stats(f"t{i}")) for i in range(draw(st.integers(1, 2))))
    clusters, placements = draw(
        st.sampled_from([(rich_clusters, rich_bands), (deep_clusters, far_bands)])
    )
    cluster = draw(clusters())
    bands = {s.table.name: draw(placements(s.table, cluster)) for s in stats}
    batch_size = draw(st.integers(1, 3))
    plan = Plan.build("random", Profile(batch_size, stats), cluster, bands)
    samples = batch_size * cluster.num_devices * 2 + draw(st.integers(0, 3))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    data = {
        feature: [
            random.integers(0, entry.table.num_embeddings, random.integers(0, 5)).tolist()
            for _ in range(samples)
        ]
        for entry in stats
        for feature in entry.table.features
    }
    options = CostOptions(
        dense_s=draw(st.sampled_from([0.0, 1e-5, 1.0])),
        ids=draw(st.sampled_from(["wide", "narrow"])),
        training=draw(st.booleans()),
        weighted=frozenset(draw(st.sampled_from([[], ["t0"]]))),
    )
    return plan, data, batch_size, options, draw(st.integers(1, samples))


def batches(data: dict[str, list[list[int]]], chunk: int) -> list[dict[str, tuple]]:
    samples = len(next(iter(data.values())))
    return [
        {
            feature: (
                np.array([row for bag in bags[at : at + chunk] for row in bag], dtype=np.int64),
                np.array([len(bag) for bag in bags[at : at + chunk]], dtype=np.int64),
            )
            for feature, bags in data.items()
        }
        for at in range(0, samples, chunk)
    ]


def fast_steps(
    plan: Plan, data: dict, batch_size: int, options: CostOptions, chunk: int
) -> list[StepFacts]:
    counter = Counter(plan, batch_size, options)
    source = open_source(batches(data, chunk), list(data))
    found = windows(source, list(data), Wanted(counter.step_samples))
    return [facts for window in found for _, facts in counter.add(window)]


def assert_same(fast: StepFacts, naive: NaiveStep, training: bool) -> None:
    for kind in ("ids", "forward", "sync", "sync_ids"):
        flow = fast.flows[kind]
        assert flow.sent.tolist() == naive.array(naive.sent, kind).tolist(), kind
        assert flow.received.tolist() == naive.array(naive.received, kind).tolist(), kind
    back = naive.array(naive.received, "forward") * training
    assert fast.flows["backward"].sent == pytest.approx(back)
    assert fast.served.tolist() == naive.tiers(naive.served).tolist()
    assert fast.read.tolist() == naive.tiers(naive.read).tolist()
    assert fast.written.tolist() == naive.tiers(naive.written).tolist()
    assert [groups.tolist() for groups in fast.touched] == naive.distinct
    assert fast.home_samples == naive.home_samples
    assert fast.tables[:, 1].tolist() == list(naive.table_rows.values())
    assert fast.tables[:, 2:].sum() == pytest.approx(
        fast.read.sum()
        + fast.written.sum()
        + sum(fast.flows[name].sent.sum() for name in ("ids", "forward", "sync", "sync_ids"))
    )


@settings(max_examples=EXAMPLES, deadline=None)
@given(replays())
def test_fast_replay_counts_what_plain_python_counts(case: tuple) -> None:
    plan, data, batch_size, options, chunk = case
    slow = naive_steps(plan, data, batch_size, options)
    fast = fast_steps(plan, data, batch_size, options, chunk)
    assert len(fast) == len(slow) >= 2
    for found, expected in zip(fast, slow, strict=True):
        assert_same(found, expected, options.training)
        assert_waits_and_works(plan, found, expected, options.training)


def assert_waits_and_works(
    plan: Plan, found: StepFacts, expected: NaiveStep, training: bool
) -> None:
    levels, work = plan.cluster.levels, plan.cluster.work
    latency = np.array([level.latency_s for level in levels])
    message = np.array([level.message_s for level in levels])
    asked, answered = (_turns(plan, found, name) for name in ("ids", "forward"))
    extra = np.isin(np.arange(1, len(levels) + 1), list(expected.extra))
    rounds = asked + extra + (1 + training) * (answered + extra)
    told = _messages(plan, found, extra, training)
    waits = latency * rounds + message * told
    assert found.time.exchange_latency_s == pytest.approx(waits)
    synced = 2 * (found.flows["sync"].sent > 0).any(axis=0)
    fixed = work.step_s + work.round_s * (rounds.sum() + synced.sum())
    fixed += work.table_s * len(plan.bands)
    run = pieces_run(plan, tree_of(plan.cluster))
    fixed += work.bundle_s * run.bundles + work.band_s * run.pieces
    fixed += work.copied_s * run.copied * training
    holders = range(plan.cluster.num_holders)
    works = np.array([fixed + expected.work[holder] for holder in holders])
    assert found.time.work_s == pytest.approx(works, rel=1e-9, abs=1e-15)


def _messages(plan: Plan, found: StepFacts, extra: np.ndarray, training: bool) -> np.ndarray:
    """A message in each round to each peer: one of each group beside, or all devices there."""
    cluster, passes = plan.cluster, 2 if training else 1
    staged = _gateways_up_to(plan)
    told = []
    for level in range(1, len(cluster.levels) + 1):
        beside = cluster.levels[level - 1].size - 1
        apart = cluster.group_size(level) - cluster.group_size(level - 1)
        ids, rows = ((found.flows[name].sent[:, level - 1] > 0).any() for name in FLOWS)
        peers = beside if level <= staged else apart
        told.append(peers * (ids + passes * rows) + (1 + passes) * beside * extra[level - 1])
    return np.array(told)


def _gateways_up_to(plan: Plan) -> int:
    """The widest level at which gateways pass rows on."""
    levels = [
        plan.cluster.level_of(band.scope)
        for _, bands in plan
        for band in bands
        if band.staged and band.exchange == "rows"
    ]
    return max(levels, default=0)


def _turns(plan: Plan, found: StepFacts, name: str) -> np.ndarray:
    """A round for the widest level, and for every other at which gateways pass rows on."""
    names = ["device", *(level.name for level in plan.cluster.levels)]
    staged = _gateways_up_to(plan)
    busy = [level for level, sent in enumerate(found.flows[name].sent.T, 1) if (sent > 0).any()]
    turns = [
        level in busy and (level == max(busy) or level <= staged) for level in range(1, len(names))
    ]
    return np.array(turns, dtype=int)

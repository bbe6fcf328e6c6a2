"""RecShard on problems so small that all placements, or all rows, can be tried."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recshard_models import (
    flat_cluster,
    objective_of,
    skewed_model,
    small_table,
    total_bytes,
)
from strategies import counted, plans

from rowtier import (
    Band,
    Cluster,
    InfeasibleError,
    Plan,
    PlanOptions,
    Profile,
    make_plan,
)
from rowtier.cost.memory import used_bytes
from rowtier.plan.recshard.make import recshard_time_s

SPLIT = PlanOptions(split=True)


# ------------------------------------------------------------- tiny ones, by trying everything


def _tiny(random: np.random.Generator) -> tuple[Profile, Cluster]:
    """Up to five tables on up to three devices that have room for them."""
    stats = []
    for index in range(int(random.integers(1, 6))):
        rows = int(random.integers(1, 50))
        optimizer = str(random.choice(["sgd", "adagrad", "rowwise_adagrad", "adam"]))
        table = small_table(index, rows, int(random.integers(1, 9)), optimizer)
        heat = random.uniform(1, 1000) * (1.0 + np.arange(rows)) ** -random.uniform(0, 2)
        stats.append(counted(table, random.permutation(np.floor(heat).astype(np.int64))))
    profile, devices = Profile(16, tuple(stats)), int(random.integers(1, 4))
    total = total_bytes(profile)
    fast, slow = int(total * random.uniform(0.02, 0.7) / devices), total
    speeds = (1e9, 1e9 / random.uniform(2, 60))
    tiers = [(max(1, fast), speeds[0]), (slow, speeds[1])]
    if random.random() < 0.3:
        tiers.insert(1, (max(1, fast), 6e8))
    return profile, flat_cluster(devices, *sorted(tiers, key=lambda tier: -tier[1]))


def _time_of_device(profile: Profile, cluster: Cluster, tables: tuple[int, ...]) -> float:
    """Fill one device row by row: the hottest row per byte that fits, again and again."""
    heat, size = {}, {}
    for j in tables:
        stats = profile.stats[j]
        read = profile.lookups_per_step(stats) * cluster.num_devices * stats.table.row_bytes
        rows = np.repeat(stats.curve.probabilities, stats.curve.widths) * read
        heat[j] = [*rows.tolist(), *[0.0] * (stats.table.num_embeddings - len(rows))]
        size[j] = stats.table.stored_row_bytes
    at, seconds = dict.fromkeys(tables, 0), 0.0
    for tier in cluster.device.tiers:
        room = tier.capacity_bytes
        while True:
            fitting = [j for j in tables if at[j] < len(heat[j]) and size[j] <= room]
            if not fitting:
                break
            best = max(fitting, key=lambda j: heat[j][at[j]] / size[j])
            seconds += heat[best][at[best]] / tier.bandwidth_bytes_per_s
            room -= size[best]
            at[best] += 1
    return seconds if all(at[j] == len(heat[j]) for j in tables) else np.inf


def _best_of_all(profile: Profile, cluster: Cluster) -> float:
    tables = range(len(profile.stats))
    time = {
        chosen: _time_of_device(profile, cluster, chosen)
        for size in range(len(tables) + 1)
        for chosen in itertools.combinations(tables, size)
    }
    return min(
        max(
            time[tuple(j for j in tables if owner[j] == device)]
            for device in range(cluster.num_devices)
        )
        for owner in itertools.product(range(cluster.num_devices), repeat=len(tables))
    )


def test_whole_tables_are_placed_optimally_where_every_placement_can_be_tried() -> None:
    random = np.random.default_rng(2201)
    optimal, tried = 0, 240
    for _ in range(tried):
        profile, cluster = _tiny(random)
        best = _best_of_all(profile, cluster)
        plan = make_plan(profile, cluster, "recshard")
        assert plan.certificate is not None
        assert plan.certificate.bound <= best * (1 + 1e-9)
        assert best * (1 - 1e-9) <= objective_of(plan) <= best * (1 + plan.certificate.gap + 1e-9)
        optimal += objective_of(plan) <= best * (1 + 1e-9)
        split = make_plan(profile, cluster, "recshard", SPLIT)
        assert objective_of(split) <= objective_of(plan) * (1 + 1e-12)
    assert optimal >= 0.95 * tried


# --------------------------------------------------------------------- what holds everywhere


def _tight(plan: Plan) -> Plan:
    """The same plan on a cluster whose memories are just large enough for it."""
    used = used_bytes(plan.bands, plan.profile, plan.cluster).max(axis=0)
    tiers = tuple(
        tier.model_copy(update={"capacity_bytes": max(1, int(size))})
        for tier, size in zip(plan.cluster.device.tiers, used, strict=True)
    )
    device = plan.cluster.device.model_copy(update={"tiers": tiers})
    return replace(plan, cluster=plan.cluster.model_copy(update={"device": device}))


@given(plans())
@settings(max_examples=80, deadline=None)
def test_no_feasible_plan_is_faster_than_the_bound_of_cut_tables(plan: Plan) -> None:
    plan = _tight(plan)
    try:
        found = make_plan(plan.profile, plan.cluster, "recshard", SPLIT)
    except InfeasibleError:  # memories without a byte to spare need not be found a way into
        return
    assert found.certificate is not None
    assert found.certificate.bound <= recshard_time_s(plan).max() * (1 + 1e-9)


@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_no_placement_of_whole_tables_is_faster_than_their_bound(
    seed: int, tables: int, devices: int
) -> None:
    random = np.random.default_rng(seed)
    profile = skewed_model(random, tables, rows=300)
    cluster = flat_cluster(devices, (10**12, 1e9), (10**12, 2e8), (10**12, 1e7))
    bands = {}
    for stats in profile.stats:
        rows, owner = stats.table.num_embeddings, (int(random.integers(devices)),)
        cuts = np.sort(random.integers(0, rows + 1, 2)).tolist()
        runs = zip(("m0", "m1", "m2"), [0, *cuts], [*cuts, rows], strict=True)
        bands[stats.table.name] = tuple(
            Band(start=start, stop=stop, scope="node", members=owner, tier=tier)
            for tier, start, stop in runs
            if start < stop
        )
    plan = _tight(Plan.build("random", profile, cluster, bands))
    try:
        found = make_plan(profile, plan.cluster, "recshard")
    except InfeasibleError:
        return
    assert found.certificate is not None
    assert found.certificate.bound <= recshard_time_s(plan).max() * (1 + 1e-9)
    assert found.certificate.bound <= found.certificate.objective


@given(plans())
@settings(max_examples=60, deadline=None)
def test_the_objective_is_what_adding_up_rows_one_by_one_gives(plan: Plan) -> None:
    cluster = plan.cluster
    expected = np.zeros(cluster.num_holders)
    for stats in plan.profile.stats:
        heat = np.zeros(stats.table.num_embeddings)
        heat[: stats.curve.positions] = np.repeat(stats.curve.probabilities, stats.curve.widths)
        for band in plan.bands[stats.table.name]:
            if band.order == "blocks":
                return
            level = cluster.level_of(band.scope)
            size = cluster.group_size(level)
            members = band.member_list(size)
            width = band.width(stats.table.embedding_dim) * stats.table.item_bytes
            speed = {t.name: t.bandwidth_bytes_per_s for t in cluster.device.tiers}[band.tier]
            for rank in range(band.start, band.stop):
                member = members[(rank - band.start + band.offset) % len(members)]
                read = heat[rank] * plan.profile.lookups_per_step(stats) * size * width
                for group in range(cluster.num_groups(level)):
                    expected[cluster.members(level, group)[member]] += read / speed
    assert recshard_time_s(plan) == pytest.approx(expected, rel=1e-9, abs=1e-30)

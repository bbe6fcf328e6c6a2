"""Random small problems, and legal plans of every kind that a band can say, for `bounds.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np

from rowtier import (
    Band,
    Cluster,
    Curve,
    FeatureStats,
    Profile,
    Table,
    TableStats,
)
from rowtier.band import Bands

MOST_DEVICES = 12
FEATURES = ("servers", "shared tier", "latencies", "work", "overlap", "per group")


@dataclass(frozen=True)
class Instance:
    """A problem, and what is special about it."""

    profile: Profile
    cluster: Cluster
    features: frozenset[str]


def draw_instance(random: np.random.Generator) -> Instance:
    """One to three tables on up to twelve devices."""
    profile = Profile(
        int(random.choice([1, 16, 200, 2000])),
        tuple(_table(number, random) for number in range(int(random.integers(1, 4)))),
    )
    cluster = _cluster(sum(stats.table.stored_bytes for stats in profile.stats), random)
    return Instance(profile, cluster, frozenset(_features(cluster)))


def _table(number: int, random: np.random.Generator) -> TableStats:
    rows = int(random.choice([3, 10, 50, 300, 3000]))
    table = Table(
        name=f"t{number}",
        num_embeddings=rows,
        embedding_dim=int(random.choice([1, 3, 8, 16, 64])),
        features=(f"f{number}",),
        pooling=str(random.choice(["sum", "sum", "mean", "none"])),
        optimizer=str(random.choice(["sgd", "rowwise_adagrad", "adagrad", "adam"])),
        dtype=str(random.choice(["fp32", "fp32", "fp16"])),
    )
    touched = int(random.integers(1, rows + 1))
    heat = np.arange(1, touched + 1) ** -random.uniform(0, 1.6)
    stops = np.unique(np.geomspace(1, touched, 6).round().astype(np.int64))
    lookups = np.add.reduceat(heat, np.concatenate(([0], stops[:-1])))
    samples, length = 10**6, float(random.choice([1, 1, 2, 5, 20, 60]))
    present = int(random.uniform(0.1, 1) * samples)
    total = int(present * length)
    feature = FeatureStats(name=f"f{number}", present=present, lookups=total)
    return TableStats(table, samples, (feature,), Curve(stops, lookups / lookups.sum() * total))


def _cluster(stored_bytes: int, random: np.random.Generator) -> Cluster:
    sizes = [int(random.choice([2, 3, 4])), *random.choice([1, 2, 2, 3], 3).tolist()]
    sizes = sizes[: int(random.choice([1, 2, 2, 2, 3, 4]))]
    while np.prod(sizes) > MOST_DEVICES:
        sizes.pop()
    rate, levels = 10 ** random.uniform(9, 11), []
    waits = random.random() < 0.4
    for number, size in enumerate(sizes):
        level = {"name": f"level{number + 1}", "size": int(size), "bandwidth": rate}
        level["per"] = str(random.choice(["device", "device", "group"]))
        if waits:
            level |= {"latency": float(random.choice([0, 1e-6, 1e-5]))}
            level |= {"message": float(random.choice([0, 1e-6]))}
        if random.random() < 0.2:
            level |= {"exchange_efficiency": 0.6, "sync_efficiency": 0.8}
        levels.append(level)
        rate *= 10 ** random.uniform(-1.3, 0.2)
    names = [str(level["name"]) for level in levels]
    data: dict[str, Any] = {"name": "drawn", "levels": levels}
    data["device"] = {"tiers": _tiers(stored_bytes, names, random)}
    if random.random() < 0.25:
        tier = {
            "name": "far",
            "capacity": 3 * stored_bytes,
            "bandwidth": 10 ** random.uniform(9, 11),
        }
        server = {"name": "server", "count": int(random.integers(1, 3)), "tiers": [tier]}
        data["servers"] = [server | {"level": str(random.choice(names))}]
        if random.random() < 0.5:
            data["servers"][0]["bandwidth"] = 10 ** random.uniform(9, 11)
    if random.random() < 0.2:
        tiers = [tier["name"] for tier in data["device"]["tiers"]]
        data["overlap"] = [some for some in (tiers, names) if len(some) > 1]
    if random.random() < 0.4:
        data["work"] = _work(random)
    return Cluster.model_validate(data, by_alias=True)


def _tiers(stored_bytes: int, levels: list[str], random: np.random.Generator) -> list[Any]:
    share = float(random.choice([0.02, 0.1, 0.4, 1.5, 10]))
    fast = {"name": "fast", "capacity": int(stored_bytes * share) + 1}
    fast |= {
        "bandwidth": 10 ** random.uniform(10, 12.5),
        "granularity": int(random.choice([1, 32])),
    }
    slow = {"name": "slow", "capacity": 2 * stored_bytes + 100}
    slow |= {"bandwidth": 10 ** random.uniform(8, 10.5)}
    slow |= {"granularity": int(random.choice([1, 64, 4096]))}
    if random.random() < 0.3:
        slow |= {"shared_by": levels[0], "capacity": 4 * stored_bytes + 100}
    return [fast, slow] if random.random() < 0.8 else [fast | {"capacity": 3 * stored_bytes}]


def _work(random: np.random.Generator) -> dict[str, Any]:
    each = {
        name: float(random.choice([0, scale * 10 ** random.uniform(-1, 1)]))
        for name, scale in {
            "step": 1e-5, "round": 1e-6, "table": 1e-6, "bundle": 1e-6, "band": 1e-6,
            "copied": 1e-6,
            "lookup": 1e-9, "distinct": 1e-8, "plain": 1e-8, "row": 1e-9, "sum": 1e-9,
        }.items()
    }  # fmt: skip
    update = {name: float(random.choice([0, 1e-9])) for name in ("sgd", "adam", "rowwise_adagrad")}
    rates = {name: 10 ** random.uniform(9, 12) for name in ("buffer", "output")}
    return each | rates | {"update": update, "hidden": float(random.choice([0, 0.5]))}


def hand_made() -> Iterator[tuple[str, Instance]]:
    """Pooled tables that are read evenly, on presets, where owners inside nodes are the best.

    And between devices and servers that are as fast as each other, where both are needed.
    """
    settings = ((30_000, 20, 8192, 128), (50_000, 20, 16384, 128), (60_000, 10, 16384, 128),
                (40_000, 8, 16384, 256), (100_000, 20, 16384, 128))  # fmt: skip
    for name, (rows, length, batch, dim) in product(("dgx-h100-2", "recshard-16"), settings):
        stats = tuple(_even(number, rows, length, dim) for number in range(16))
        cluster = Cluster.preset(name)
        found = Instance(Profile(batch, stats), cluster, frozenset(_features(cluster)))
        yield f"{name}, {rows:,} rows, {length} lookups, batch {batch:,}", found
    for devices, servers in ((2, 2), (4, 4), (16, 4)):
        level = {"name": "cluster", "size": devices, "bandwidth": "400GB/s"}
        ram = {"name": "ram", "capacity": "100GB", "bandwidth": "20GB/s"}
        rack = {"name": "server", "count": servers, "level": "cluster", "bandwidth": "400GB/s"}
        rack["tiers"] = [ram | {"name": "dram", "capacity": "1TB"}]
        data = {"name": "servers", "levels": [level], "device": {"tiers": [ram]}}
        cluster = Cluster.model_validate(data | {"servers": [rack]})
        stats = tuple(_even(number, 100_000, 20, 64) for number in range(4))
        found = Instance(Profile(4096, stats), cluster, frozenset(_features(cluster)))
        yield f"{devices} devices and {servers} servers", found


def _even(number: int, rows: int, length: int, dim: int) -> TableStats:
    table = Table(
        name=f"t{number}", num_embeddings=rows, embedding_dim=dim, features=(f"f{number}",),
        optimizer="sgd",
    )  # fmt: skip
    samples = 10**6
    feature = FeatureStats(name=f"f{number}", present=samples, lookups=samples * length)
    return TableStats(
        table, samples, (feature,), Curve(np.array([rows]), np.array([float(samples * length)]))
    )


def _features(cluster: Cluster) -> Iterator[str]:
    found = (
        bool(cluster.servers),
        any(tier.shared_by for tier in cluster.device.tiers),
        any(level.latency_s for level in cluster.levels),
        not cluster.work.is_free,
        bool(cluster.overlap),
        any(level.per == "group" for level in cluster.levels),
    )
    yield from (name for name, has in zip(FEATURES, found, strict=True) if has)


def draw_plan(instance: Instance, random: np.random.Generator) -> tuple[str, Bands]:
    """Bands of any kind, and the name of the family that the plan is of."""
    bands = {
        stats.table.name: tuple(_bands(stats.table, instance.cluster, random))
        for stats in instance.profile.stats
    }
    return family_of(bands, instance.cluster), bands


def _bands(table: Table, cluster: Cluster, random: np.random.Generator) -> Iterator[Band]:
    rows, dim = table.num_embeddings, table.embedding_dim
    cuts = random.integers(1, rows, int(random.integers(0, 3))).tolist() if rows > 1 else []
    for start, stop in pairwise([0, *sorted(set(cuts)), rows]):
        widths: list[tuple[int, int] | None] = [None]
        if dim > 1 and random.random() < 0.2:
            at = int(random.integers(1, dim))
            widths = [(0, at), (at, dim)]
        for columns in widths:
            yield draw_band(table, cluster, random, start, stop, columns)


def draw_band(
    table: Table, cluster: Cluster, random: np.random.Generator, start: int, stop: int,
    columns: tuple[int, int] | None,
) -> Band:  # fmt: skip
    """One band; every field but its rows and columns is drawn."""
    scope = str(random.choice(cluster.scopes))
    level = cluster.level_of(scope)
    group, devices = cluster.members(level), cluster.group_size(level)
    chosen = random.permutation(len(group))[: int(random.integers(1, len(group) + 1))].tolist()
    if random.random() < 0.4:
        chosen = chosen[:1]
    common = set.intersection(*({t.name for t in cluster.tiers_of(group[m])} for m in chosen))
    members: Any = tuple(chosen)
    if not common or (random.random() < 0.4 and devices):
        members, common = "all", {tier.name for tier in cluster.device.tiers}
    pooled = table.pooling != "none"
    return Band(
        start=start,
        stop=stop,
        columns=columns,
        scope=scope,
        members=members,
        order="spread" if random.random() < 0.8 else "blocks",
        offset=int(random.integers(0, 4)),
        tier=str(random.choice(sorted(common))),
        exchange="sums" if pooled and random.random() < 0.5 else "rows",
        coalesced=bool(random.random() < 0.6),
        staged=bool(random.random() < 0.3),
        sync=str(random.choice(["dense", "sparse"])),
    )


def uniform_plans(instance: Instance) -> Iterator[tuple[str, Bands]]:
    """All tables kept in one way: by all members of a group, or by one each, in turn."""
    cluster = instance.cluster
    tiers = [tier.name for tier in cluster.device.tiers]
    ways = product(cluster.scopes, ("rows", "sums"), (False, True), (False, True), ("all", "one"))
    for (scope, exchange, coalesced, staged, who), tier in product(ways, tiers):
        size, bands = cluster.group_size(cluster.level_of(scope)), {}
        for number, stats in enumerate(instance.profile.stats):
            sums = exchange == "sums" and stats.table.pooling != "none"
            bands[stats.table.name] = (
                Band(
                    start=0, stop=stats.table.num_embeddings, scope=scope, tier=tier,
                    members="all" if who == "all" else (number % size,),
                    exchange="sums" if sums else "rows", coalesced=coalesced, staged=staged,
                    sync="sparse",
                ),
            )  # fmt: skip
        yield family_of(bands, cluster), bands


def edited(
    instance: Instance, bands: Bands, edits: int, random: np.random.Generator
) -> tuple[str, Bands]:
    """The same plan with some bands drawn anew, whole or but for one field."""
    found = {name: list(each) for name, each in bands.items()}
    for _ in range(edits):
        stats = instance.profile.stats[int(random.integers(len(instance.profile.stats)))]
        here = found[stats.table.name]
        at = int(random.integers(len(here)))
        old = here[at]
        cut = [old]
        if old.rows > 1 and random.random() < 0.5:  # only a part of it
            stops = [int(s) for s in stats.curve.stops if old.start < s < old.stop]
            middle = (
                int(random.choice(stops))
                if stops
                else int(random.integers(old.start + 1, old.stop))
            )
            cut = [
                old.model_copy(update={"stop": middle}),
                old.model_copy(update={"start": middle}),
            ]
        chosen = int(random.integers(len(cut)))
        drawn = draw_band(
            stats.table, instance.cluster, random, cut[chosen].start, cut[chosen].stop, old.columns
        )
        cut[chosen] = drawn
        here[at : at + 1] = cut
    made = {name: tuple(each) for name, each in found.items()}
    return "edited", made


def family_of(bands: Bands, cluster: Cluster) -> str:
    """The kinds of exchange in a plan, with the narrowest scope of sums."""
    kinds = set()
    for band in (band for each in bands.values() for band in each):
        level = cluster.level_of(band.scope)
        inner = level < len(cluster.levels)
        if level == 0:
            kinds.add("copies")
        elif band.exchange == "sums":
            kinds.add(("staged " if band.staged else "") + "sums" + (" inside" if inner else ""))
        else:
            way = "staged" if band.staged else "coalesced" if band.coalesced else "plain"
            kinds.add(f"{way} rows" + (" inside" if inner else ""))
        if band.columns is not None:
            kinds.add("columns")
    return ", ".join(sorted(kinds))

"""Random small problems for `bounds.py`, and those of the presets that were hard once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from rowtier import (
    Band,
    Cluster,
    Curve,
    FeatureStats,
    PlanOptions,
    Profile,
    Table,
    TableStats,
)
from rowtier.band import Bands
from rowtier.plan.constraints import Constraints
from rowtier.plan.serving import seen_as
from rowtier.work import Work

MOST_DEVICES = 12
FEATURES = ("servers", "shared tier", "latencies", "work", "overlap", "per group", "pins", "hidden")
DEFAULTS = PlanOptions()
PINNED, HIDING = 0.25, 0.4  # shares of the drawn problems


@dataclass(frozen=True)
class Instance:
    """A problem, and what is special about it."""

    profile: Profile
    cluster: Cluster
    options: PlanOptions = DEFAULTS

    @property
    def features(self) -> str:
        """What is special about it, in words."""
        return ", ".join(sorted(_features(self.cluster, self.options)))


def draw_instance(random: np.random.Generator) -> Instance:
    """One to three tables on up to twelve devices; a quarter of the problems has pins."""
    profile = Profile(
        int(random.choice([1, 16, 200, 2000])),
        tuple(_table(number, random) for number in range(int(random.integers(1, 4)))),
    )
    cluster = _cluster(profile, random, _sizes(random))
    constraints = _pins(profile, cluster, random) if random.random() < PINNED else Constraints()
    dense_s = 10 ** random.uniform(-6, -3) if random.random() < HIDING else 0.0
    return Instance(profile, cluster, PlanOptions(constraints=constraints, dense_s=dense_s))


def serving(instance: Instance) -> Instance:
    """The same problem on a cluster that only reads."""
    options = instance.options.model_copy(update={"serve": True, "dense_s": 0.0})
    return replace(instance, profile=seen_as(instance.profile, options), options=options)


def _pins(profile: Profile, cluster: Cluster, random: np.random.Generator) -> Constraints:
    """A tier, a scope, a device or just one device for some tables, or one for all of them."""
    names = [stats.table.name for stats in profile.stats]
    if len(names) > 1 and random.random() < 0.15:
        return Constraints(keep_together=(tuple(names[:2]),))
    pins: dict[str, Any] = {}
    for name in names[: int(random.integers(1, len(names) + 1))]:
        ways: list[dict[str, Any]] = [
            {"tier": str(random.choice([tier.name for tier in cluster.device.tiers]))},
            {"scope": str(random.choice(cluster.scopes))},
            {"device": int(random.integers(cluster.num_devices))},
            {"never_split": True},
        ]
        pins[name] = ways[int(random.integers(len(ways)))]
    return Constraints.model_validate({"tables": pins})


def draw_tiny(random: np.random.Generator) -> Instance:
    """One or two tables of a few rows on two to four devices: small enough to be searched through.

    Without work and overlap, so that what bands ask of holders adds up.
    """
    sizes = [[2], [2], [3], [4], [2, 2]][int(random.integers(5))]
    tables = int(random.integers(1, 3)) if sizes == [2] else 1
    stats = (_table(number, random, (2, 4, 9, 12), buckets=2) for number in range(tables))
    profile = Profile(int(random.choice([1, 16, 200])), tuple(stats))
    cluster = _cluster(profile, random, sizes)
    return Instance(profile, cluster.model_copy(update={"work": Work(), "overlap": ()}))


def _table(
    number: int, random: np.random.Generator, sizes: tuple[int, ...] = (3, 10, 50, 300, 3000),
    buckets: int = 6,
) -> TableStats:  # fmt: skip
    rows = int(random.choice(sizes))
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
    stops = np.unique(np.geomspace(1, touched, buckets).round().astype(np.int64))
    lookups = np.add.reduceat(heat, np.concatenate(([0], stops[:-1])))
    samples, length = 10**6, float(random.choice([1, 1, 2, 5, 20, 60]))
    present = int(random.uniform(0.1, 1) * samples)
    total = int(present * length)
    feature = FeatureStats(name=f"f{number}", present=present, lookups=total)
    return TableStats(table, samples, (feature,), Curve(stops, lookups / lookups.sum() * total))


def _sizes(random: np.random.Generator) -> list[int]:
    sizes = [int(random.choice([2, 3, 4])), *random.choice([1, 2, 2, 3], 3).tolist()]
    sizes = sizes[: int(random.choice([1, 2, 2, 2, 3, 4]))]
    while np.prod(sizes) > MOST_DEVICES:
        sizes.pop()
    return sizes


def _cluster(profile: Profile, random: np.random.Generator, sizes: list[int]) -> Cluster:
    stored_bytes = sum(stats.table.stored_bytes for stats in profile.stats)
    row_bytes = max(stats.table.stored_row_bytes for stats in profile.stats)
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
    data["device"] = {"tiers": _tiers(stored_bytes, row_bytes, names, random)}
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


def _tiers(
    stored_bytes: int, row_bytes: int, levels: list[str], random: np.random.Generator
) -> list[Any]:
    """Fast memory for a part of the rows, but at least for one; and mostly slow memory for all."""
    share = float(random.choice([0.02, 0.1, 0.4, 1.5, 10]))
    fast = {"name": "fast", "capacity": int(stored_bytes * share) + row_bytes}
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
        found = Instance(Profile(batch, stats), cluster)
        yield f"{name}, {rows:,} rows, {length} lookups, batch {batch:,}", found
    for devices, servers in ((2, 2), (4, 4), (16, 4)):
        level = {"name": "cluster", "size": devices, "bandwidth": "400GB/s"}
        ram = {"name": "ram", "capacity": "100GB", "bandwidth": "20GB/s"}
        rack = {"name": "server", "count": servers, "level": "cluster", "bandwidth": "400GB/s"}
        rack["tiers"] = [ram | {"name": "dram", "capacity": "1TB"}]
        data = {"name": "servers", "levels": [level], "device": {"tiers": [ram]}}
        cluster = Cluster.model_validate(data | {"servers": [rack]})
        stats = tuple(_even(number, 100_000, 20, 64) for number in range(4))
        found = Instance(Profile(4096, stats), cluster)
        yield f"{devices} devices and {servers} servers", found


def hand_plans(instance: Instance) -> Iterator[Bands]:
    """What a person would try there: owners inside nodes that send sums, or a part on servers."""
    cluster, stats = instance.cluster, instance.profile.stats
    if not cluster.servers:
        node, size = cluster.levels[0].name, cluster.levels[0].size
        fast = cluster.device.tiers[0].name
        yield {
            one.table.name: (
                Band(
                    start=0, stop=one.table.num_embeddings, scope=node, members=(number % size,),
                    tier=fast, exchange="sums",
                ),
            )
            for number, one in enumerate(stats)
        }  # fmt: skip
        return
    near = Band(start=0, stop=1, scope=cluster.top, tier="ram", coalesced=True)
    far = {"members": cluster.server_members(cluster.servers[0]), "tier": "dram"}
    for share in np.linspace(0.05, 0.95, 19):
        yield {
            one.table.name: (
                near.model_copy(update={"stop": (cut := int(rows * share))}),
                near.model_copy(update={**far, "start": cut, "stop": rows}),
            )
            for one in stats
            for rows in [one.table.num_embeddings]
        }


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


def _features(cluster: Cluster, options: PlanOptions) -> Iterator[str]:
    found = (
        bool(cluster.servers),
        any(tier.shared_by for tier in cluster.device.tiers),
        any(level.latency_s for level in cluster.levels),
        not cluster.work.is_free,
        bool(cluster.overlap),
        any(level.per == "group" for level in cluster.levels),
        options.constraints.decides,
        options.dense_s * cluster.work.hidden > 0,
    )
    yield from (name for name, has in zip(FEATURES, found, strict=True) if has)

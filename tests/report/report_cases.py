"""Small plans for the tests of reports."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from rowtier.cluster import Cluster
from rowtier.plan.make import make_plan
from rowtier.plan.plan import Plan
from rowtier.profile.curve import Curve, bucket_stops
from rowtier.profile.profile import FeatureStats, Profile, TableStats
from rowtier.tables import Table

EVIL = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)>&\"'=1+1"


def cluster(nodes: int = 2, devices: int = 2, **hbm: Any) -> Cluster:
    link = {"latency": "5us"}
    return Cluster.model_validate(
        {
            "name": "small",
            "levels": [
                {"name": "node", "size": devices, "bandwidth": "300GB/s", **link},
                {"name": "cluster", "size": nodes, "bandwidth": "25GB/s", **link},
            ],
            "device": {
                "tiers": [
                    {"name": "hbm", "capacity": "16MiB", "bandwidth": "1500GB/s"} | hbm,
                    {"name": "dram", "capacity": "64GiB", "bandwidth": "16GB/s"},
                ]
            },
        }
    )


def stats(name: str, rows: int, dim: int = 16, pooling: int = 4) -> TableStats:
    stops = bucket_stops(rows)
    heat = 1 / (stops + 10.0)
    lookups = pooling * 10**6
    mass = heat * (stops - [0, *stops[:-1]])
    table = Table(name=name, num_embeddings=rows, embedding_dim=dim, features=(name,))
    feature = FeatureStats(name=name, present=10**6, lookups=lookups)
    return TableStats(table, 10**6, (feature,), Curve(stops, lookups * mass / mass.sum()))


def profile(*names: str, rows: int = 200_000) -> Profile:
    tables = [stats(name, rows // (1 + i % 7) + i) for i, name in enumerate(names)]
    return Profile(512, tuple(tables))


@lru_cache
def plan(method: str = "size-lookup", names: tuple[str, ...] = ("user", "item", EVIL)) -> Plan:
    return make_plan(profile(*names), cluster(), method)

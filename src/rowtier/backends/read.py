"""A TorchRec `ShardingPlan` as our Plan, so that every tool works on it.

    table_wise       one member
    row_wise         blocks of row ids over all devices, partial sums
    table_row_wise   blocks over the devices of one host, sums staged
    column_wise      a band per run of columns
    grid_shard       a band per run of columns, blocks over the devices of a host, sums staged
    data_parallel    a copy on every device, dense sync

Kernels are tiers: `fused_uvm` reads the second tier. `fused_uvm_caching` is taken to hold the
hottest rows, as many as its load factor says, in the first tier and the rest in the second.
That flatters it twice: its cache has to find out what is hot, and TorchRec keeps the cached
rows in host memory as well. Owners of rows cut into blocks are exact without a cache; with
one, hot and cold rows are cut into blocks of ids each on their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rowtier.backends.said import ORIGIN, load_factor, said_by
from rowtier.backends.topology import cluster_for
from rowtier.band import Band
from rowtier.cluster import DEVICE, Cluster
from rowtier.errors import MismatchError, UserError
from rowtier.plan.plan import Plan
from rowtier.profile.curve import Curve
from rowtier.profile.profile import FeatureStats, Profile, TableStats
from rowtier.profile.to_torchrec import ONLY_ROWS
from rowtier.tables import Table, Tables

CACHING = "fused_uvm_caching"
SLOW = "fused_uvm"
STAGED = ("table_row_wise", "grid_shard")
READABLE = ("table_wise", "column_wise", "table_column_wise", "row_wise", "data_parallel", *STAGED)
Shard = tuple[int, int, int]  # first row, rows, rank


def from_plan(
    sharding_plan: Any,
    tables: Tables,
    profile: Profile | None = None,
    cluster: Cluster | None = None,
    method: str = "torchrec",
) -> Plan:
    """Our form of a TorchRec plan; kernels, load factors and module paths stay in `origin`.

    Without a profile every row counts as equally hot, with one lookup a sample; without a
    cluster the devices are what TorchRec assumes, in nodes of eight.
    """
    statistics = even_heat(tables) if profile is None else profile
    _check_tables(tables, statistics.tables)
    cut = {n: (path, s) for path, part in sharding_plan.plan.items() for n, s in part.items()}
    missing = [table.name for table in tables if table.name not in cut]
    unknown = [name for name in cut if name not in {t.name for t in tables}]
    if missing or unknown:
        raise MismatchError(
            f"the sharding plan and the tables differ: {', '.join(missing[:3]) or 'nothing'} is "
            f"not in the plan, {', '.join(unknown[:3]) or 'nothing'} is not among the tables; "
            "use the tables of the model that the plan is for"
        )
    devices = {r: d for _, s in cut.values() for r, d in _devices(s).items()}
    machine = cluster_for(1 + _last_rank(cut, devices)) if cluster is None else cluster
    outside = [rank for rank in devices if rank >= machine.num_devices]
    if outside:
        raise MismatchError(
            f"the sharding plan uses rank {max(outside)} and cluster {machine.name!r} has "
            f"{machine.num_devices} devices: give the cluster that the plan is for"
        )
    said = {t.name: said_by(cut[t.name][1], cut[t.name][0], t.name) for t in tables}
    known = statistics.tables  # which say what the model does not
    bands = {t.name: _bands(t, cut[t.name][1], said[t.name], machine) for t in known}
    plan = Plan.build(method, statistics, machine, bands)
    origin = {"devices": {str(rank): devices[rank] for rank in sorted(devices)}, "tables": said}
    return Plan(
        plan.method, plan.bands, plan.cluster, plan.profile, plan.made_for, plan.order,
        origin={ORIGIN: origin}, vocabularies=plan.vocabularies,
    )  # fmt: skip


def _bands(table: Table, sharding: Any, said: dict[str, Any], cluster: Cluster) -> tuple[Band, ...]:
    kind = sharding.sharding_type
    if kind not in READABLE:
        raise UserError(
            f"table {table.name!r} is sharded by {kind!r}, which rowtier cannot read; "
            f"it reads {', '.join(READABLE)}"
        )
    whole = Band(
        start=0,
        stop=table.num_embeddings,
        scope=cluster.top,
        tier=cluster.device.tiers[0].name,
        order="blocks",
    )
    if kind == "data_parallel":
        return (whole.model_copy(update={"scope": DEVICE, "order": "spread"}),)
    if table.weights == "learned" and cluster.num_devices > 1:
        raise UserError(
            f"table {table.name!r} is sharded by {kind!r}: {ONLY_ROWS}; shard it like that, or "
            "profile it with `weights: given` in tables.yaml"
        )
    sums = {"exchange": "sums", "staged": kind in STAGED} if "sums" in table.exchanges else {}
    found: list[Band] = []
    for columns, shards in _by_columns(sharding, table).items():
        _check_even(table, shards)
        place = {
            "columns": None if columns == (0, table.embedding_dim) else columns,
            "members": tuple(rank for _, _, rank in shards),
            "order": "blocks" if len(shards) > 1 else "spread",
        }
        found += _in_tiers(whole.model_copy(update={**sums, **place}), said, cluster)
    return tuple(found)


def _in_tiers(band: Band, said: dict[str, Any], cluster: Cluster) -> list[Band]:
    """A band in the memory that its kernel reads; cut in two if the kernel caches."""
    kernel, tiers = said["compute_kernel"], cluster.device.tiers
    if len(tiers) == 1 or kernel not in (SLOW, CACHING):
        return [band]
    slow = tiers[1].name
    if kernel == SLOW:
        return [band.model_copy(update={"tier": slow})]
    hot = cached_rows(band.stop, load_factor(said))
    cold = band.model_copy(update={"start": hot, "tier": slow})
    return [band.model_copy(update={"stop": hot}), cold] if hot else [cold]


def cached_rows(rows: int, share: float) -> int:
    """Rows that a cache of a share holds: never all of them."""
    return min(round(share * rows), rows - 1)


def _by_columns(sharding: Any, table: Table) -> dict[tuple[int, int], list[Shard]]:
    shards = getattr(sharding.sharding_spec, "shards", None)
    if shards is None:
        raise UserError(
            f"table {table.name!r}: a {sharding.sharding_type} sharding needs an "
            "EnumerableShardingSpec that lists its shards; make the plan with a planner or with "
            "construct_module_sharding_plan"
        )
    found: dict[tuple[int, int], list[Shard]] = {}
    for shard in shards:
        (row, column), (rows, columns) = shard.shard_offsets, shard.shard_sizes
        run = found.setdefault((column, column + columns), [])
        run.append((row, rows, shard.placement.rank()))
    return found


def _check_even(table: Table, shards: list[Shard]) -> None:
    """TorchRec's kernels find a row's owner by division: other blocks train wrong rows."""
    block = -(-table.num_embeddings // len(shards))
    for position, (_, rows, rank) in enumerate(shards):
        even = min(max(table.num_embeddings - position * block, 0), block)
        if rows != even:
            raise UserError(
                f"table {table.name!r}: rank {rank} holds {rows} rows and an even cut gives it "
                f"{even}; TorchRec trains uneven row-wise blocks wrong, so cut evenly"
            )


def _devices(sharding: Any) -> dict[int, str]:
    spec = sharding.sharding_spec
    placements = [] if spec is None else [shard.placement for shard in spec.shards]
    return {place.rank(): str(place.device()) for place in placements}


def _last_rank(cut: dict[str, tuple[str, Any]], devices: dict[int, str]) -> int:
    listed = [rank for _, sharding in cut.values() for rank in sharding.ranks or ()]
    return max([*devices, *listed], default=0)


def _check_tables(tables: Tables, known: Tables) -> None:
    if [t.name for t in tables] != [t.name for t in known]:
        extra = sorted({t.name for t in tables} ^ {t.name for t in known})
        differ = ", ".join(extra[:3]) or "their order"
        raise MismatchError(
            f"the tables and the profile differ ({differ}): give the profile of this model"
        )
    for mine, theirs in zip(tables, known, strict=True):
        shape = (mine.num_embeddings, mine.embedding_dim, mine.pooling)
        if shape != (theirs.num_embeddings, theirs.embedding_dim, theirs.pooling):
            raise MismatchError(
                f"table {mine.name!r} has {mine.num_embeddings} x {mine.embedding_dim} "
                f"({mine.pooling}) in the model and {theirs.num_embeddings} x "
                f"{theirs.embedding_dim} ({theirs.pooling}) in the profile: profile this model"
            )


def even_heat(tables: Tables) -> Profile:
    """Statistics of one lookup a sample in every feature, on every row alike."""
    stats = []
    for table in tables:
        features = tuple(
            FeatureStats(name=name, present=10**6, lookups=10**6) for name in table.features
        )
        curve = Curve(np.array([table.num_embeddings]), np.array([1e6 * len(features)]))
        stats.append(TableStats(table, 10**6, features, curve))
    return Profile(tables.batch_size, tuple(stats))

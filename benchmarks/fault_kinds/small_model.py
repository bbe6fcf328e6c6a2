"""A small model to save, whose every number can say which save it is of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rowtier import (
    Band,
    Cluster,
    Device,
    FeatureStats,
    Level,
    Plan,
    Profile,
    RowCounts,
    Table,
    TableStats,
    Tier,
)  # fmt: skip
from rowtier.torch import ShardedEmbeddings, load_checkpoint, save_checkpoint


def plan_of(rows: int, dim: int, ranks: int = 1) -> Plan:
    """Two tables on a number of ranks; row-wise, in one memory."""
    tier = Tier(name="ram", capacity_bytes=2**40, bandwidth_bytes_per_s=1e9)
    level = Level(name="cluster", size=ranks, bandwidth_bytes_per_s=1e9)
    cluster = Cluster(name="one", levels=(level,), device=Device(tiers=(tier,)))
    stats = []
    for name in ("a", "b"):
        table = Table(
            name=name, num_embeddings=rows, embedding_dim=dim, features=(name,), optimizer="adagrad"
        )
        counts = RowCounts.from_dense(np.ones(rows, dtype=np.int64))
        feature = FeatureStats(name=name, present=100, lookups=rows)
        stats.append(TableStats.counted(table, 100, (feature,), counts))
    band = Band(start=0, stop=rows, scope=cluster.scopes[-1], tier="ram")
    bands = {"a": (band,), "b": (band,)}
    return Plan.build("drawn", Profile(4, tuple(stats)), cluster, bands)


def fill(embeddings: ShardedEmbeddings, number: int) -> None:
    """Every number of weights and state is the number of the save."""
    embeddings.engine.step_number = number
    for shard in embeddings.engine.shards.values():
        shard.weights[:] = number
        shard.state["sum"][:] = number


def parts_of(embeddings: ShardedEmbeddings, number: int) -> dict[str, Any]:
    """What is saved."""
    return {"model": embeddings, "rows": embeddings.optimizer, "number": number}


def save(folder: Path, embeddings: ShardedEmbeddings, number: int) -> None:
    """Save a checkpoint that is recognisable all through."""
    fill(embeddings, number)
    save_checkpoint(folder, **parts_of(embeddings, number))


def load(folder: Path, embeddings: ShardedEmbeddings) -> int:
    """The number of the save, which all of it must have."""
    fill(embeddings, -1)
    number = int(load_checkpoint(folder, **parts_of(embeddings, 0))["number"])
    for shard in embeddings.engine.shards.values():
        assert (shard.weights == number).all()
        assert (shard.state["sum"] == number).all()
    assert embeddings.engine.step_number == number
    return number


EVERY = 16  # a row changes once in so many saves


def fill_some(embeddings: ShardedEmbeddings, number: int) -> None:
    """What training does between two saves: some rows get the number of the next one."""
    engine = embeddings.engine
    engine.step_number = number
    for shard in engine.shards.values():
        rows = engine.rows_of(shard)
        mine = np.flatnonzero(rows % EVERY == number % EVERY)
        shard.weights[mine] = number
        shard.state["sum"][mine] = number
        engine.mark_changed(shard.piece.table.name, rows[mine])


def fill_all(embeddings: ShardedEmbeddings, number: int) -> None:
    """Every row as if all saves up to a number had been made."""
    for before in range(number - EVERY + 1, number + 1):
        fill_some(embeddings, before)


def save_some(folder: Path, embeddings: ShardedEmbeddings, number: int, *, wait: bool) -> None:
    """Save the rows that got this number; others change behind the save, which does not see it."""
    parts = parts_of(embeddings, number)
    made = save_checkpoint(folder, delta_of=True, wait=wait, **parts)  # type: ignore[call-overload]
    fill_some(embeddings, number + 1)
    if not wait:
        made.wait()


def load_some(folder: Path, embeddings: ShardedEmbeddings) -> int:
    """The number of the save, which every row must fit to."""
    fill(embeddings, -1)
    number = int(load_checkpoint(folder, **parts_of(embeddings, 0))["number"])
    engine = embeddings.engine
    for shard in engine.shards.values():
        expected = (number - (number - engine.rows_of(shard)) % EVERY)[:, None]
        assert (shard.weights == expected).all()
        assert (shard.state["sum"] == expected).all()
    assert engine.step_number == number
    return number

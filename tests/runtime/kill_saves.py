"""Saves in a loop, is killed in the middle, looks at what is left; again and again.

    python kill_saves.py FOLDER TIMES SEED

Every round forks a process that loads the checkpoint and saves ever newer ones, kills it
(−9) after a random time, and loads. Prints one JSON object; any save that is not whole ends it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch

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

ROWS, DIM = 20_000, 16


def module() -> ShardedEmbeddings:
    """Two tables, a few MB with their state."""
    tier = Tier(name="ram", capacity_bytes=2**40, bandwidth_bytes_per_s=1e9)
    level = Level(name="cluster", size=1, bandwidth_bytes_per_s=1e9)
    cluster = Cluster(name="one", levels=(level,), device=Device(tiers=(tier,)))
    stats = []
    for name in ("a", "b"):
        table = Table(
            name=name, num_embeddings=ROWS, embedding_dim=DIM, features=(name,), optimizer="adagrad"
        )
        counts = RowCounts.from_dense(np.ones(ROWS, dtype=np.int64))
        feature = FeatureStats(name=name, present=1000, lookups=ROWS)
        stats.append(TableStats.counted(table, 1000, (feature,), counts))
    band = Band(start=0, stop=ROWS, scope=cluster.scopes[-1], tier="ram")
    bands = {"a": (band,), "b": (band,)}
    return ShardedEmbeddings(Plan.build("drawn", Profile(4, tuple(stats)), cluster, bands))


def fill(embeddings: ShardedEmbeddings, number: int) -> None:
    """Every number of weights and state is the number of the save."""
    embeddings.engine.step_number = number
    for shard in embeddings.engine.shards.values():
        shard.weights[:] = number
        shard.state["sum"][:] = number


def save(folder: Path, embeddings: ShardedEmbeddings, number: int) -> None:
    """Save a checkpoint that is recognisable all through."""
    fill(embeddings, number)
    save_checkpoint(folder, model=embeddings, rows=embeddings.optimizer, number=number)


def load(folder: Path, embeddings: ShardedEmbeddings) -> int:
    """The number of the save, which all of it must have."""
    fill(embeddings, -1)
    parts = {"model": embeddings, "rows": embeddings.optimizer, "number": 0}
    number = int(load_checkpoint(folder, **parts)["number"])
    for shard in embeddings.engine.shards.values():
        assert (shard.weights == number).all()
        assert (shard.state["sum"] == number).all()
    assert embeddings.engine.step_number == number
    return number


def killed_while_saving(folder: Path, embeddings: ShardedEmbeddings, delay: float) -> int:
    """Save in another process until it is killed; the last save that it completed."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        number = load(folder, embeddings)
        while True:
            number += 1
            save(folder, embeddings, number)
            os.write(writes, number.to_bytes(8, "little"))
    os.close(writes)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(reads, "rb") as said:
        done = said.read()
    return int.from_bytes(done[-8:], "little") if done else 0


def main(folder: Path, times: int, seed: int) -> dict[str, int]:
    """Kill many times; how often the old and the new save was there, and half a one beside it."""
    torch.set_num_threads(1)
    embeddings, dice = module(), random.Random(seed)
    save(folder, embeddings, 1)
    begin = time.perf_counter()
    save(folder, embeddings, 2)
    each_s = time.perf_counter() - begin
    last, found = 2, {"kills": 0, "old": 0, "new": 0, "halves_beside": 0}
    for _ in range(times):
        done = killed_while_saving(folder, embeddings, dice.uniform(0, 8 * each_s))
        before = done or last
        listed = json.loads((folder / "current.json").read_text())["saves"]
        found["halves_beside"] += any(
            path.name not in listed for path in folder.glob("save-*") if path.is_dir()
        )
        last = load(folder, embeddings)
        assert last in (before, before + 1), (before, last)
        found["kills"] += 1
        found["old" if last == before else "new"] += 1
    return found | {"last": last}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))

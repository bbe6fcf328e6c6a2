"""Migrates one large table in RAM in a process of its own; prints what memory that took."""

import threading
import time
from pathlib import Path

import numpy as np
from strategies import counted

from rowtier import Band, Cluster, Plan, Profile, Table
from rowtier.torch import ShardedEmbeddings

ROWS, DIM = 150_000, 64  # 110 MiB with Adam's state
TABLE = Table(name="a", num_embeddings=ROWS, embedding_dim=DIM, features=("a",), optimizer="adam")


def plan_of(seed: int, cut: int) -> Plan:
    """Two bands, rows in any order."""
    cluster = Cluster.local(1)
    stats = counted(TABLE, np.random.default_rng(seed).integers(0, 9, ROWS))
    scopes = cluster.scopes
    bands = (
        Band(start=0, stop=cut, scope=scopes[0], tier="ram"),
        Band(start=cut, stop=ROWS, scope=scopes[-1], tier="ram"),
    )
    return Plan.build("made", Profile(4, (stats,)), cluster, {"a": bands})


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


old, new = plan_of(1, 100), plan_of(2, ROWS // 2)
module = ShardedEmbeddings(old)
for shard in module.engine.run_shards.values():
    for number, values in enumerate(shard.state.values()):
        values[:] = np.arange(len(values))[:, None] + number
module.migrate(plan_of(3, 5000), extra_memory="8MiB")  # kernels are compiled, libraries loaded
weights = module.state_dict()["embedding_bags.a.weight"].clone()
before, peak, done = resident(), 0, threading.Event()


def watch() -> None:
    """Look often."""
    global peak
    while not done.is_set():
        peak = max(peak, resident())
        time.sleep(0.001)


thread = threading.Thread(target=watch)
thread.start()
found = module.migrate(new, extra_memory="8MiB")
done.set()
thread.join()
assert (module.state_dict()["embedding_bags.a.weight"] == weights).all()
print(f"rounds {found.rounds} peak {(peak - before) >> 20} MiB of {ROWS * DIM * 12 >> 20}")

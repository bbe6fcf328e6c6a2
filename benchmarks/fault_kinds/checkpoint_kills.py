"""Kills (−9) a process that saves checkpoints, at any moment, and looks at what is left.

Every round forks a process that loads the checkpoint and saves one after the other, kills it
after a random time, and loads: all of what is loaded must be of one save, the last that the process
completed or the one it was writing. Then this process saves, and nothing else may be left.

    python benchmarks/fault_kinds/checkpoint_kills.py COUNT SEED
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from fault_kinds._tables import load, plan_of, save
from rowtier.errors import RowtierError
from rowtier.torch import ShardedEmbeddings

ROWS, DIM = 8_000, 16


def run(
    count: int, seed: int = 0, progress: Callable[[float], None] = lambda _: None
) -> dict[str, Any]:
    """Kill so many times; how often a checkpoint was lost, and what was left in the folder."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a process that has threads cannot be forked safely
    try:
        with tempfile.TemporaryDirectory(prefix="rowtier-kills-") as folder:
            return _killed(Path(folder) / "run", count, random.Random(seed), progress)
    finally:
        torch.set_num_threads(threads)


def _killed(
    folder: Path, count: int, dice: random.Random, progress: Callable[[float], None]
) -> dict[str, Any]:
    embeddings = ShardedEmbeddings(plan_of(ROWS, DIM))
    save(folder, embeddings, 1)
    began = time.perf_counter()
    save(folder, embeddings, 2)
    each_s, last = time.perf_counter() - began, 2
    found = {"kills": 0, "kills_lost": 0, "old": 0, "new": 0, "halves_beside": 0}
    leftovers = 0
    for number in range(count):
        done = _killed_while_saving(folder, embeddings, dice.uniform(0, 3 * each_s))
        before = done or last
        found["kills"] += 1
        found["halves_beside"] += len(_extra(folder)) > 0
        try:
            last = load(folder, embeddings)
            found["old" if last == before else "new"] += 1
            found["kills_lost"] += last not in (before, before + 1)
        except (AssertionError, RowtierError):
            found["kills_lost"] += 1
        last += 1
        save(folder, embeddings, last)
        leftovers += len(_extra(folder))
        progress((number + 1) / count)
    return found | {"leftovers_after_next_run": leftovers}


def _extra(folder: Path) -> list[str]:
    """What is in the folder beside the checkpoint."""
    kept = json.loads((folder / "current.json").read_text())["saves"]
    return [path.name for path in folder.iterdir() if path.name not in ("current.json", *kept)]


def _killed_while_saving(folder: Path, embeddings: ShardedEmbeddings, delay_s: float) -> int:
    """Save in another process until it is killed; the last save that it completed, or 0."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            number = load(folder, embeddings)
            while True:
                number += 1
                save(folder, embeddings, number)
                os.write(writes, number.to_bytes(8, "little"))
        finally:
            os._exit(1)
    os.close(writes)
    time.sleep(delay_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(reads, "rb") as said:
        done = said.read()
    return int.from_bytes(done[-8:], "little") if done else 0


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))

"""Kills (−9) a process that saves checkpoints, at any moment, and looks at what is left.

Every round forks a process that loads the checkpoint and saves one after the other, kills it a
random time after its load (every second round: after files of a new save are seen, so that a slow
machine kills it while it writes, too), and loads: all of what is loaded must be of one save, the
last that the process completed or the one it was writing. Then this process saves, and nothing else
may be left.

In turns saves are whole, hold what changed since the one before, or do so behind training.

    python benchmarks/fault_kinds/checkpoint_kills.py COUNT SEED [whole|delta|behind]
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from fault_kinds import small_model
from fault_kinds.small_model import plan_of
from rowtier.errors import RowtierError
from rowtier.torch import ShardedEmbeddings

ROWS, DIM = 8_000, 16
SAVES = ("whole", "delta", "behind")
LONGEST_S = 10.0  # for a save to begin


@dataclass(frozen=True)
class _Saved:
    """One way to save, and a module that is saved."""

    kind: str
    embeddings: ShardedEmbeddings

    def fill(self, number: int) -> None:
        """The rows as the save of a number has them, whatever they are now."""
        if self.kind != "whole":
            small_model.fill_all(self.embeddings, number)

    def save(self, folder: Path, number: int) -> None:
        if self.kind == "whole":
            small_model.save(folder, self.embeddings, number)
        else:
            small_model.save_some(folder, self.embeddings, number, wait=self.kind == "delta")

    def load(self, folder: Path) -> int:
        """The number of the save that is there; the next one is prepared."""
        if self.kind == "whole":
            return small_model.load(folder, self.embeddings)
        number = small_model.load_some(folder, self.embeddings)
        small_model.fill_some(self.embeddings, number + 1)
        return number


def run(
    count: int,
    seed: int = 0,
    progress: Callable[[float], None] = lambda _: None,
    kinds: Sequence[str] = SAVES,
) -> dict[str, Any]:
    """Kill so many times; how often a checkpoint was lost, and what was left in the folder."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a process that has threads cannot be forked safely
    found: dict[str, Any] = {}
    try:
        for at, kind in enumerate(kinds):
            share = count // len(kinds) + (at < count % len(kinds))
            saved = _Saved(kind, ShardedEmbeddings(plan_of(ROWS, DIM), deltas=kind != "whole"))
            with tempfile.TemporaryDirectory(prefix="rowtier-kills-") as folder:
                got = _killed(Path(folder) / "run", share, random.Random(seed), saved)
            found = {key: found.get(key, 0) + value for key, value in got.items()}
            progress((at + 1) / len(kinds))
    finally:
        torch.set_num_threads(threads)
    return found


def _killed(folder: Path, count: int, dice: random.Random, saved: _Saved) -> dict[str, Any]:
    saved.fill(1)
    saved.save(folder, 1)
    began = time.perf_counter()
    saved.save(folder, 2)
    each_s, last = time.perf_counter() - began, 2
    found = {"kills": 0, "kills_lost": 0, "old": 0, "new": 0, "halves_beside": 0}
    leftovers = 0
    for turn in range(count):
        wait_s = dice.uniform(0, 3 * each_s)
        if turn % 2:
            wait_s /= 6  # of a save that has begun
        before = _killed_while_saving(folder, saved, wait_s, begun=turn % 2 == 1)
        found["kills"] += 1
        found["halves_beside"] += len(_extra(folder)) > 0
        try:
            last = saved.load(folder)
            found["old" if last == before else "new"] += 1
            found["kills_lost"] += last not in (before, before + 1)
        except (AssertionError, RowtierError):
            found["kills_lost"] += 1
            saved.fill(last + 1)
        last += 1
        saved.save(folder, last)
        leftovers += len(_extra(folder))
    return found | {"leftovers_after_next_run": leftovers}


def _extra(folder: Path) -> list[str]:
    """What is in the folder beside the checkpoint."""
    kept = json.loads((folder / "current.json").read_text())["saves"]
    return [path.name for path in folder.iterdir() if path.name not in ("current.json", *kept)]


def _wait_for_a_save(folder: Path) -> None:
    """Return when another process has begun to write a save, or has long had the time to."""
    until = time.perf_counter() + LONGEST_S
    while time.perf_counter() < until and not _extra(folder):
        pass


def _killed_while_saving(folder: Path, saved: _Saved, delay_s: float, *, begun: bool) -> int:
    """Save in another process until it is killed; the last save that it loaded or completed."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            number = saved.load(folder)
            while True:
                os.write(writes, number.to_bytes(8, "little"))
                number += 1
                saved.save(folder, number)
        finally:
            os._exit(1)
    os.close(writes)
    with os.fdopen(reads, "rb") as said:
        done = said.read(8)  # it has loaded, and saves from here on
        if begun:
            _wait_for_a_save(folder)
        time.sleep(delay_s)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        done += said.read()
    return int.from_bytes(done[-8:], "little")


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]), kinds=sys.argv[3:] or SAVES)))

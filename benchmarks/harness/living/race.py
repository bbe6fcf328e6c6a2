"""One rank of `contenders.py`: three of them train the same batches in turns.

A turn is ten steps, and ends when its pages are written: written behind the next contender's steps
they would slow that one down. The order of turns is another each time.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import torch

from harness.living.streams import Stream
from rowtier import Plan
from rowtier.torch import SGD, Autopilot, Disk, ShardedEmbeddings

STATIC, PILOT, ORACLE = "first plan", "autopilot", "oracle"
CONTENDERS = (STATIC, PILOT, ORACLE)
TURN = 10  # steps; all is compiled in a first turn, which is not counted
ORDERS = tuple(permutations(CONTENDERS))
Batch = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Race:
    """What all ranks are told."""

    stream: Stream
    plan: Plan
    replanned: tuple[Plan, ...]  # the oracle's at every check
    batch_size: int
    steps: int
    every: int
    heat_counts: int
    buffer_bytes: int  # of a rank, for pages of the disk


def raced(rank: int, size: int, race: Race) -> dict[str, Any]:
    """Train; seconds of every contender on this rank, and what the Autopilot decided."""
    with tempfile.TemporaryDirectory() as folder:
        modules = {
            name: ShardedEmbeddings(
                race.plan, SGD(lr=0.01), tiers={"ssd": Disk(Path(folder), race.buffer_bytes)},
                heat_counts=race.heat_counts if name == PILOT else None,
            )
            for name in CONTENDERS
        }  # fmt: skip
        for module in modules.values():
            _train(module, _batches(rank, size, race, 0))
        # It plans beside training, and has half of the time from one check to the next.
        pilot = Autopilot(modules[PILOT], every=race.every, horizon=race.steps, due=race.every // 2)
        found = _run(rank, size, race, modules, pilot)
        del pilot  # ends the process that planned
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {**found, "planning_cpu_s": used.ru_utime + used.ru_stime}


def _run(
    rank: int, size: int, race: Race, modules: dict[str, ShardedEmbeddings], pilot: Autopilot
) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    cpu, checks = dict.fromkeys(CONTENDERS, 0.0), _Timed(pilot)
    for turn in range(race.steps // TURN):
        batches, done = _batches(rank, size, race, turn * TURN), (turn + 1) * TURN
        for name in ORDERS[turn % len(ORDERS)]:
            began, cpu_began, before = time.perf_counter(), time.process_time(), checks.seconds
            _train(modules[name], batches, checks if name == PILOT else None)
            seconds[name].append(time.perf_counter() - began - (checks.seconds - before))
            cpu[name] += time.process_time() - cpu_began
        if done % race.every == 0:
            modules[ORACLE].migrate(race.replanned[done // race.every - 1])
    return {
        "turns_s": seconds,
        "checks_s": checks.seconds,
        "cpu_s": cpu,
        "decisions": [decision.to_dict() for decision in pilot.decisions],
        "moved_bytes": sum(move.moved_bytes + move.within_bytes for move in pilot.migrations),
        "move_s": sum(move.seconds for move in pilot.migrations),
    }


class _Timed:
    """An Autopilot, and the seconds that its own calls took."""

    def __init__(self, pilot: Autopilot):
        self._pilot, self.seconds = pilot, 0.0

    def step(self) -> None:
        began = time.perf_counter()
        self._pilot.step()
        self.seconds += time.perf_counter() - began


def _batches(rank: int, size: int, race: Race, first: int) -> list[Batch]:
    """This rank's part of the steps of a turn."""
    found = []
    for number in range(first, first + TURN):
        start = race.stream.first + (number * size + rank) * race.batch_size
        part = race.stream.part(start, start + race.batch_size)
        found.append({k: tuple(map(torch.from_numpy, bags)) for k, bags in part.items()})
    return found


def _train(
    module: ShardedEmbeddings, batches: Sequence[Batch], pilot: _Timed | None = None
) -> None:
    for batch in batches:
        outputs = list(module(batch).values())
        torch.cat(outputs, dim=1).sum().backward()
        module.optimizer.step()
        if pilot is not None:
            pilot.step()
    for pages in getattr(module.engine.memories["ssd"], "pages", {}).values():
        pages.close()

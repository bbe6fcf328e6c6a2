"""One rank of `contenders.py`: three of them train the same batches in turns."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from living_parts.streams import Stream
from rowtier import Plan
from rowtier.torch import SGD, Autopilot, Disk, ShardedEmbeddings

STATIC, PILOT, ORACLE = "first plan", "autopilot", "oracle"
CONTENDERS = (STATIC, PILOT, ORACLE)
_WARM = 5  # steps that compile, and are not counted


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
        # It plans beside training, and has half of the time from one check to the next.
        pilot = Autopilot(modules[PILOT], every=race.every, horizon=race.steps, due=race.every // 2)
        return _run(rank, size, race, modules, pilot)


def _run(
    rank: int, size: int, race: Race, modules: dict[str, ShardedEmbeddings], pilot: Autopilot
) -> dict[str, Any]:
    seconds, cpu = (dict.fromkeys(CONTENDERS, 0.0) for _ in range(2))
    checks = 0.0
    first = race.stream.first
    for number in range(-_WARM, race.steps):
        start = first + (max(number, 0) * size + rank) * race.batch_size
        part = race.stream.part(start, start + race.batch_size)
        batch = {k: tuple(map(torch.from_numpy, bags)) for k, bags in part.items()}
        for name in np.roll(CONTENDERS, number).tolist():  # the last one finds caches warm
            took_s, cpu_s = _step(modules[name], batch)
            if name == PILOT and number >= 0:
                began = time.perf_counter()
                pilot.step()
                checks += time.perf_counter() - began
            if number >= 0:
                seconds[name] += took_s
                cpu[name] += cpu_s
        if number >= 0 and (number + 1) % race.every == 0:
            modules[ORACLE].migrate(race.replanned[(number + 1) // race.every - 1])
    seconds[PILOT] += checks
    return {
        "seconds": seconds,
        "cpu_s": cpu,
        "checks_s": checks,
        "decisions": [decision.to_dict() for decision in pilot.decisions],
        "moved_bytes": sum(move.moved_bytes + move.within_bytes for move in pilot.migrations),
        "move_s": sum(move.seconds for move in pilot.migrations),
    }


def _step(module: ShardedEmbeddings, batch: dict[str, Any]) -> tuple[float, float]:
    """Seconds by the clock, and of this process's processor time."""
    began, cpu_began = time.perf_counter(), time.process_time()
    outputs = list(module(batch).values())
    torch.cat(outputs, dim=1).sum().backward()
    module.optimizer.step()
    return time.perf_counter() - began, time.process_time() - cpu_began

"""Few items: every way to place them, as far as it can still be better than the best."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rowtier.jit import compiled
from rowtier.plan.recshard.fill import fill_devices, items_of, least_time, longest_of
from rowtier.plan.recshard.heat import Floats, Heat, Ints
from rowtier.plan.recshard.machine import Machine

_NODES = 20_000


class Tried(NamedTuple):
    """The best placement of all, and the least seconds if rows could be cut anywhere."""

    owner: Ints
    seconds: float
    least: float


def try_all(heat: Heat, machine: Machine, order: Ints, seconds: float) -> Tried | None:
    """Look for something better than `seconds`; None if there are too many ways to try them all.

    `owner` is empty if there is nothing better.
    """
    held = heat.rows * heat.row_bytes
    owner, seconds, least, done = _try_all(
        heat, held, machine.sizes, machine.costs, machine.devices, order, seconds, _NODES
    )
    return Tried(owner, seconds, min(least, seconds)) if done else None


@compiled
def _try_all(
    heat: Heat, held: Ints, sizes: Ints, costs: Floats, devices: int, order: Ints, longest: float,
    nodes: int,
) -> tuple[Ints, float, float, bool]:  # fmt: skip
    """Depth first. Devices are alike, so one is opened only when all before it are in use."""
    count, room, least = len(order), 0, np.inf
    for size in sizes:
        room += size
    best = np.empty(0, dtype=np.int64)
    owner, used = np.empty(count, dtype=np.int64), np.zeros(devices, dtype=np.int64)
    for item in range(count):
        owner[item] = -1
    times = np.zeros((count + 1, devices))  # of the devices before each depth
    opened = np.zeros(count + 1, dtype=np.int64)
    depth = 0
    while depth >= 0:
        if depth == count:
            least = min(least, longest_of(times[depth]))
            seconds = longest_of(fill_devices(heat, owner, sizes, costs, devices)[0])
            if seconds < longest:
                longest, best = seconds, owner.copy()
            depth -= 1
            continue
        item = order[depth]
        if owner[item] >= 0:
            used[owner[item]] -= held[item]
        owner[item] += 1
        device = owner[item]
        if device > opened[depth] or device == devices:
            owner[item] = -1
            depth -= 1
            continue
        used[device] += held[item]
        if used[device] > room:
            continue
        nodes -= 1
        if nodes < 0:
            return best, longest, least, False
        time = least_time(heat, items_of(owner, device), sizes, costs)
        if time < longest * (1 - 1e-12):
            for other in range(devices):
                times[depth + 1, other] = times[depth, other]
            times[depth + 1, device] = time
            opened[depth + 1] = max(opened[depth], device + 1)
            depth += 1
    return best, longest, least, True

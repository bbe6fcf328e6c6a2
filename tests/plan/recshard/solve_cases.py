"""Small random items and machines for the solver's tests."""

from __future__ import annotations

import itertools

import numpy as np

from rowtier.plan.recshard.heat import Heat, Item, heat_of
from rowtier.plan.recshard.machine import Machine


def random_heat(random: np.random.Generator, items: int, rows: int = 60) -> Heat:
    """Items with falling rates, some rows never read, rows of different sizes."""
    made = []
    for _ in range(items):
        count = int(random.integers(1, rows))
        read = int(random.integers(0, count + 1))
        rates = np.sort(random.pareto(1.0, read) + 1e-3)[::-1] * 10 ** random.uniform(-2, 2)
        made.append(
            Item(np.arange(1, read + 1), rates, count, int(random.choice([4, 12, 36, 100])))
        )
    return heat_of(made)


def random_machine(random: np.random.Generator, heat: Heat, devices: int, tiers: int) -> Machine:
    """Devices that can hold everything; the last memory could alone."""
    total = int((heat.rows * heat.row_bytes).sum())
    sizes = [int(total * random.uniform(0, 1) / devices) for _ in range(tiers - 1)]
    costs = np.cumprod([1e-3, *random.uniform(1.5, 20, tiers - 1)])
    sizes_now = np.array([*sizes, total], dtype=np.int64)
    return Machine(devices, sizes_now, costs, sizes_now)


def rows_of(heat: Heat, items: list[int]) -> list[tuple[float, int]]:
    """(density, bytes) of every row of some items, one by one."""
    found = []
    for item in items:
        start, stop = heat.first[item], heat.first[item + 1]
        widths = np.diff(heat.stops[start:stop], prepend=0)
        for density, width in zip(heat.density[start:stop], widths, strict=True):
            found += [(float(density), int(heat.row_bytes[item]))] * int(width)
    return found


def least_time(heat: Heat, items: list[int], machine: Machine) -> float:
    """The time of one device, rows cut anywhere, byte by byte down the sorted rows."""
    left = list(machine.sizes)
    tier, total = 0, 0.0
    for density, size in sorted(rows_of(heat, items), reverse=True):
        while size > 0:
            while left[tier] == 0 and tier < len(left) - 1:
                tier += 1
            taken = min(size, left[tier]) if tier < len(left) - 1 else size
            total += density * taken * float(machine.costs[tier])
            left[tier] -= taken
            size -= taken
    return total


def best_of_all(heat: Heat, machine: Machine) -> float:
    """The least time of the slowest device over all placements of whole items."""
    count = heat.items
    times = {
        chosen: least_time(heat, list(chosen), machine)
        for size in range(count + 1)
        for chosen in itertools.combinations(range(count), size)
    }
    placements = itertools.product(range(machine.devices), repeat=count)
    return min(
        max(
            times[tuple(i for i in range(count) if owner[i] == device)]
            for device in range(machine.devices)
        )
        for owner in placements
    )

"""Water-filling: the hottest rows of a set of items into memories of given sizes."""

from __future__ import annotations

from typing import cast

import numpy as np

from rowtier.jit import compiled, inner
from rowtier.plan.recshard.heat import Floats, Heat, Ints, bucket_of, read_until, rows_hotter

# Not Python's int: to numba each constant of that is a type, with machine code of its own.
NO_LIMIT = cast(int, np.int64(2**62))


@inner
def items_of(owner: Ints, device: int) -> Ints:
    """The items of a device, rising."""
    found, count = np.empty(len(owner), dtype=np.int64), 0
    for item in range(len(owner)):
        if owner[item] == device:
            found[count] = item
            count += 1
    return found[:count]


@inner
def longest_of(times: Floats) -> float:
    """The longest of some times."""
    longest = times[0]
    for time in times:
        longest = max(longest, time)
    return float(longest)


@inner
def water_level(heat: Heat, items: Ints, placed: Ints, room: int, most: int) -> float:
    """The least price at which all rows that are hotter fit into `room` bytes.

    `placed` rows of each item have a place already, and no item takes more than `most`
    bytes. Below zero if there is room for all rows, even those that are never read.
    """
    if _demand(heat, items, placed, -1.0, most) <= room:
        return -1.0
    if _demand(heat, items, placed, 0.0, most) <= room:
        return 0.0
    low, high = np.inf, 0.0
    for item in items:
        start, last = heat.first[item], heat.first[item + 1] - 1
        high = max(high, heat.density[start])
        while last > start and heat.density[last] <= 0:
            last -= 1
        if heat.density[last] > 0:
            low = min(low, heat.density[last])
    low /= 2
    while True:  # halve in the logarithm until the two are neighbours
        middle = np.sqrt(low) * np.sqrt(high)
        if middle <= low or middle >= high or high <= low * (1 + 4e-16):
            return high
        if _demand(heat, items, placed, middle, most) <= room:
            high = middle
        else:
            low = middle


@inner
def _demand(heat: Heat, items: Ints, placed: Ints, price: float, most: int) -> float:
    total = 0.0
    for item in items:
        rows = rows_hotter(heat, item, price) - placed[item]
        if rows > 0:
            total += min(rows * heat.row_bytes[item], most)
    return total


@inner
def saving(heat: Heat, item: int, price: float, most: int) -> float:
    """ψ: bytes read of the rows that are worth a price per byte, less what they cost."""
    taken = float(rows_hotter(heat, item, price))
    taken = min(taken, most / float(heat.row_bytes[item]))
    return read_until(heat, item, taken) - price * taken * float(heat.row_bytes[item])


@compiled
def best_read(heat: Heat, items: Ints, room: int, most: int) -> tuple[float, float]:
    """The most bytes read per step that `room` bytes can serve, and the price at which.

    It is the value of the dual, so an inexact price makes it larger, never smaller.
    """
    nothing = np.zeros(len(heat.rows), dtype=np.int64)
    price = max(0.0, water_level(heat, items, nothing, room, most))
    total = price * room
    for item in items:
        total += saving(heat, item, price, most)
    return total, price


@compiled
def fill(heat: Heat, items: Ints, placed: Ints, room: int) -> int:
    """Move `placed` on by the hottest rows that fit into `room`; returns what is left of it."""
    price = water_level(heat, items, placed, room, NO_LIMIT)
    for item in items:
        rows = rows_hotter(heat, item, price)
        if rows > placed[item]:
            room -= (rows - placed[item]) * heat.row_bytes[item]
            placed[item] = rows
    while True:  # rows at the price itself, and smaller rows where a larger one does not fit
        best, hottest = np.int64(-1), -1.0
        for item in items:
            if placed[item] < heat.rows[item] and heat.row_bytes[item] <= room:
                density = heat.density[bucket_of(heat, item, placed[item])]
                if density > hottest:
                    best, hottest = item, density
        if best < 0:
            return room
        stop = heat.stops[bucket_of(heat, int(best), placed[best])]
        rows = min(stop - placed[best], room // heat.row_bytes[best])
        placed[best] += rows
        room -= rows * heat.row_bytes[best]


@compiled
def fill_tiers(heat: Heat, items: Ints, sizes: Ints, cuts: Ints) -> int:
    """Fill one memory after the other; `cuts[t]` are the ranks at which each ends, per item.

    Returns how many bytes do not fit into all of them together.
    """
    for item in items:
        cuts[:, item] = 0
    for tier in range(len(sizes)):
        if tier > 0:
            for item in items:
                cuts[tier, item] = cuts[tier - 1, item]
        fill(heat, items, cuts[tier], sizes[tier])
    missing = 0
    for item in items:
        missing += (heat.rows[item] - cuts[-1, item]) * heat.row_bytes[item]
    return missing


@compiled
def time_of_cuts(heat: Heat, items: Ints, costs: Floats, cuts: Ints) -> float:
    """Seconds per step to read the items from the memories that `cuts` gives them."""
    total = 0.0
    for item in items:
        before = 0.0
        for tier in range(len(costs)):
            until = read_until(heat, item, float(cuts[tier, item]))
            total += (until - before) * costs[tier]
            before = until
    return total


@compiled
def least_time(heat: Heat, items: Ints, sizes: Ints, costs: Floats) -> float:
    """The least seconds per step for items on one device, if rows could be cut anywhere."""
    total = 0.0
    for item in items:
        total += heat.read[heat.first[item + 1] - 1]
    time, room = total * costs[-1], 0
    for tier in range(len(sizes) - 1):
        room += sizes[tier]
        read, _ = best_read(heat, items, room, NO_LIMIT)
        time -= (costs[tier + 1] - costs[tier]) * min(read, total)
    return float(time)


@compiled
def fill_devices(
    heat: Heat, owner: Ints, sizes: Ints, costs: Floats, devices: int
) -> tuple[Floats, Ints]:
    """Fill the memories of every device with its items: seconds per device, and the cuts.

    A device whose rows do not fit takes forever.
    """
    cuts = np.zeros((len(sizes), len(owner)), dtype=np.int64)
    times = np.zeros(devices)
    for device in range(devices):
        items = items_of(owner, device)
        missing = fill_tiers(heat, items, sizes, cuts)
        times[device] = np.inf if missing > 0 else time_of_cuts(heat, items, costs, cuts)
    return times, cuts


@compiled
def prices_of(heat: Heat, items: Ints, sizes: Ints) -> Floats:
    """The price of a byte before each boundary between two memories of one device."""
    prices, room = np.zeros(len(sizes) - 1), 0
    for tier in range(len(sizes) - 1):
        room += sizes[tier]
        prices[tier] = best_read(heat, items, room, NO_LIMIT)[1]
    return prices

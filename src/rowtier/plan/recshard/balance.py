"""Whole items on devices as vectors: moved and swapped.

An item is a vector over a grid of prices, a device the sum of its items' vectors, and its
time the largest entry of the sum (with more than two memories: the sum of the largest
entries, one for each boundary between two memories).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.jit import compiled, inner
from rowtier.plan.recshard.fill import NO_LIMIT, saving
from rowtier.plan.recshard.heat import Floats, Heat, Ints
from rowtier.plan.recshard.machine import Machine

_GAIN = 1e-7  # a step must lower the longest time by this share
_FLOOD = 3e-3  # how far above the longest time the limit of the great deluge begins


class Balance(NamedTuple):
    """Items on devices; vectors have one row per boundary and one column per price."""

    vectors: Floats  # item, boundary, price: seconds
    held: Ints  # bytes of each item
    room: int  # bytes of a device
    owner: Ints  # of each item
    load: Floats  # device, boundary, price: seconds
    peak: Ints  # device, boundary: the price at which its load is largest
    time: Floats  # of each device
    used: Ints  # bytes of each device


def balance_of(heat: Heat, owner: Ints, machine: Machine, prices: Floats, room: int) -> Balance:
    """Add up the items of every device. `prices` has a row per boundary between memories."""
    devices, sizes, costs = machine.devices, machine.sizes, machine.costs
    vectors = item_vectors(heat, prices, costs, np.full(len(prices), NO_LIMIT))
    load = np.empty((devices, *prices.shape))
    load[:] = -memory_worth(prices, sizes, costs)
    np.add.at(load, owner, vectors)
    peak = load.argmax(axis=2)
    time = load.max(axis=2).sum(axis=1)
    held = heat.rows * heat.row_bytes
    used = np.zeros(devices, dtype=np.int64)
    np.add.at(used, owner, held)
    return Balance(vectors, held, room, owner, load, peak, time, used)


def memory_worth(prices: Floats, sizes: Ints, costs: Floats) -> Floats:
    """What the memory before each boundary is worth at each price, in seconds."""
    gain = np.diff(costs) * np.cumsum(sizes)[:-1]
    return np.asarray(gain[:, None] * prices)


@compiled
def item_vectors(heat: Heat, prices: Floats, costs: Floats, most: Ints) -> Floats:
    """Seconds of every item at every price if it may have `most` bytes before each boundary."""
    boundaries, grid = prices.shape
    vectors = np.empty((len(heat.rows), boundaries, grid))
    for item in range(len(heat.rows)):
        total = heat.read[heat.first[item + 1] - 1]
        for boundary in range(boundaries):
            gain = costs[boundary + 1] - costs[boundary]
            slowest = total * costs[-1] if boundary == 0 else 0.0
            for g in range(grid):
                saved = saving(heat, item, prices[boundary, g], most[boundary])
                vectors[item, boundary, g] = slowest - gain * saved
    return vectors


@compiled
def improve(state: Balance, steps: int) -> None:
    """The best move or swap away from the slowest device, again and again."""
    for _ in range(steps):
        slowest = int(np.argmax(state.time))
        give, take, to = _best_exchange(state, slowest)
        if give < 0:
            return
        _hand_over(state, give, to)
        if take >= 0:
            _hand_over(state, take, slowest)


@inner
def _best_exchange(state: Balance, slowest: int) -> tuple[int, int, int]:
    """What a device should give, what it takes for it (or −1 for nothing), and whose that is."""
    count, devices = len(state.owner), len(state.time)
    best, give, take, to = state.time[slowest] * (1 - _GAIN), -1, -1, -1
    nothing = np.zeros_like(state.vectors[0])
    # Seconds at the price where a device peaks now: a quick lower bound on any change.
    here, there = np.zeros(devices + count), np.zeros(devices + count)
    for other in range(count):
        here[devices + other] = _at_peak(state, other, slowest)
        there[devices + other] = _at_peak(state, other, state.owner[other])
    for item in range(count):
        if state.owner[item] != slowest:
            continue
        left = state.time[slowest] - here[devices + item]
        for back in range(devices + count):
            device = back if back < devices else int(state.owner[back - devices])
            if device == slowest or left + here[back] >= best:
                continue
            if state.time[device] + _at_peak(state, item, device) - there[back] >= best:
                continue
            other = back - devices if back >= devices else -1
            if not _fits(state, item, other, device):
                continue
            vector = state.vectors[other] if other >= 0 else nothing
            longer = _time_after(state, slowest, vector, state.vectors[item], best)
            if longer < best:
                longer = max(longer, _time_after(state, device, state.vectors[item], vector, best))
            if longer < best:
                best, give, take, to = longer, item, other, device
    return give, take, to


@inner
def _at_peak(state: Balance, item: int, device: int) -> float:
    total = 0.0
    for boundary in range(state.load.shape[1]):
        total += state.vectors[item, boundary, state.peak[device, boundary]]
    return total


@inner
def _fits(state: Balance, item: int, other: int, device: int) -> bool:
    """Whether bytes allow an item to go to a device in exchange for another (or nothing)."""
    more = state.held[item] - (state.held[other] if other >= 0 else 0)
    most = max(state.used[device] + more, state.used[state.owner[item]] - more)
    return bool(most <= state.room)


@inner
def _time_after(state: Balance, device: int, plus: Floats, minus: Floats, limit: float) -> float:
    """A device's time after a change; where it is surely not below `limit`, a lower bound."""
    load, total = state.load[device], 0.0
    for boundary in range(load.shape[0]):
        g = state.peak[device, boundary]
        total += load[boundary, g] + plus[boundary, g] - minus[boundary, g]
    if total >= limit:
        return total
    total = 0.0
    for boundary in range(load.shape[0]):
        most = -np.inf
        for g in range(load.shape[1]):
            most = max(most, load[boundary, g] + plus[boundary, g] - minus[boundary, g])
        total += most
    return total


@inner
def _hand_over(state: Balance, item: int, to: int) -> None:
    giver = state.owner[item]
    state.owner[item] = to
    for boundary in range(state.load.shape[1]):
        for price in range(state.load.shape[2]):
            state.load[giver, boundary, price] -= state.vectors[item, boundary, price]
            state.load[to, boundary, price] += state.vectors[item, boundary, price]
    state.used[giver] -= state.held[item]
    state.used[to] += state.held[item]
    for device in (giver, to):
        state.time[device] = 0.0
        for boundary in range(state.load.shape[1]):
            g = np.argmax(state.load[device, boundary])
            state.peak[device, boundary] = g
            state.time[device] += state.load[device, boundary, g]


@compiled
def drown(state: Balance, target: float, proposals: int, seed: int) -> None:
    """Random moves and swaps under a limit that sinks to `target`; ends at the best seen.

    G. Dueck, "New optimization heuristics: the great deluge algorithm", 1993: whatever
    stays below the limit is taken, and so is what does not make the two devices worse.
    """
    random = np.array([seed], dtype=np.uint64)
    count, devices = len(state.owner), len(state.time)
    nothing = np.zeros_like(state.vectors[0])
    best_time, best = state.time.max(), state.owner.copy()
    high = best_time * (1 + _FLOOD)
    for step in range(proposals):
        item, other = int(_unit(random) * count), -1
        here, to, back = state.owner[item], int(_unit(random) * devices), nothing
        if _unit(random) < 0.5:
            other = int(_unit(random) * count)
            to, back = state.owner[other], state.vectors[other]
        if to == here or not _fits(state, item, other, to):
            continue
        limit = max(high + (target - high) * step / proposals, state.time[here], state.time[to])
        if (
            _time_after(state, here, back, state.vectors[item], limit) >= limit
            or _time_after(state, to, state.vectors[item], back, limit) >= limit
        ):
            continue
        _hand_over(state, item, to)
        if other >= 0:
            _hand_over(state, other, here)
        if state.time[here] < best_time and state.time[to] < best_time:
            longest = state.time.max()
            if longest < best_time:
                best_time, best = longest, state.owner.copy()
    for item in range(count):
        if state.owner[item] != best[item]:
            _hand_over(state, item, best[item])


@inner
def _unit(random: NDArray[np.uint64]) -> float:
    """The next random number from 0 to 1 (SplitMix64)."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    z = random[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53

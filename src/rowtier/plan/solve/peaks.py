"""Pieces on devices, moved and swapped until neither memory nor links have a peak.

A device is busy with ids that come for I seconds, with sums that go for S, and with memory for M:
the largest of its entries, one for each price of memory. It asks and receives as much as all
others, so its links are busy for L = max(mean I, I) + max(mean S, S): less than the mean of
either gains nothing. A step takes as long as the largest M and the largest L. What is lowered is
the sum of their norms of a high power, which rise with everything that is near the peak.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.plan.solve._jit import compiled
from rowtier.profile.curve import Floats, Ints

SQUARINGS = (3, 5)  # the norm's power is 2 to this: first coarse, then near the peak
_GAIN = 1e-7  # of the sum of the norms, that a change must save
_SOURCES = 3  # devices with the largest M, and with the largest L, that give something away
_KICK = 3  # swaps that a search is shaken with


class Load(NamedTuple):
    """What every device is busy with, and the bytes that it has left."""

    busy: Floats  # device, way: seconds of ids, of sums, of memory at each price
    free: Floats  # bytes of each device


class Dealt(NamedTuple):
    """Pieces, and who has them."""

    loads: Floats  # piece, way
    needed: Floats  # bytes
    owners: Ints
    fixed: NDArray[np.bool_]  # which stay where they are


class Norms(NamedTuple):
    """The two norms as they are, and what a change of their sums of powers is worth."""

    scale: Floats  # the peaks of M and L, by which they are divided
    worth: Floats  # seconds of the norm for a change of each sum of powers
    mean: Floats  # I and S
    squarings: int
    highest: Ints  # the devices at the peaks
    total: float  # both norms, seconds


def three_ways(busy: Floats) -> Floats:
    """Seconds of ids, of sums and of memory (columns) of every device."""
    return np.column_stack((busy[:, :2], busy[:, 2:].max(axis=1)))


@compiled
def norms_of(busy: Floats, squarings: int) -> Norms:
    """The norms of M and L, and their slopes."""
    devices = len(busy)
    mean = busy[:, :2].sum(axis=0) / devices
    seconds = np.empty((2, devices))
    for device in range(devices):
        seconds[0, device] = busy[device, 2:].max()
        seconds[1, device] = _links(busy[device, 0], busy[device, 1], mean)
    highest = np.array([seconds[0].argmax(), seconds[1].argmax()])
    scale, sums = np.empty(2), np.zeros(2)
    for kind in range(2):
        scale[kind] = max(seconds[kind, highest[kind]], 1e-300)
        for device in range(devices):
            sums[kind] += _power(seconds[kind, device] / scale[kind], squarings)
    power = 2.0**squarings
    sums = np.maximum(sums, 1.0)
    worth = scale / power * sums ** (1 / power - 1)
    total = float((scale * sums ** (1 / power)).sum())
    return Norms(scale, worth, mean, squarings, highest, total)


@compiled
def lower_peaks(load: Load, dealt: Dealt, squarings: int, steps: int) -> None:
    """Move or swap whole pieces, the best change first, until none helps."""
    for _ in range(steps):
        norms = norms_of(load.busy, squarings)
        least = _GAIN * norms.scale.sum()
        for source in _sources(load.busy, norms):
            saved, give, take, to = _best_exchange(load, dealt, norms, source)
            if saved > least:
                _hand_over(load, dealt, give, to)
                if take >= 0:
                    _hand_over(load, dealt, take, source)
                break
        else:
            return


@compiled
def shake(load: Load, dealt: Dealt, squarings: int, steps: int, kicks: int, seed: int) -> None:
    """Swap pieces at a peak with others at random and lower the peaks again; keep what is best."""
    np.random.seed(seed)
    best = norms_of(load.busy, squarings)
    kept = load.busy.copy(), load.free.copy(), dealt.owners.copy()
    total = best.total
    for kick in range(kicks):
        source = best.highest[kick % 2]
        for _ in range(_KICK):
            mine = np.flatnonzero((dealt.owners == source) & ~dealt.fixed)
            if not len(mine):
                break
            give, take = mine[np.random.randint(len(mine))], np.random.randint(len(dealt.owners))
            other = dealt.owners[take]
            more = dealt.needed[give] - dealt.needed[take]
            if dealt.fixed[take] or more > load.free[other] or -more > load.free[source]:
                continue
            _hand_over(load, dealt, give, other)
            _hand_over(load, dealt, take, source)
        lower_peaks(load, dealt, squarings, steps)
        found = norms_of(load.busy, squarings)
        if found.total < total:
            best, total = found, found.total
            kept = load.busy.copy(), load.free.copy(), dealt.owners.copy()
        else:
            load.busy[:], load.free[:], dealt.owners[:] = kept[0], kept[1], kept[2]


@compiled
def _best_exchange(
    load: Load, dealt: Dealt, norms: Norms, source: int
) -> tuple[float, int, int, int]:
    """What a device should give, what it takes for it (or −1), and whose that is."""
    count, devices = len(dealt.owners), len(load.busy)
    nothing = np.zeros(load.busy.shape[1])
    height = np.empty(devices)
    for device in range(devices):
        height[device] = _height(load.busy[device], nothing, nothing, norms, np.inf)
    best, give, take, to = 0.0, -1, -1, -1
    for piece in range(count):
        if dealt.owners[piece] != source or dealt.fixed[piece]:
            continue
        mine = dealt.loads[piece]
        here = height[source] - _height(load.busy[source], mine, nothing, norms, np.inf)
        for device in range(devices):
            if device == source or dealt.needed[piece] > load.free[device]:
                continue
            most = here + height[device] - best
            saved = here + height[device]
            saved -= _height(load.busy[device], nothing, mine, norms, most)
            if saved > best:
                best, give, take, to = saved, piece, -1, device
        for other in range(count):
            device = dealt.owners[other]
            if device == source or dealt.fixed[other]:
                continue
            more = dealt.needed[piece] - dealt.needed[other]
            if more > load.free[device] or -more > load.free[source]:
                continue
            theirs = dealt.loads[other]
            saved = height[source] + height[device]
            saved -= _height(load.busy[source], mine, theirs, norms, saved - best)
            if saved > best:
                saved -= _height(load.busy[device], theirs, mine, norms, saved - best)
                if saved > best:
                    best, give, take, to = saved, piece, other, device
    return best, give, take, to


@compiled
def _sources(busy: Floats, norms: Norms) -> Ints:
    """Devices at a peak, the highest first."""
    memory, links = np.empty(len(busy)), np.empty(len(busy))
    for device in range(len(busy)):
        memory[device] = busy[device, 2:].max()
        links[device] = _links(busy[device, 0], busy[device, 1], norms.mean)
    by_memory, by_links = np.argsort(-memory), np.argsort(-links)
    count = min(_SOURCES, len(busy))
    found = np.empty(2 * count, dtype=np.int64)
    found[0::2], found[1::2] = by_memory[:count], by_links[:count]
    return found


@compiled
def _hand_over(load: Load, dealt: Dealt, piece: int, to: int) -> None:
    giver = dealt.owners[piece]
    load.busy[giver] -= dealt.loads[piece]
    load.busy[to] += dealt.loads[piece]
    load.free[giver] += dealt.needed[piece]
    load.free[to] -= dealt.needed[piece]
    dealt.owners[piece] = to


@compiled
def _height(busy: Floats, less: Floats, more: Floats, norms: Norms, most: float) -> float:
    """What a device adds to the norms, by their slopes, if its load changes.

    Infinite as soon as it is known to be above `most`.
    """
    links = _links(busy[0] - less[0] + more[0], busy[1] - less[1] + more[1], norms.mean)
    height = norms.worth[1] * _power(links / norms.scale[1], norms.squarings)
    if height > most:
        return np.inf
    memory = busy[2] - less[2] + more[2]
    for price in range(3, len(busy)):
        memory = max(memory, busy[price] - less[price] + more[price])
    return float(height + norms.worth[0] * _power(memory / norms.scale[0], norms.squarings))


@compiled
def _links(ids: float, sums: float, mean: Floats) -> float:
    return float(max(ids, mean[0]) + max(sums, mean[1]))


@compiled
def _power(value: float, squarings: int) -> float:
    value = max(value, 0.0)
    for _ in range(squarings):
        value *= value
    return value

"""Pieces on devices, moved and swapped until neither memory nor links have a peak.

A device is busy with memory for M seconds: the largest of its entries, one for each price of
memory. At each level of links it is busy with ids that come for I seconds, and with sums that go
for S. It asks and receives as much as all others, so its links take
L = max(mean I, I) + max(mean S, S): less than the mean of either gains nothing. A step takes as
long as the largest M and every level's largest L. What is lowered is the sum of their norms of a
high power, which rise with everything that is near the peak.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.plan.solve._jit import compiled
from rowtier.profile.curve import Floats, Ints

SQUARINGS = (3, 4, 6, 8)  # the norm's power is 2 to this: first coarse, then near the peak
_GAIN = 1e-7  # of the sum of the norms, that a change must save
_LOOKED_AT = 64  # pieces of others, about, that may be swapped with one
_LOOKS = 3  # at others of them
_VERY_MANY = 32  # times as many pieces
_KICK = 3  # swaps that a search is shaken with
_SOURCES = 2  # devices with the largest M, and with the largest L, that give something away


class Load(NamedTuple):
    """What every device is busy with, and the bytes that it has left."""

    busy: Floats  # device, way: seconds of ids by level, of sums by level, of memory by price
    free: Floats  # bytes of each device
    levels: int


class Dealt(NamedTuple):
    """Pieces, and who has them."""

    loads: Floats  # piece, way
    needed: Floats  # bytes
    owners: Ints
    fixed: NDArray[np.bool_]  # which stay where they are


class Norms(NamedTuple):
    """The norms of every level's L and of M, and what a change of their sums of powers is worth."""

    scale: Floats  # the peaks, by which they are divided
    worth: Floats  # seconds of the norm for a change of each sum of powers
    mean: Floats  # I and S, by level
    squarings: int
    highest: Ints  # the devices at the peak of each, the highest first
    total: float  # all norms, seconds

    @property
    def peaks_s(self) -> float:
        """All peaks: what a step takes."""
        return float(self.scale.sum())


def summed_up(busy: Floats, levels: int) -> Floats:
    """Seconds of ids, of sums and of memory (columns) of every device."""
    ids_s, sums_s = busy[:, :levels].sum(axis=1), busy[:, levels : 2 * levels].sum(axis=1)
    return np.column_stack((ids_s, sums_s, busy[:, 2 * levels :].max(axis=1)))


@compiled
def norms_of(load: Load, squarings: int) -> Norms:
    """The norms, and their slopes."""
    busy, levels, devices = load.busy, load.levels, len(load.busy)
    mean, exponent = np.zeros(2 * levels), 2.0**squarings
    for device in range(devices):
        for way in range(2 * levels):
            mean[way] += busy[device, way] / devices
    scale, worth, total = np.full(levels + 1, 1e-300), np.empty(levels + 1), 0.0
    highest, seconds = np.zeros((levels + 1, _SOURCES), np.int64), np.empty(devices)
    for kind in range(levels + 1):
        for device in range(devices):
            seconds[device] = _seconds(busy[device], kind, levels, mean)
            scale[kind] = max(scale[kind], seconds[device])
        powers = 0.0
        for device in range(devices):
            powers += _power(seconds[device] / scale[kind], squarings)
        for place in range(_SOURCES):
            highest[kind, place] = np.argmax(seconds)
            seconds[highest[kind, place]] = -np.inf
        norm = scale[kind] * max(powers, 1.0) ** (1 / exponent)
        worth[kind] = norm / (max(powers, 1.0) * exponent)
        total += norm
    return Norms(scale, worth, mean, squarings, highest, total)


@compiled
def _seconds(busy: Floats, kind: int, levels: int, mean: Floats) -> float:
    """A device's L at a level, or its M."""
    if kind < levels:
        return _links(busy[kind], busy[levels + kind], mean[kind], mean[levels + kind])
    longest = busy[2 * levels]
    for price in range(2 * levels + 1, len(busy)):
        longest = max(longest, busy[price])
    return float(longest)


@compiled
def lower_peaks(load: Load, dealt: Dealt, squarings: int, steps: int) -> None:
    """Move or swap whole pieces, the best change first, until none helps.

    Only some of the other devices' pieces are looked at, ever others, as long as that helps; all
    of them in the end, unless they are very many.
    """
    stride = max(1, len(dealt.owners) // _LOOKED_AT)
    for step in range(steps):
        norms, helped = norms_of(load, squarings), False
        for look in range(min(stride - 1, _LOOKS)):
            helped = helped or _improve(load, dealt, norms, step + look, stride)
        if not helped and (stride > _VERY_MANY or not _improve(load, dealt, norms, 0, 1)):
            return


@compiled
def _improve(load: Load, dealt: Dealt, norms: Norms, first: int, stride: int) -> bool:
    """One move or swap away from a peak; memory and the widest level come first."""
    nothing, height = np.zeros(load.busy.shape[1]), np.empty(len(load.busy))
    for device in range(len(height)):
        height[device] = _height(load.busy[device], nothing, nothing, norms, np.inf)
    for place in range(_SOURCES):
        for kind in range(load.levels, -1, -1):
            source = norms.highest[kind, place]
            saved, give, take, to = _best_exchange(
                load, dealt, norms, height, source, first, stride
            )
            if saved > _GAIN * norms.total:
                _hand_over(load, dealt, give, to)
                if take >= 0:
                    _hand_over(load, dealt, take, source)
                return True
    return False


def shake(load: Load, dealt: Dealt, squarings: int, steps: int, kicks: int) -> None:
    """Swap pieces at a peak with others at random and lower the peaks again; keep what is best."""
    random, state = np.random.default_rng(0), (load.busy, load.free, dealt.owners)
    best, kept = norms_of(load, squarings), [part.copy() for part in state]
    for kick in range(kicks):
        _swap_some(load, dealt, int(best.highest[kick % (load.levels + 1), 0]), random)
        lower_peaks(load, dealt, squarings, steps)
        found = norms_of(load, squarings)
        if found.peaks_s < best.peaks_s:
            best, kept = found, [part.copy() for part in state]
            continue
        for part, before in zip(state, kept, strict=True):
            part[:] = before


def _swap_some(load: Load, dealt: Dealt, source: int, random: np.random.Generator) -> None:
    """Swap some of a device's pieces with any others, if there is room."""
    mine = np.flatnonzero((dealt.owners == source) & ~dealt.fixed)
    others = np.flatnonzero((dealt.owners != source) & ~dealt.fixed)
    count = min(_KICK, len(mine), len(others))
    for give, take in zip(
        random.choice(mine, count, False), random.choice(others, count, False), strict=True
    ):
        owner, more = dealt.owners[take], dealt.needed[give] - dealt.needed[take]
        if more <= load.free[owner] and -more <= load.free[source]:
            _hand_over(load, dealt, give, owner)
            _hand_over(load, dealt, take, source)


@compiled
def _best_exchange(
    load: Load,
    dealt: Dealt,
    norms: Norms,
    height: Floats,
    source: int,
    first: int,
    stride: int,
) -> tuple[float, int, int, int]:
    """What a device should give, what it takes for it (or −1), and whose that is.

    Every so many pieces of the others are looked at, from the `first` on, and as many devices.
    """
    count, devices = len(dealt.owners), len(load.busy)
    nothing, leap = np.zeros(load.busy.shape[1]), 1
    if stride > 1:
        leap = max(1, devices // _LOOKED_AT)
    best, give, take, to = 0.0, -1, -1, -1
    for piece in range(count):
        if dealt.owners[piece] != source or dealt.fixed[piece]:
            continue
        mine = dealt.loads[piece]
        here = height[source] - _height(load.busy[source], mine, nothing, norms, np.inf)
        for device in range(first % leap, devices, leap):
            if device == source or dealt.needed[piece] > load.free[device]:
                continue
            most = here + height[device] - best
            saved = here + height[device]
            saved -= _height(load.busy[device], nothing, mine, norms, most)
            if saved > best:
                best, give, take, to = saved, piece, -1, device
        for other in range(first % stride, count, stride):
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
def _hand_over(load: Load, dealt: Dealt, piece: int, to: int) -> None:
    giver = dealt.owners[piece]
    for way in range(load.busy.shape[1]):
        load.busy[giver, way] -= dealt.loads[piece, way]
        load.busy[to, way] += dealt.loads[piece, way]
    load.free[giver] += dealt.needed[piece]
    load.free[to] -= dealt.needed[piece]
    dealt.owners[piece] = to


@compiled
def _height(busy: Floats, less: Floats, more: Floats, norms: Norms, most: float) -> float:
    """What a device adds to the norms, by their slopes, if its load changes.

    Infinite as soon as it is known to be above `most`.
    """
    levels, height = len(norms.scale) - 1, 0.0
    for ids in range(levels):
        sums = levels + ids
        ids_s = busy[ids] - less[ids] + more[ids]
        sums_s = busy[sums] - less[sums] + more[sums]
        links_s = _links(ids_s, sums_s, norms.mean[ids], norms.mean[sums])
        height += norms.worth[ids] * _power(links_s / norms.scale[ids], norms.squarings)
    memory_s, slope = -np.inf, norms.worth[levels]
    for price in range(2 * levels, len(busy)):
        memory_s = max(memory_s, busy[price] - less[price] + more[price])
        if price == 2 * levels:  # the true one, which mostly is close to the largest
            found = height + slope * _power(memory_s / norms.scale[levels], norms.squarings)
            if found > most:
                return np.inf
    return float(height + slope * _power(memory_s / norms.scale[levels], norms.squarings))


@compiled
def _links(ids_s: float, sums_s: float, mean_ids_s: float, mean_sums_s: float) -> float:
    return max(ids_s, mean_ids_s) + max(sums_s, mean_sums_s)


@compiled
def _power(value: float, squarings: int) -> float:
    """value^(2^squarings) of what is about 1: up to 8, and 8 squarings, without overflow."""
    value = min(max(value, 0.0), 8.0)
    for _ in range(squarings):
        value *= value
    return value

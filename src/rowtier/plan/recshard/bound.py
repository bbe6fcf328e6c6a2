"""Lower bounds: no placement is faster than these, whatever it does."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from rowtier.jit import compiled, inner
from rowtier.plan.recshard.balance import item_vectors, memory_worth
from rowtier.plan.recshard.fill import NO_LIMIT, best_read, least_time
from rowtier.plan.recshard.heat import Floats, Heat, Ints, read_until
from rowtier.plan.recshard.machine import Machine

SAFETY = 1 - 1e-9  # rounding errors must not lift a bound above the truth
_NOISE = 1e-9  # what sums of equal things may differ by
_PAIRS = 64  # devices up to which all pairs of large items are tried
_LARGE = 64  # items that are tried as too large to leave room for others
_VIEWS = 24  # prices at which they are tried, about


class Bound(NamedTuple):
    """Seconds per step that cannot be beaten, and the reason."""

    seconds: float
    reason: Literal["pool", "alone", "together", "apart", "tried"]
    items: tuple[int, ...] = ()


def pool_bound(heat: Heat, machine: Machine, *, whole: bool) -> Bound:
    """The mean over devices if their memories were one; a `whole` item has one device's."""
    items = np.arange(heat.items, dtype=np.int64)
    total = float(heat.read[heat.first[1:] - 1].sum())
    seconds = total * float(machine.costs[-1])
    for tier in range(len(machine.sizes) - 1):
        room = machine.devices * int(machine.sizes[: tier + 1].sum())
        most = int(machine.largest[: tier + 1].sum()) if whole else NO_LIMIT
        read, _ = best_read(heat, items, room, most)
        seconds -= float(machine.costs[tier + 1] - machine.costs[tier]) * min(read, total)
    return Bound(seconds / machine.devices * SAFETY, "pool")


def whole_bound(heat: Heat, machine: Machine) -> Bound:
    """The best of the quick bounds for items that stay whole."""
    bounds = [pool_bound(heat, machine, whole=True)]
    alone = alone_times(heat, machine.largest, machine.costs)
    order = np.argsort(-alone, kind="stable")
    largest = int(order[0])
    bounds.append(Bound(float(alone[largest]) * SAFETY, "alone", (largest,)))
    bounds += _together_bounds(alone[order], order, machine.devices)
    if machine.devices <= _PAIRS and heat.items > machine.devices:
        first = np.sort(order[: machine.devices + 1])
        seconds, a, b = _least_pair(heat, first, machine.largest, machine.costs)
        bounds.append(Bound(seconds * SAFETY, "together", (a, b)))
    return max(bounds, key=lambda bound: bound.seconds)


def _together_bounds(falling: Floats, order: Ints, devices: int) -> list[Bound]:
    """Of the q·M + 1 largest items q + 1 share a device, and take at least their sum."""
    sums = np.concatenate(([0.0], np.cumsum(falling)))
    bounds = []
    for q in range(1, (len(falling) - 1) // devices + 1):
        stop = q * devices + 1
        seconds = float(sums[stop] - sums[stop - q - 1])
        named = tuple(int(item) for item in order[stop - q - 1 : stop])
        bounds.append(Bound(seconds * SAFETY, "together", named))
    return bounds


@compiled
def alone_times(heat: Heat, sizes: Ints, costs: Floats) -> Floats:
    """The least seconds per step of each item on a device of its own."""
    times = np.empty(len(heat.rows))
    for item in range(len(times)):
        times[item] = heat.read[heat.first[item + 1] - 1] * costs[-1]
        room = 0
        for tier in range(len(sizes) - 1):
            room += sizes[tier]
            rows = min(float(heat.rows[item]), room / heat.row_bytes[item])
            times[item] -= (costs[tier + 1] - costs[tier]) * read_until(heat, item, rows)
    return times


@compiled
def _least_pair(heat: Heat, items: Ints, sizes: Ints, costs: Floats) -> tuple[float, int, int]:
    pair = np.empty(2, dtype=np.int64)
    least, first, second = np.inf, 0, 0
    for a in range(len(items)):
        for b in range(a):
            pair[0], pair[1] = items[b], items[a]
            seconds = least_time(heat, pair, sizes, costs)
            if seconds < least:
                least, first, second = seconds, items[b], items[a]
    return least, first, second


def apart_bound(heat: Heat, machine: Machine, prices: Floats, low: Bound, high: float) -> Bound:
    """A bound between `low` and `high` from large items that leave their device little room.

    On any device, at any price, the items' seconds may add up to T and what the memory is
    worth. Beside a large item less fits: at most a fractional knapsack, the least over all
    prices. Where no two of the large items fit together, their devices differ, and what
    all of them leave unused must be made up for by the others.
    """
    boundaries = len(machine.sizes) - 1
    most = np.cumsum(machine.largest)[:boundaries]
    seconds = item_vectors(heat, prices, machine.costs, most).sum(axis=1)
    worth = memory_worth(prices, machine.largest, machine.costs).sum(axis=0)
    share = (seconds / (low.seconds + worth)).max(axis=1)
    large = np.argsort(-share, kind="stable")[:_LARGE]
    promising = np.argsort(-(seconds.sum(axis=0) / machine.devices - worth), kind="stable")
    found = low.seconds
    for view in promising[:: max(1, len(promising) // _VIEWS)].tolist():
        ratio = seconds[:, view, None] / np.maximum(seconds, 1e-300)
        order = np.argsort(-ratio, axis=0, kind="stable").T.copy()
        field = _Field(seconds, worth, large, order, view)
        found = _largest_impossible(field, machine.devices, found, high)
    return Bound(found * SAFETY, "apart") if found > low.seconds else low


class _Field(NamedTuple):
    """What `apart_bound` looks at: all prices, and the one price at which it adds up."""

    seconds: Floats  # of each item at each price
    worth: Floats  # of a device's memory at each price, in seconds
    large: Ints  # items, largest first
    order: Ints  # per price: items by their seconds at `at` per second at that price
    at: int  # the price at which seconds are added up


@compiled
def _largest_impossible(field: _Field, devices: int, low: float, high: float) -> float:
    if not _impossible(field, devices, low * (1 + 1e-6)):
        return low
    for _ in range(12):
        middle = (low + high) / 2
        if _impossible(field, devices, middle):
            low = middle
        else:
            high = middle
    return low


@inner
def _impossible(field: _Field, devices: int, time: float) -> bool:
    """Whether no placement can stay within `time`."""
    full, needed = time + field.worth, 0.0
    for item in range(len(field.seconds)):
        if not _fit_together(field.seconds, full, item, -1):
            return True
        needed += field.seconds[item, field.at]
    unused, total = np.empty(len(field.large)), 0.0
    for i in range(len(field.large)):
        unused[i] = _unused(field, full, field.large[i : i + 1])
    apart, count = np.empty_like(field.large), 0
    for _ in range(len(field.large)):
        most = int(np.argmax(unused))
        alone = bool(unused[most] > 1e-9 * time)
        if not alone:
            break
        item = int(field.large[most])
        for other in apart[:count]:
            alone = alone and not _fit_together(field.seconds, full, item, int(other))
        if alone:
            apart[count] = item
            count += 1
            total += unused[most]
        unused[most] = 0.0
    total = max(total, _unused(field, full, apart[:count]))
    # Where all other items fit beside the large ones, both sides are the same sum.
    return bool(needed + total > devices * full[field.at] * (1 + _NOISE))


@inner
def _unused(field: _Field, full: Floats, items: Ints) -> float:
    """What at least stays unused, at the price `at`, of devices that hold one item each."""
    seconds, at = field.seconds, field.at
    fits = np.zeros(len(seconds), dtype=np.bool_)  # beside at least one of the items
    room = np.zeros(len(full))
    for item in items:
        room += full - seconds[item]
        for other in range(len(seconds)):
            fits[other] = fits[other] or _fit_together(seconds, full, int(item), other)
    for item in items:
        fits[item] = False
    least = room[at]
    for g in range(len(full)):
        left, taken = room[g], 0.0
        for other in field.order[g]:
            if fits[other]:
                part = min(1.0, left / max(seconds[other, g], 1e-300))
                taken += part * seconds[other, at]
                left -= seconds[other, g]
                if part < 1 or taken >= least:
                    break
        least = min(least, taken)
    return float(room[at] - least)


@inner
def _fit_together(seconds: Floats, full: Floats, one: int, other: int) -> bool:
    """Whether a device has room for two items at every price (for one, if `other` is −1)."""
    for g in range(len(full)):
        more = seconds[other, g] if other >= 0 else 0.0
        if seconds[one, g] + more > full[g]:
            return False
    return True

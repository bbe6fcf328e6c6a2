"""Prices of memory, what every row chooses at them, and the bound that they prove.

A step takes at least any weighted mean over holders of their memory time and work, and for each
level at least the mean over devices of what their links carry. Means are sums over rows, so at
prices λ for a byte of each memory every row may choose its home alone, and what all rows choose,
less λ·capacity, is below every plan.

Partial sums are not sums over rows. Let T be the share of a table's lookups that goes by sums of
owners at some distance from a reader. A reader needs v(T) sums a sample if one owner there has all
of it, and more if several do (v is concave); owners that are so far from a share q of the readers
send q·v(T) at least, as v(x)/x falls. So sums of the classes c with masses m_c cost, over all
distances d,

    Σ_d v(T_d)/T_d · Σ_c u_cd·m_c,   T_d = Σ_c m_c,   u_cd: seconds for a sum of every sample.

With k_d the least of the u_cd this is Σ_d k_d·v(T_d) + v(T_d)/T_d · Σ_c (u_cd − k_d)·m_c. Where
T_d lies between two masses of a grid, v is above its chord a + b·T, and v(T)/T above its value θ
at the larger one. Then every row pays for itself again, and the least over all boxes of the grid
is the bound. A table that also has rows that do not go by sums goes through its lookups twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rowtier.jit import compiled, inner
from rowtier.plan.joint.problem import FlatTables
from rowtier.profile.curve import Floats, Ints

SAFETY = 1 - 1e-9  # rounding errors must not lift a bound above the truth
_TRIES = 24  # of a price
_NEARLY = 5e-4  # of a memory, or of its price, that may be off
_ROUNDS = 2
_HALVED = 5  # times that memory is halved to see when it becomes scarce
LEAST_WORTH = 1e-6  # of a step, that memory must be worth to be scarce
_TIE = 1e-9  # of what a byte is worth: memory is not taken for nothing
MASSES = np.concatenate(([0.0], np.geomspace(1e-4, 1.0, 48)))
# Every how many of the masses a dimension has an edge, from the last one; by number of dimensions.
FINE = {0: (), 1: (1,), 2: (6, 1), 3: (12, 6, 2)}
COARSE = {0: (), 1: (4,), 2: (24, 4), 3: (24, 24, 8)}
GROUPED = 4  # neighbouring boxes of each dimension that are ruled out together


def edges(dimensions: int, *, fine: bool) -> list[Ints]:
    """Where each dimension is cut: numbers of `MASSES`, the first and the last among them."""
    steps = (FINE if fine else COARSE).get(dimensions)
    if steps is None:  # more levels: coarse, but for the widest one
        steps = (*(24,) * (dimensions - 2), 12, 4 if fine else 8)
    last = len(MASSES) - 1
    return [np.unique(np.append(0, np.arange(last, 0, -step))).astype(np.int64) for step in steps]


@dataclass(frozen=True, eq=False)
class Priced:
    """What all tables choose at some prices."""

    prices: Floats
    seconds: float  # that no plan beats, but for what is fixed
    used_bytes: Floats  # of each memory, for each device
    shelf: Ints  # of each bucket


def at_prices(
    tables: FlatTables, prices: Floats, allowed: Floats | None = None, *, fine: bool = False
) -> Priced:
    """Let every row choose; only among `allowed` shelves (1 or 0), where it is looked up."""
    sums = tables.sums
    cuts = edges(sums.sends.shape[1], fine=fine)
    sizes = np.array([len(cut) for cut in cuts], dtype=np.int64)
    padded = np.zeros((len(cuts), max([*sizes.tolist(), 1])), dtype=np.int64)
    for row, cut in zip(padded, cuts, strict=True):
        row[: len(cut)] = cut
    if allowed is None:
        allowed = np.ones(len(tables.shelves))
    total, shelf, used = _all_tables(
        tables.first, tables.widths, tables.mass, tables.cost_s, tables.kept_bytes, tables.memory,
        tables.sums_of, sums.sends, sums.flat_s, sums.more_s, sums.needed, sums.again_s,
        MASSES, padded, sizes, prices, allowed, tables.hints(fine),
    )  # fmt: skip
    return Priced(prices, total - float(prices @ tables.capacity), used, shelf)


@compiled
def _all_tables(
    first: Ints, widths: Floats, mass: Floats, cost_s: Floats, kept: Floats, memory: Ints,
    sums_of: Ints, sends: Ints, flat_s: Floats, more_s: Floats, needed: Floats, again_s: Floats,
    masses: Floats, cuts: Ints, sizes: Ints, prices: Floats, allowed: Floats, hint: Ints,
) -> tuple[float, Ints, Floats]:  # fmt: skip
    classes, dims = sends.shape
    shelves = len(memory)
    total, shelf = 0.0, np.empty(len(widths), np.int64)
    used = np.zeros(len(prices))
    at, group = np.zeros(dims, np.int64), np.zeros(dims, np.int64)
    rise, price = np.zeros(classes), np.zeros(shelves)
    low_edge, high_edge = np.zeros(dims, np.int64), np.zeros(dims, np.int64)
    longest = 0
    for table in range(len(first) - 1):
        longest = max(longest, first[table + 1] - first[table])
    every_paid = np.empty((classes + 1, longest))
    every_where = np.empty((classes + 1, longest), np.int64)
    for table in range(len(first) - 1):
        low, high = first[table], first[table + 1]
        count = high - low
        for row in range(shelves):
            price[row] = prices[memory[row]] * kept[row, table]
        wide, heat = widths[low:high], mass[low:high]
        paid, where = every_paid[:, :count], every_where[:, :count]
        rows = (cost_s[low:high], price, sums_of, allowed)
        best, least = _cheapest(rows, wide, heat, paid, where)
        mixed, found = True, False
        if least < best:  # some rows may go by sums
            facts = (sends, flat_s[table], more_s[table], needed[table], masses)
            facing = (paid, wide, heat, again_s[table], least)
            places = (at, group, low_edge, high_edge)
            best, mixed, found = _best_box(
                facts, facing, cuts, sizes, hint[table], places, rise, best
            )
        total += best
        _choose(paid, where, heat, rise, found, mixed, shelf[low:high])
        for bucket in range(low, high):
            row = shelf[bucket]
            used[memory[row]] += widths[bucket] * kept[row, table]
    return total, shelf, used


@inner
def _cheapest(
    rows: tuple[Floats, Floats, Ints, Floats], wide: Floats, heat: Floats, paid: Floats,
    where: Ints,
) -> tuple[float, float]:  # fmt: skip
    """What a row costs at its best in each class (the first: rows), and where.

    Returns what a table costs if all send rows, and if each does what is best, sums for nothing.
    """
    cost_s, price, sums_of, allowed = rows
    best, least = 0.0, 0.0
    for bucket in range(len(wide)):
        for kind in range(len(paid)):
            paid[kind, bucket] = np.inf
            where[kind, bucket] = 0
        for row in range(len(price)):
            one = cost_s[bucket, row] + price[row]
            kind = sums_of[row] + 1
            if one < paid[kind, bucket] and (allowed[row] > 0 or heat[bucket] == 0.0):
                paid[kind, bucket], where[kind, bucket] = one, row
        if wide[bucket] > 0:
            one = paid[0, bucket]
            best += wide[bucket] * one
            for kind in range(1, len(paid)):
                one = min(one, paid[kind, bucket])
            least += wide[bucket] * one
    return best, least


@inner
def _best_box(
    facts: tuple[Ints, Floats, Floats, Floats, Floats],
    facing: tuple[Floats, Floats, Floats, float, float], cuts: Ints, sizes: Ints, hint: Ints,
    places: tuple[Ints, Ints, Ints, Ints], rise: Floats, best: float,
) -> tuple[float, bool, bool]:  # fmt: skip
    """The least over all boxes if below `best`, whether not all go by sums there, and if any is.

    `hint` is where it was at other prices, to be tried first, and then where it is now.
    """
    at, group, low_edge, high_edge = places
    mixed, found = True, False
    at[:] = hint
    _edges_of(cuts, sizes, at, 1, low_edge, high_edge)
    value, both = _value(facts, low_edge, high_edge, rise, facing, best)
    if value < best:
        best, mixed, found = value, both, True
    group[:] = 0
    while True:  # boxes in groups: a chord over several lies below theirs
        _edges_of(cuts, sizes, group, GROUPED, low_edge, high_edge)
        if _value(facts, low_edge, high_edge, rise, facing, best)[0] < best:
            for dim in range(len(at)):
                at[dim] = GROUPED * group[dim]
            while True:
                _edges_of(cuts, sizes, at, 1, low_edge, high_edge)
                value, both = _value(facts, low_edge, high_edge, rise, facing, best)
                if value < best:
                    best, mixed, found = value, both, True
                    hint[:] = at
                if not _next(at, group, sizes):
                    break
        if not _next_group(group, sizes):
            break
    if found:
        _edges_of(cuts, sizes, hint, 1, low_edge, high_edge)
        _box(facts, low_edge, high_edge, rise)
    return best, mixed, found


@inner
def _choose(
    paid: Floats, where: Ints, heat: Floats, rise: Floats, by_sums: bool, mixed: bool, shelf: Ints
) -> None:
    """Where each bucket lies, if some go by sums and if not all do."""
    for bucket in range(len(heat)):
        kind, one = 0, paid[0, bucket]
        if by_sums:
            if not mixed and heat[bucket] > 0.0:
                one = np.inf
            for other in range(len(rise)):
                sent = paid[other + 1, bucket] + rise[other] * heat[bucket]
                if sent < one:
                    kind, one = other + 1, sent
        shelf[bucket] = where[kind, bucket]


@inner
def _edges_of(cuts: Ints, sizes: Ints, at: Ints, step: int, low: Ints, high: Ints) -> None:
    """Between which masses boxes lie: those of one place, or of so many after each other."""
    for dim in range(len(at)):
        low[dim] = cuts[dim, step * at[dim]]
        high[dim] = cuts[dim, min(step * (at[dim] + 1), sizes[dim] - 1)]


@inner
def _next(at: Ints, group: Ints, sizes: Ints) -> bool:
    """The next box of a group; False after the last."""
    for dim in range(len(at)):
        at[dim] += 1
        if at[dim] < min(GROUPED * (group[dim] + 1), sizes[dim] - 1):
            return True
        at[dim] = GROUPED * group[dim]
    return False


@inner
def _next_group(group: Ints, sizes: Ints) -> bool:
    """The next group of boxes; False after the last."""
    for dim in range(len(group)):
        group[dim] += 1
        if GROUPED * group[dim] < sizes[dim] - 1:
            return True
        group[dim] = 0
    return False


@inner
def _value(
    facts: tuple[Ints, Floats, Floats, Floats, Floats], low: Ints, high: Ints, rise: Floats,
    rows: tuple[Floats, Floats, Floats, float, float], best: float,
) -> tuple[float, bool]:  # fmt: skip
    """What a table costs at least in a box, if that is below `best`; and if not all go by sums."""
    paid, wide, heat, again_s, least = rows
    start, mixed = _box(facts, low, high, rise), True
    if start < 0.0:
        return np.inf, mixed
    found = np.inf
    for both in range(1 if again_s == 0.0 else 2):
        more = start + (again_s if both == 0 else 0.0)
        if least + more < min(best, found):
            value = _chosen(paid, rise, wide, heat, both == 0, more, min(best, found))
            if value < found:
                found, mixed = value, both == 0
    return found, mixed


@inner
def _box(
    facts: tuple[Ints, Floats, Floats, Floats, Floats], low_edge: Ints, high_edge: Ints,
    rise: Floats,
) -> float:  # fmt: skip
    """What sums cost at least in one box of the grid, and more for each share of lookups.

    Below 0 if no plan is in it: where all that send at one distance do so at another, there is no
    less mass there.
    """
    sends, flat_s, more_s, needed, masses = facts
    classes, dims = sends.shape
    start = 0.0
    rise[:] = 0.0
    for dim in range(dims):
        low, high = low_edge[dim], high_edge[dim]
        for other in range(dims):
            inside = True
            for one in range(classes):
                inside = inside and sends[one, dim] <= sends[one, other]
            if inside and high_edge[other] <= low and low > 0 and other != dim:
                return -1.0
        slope = (needed[high] - needed[low]) / (masses[high] - masses[low])
        start += flat_s[dim] * (needed[low] - slope * masses[low])
        mean = needed[high] / masses[high]
        for one in range(classes):
            if sends[one, dim]:
                rise[one] += flat_s[dim] * slope + more_s[one, dim] * mean
    return start


@inner
def _chosen(
    paid: Floats, rise: Floats, widths: Floats, mass: Floats, mixed: bool, start: float,
    enough: float,
) -> float:  # fmt: skip
    """What a table costs if every row chooses; rows that are looked up only by sums if not mixed.

    May stop when it is `enough`.
    """
    total = start
    for bucket in range(len(widths)):
        if widths[bucket] == 0:
            continue
        one = paid[0, bucket]
        if not mixed and mass[bucket] > 0.0:
            one = np.inf
        for other in range(len(rise)):
            one = min(one, paid[other + 1, bucket] + rise[other] * mass[bucket])
        total += widths[bucket] * one
        if total >= enough:
            break
    return total


def best_prices(tables: FlatTables, allowed: Floats | None = None) -> tuple[Priced, Priced]:
    """Prices at which what is chosen fits, as low as they go, and those of the best bound met.

    Memories are priced one after the other, each by halving: less of it is used as its
    price rises. Faster memory always costs a trace more, which decides between equals.
    """
    worth = _worth_of_a_byte(tables)
    count = len(tables.capacity)
    found = at_prices(tables, worth * _TIE * 2.0 ** -np.arange(count, dtype=np.float64), allowed)
    best = found
    for _ in range(_ROUNDS):
        over = np.flatnonzero(found.used_bytes > tables.capacity)
        if not len(over):
            break
        for memory in over.tolist():
            found, best = _raise_price(tables, found, memory, worth, best, allowed)
    return found, best


def scarcity_prices(
    tables: FlatTables, priced: Priced, fast: int, allowed: Floats | None = None
) -> Floats:
    """Prices at which the first `fast` memories would be scarce, where they are not.

    What all devices have room for together, one of them may not have room for.
    """
    prices, capacity = priced.prices.copy(), tables.capacity
    least, less = LEAST_WORTH * priced.seconds, capacity.copy()
    plenty = [m for m in range(fast) if priced.prices[m] * capacity[m] <= least]
    for _ in range(_HALVED if plenty else 0):
        less[:fast] /= 2
        found = best_prices(replace(tables, capacity=less.copy()), allowed)[0]
        for memory in list(plenty):
            if found.prices[memory] * capacity[memory] > least:
                prices[memory] = found.prices[memory]
                plenty.remove(memory)
        if not plenty:
            break
    return prices


def _raise_price(
    tables: FlatTables,
    start: Priced,
    memory: int,
    worth: float,
    best: Priced,
    allowed: Floats | None,
) -> tuple[Priced, Priced]:
    """The least price at which a memory's rows fit: between two by how much they are off there."""
    capacity = max(float(tables.capacity[memory]), 1.0)
    low, high = float(start.prices[memory]), worth
    over, under = float(start.used_bytes[memory]) / capacity - 1, 0.0
    fits: Priced | None = None
    for number in range(_TRIES):
        prices = start.prices.copy()
        if fits is None:
            prices[memory] = high
        elif number % 3 == 2:  # for sure half of what is left
            prices[memory] = np.sqrt(low * high)
        else:
            share = min(0.95, max(0.05, over / (over + under)))
            prices[memory] = low * (high / low) ** share
        found = at_prices(tables, prices, allowed)
        best = found if found.seconds > best.seconds else best
        off = float(found.used_bytes[memory]) / capacity - 1
        if off <= 0:
            high, under, fits = float(prices[memory]), -off, found
        else:
            low, over = float(prices[memory]), off
            high = high if fits is not None else 8 * high
        if fits is not None and (under <= _NEARLY or high <= (1 + _NEARLY) * low):
            break
    return fits or start, best


def _worth_of_a_byte(tables: FlatTables) -> float:
    """About what a byte is worth: all time over all bytes."""
    seconds = float(tables.cost_s.min(axis=1) @ tables.widths)
    rows = np.add.reduceat(tables.widths, tables.first[:-1])
    stored = float(tables.kept_bytes.max(axis=0) @ rows)
    return max(seconds, 1e-12) / max(stored, 1.0)

"""The inner loops of `choose.py`, compiled.

The cost of a state is T·(Σ_d (time_d/T)^p / devices)^(1/p) plus what its memory is worth; T only
keeps the powers near 1. Bytes are whole numbers, so that taking out and putting back is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rowtier.backends.menu import Lists
from rowtier.jit import compiled
from rowtier.profile.curve import Floats, Ints

SLACK = 1e-12
MOST_OUT = 6  # tables that are taken out at a time
LOOKS = 64  # for a table on the fullest device
FIRST, LAST = 4, 9  # doublings of p while tables are shuffled


class SearchState(NamedTuple):
    """Where everything is."""

    chosen: Ints  # of each table its option; −1: taken out
    places: Ints  # table × part
    load: Floats  # device × (milliseconds, bytes of hbm, bytes of ddr)


def empty(menu: Lists, most_parts: int) -> SearchState:
    """A state in which no table is placed."""
    tables = len(menu.tables) - 1
    return SearchState(
        np.full(tables, -1, dtype=np.int64),
        np.zeros((tables, most_parts), dtype=np.int64),
        np.zeros((len(menu.free), 3)),
    )


@compiled
def power(x: float, doublings: int) -> float:
    """x^(2^doublings), for x up to 8 and up to 8 doublings without overflow."""
    x = min(x, 8.0)
    for _ in range(doublings):
        x *= x
    return x


@compiled
def summed(load: Floats, scale: float, doublings: int) -> float:
    """The sum of powers."""
    total = 0.0
    for device in range(len(load)):
        total += power(load[device, 0] / scale, doublings)
    return total


@compiled
def add(menu: Lists, load: Floats, part: int, place: int, sign: float) -> None:
    """Put a part on a place, or take it away."""
    first = place * menu.spans[part]
    for i in range(menu.spans[part]):
        for resource in range(3):
            load[first + i, resource] += sign * menu.asks[menu.shards[part] + i, resource]


@compiled
def fits(menu: Lists, load: Floats, device: int, shard: int) -> bool:
    """Whether a device has room for a shard."""
    for resource in (1, 2):
        asked = menu.asks[shard, resource]
        if asked > 0 and load[device, resource] + asked > menu.free[device, resource]:
            return False
    return True


@compiled
def best_place(
    menu: Lists, load: Floats, part: int, scale: float, doublings: int
) -> tuple[int, float]:
    """Where a part raises the sum of powers the least, and by how much; −1 if it fits nowhere."""
    span, best, least = menu.spans[part], -1, np.inf
    for place in range(len(load) // span):
        raised = 0.0
        for i in range(span):
            device, shard = place * span + i, menu.shards[part] + i
            if not fits(menu, load, device, shard):
                raised = np.inf
                break
            now = load[device, 0]
            raised += power((now + menu.asks[shard, 0]) / scale, doublings)
            raised -= power(now / scale, doublings)
        if raised < least:
            best, least = place, raised
    return best, least


@compiled
def put(
    menu: Lists, load: Floats, option: int, places: Ints, scale: float, doublings: int
) -> float:
    """Put an option's parts where each is best; what that adds, or infinity (and nothing put)."""
    first, total = menu.options[option], 0.0
    for part in range(first, menu.options[option + 1]):
        place, raised = best_place(menu, load, part, scale, doublings)
        if place < 0:
            for back in range(first, part):
                add(menu, load, back, places[back - first], -1.0)
            return np.inf
        places[part - first] = place
        add(menu, load, part, place, 1.0)
        total += raised
    return total


@compiled
def move(menu: Lists, load: Floats, option: int, places: Ints, sign: float) -> None:
    """Put an option's parts on given places, or take them away; −1 is no option."""
    if option >= 0:
        for part in range(menu.options[option], menu.options[option + 1]):
            add(menu, load, part, places[part - menu.options[option]], sign)


@compiled
def worth(menu: Lists, prices: Floats, option: int) -> float:
    """What the memory of an option is worth."""
    total = 0.0
    first, last = menu.options[option], menu.options[option + 1]
    for shard in range(menu.shards[first], menu.shards[last]):
        total += prices[1] * menu.asks[shard, 1] + prices[2] * menu.asks[shard, 2]
    return total


@compiled
def reinsert(
    menu: Lists, state: SearchState, table: int, prices: Floats, scale: float, doublings: int
) -> None:
    """Put a table that was taken out back with the option and on the places that cost least."""
    tried = np.zeros(state.places.shape[1], dtype=np.int64)
    base, load = summed(state.load, scale, doublings), state.load
    best, least = -1, np.inf
    for option in range(menu.tables[table], menu.tables[table + 1]):
        raised = put(menu, load, option, tried, scale, doublings)
        if raised < np.inf:
            move(menu, load, option, tried, -1.0)
            mean = max(base + raised, 0.0) / len(load)
            cost = scale * mean ** (1.0 / 2.0**doublings) + worth(menu, prices, option)
            if cost < least:
                best, least = option, cost
    if best >= 0:
        put(menu, load, best, state.places[table], scale, doublings)
    state.chosen[table] = best


@compiled
def place_all(menu: Lists, state: SearchState, wanted: Ints, order: Ints, scale: float) -> None:
    """Place every table's wanted option, in order; what fits nowhere stays out."""
    for table in order:
        raised = put(menu, state.load, wanted[table], state.places[table], scale, 3)
        state.chosen[table] = wanted[table] if raised < np.inf else -1


@compiled
def sweeps(
    menu: Lists,
    state: SearchState,
    order: Ints,
    prices: Floats,
    scale: float,
    doublings: int,
    most: int,
) -> None:
    """Take every table out and put it back, in order, until nothing changes."""
    for _ in range(most):
        changed = False
        for table in order:
            before, old = state.chosen[table], state.places[table].copy()
            move(menu, state.load, before, old, -1.0)
            reinsert(menu, state, table, prices, scale, doublings)
            same = state.chosen[table] == before
            if same and before >= 0:
                for part in range(menu.options[before + 1] - menu.options[before]):
                    same = same and state.places[table, part] == old[part]
            changed = changed or not same
        if not changed:
            break


@compiled
def covers(menu: Lists, option: int, places: Ints, device: int) -> bool:
    """Whether an option has a part on a device."""
    for part in range(menu.options[option], menu.options[option + 1]):
        if places[part - menu.options[option]] == device // menu.spans[part]:
            return True
    return False


@compiled
def drawn(menu: Lists, state: SearchState, out: Ints) -> int:
    """Draw a few tables, the first of them on the fullest device; how many."""
    count, fullest = len(state.chosen), int(np.argmax(state.load[:, 0]))
    for i in range(len(out)):
        out[i] = np.random.randint(count)
    for _ in range(LOOKS):
        if covers(menu, state.chosen[out[0]], state.places[out[0]], fullest):
            break
        out[0] = np.random.randint(count)
    return min(1 + np.random.randint(len(out)), count)


@compiled
def shuffle(
    menu: Lists, state: SearchState, prices: Floats, scale: float, tries: int, seed: int
) -> None:
    """Take a few tables out, put them back otherwise, and keep what is better."""
    np.random.seed(seed)
    out, nothing = np.zeros(MOST_OUT, dtype=np.int64), np.zeros(3)
    before = np.zeros(MOST_OUT, dtype=np.int64)
    old = np.zeros((MOST_OUT, state.places.shape[1]), dtype=np.int64)
    for turn in range(tries):
        doublings = FIRST + turn * (LAST - FIRST) // tries  # the last one is not reached
        now = summed(state.load, scale, doublings)
        count = drawn(menu, state, out)
        for i in range(count):  # a table that is drawn twice is out already, and has no option
            before[i] = state.chosen[out[i]]
            old[i] = state.places[out[i]]
            move(menu, state.load, before[i], old[i], -1.0)
            state.chosen[out[i]] = -1
        complete = True
        asked = prices if np.random.randint(2) else nothing
        for i in range(count):
            if before[i] >= 0:
                reinsert(menu, state, out[i], asked, scale, doublings)
                complete = complete and state.chosen[out[i]] >= 0
        if complete and summed(state.load, scale, doublings) < now * (1 - SLACK):
            continue
        for i in range(count):
            if before[i] >= 0:
                move(menu, state.load, state.chosen[out[i]], state.places[out[i]], -1.0)
        for i in range(count):
            if before[i] >= 0:
                state.chosen[out[i]] = before[i]
                state.places[out[i]] = old[i]
                move(menu, state.load, before[i], old[i], 1.0)


@compiled
def recount(menu: Lists, state: SearchState) -> None:
    """Add up anew what every device has: sums of milliseconds drift."""
    state.load[:] = 0.0
    for table in range(len(state.chosen)):
        move(menu, state.load, state.chosen[table], state.places[table], 1.0)

"""Choose an option for every table and a place for each of its parts.

The slowest device decides, and memory is a limit. Prices of memory come from the relaxed
problem, in which only averages count; they choose the first options. Then tables are taken
out and put back one by one where the p-norm of the devices' times is least, with p rising, and
at last at random, a few at a time. Everything is repeatable: equal menus give equal choices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rowtier.backends import search
from rowtier.backends.menu import DDR, HBM, PERF, OptionMenu
from rowtier.backends.search import SearchState
from rowtier.profile.curve import Floats, Ints

SHARES = (1.0, 0.3, 0.1)  # of a device, the most that a part may take to be chosen at first
TIGHT = (1.0, 0.9, 0.75, 0.5)  # shares of memory that prices may fill, until everything fits
DOUBLINGS = (2, 4, 6)  # p = 2^n
SWEEPS = 12
TRIES = 60  # per table, of putting a few tables back otherwise
LEAST_TRIES, MOST_TRIES = 2_000, 50_000
ROUNDS = 60  # of looking for a price
MORE = 3  # rounds of it, for the best of the starts
SETTLED = 1e-4  # of the bound, above which searching goes on


@dataclass(frozen=True, eq=False)
class Choice:
    """Of every table its option, of every part of it the place, and how good that is."""

    state: SearchState
    bound: float  # milliseconds that no choice beats

    @property
    def score(self) -> float:
        """Milliseconds of the slowest device: what TorchRec's planner rates a plan by."""
        return float(self.state.load[:, PERF].max())


def choose(menu: OptionMenu, seed: int = 0) -> Choice | None:
    """The best choice found; None if nothing was found that fits."""
    bound, prices = best_prices(menu, 1.0)
    tries = min(max(TRIES * menu.num_tables, LEAST_TRIES), MOST_TRIES)
    starts = [_start(menu, bound, share) for share in SHARES]
    found = [_refined(menu, one, prices, tries, seed) for one in starts if one is not None]
    if not found:
        return None
    best = min(found, key=lambda one: one.score)
    for turn in range(1, 1 + MORE):
        if best.score <= bound * (1 + SETTLED):
            break
        best = _refined(menu, best, prices, tries, seed + turn)
    return best


def scarce(menu: OptionMenu) -> bool:
    """Whether more fast memory would save time."""
    return bool(best_prices(menu, 1.0)[1][HBM] > 0)


def best_prices(menu: OptionMenu, fill: float) -> tuple[float, Floats]:
    """Milliseconds that no choice beats, and milliseconds per byte of memory that prove it."""
    capacity = fill * menu.lists.free.sum(axis=0)
    prices, best = np.zeros(3), -np.inf
    proved = prices.copy()
    for _ in range(3):
        for resource in (HBM, DDR):
            prices[resource] = _best_price(menu, prices, resource, capacity)
            value = _dual(menu, prices, capacity)[0]
            if value > best:
                best, proved = value, prices.copy()
    return float(best), proved


def _best_price(menu: OptionMenu, prices: Floats, resource: int, capacity: Floats) -> float:
    """The least price at which what is chosen fits, the other price as it is."""

    def over(price: float) -> bool:
        tried = prices.copy()
        tried[resource] = price
        return bool(_dual(menu, tried, capacity)[1][resource] > capacity[resource])

    if not over(0.0):
        return 0.0
    high = 1e-12
    while over(high) and high < 1e6:
        high *= 16
    low = 0.0 if high == 1e-12 else high / 16
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if over(middle) else (low, middle)
    return high


def _dual(menu: OptionMenu, prices: Floats, capacity: Floats) -> tuple[float, Floats, Ints]:
    """The bound that prices prove, what is used at them, and the options they choose."""
    paid = _paid(menu, prices)
    chosen = _cheapest(menu, paid)
    value = float(paid[chosen].sum() - prices @ capacity)
    return value, menu.totals[chosen].sum(axis=0), chosen


def _paid(menu: OptionMenu, prices: Floats) -> Floats:
    return np.asarray(menu.totals[:, PERF] / menu.devices + menu.totals @ prices)


def _cheapest(menu: OptionMenu, paid: Floats) -> Ints:
    least = np.minimum.reduceat(paid, menu.lists.tables[:-1])
    table = np.repeat(np.arange(menu.num_tables), np.diff(menu.lists.tables))
    at = np.flatnonzero(paid <= least[table])
    return at[np.searchsorted(table[at], np.arange(menu.num_tables))]


def _start(menu: OptionMenu, bound: float, share: float) -> Choice | None:
    """Options by price, none that takes more of a device than `share`, placed and improved."""
    scale, free = max(bound, 1e-12), np.maximum(menu.lists.free[:, HBM:].max(axis=0), 1.0)
    for fill in TIGHT:
        prices = best_prices(menu, fill)[1]
        paid = _paid(menu, prices)
        # What is too large for a device comes last, the largest at the very end.
        size = np.maximum(menu.largest[:, PERF] / scale, (menu.largest[:, HBM:] / free).max(axis=1))
        worst = paid.max() + 1.0
        chosen = _cheapest(menu, np.where(size > share, worst * (1 + size), paid))
        order = np.argsort(-size[chosen], kind="stable")
        state = search.empty(menu.lists, menu.most_parts)
        search.place_all(menu.lists, state, chosen, order, scale)
        for doublings in DOUBLINGS:
            search.sweeps(menu.lists, state, order, prices, scale, doublings, SWEEPS)
        if (state.chosen >= 0).all():
            return Choice(state, bound)
    return None


def _refined(menu: OptionMenu, choice: Choice, prices: Floats, tries: int, seed: int) -> Choice:
    """The choice after tables were put back otherwise, at random, a few at a time."""
    now = choice.state
    state = SearchState(now.chosen.copy(), now.places.copy(), now.load.copy())
    search.shuffle(menu.lists, state, prices, choice.score, tries, seed)
    search.recount(menu.lists, state)
    found = Choice(state, choice.bound)
    return found if found.score <= choice.score else choice

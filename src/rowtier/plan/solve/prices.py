"""Prices for memory: the dual problem, one price per byte of each memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rowtier.plan.solve.menu import Menu
from rowtier.profile.curve import Floats, Ints

_HALVINGS = 12  # to 2.4e-4 of the price; what is left of memory is filled afterwards
_ROUNDS = 2
_HALVED = 5  # times that memory is halved to see when it becomes scarce
LEAST_WORTH = 1e-6  # of a step, that memory must be worth to be scarce
_TIE = 1e-9  # of what a byte is worth: memory is not taken for nothing


@dataclass(frozen=True, eq=False)
class Priced:
    """Prices, the bound that they prove, and what every table chooses at them."""

    prices: Floats
    bound: float
    choices: list[Ints]
    used_bytes: Floats  # of each memory for one device, on average

    def fits(self, capacity: Floats, memory: int) -> bool:
        """Whether what is chosen fits into a memory."""
        return bool(self.used_bytes[memory] <= capacity[memory])


def at_prices(menus: list[Menu], capacity: Floats, prices: Floats) -> Priced:
    """What every table chooses at given prices, and the bound that follows."""
    total, choices, used = 0.0, [], np.zeros(len(capacity))
    for menu in menus:
        cost, _, choice, rows = menu.best(prices)
        total += cost
        choices.append(choice)
        used += rows @ menu.memory_bytes
    return Priced(prices, total - float(prices @ capacity), choices, used)


class Bound(NamedTuple):
    """Seconds that nothing beats, and the prices that prove it."""

    seconds: float
    prices: Floats

    def or_better(self, found: Priced) -> Bound:
        """The better of two bounds."""
        return Bound(found.bound, found.prices) if found.bound > self.seconds else self


def best_prices(menus: list[Menu], capacity: Floats) -> tuple[Priced, Bound]:
    """Prices at which what is chosen fits, as low as they go, and the best bound met on the way.

    Memories are priced one after the other, each by halving: less of it is used as its
    price rises. Faster memory always costs a trace more, which decides between equals.
    """
    worth = _worth_of_a_byte(menus)
    least = worth * _TIE * np.array([2.0**-memory for memory in range(len(capacity))])
    found = at_prices(menus, capacity, least)
    bound = Bound(found.bound, found.prices)
    for _ in range(_ROUNDS):
        full = [m for m in range(len(capacity)) if not found.fits(capacity, m)]
        if not full:
            break
        for memory in full:
            found, bound = _raise_price(menus, capacity, found, memory, worth, bound)
    return found, bound


def scarcity_prices(menus: list[Menu], capacity: Floats, priced: Priced, fast: int) -> Floats:
    """Prices at which the first `fast` memories would be scarce, where they are not.

    What all devices have room for together, one of them may not have room for.
    """
    prices = priced.prices.copy()
    least, less = LEAST_WORTH * priced.bound, capacity.copy()
    plenty = [m for m in range(fast) if priced.prices[m] * capacity[m] <= least]
    for _ in range(_HALVED if plenty else 0):
        less[:fast] /= 2
        found = best_prices(menus, less)[0]
        for memory in list(plenty):
            if found.prices[memory] * capacity[memory] > least:
                prices[memory] = found.prices[memory]
                plenty.remove(memory)
        if not plenty:
            break
    return prices


def _raise_price(
    menus: list[Menu], capacity: Floats, start: Priced, memory: int, worth: float, bound: Bound
) -> tuple[Priced, Bound]:
    low, high = start.prices[memory], worth
    fits: Priced | None = None
    for _ in range(_HALVINGS + 10):
        prices = start.prices.copy()
        prices[memory] = high if fits is None else (low + high) / 2
        found = at_prices(menus, capacity, prices)
        bound = bound.or_better(found)
        if found.fits(capacity, memory):
            high, fits = prices[memory], found
        else:
            low = prices[memory]
            high = high if fits is not None else 8 * high
        if fits is not None and high - low <= 2.0**-_HALVINGS * high:
            break
    return fits or start, bound


def _worth_of_a_byte(menus: list[Menu]) -> float:
    """About what a byte is worth: all time over all bytes."""
    seconds = sum(float(menu.seconds.min(axis=0) @ menu.widths) for menu in menus)
    stored = sum(float(menu.memory_bytes.max() * menu.widths.sum()) for menu in menus)
    return max(seconds, 1e-12) / max(stored, 1.0)

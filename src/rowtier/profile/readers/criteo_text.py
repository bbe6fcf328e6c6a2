"""The compiled parser of Criteo's text format, which finds fields and decodes them in one pass."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rowtier.jit import compiled
from rowtier.profile.readers.base import Ints

SKIP, HEX, INT, LABEL = 0, 1, 2, 3  # what to do with a field
FINE, WRONG_FIELDS, WRONG_VALUE, TOO_LARGE = 0, 1, 2, 3  # what the parser says
_TAB, _NEWLINE, _RETURN, _PLUS, _MINUS, _DOT, _ZERO, _NINE = 9, 10, 13, 43, 45, 46, 48, 57
_MOST_HEX, _MOST_DECIMAL = 16, 18  # digits that fit into 64 bits


def _digits() -> NDArray[np.int64]:
    values = np.full(256, -1, dtype=np.int64)
    for text in "0123456789abcdefABCDEF":
        values[ord(text)] = int(text, 16)
    return values


_DIGITS = _digits()


@compiled
def _hexadecimal(text: NDArray[np.uint8], at: int) -> tuple[int, int, int]:
    """Read digits from `at` on: (where they end, their value, FINE or what is wrong)."""
    start, value = at, 0
    digit = _DIGITS[text[at]]
    while digit >= 0:
        value = (value << 4) | digit
        at += 1
        digit = _DIGITS[text[at]]
    if text[at] > _RETURN:
        return at, 0, WRONG_VALUE
    # One test after the loop: sixteen digits are the most that can fit.
    return at, value, TOO_LARGE if at - start > _MOST_HEX or value < 0 else FINE


@compiled
def _decimal(text: NDArray[np.uint8], at: int, is_label: bool) -> tuple[int, int, int]:
    """Read a signed number from `at` on; a label may have a point in it."""
    sign = 1
    if text[at] == _MINUS or text[at] == _PLUS:
        sign = -1 if text[at] == _MINUS else 1
        at += 1
        if text[at] < _ZERO:
            return at, 0, WRONG_VALUE
    start, value = at, 0
    while _ZERO <= text[at] <= _NINE or (is_label and text[at] == _DOT):
        value = value * 10 + (text[at] - _ZERO)
        at += 1
    if text[at] > _RETURN:
        return at, 0, WRONG_VALUE
    return at, sign * value, TOO_LARGE if at - start > _MOST_DECIMAL else FINE


@compiled
def _line(
    text: NDArray[np.uint8],
    at: int,
    actions: NDArray[np.int64],
    slots: NDArray[np.int64],
    values: Ints,
    present: NDArray[np.bool_],
    filled: Ints,
    sample: int,
) -> tuple[int, int, int]:
    """Read one line that begins at `at`: (where it ends, FINE or what is wrong, in which field)."""
    for field in range(len(actions)):
        start = at
        if actions[field] == SKIP:
            while text[at] != _TAB and text[at] != _NEWLINE and text[at] != _RETURN:
                at += 1
        else:
            if actions[field] == HEX:
                at, value, wrong = _hexadecimal(text, at)
            else:
                at, value, wrong = _decimal(text, at, actions[field] == LABEL)
            if wrong != FINE:
                return at, wrong, field
            slot = slots[field]
            if slot >= 0:
                present[slot, sample] = at > start
                if at > start:
                    values[slot, filled[slot]] = value
                    filled[slot] += 1
        if text[at] == _RETURN:
            at += 1
            if text[at] != _NEWLINE:
                return at, WRONG_VALUE, field
        if (text[at] == _NEWLINE) != (field == len(actions) - 1):
            return at, WRONG_FIELDS, field
        at += 1
    return at, FINE, 0


@compiled
def parse(
    text: NDArray[np.uint8],
    actions: NDArray[np.int64],
    slots: NDArray[np.int64],
    values: Ints,
    present: NDArray[np.bool_],
    filled: Ints,
) -> tuple[int, int, int, int]:
    """Parse whole lines; returns (samples, what is wrong, at which byte the line begins, field).

    `actions[f]` says what to do with field f and `slots[f]` in which row of `values` its ids
    are collected; `filled` counts them and `present` says which samples had one. `text`
    ends with a newline. Empty lines are passed over.
    """
    at, samples = 0, 0
    while at < len(text):
        if text[at] == _NEWLINE:
            at += 1
        elif text[at] == _RETURN and text[at + 1] == _NEWLINE:
            at += 2
        else:
            end, wrong, field = _line(text, at, actions, slots, values, present, filled, samples)
            if wrong != FINE:
                return samples, wrong, at, field
            at = end
            samples += 1
    return samples, FINE, 0, 0

"""Adding many short columns into few places: gathered first, added up in one go."""

from __future__ import annotations

from functools import cached_property
from math import prod

import numpy as np

from rowtier.profile.curve import Floats, Ints

_MOST_COLUMNS = 100_000  # that wait; more do not make it faster


class Gather:
    """Sums of columns by place, and of all columns of one owner; of several plans, if `more`."""

    def __init__(self, rows: int, places: int, owners: int, *more: int):
        self._rows, self._places, self._owners, self._more = rows, places, owners, more
        self._columns: list[Floats] = []
        self._where: list[Ints] = []
        self._whose: list[int] = []
        self._waiting = 0

    def add(self, columns: Floats, where: Ints, owner: int, plan: int = 0) -> None:
        """Add each column at its place, which may come more than once."""
        self._columns.append(columns)
        self._where.append(where + plan * self._places if plan else where)
        self._whose.append(owner)
        self._waiting += columns.shape[1]
        if self._waiting > _MOST_COLUMNS:
            self._settle()

    @property
    def is_used(self) -> bool:
        """Whether anything was added."""
        return bool(self._columns) or "_sums" in vars(self)

    @property
    def by_place(self) -> Floats:
        """Rows × places, and plans if there are several."""
        self._settle()
        if not self._more:
            return self._sums[0]
        by_plan = self._sums[0].reshape(self._rows, *self._more, self._places)
        return np.ascontiguousarray(np.moveaxis(by_plan, -1, 1))

    @property
    def by_owner(self) -> Floats:
        """Rows × owners, of all plans."""
        self._settle()
        return self._sums[1]

    @cached_property
    def _sums(self) -> tuple[Floats, Floats]:
        places = self._places * prod(self._more)
        return np.zeros((self._rows, places)), np.zeros((self._rows, self._owners))

    def _settle(self) -> None:
        if not self._columns:
            return
        columns, where = np.concatenate(self._columns, axis=1), np.concatenate(self._where)
        lengths = [part.shape[1] for part in self._columns]
        owner = np.repeat(self._whose, lengths)
        row = np.arange(self._rows)[:, None]
        for sums, column in zip(self._sums, (where, owner), strict=True):
            at = (row * sums.shape[1] + column).ravel()
            sums += np.bincount(at, columns.ravel(), sums.size).reshape(sums.shape)
        self._columns, self._where, self._whose, self._waiting = [], [], [], 0

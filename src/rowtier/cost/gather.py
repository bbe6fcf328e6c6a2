"""Adding many short columns into few places: gathered first, added up in one go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rowtier.profile.curve import Floats, Ints

_MOST_COLUMNS = 100_000  # that wait; more do not make it faster


class Gather:
    """Sums of columns by place, and of all columns of one owner."""

    def __init__(self, rows: int, places: int, owners: int):
        self._places = np.zeros((rows, places))
        self._owners = np.zeros((rows, owners))
        self._columns: list[Floats] = []
        self._where: list[Ints] = []
        self._whose: list[int] = []
        self._waiting = 0
        self.is_used = False  # whether anything was added

    def add(self, columns: Floats, where: Ints, owner: int) -> None:
        """Add each column at its place, which may come more than once."""
        self.is_used = True
        self._columns.append(columns)
        self._where.append(where)
        self._whose.append(owner)
        self._waiting += columns.shape[1]
        if self._waiting > _MOST_COLUMNS:
            self._settle()

    @classmethod
    def stacked(cls, gathers: Sequence[Gather]) -> Gather:
        """What several were given, side by side along a last axis."""
        found = cls(0, 0, 0)
        found.is_used = any(gather.is_used for gather in gathers)
        if found.is_used:
            found._places = np.stack([gather.by_place for gather in gathers], axis=-1)
        return found

    @property
    def by_place(self) -> Floats:
        """Rows × places."""
        self._settle()
        return self._places

    @property
    def by_owner(self) -> Floats:
        """Rows × owners."""
        self._settle()
        return self._owners

    def _settle(self) -> None:
        if not self._columns:
            return
        columns, where = np.concatenate(self._columns, axis=1), np.concatenate(self._where)
        lengths = [part.shape[1] for part in self._columns]
        owner = np.repeat(self._whose, lengths)
        for row, amounts in enumerate(columns):
            self._places[row] += np.bincount(where, amounts, self._places.shape[1])
            self._owners[row] += np.bincount(owner, amounts, self._owners.shape[1])
        self._columns, self._where, self._whose, self._waiting = [], [], [], 0

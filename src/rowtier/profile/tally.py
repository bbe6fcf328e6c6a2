"""Rows grouped by how often they were seen, and what the groups say of coverage.

Which row is hot never matters here, only how many rows were seen c times, and how often these
were seen in other data. So millions of rows become some thousand groups, and each question
about the hottest K rows costs a binary search. `coverage.py` has the mathematics in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rowtier.profile.order import NarrowInts

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_NEIGHBOURS = 20  # rows on one side of the cut that are enough to tell of luck
_OFTEN = 2**16  # rows seen less often are grouped by counting, others by sorting


def sum_by(place: Ints, weights: Floats, size: int) -> Floats:
    """Add up the weights that belong to the same place."""
    return np.asarray(np.bincount(place, weights, size), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class CountGroups:
    """Groups of rows that one sample saw equally often, hottest first, unseen rows last."""

    count: Ints  # how often a row of the group was seen
    rows: Ints  # how many rows the group has
    scored: Floats  # lookups that the sample to score on has in the group

    @classmethod
    def of(cls, count: Ints, rows: Ints, scored: Floats) -> CountGroups:
        """Merge groups that were seen equally often."""
        negative, place = np.unique(-count, return_inverse=True)
        merged = np.zeros(len(negative), dtype=np.int64)
        np.add.at(merged, place, rows)
        return cls(-negative, merged, sum_by(place, scored, len(negative)))

    @classmethod
    def of_counts(cls, counts: NarrowInts, num_embeddings: int) -> CountGroups:
        """Of the touched rows of a table, in any order, scored on the sample itself."""
        seldom = np.bincount(counts[counts < _OFTEN], minlength=1).astype(np.int64)
        often = counts[counts >= _OFTEN]
        seldom[0] = num_embeddings - len(counts)
        count = np.concatenate((np.flatnonzero(seldom), often)).astype(np.int64)
        rows = np.concatenate((seldom[seldom > 0], np.ones(len(often), dtype=np.int64)))
        return cls.of(count, rows, count.astype(np.float64) * rows)

    @cached_property
    def own(self) -> Floats:
        """Lookups of the sample itself, per group."""
        return self.count.astype(np.float64) * self.rows

    @cached_property
    def lookups(self) -> float:
        """All lookups of the sample itself."""
        return float(self.own.sum())

    @cached_property
    def rows_above(self) -> Ints:
        """Rows in hotter groups, per group; one entry more, for all of them."""
        return np.concatenate(([0], np.cumsum(self.rows)))

    @cached_property
    def own_above(self) -> Floats:
        """The sample's own lookups in hotter groups."""
        return np.concatenate(([0.0], np.cumsum(self.own)))

    @cached_property
    def scored_above(self) -> Floats:
        """Lookups to score on, in hotter groups."""
        return np.concatenate(([0.0], np.cumsum(self.scored)))

    def rows_seen(self, times: Ints) -> Ints:
        """How many rows were seen exactly so often."""
        place = np.minimum(np.searchsorted(-self.count, -times), len(self.count) - 1)
        return np.where(self.count[place] == times, self.rows[place], 0)

    def cut(self, positions: Ints) -> HottestCut:
        """Where the hottest `positions` rows end; there must be a row that is not among them."""
        group = np.searchsorted(self.rows_above, positions, side="right") - 1
        inside = positions - self.rows_above[group]
        return HottestCut(group, inside, self.count[group], self.rows[group])


@dataclass(frozen=True, eq=False)
class HottestCut:
    """The hottest K rows end inside the group of the first row that is not among them."""

    group: Ints
    inside: Ints  # rows of the group that are among the hottest K: 0 ≤ inside < size
    count: Ints  # how often the rows of the group were seen
    size: Ints  # rows of the group

    def holds(self, count: Ints) -> Floats:
        """Probability that a row seen so often is among the hottest K, ties drawn by lot."""
        return _at_threshold(count, self.count, self.inside / self.size)

    def keeps(self, count: Ints) -> Floats:
        """The same for a row seen so often, once one of its lookups is taken away."""
        return _at_threshold(count - 1, self.count, (self.inside + 1) / (self.size + 1))


def _at_threshold(count: Ints, threshold: Ints, tied: Floats) -> Floats:
    """1 above the threshold, 0 below, `tied` on it."""
    return np.where(count == threshold, tied, (count > threshold).astype(np.float64))


def leave_one_out(
    tally: CountGroups, positions: Ints, neighbours: int = _NEIGHBOURS
) -> tuple[Floats, Floats]:
    """Coverage that no lookup helped to pick, and its variance under Poisson sampling."""
    cut, last_in = tally.cut(positions), tally.cut(positions - 1).count
    width = _window(tally, positions, neighbours)
    windowed = _windowed(tally, cut, last_in, np.maximum(width, 2.0))
    share, variance = np.where(width > 2, windowed, _exact(tally, cut))
    return share, variance


def _exact(tally: CountGroups, cut: HottestCut) -> Floats:
    """Leave-one-out to the letter: share and variance."""
    n, t = tally.lookups, cut.count
    c1, c2 = (t + 1).astype(np.float64), (t + 2).astype(np.float64)
    rows1, rows2 = tally.rows_seen(t + 1), tally.rows_seen(t + 2)
    above = tally.own_above[cut.group]
    q = (cut.inside + 1) / (cut.size + 1)
    share = (above - c1 * rows1 * (1 - q)) / n
    below, tied, over = -share, q - share, 1 - share  # what g is below t, on it and above
    squares = over**2 * (above - c1 * rows1 - c2 * rows2) + below**2 * (n - above)
    squares += rows1 * _square(c1, tied, below) + rows2 * _square(c2, over, tied)
    scatter = c1 * c2 * rows2 - (c1 * rows1) ** 2 / cut.size
    squares += q * (1 - q) * np.maximum(scatter, 0)
    return np.stack((share, squares / n**2))


def _square(c: Floats, g1: Floats, g2: Floats) -> Floats:
    """A row's squared error, estimated without bias; g1 = g(c−1), g2 = g(c−2)."""
    return np.asarray(c**2 * g1**2 - 2 * c * (c - 1) * g2 * g1 + c * (c - 1) * g2**2)


def _window(tally: CountGroups, positions: Ints, neighbours: int) -> Floats:
    """How far from the cut rows tell of luck: until there are enough, and never too far."""
    end = int(tally.rows_above[-1])
    first_out, last_in = tally.cut(positions).count, tally.cut(positions - 1).count
    hotter = tally.cut(np.maximum(positions - neighbours, 0)).count - first_out
    colder = last_in - tally.cut(np.minimum(positions + neighbours, end) - 1).count
    enough_hotter, enough_colder = positions > neighbours, positions + neighbours < end
    reach = np.where(enough_hotter, hotter, first_out)
    reach = np.minimum(reach, np.where(enough_colder, colder, first_out))
    # No wider than the count itself: unseen rows, which may be very many, stay outside.
    return np.asarray(np.minimum(reach, np.minimum(first_out, 2 * np.sqrt(first_out))))


def _windowed(tally: CountGroups, cut: HottestCut, last_in: Ints, width: Floats) -> Floats:
    """Share and variance where rows tell of luck up to `width` from the cut, on both sides."""
    n, t = tally.lookups, cut.count.astype(np.float64)
    group, own_above, rows_above = cut.group, tally.own_above, tally.rows_above
    inside = own_above[group] + cut.inside * t
    top = np.searchsorted(-tally.count, -(t + width), side="right")
    bottom = np.searchsorted(-tally.count, width - last_in, side="left")
    # Rows in, by how much they are above the first one out …
    rows, own = rows_above[group] - rows_above[top], own_above[group] - own_above[top]
    near = cut.inside + rows - (own - t * rows) / width
    # … and rows out, by how much they are below the last one in.
    rows = rows_above[bottom] - rows_above[group] - cut.inside
    near += rows - (last_in * rows.astype(np.float64) - (own_above[bottom] - inside)) / width
    luck = t / width * near
    share = (inside - luck) / n
    squares = (1 - share) ** 2 * inside + share**2 * (n - inside) + t / width * luck
    return np.stack((share, squares / n**2))

"""Rows grouped by how often they were seen, and what the groups say of coverage.

Which row is hot never matters here, only how many rows were seen c times in the one half
of the data and d times in the other. So millions of rows become some thousand groups, and
each question about the hottest K rows costs a binary search. `coverage.py` has the
mathematics in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rowtier.jit import compiled
from rowtier.profile.order import NarrowInts

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_NEIGHBOURS = 20  # rows on one side of the cut that are enough to tell of luck
# Rows seen at most so often are kept as groups (at most 2,080 of them), others one by one.
_OFTEN = 63


@compiled
def _count_cells(counts: NarrowInts, late: NarrowInts, side: int, sizes: Ints) -> None:
    for i in range(len(counts)):
        if counts[i] < side:
            sizes[counts[i] * side + late[i]] += 1


def sum_by(place: Ints, weights: Floats, size: int) -> Floats:
    """Add up the weights that belong to the same place."""
    return np.asarray(np.bincount(place, weights, size), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Tally:
    """Groups of rows that one sample saw equally often, hottest first, unseen rows last."""

    count: Ints  # how often a row of the group was seen
    rows: Ints  # how many rows the group has
    scored: Floats  # lookups that the sample to score on has in the group

    @classmethod
    def of(cls, count: Ints, rows: Ints, scored: Floats) -> Tally:
        """Merge groups that were seen equally often."""
        negative, place = np.unique(-count, return_inverse=True)
        merged = np.zeros(len(negative), dtype=np.int64)
        np.add.at(merged, place, rows)
        return cls(-negative, merged, sum_by(place, scored, len(negative)))

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

    def cut(self, ranks: Ints) -> Cut:
        """Where the hottest `ranks` rows end; there must be a row that is not among them."""
        group = np.searchsorted(self.rows_above, ranks, side="right") - 1
        inside = ranks - self.rows_above[group]
        return Cut(group, inside, self.count[group], self.rows[group])


@dataclass(frozen=True, eq=False)
class Cut:
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


@dataclass(frozen=True, eq=False)
class Halves:
    """Cells of rows that were seen `early` times in the first and `late` times in the second half.

    The first `grouped` cells hold rows that were seen seldom, many rows each; in the cells
    behind them a row stands for itself.
    """

    early: Ints
    late: Ints
    rows: Ints
    grouped: int

    @classmethod
    def of(cls, counts: NarrowInts, late: NarrowInts, num_embeddings: int) -> Halves:
        """Group the touched rows of a table; those never touched are a cell too."""
        side = _OFTEN + 1
        sizes = np.zeros(side * side, dtype=np.int64)
        _count_cells(counts, late, side, sizes)
        sizes[0] = num_embeddings - len(counts)
        cells = np.flatnonzero(sizes)
        total, second = cells // side, cells % side
        often = counts > _OFTEN
        second = np.concatenate((second, late[often]))
        total = np.concatenate((total, counts[often]))
        rows = np.concatenate((sizes[cells], np.ones(len(total) - len(cells), dtype=np.int64)))
        return cls(total - second, second, rows, len(cells))

    @cached_property
    def tallies(self) -> tuple[Tally, Tally]:
        """The first half scored on the second, and the second scored on the first."""
        early = self.early.astype(np.float64) * self.rows
        late = self.late.astype(np.float64) * self.rows
        return Tally.of(self.early, self.rows, late), Tally.of(self.late, self.rows, early)

    @cached_property
    def whole(self) -> Tally:
        """Both halves together."""
        total = self.early + self.late
        return Tally.of(total, self.rows, total.astype(np.float64) * self.rows)

    @property
    def touched(self) -> int:
        """Rows that were seen at all."""
        return int(self.rows[self.early + self.late > 0].sum())


def leave_one_out(
    tally: Tally, ranks: Ints, neighbours: int = _NEIGHBOURS
) -> tuple[Floats, Floats]:
    """Coverage that no lookup helped to pick, and its variance under Poisson sampling."""
    cut, last_in = tally.cut(ranks), tally.cut(ranks - 1).count
    width = _window(tally, ranks, neighbours)
    windowed = _windowed(tally, cut, last_in, np.maximum(width, 2.0))
    share, variance = np.where(width > 2, windowed, _exact(tally, cut))
    return share, variance


def _exact(tally: Tally, cut: Cut) -> Floats:
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


def _window(tally: Tally, ranks: Ints, neighbours: int) -> Floats:
    """How far from the cut rows tell of luck: until there are enough, and never too far."""
    end = int(tally.rows_above[-1])
    first_out, last_in = tally.cut(ranks).count, tally.cut(ranks - 1).count
    hotter = tally.cut(np.maximum(ranks - neighbours, 0)).count - first_out
    colder = last_in - tally.cut(np.minimum(ranks + neighbours, end) - 1).count
    enough_hotter, enough_colder = ranks > neighbours, ranks + neighbours < end
    reach = np.where(enough_hotter, hotter, first_out)
    reach = np.minimum(reach, np.where(enough_colder, colder, first_out))
    # No wider than the count itself: unseen rows, which may be very many, stay outside.
    return np.asarray(np.minimum(reach, np.minimum(first_out, 2 * np.sqrt(first_out))))


def _windowed(tally: Tally, cut: Cut, last_in: Ints, width: Floats) -> Floats:
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


def halves_drift(halves: Halves, ranks: Ints) -> Floats:
    """How much less of the other half a half's hot set covers than of its own."""
    first, second = halves.tallies
    drift = np.zeros(len(ranks))
    for half, other in ((first, second), (second, first)):
        cut = half.cut(ranks)
        tied = cut.inside / cut.size * half.scored[cut.group]
        across = (half.scored_above[cut.group] + tied) / other.lookups
        drift += (leave_one_out(half, ranks)[0] - across) / 2
    return drift


def halves_drift_variance(halves: Halves, ranks: Ints) -> Floats:
    """Σd² over the rows, rows in groups first, then those that stand for themselves."""
    (first, second), grouped = halves.tallies, halves.grouped
    early_cut, late_cut = first.cut(ranks), second.cut(ranks)
    early, late = halves.early[:grouped, None], halves.late[:grouped, None]
    part = early / first.lookups * (early_cut.keeps(early) - late_cut.holds(late))
    part += late / second.lookups * (late_cut.keeps(late) - early_cut.holds(early))
    variance = halves.rows[:grouped] @ (part / 2) ** 2
    # A row seen often counts at the ranks where it is in one half's hot set only.
    early, late = halves.early[grouped:], halves.late[grouped:]
    square = ((early / first.lookups - late / second.lookups) / 2) ** 2
    enters = np.searchsorted(-early_cut.count, -early, side="right")
    enters_late = np.searchsorted(-late_cut.count, -late, side="right")
    steps = sum_by(np.minimum(enters, enters_late), square, len(ranks) + 1)
    steps -= sum_by(np.maximum(enters, enters_late), square, len(ranks) + 1)
    return np.asarray(variance + np.maximum(np.cumsum(steps)[:-1], 0))

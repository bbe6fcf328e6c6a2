"""Who of a band's members holds which rows: sums over rows, per member, without the rows.

A row's *place* in its band is its rank counted from the band's start (`spread`), or its
position when the band's rows are sorted by id (`blocks`). `spread` deals place x to member
(x + offset) mod m; `blocks` gives each member a contiguous run of places. In a group that
does not hold the row, its *gateway* is device (x + offset) mod (devices of the group).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

import numpy as np
from numpy.typing import NDArray

from rowtier.band import Band
from rowtier.profile.curve import Curve, Floats, Ints
from rowtier.profile.order import RowOrder
from rowtier.profile.profile import TableStats


@dataclass(frozen=True, eq=False)
class Dealt:
    """Sums over the rows of a band, one column per class of rows with equal member and gateway."""

    member: Ints  # position in the band's member list
    gateway: Ints
    sums: Floats  # values × classes

    def by_member(self, members: int) -> Floats:
        """The same sums, values × members."""
        if members == 1 == len(self.member):
            return self.sums
        if len(self.member) == members:
            sums = np.empty_like(self.sums)
            sums[:, self.member] = self.sums
            return sums
        return np.stack([np.bincount(self.member, row, members) for row in self.sums])


def known_rows(stats: TableStats, order: RowOrder | None) -> Ints | None:
    """The touched rows of a table, hottest first, if anyone knows them."""
    if order is not None:
        return order[stats.table.name]
    return None if stats.counts is None else stats.counts.rows


def deal(
    band: Band,
    curve: Curve,
    values: Floats,
    members: int,
    gateways: int = 1,
    rows: Ints | None = None,
) -> Dealt:
    """Add up `values` (one column per bucket of the curve, falling) over each class of rows.

    `gateways` is the size of the largest group that a row needs a gateway in. Without the
    row order every block of row ids is as hot as another.
    """
    if band.order == "spread":
        return _spread(band, curve, values, members, gateways)
    if rows is None or members == gateways == 1:
        return _even_blocks(band, curve, values, members, gateways)
    return _known_blocks(band, curve, values, members, gateways, rows)


def _spread(band: Band, curve: Curve, values: Floats, members: int, gateways: int) -> Dealt:
    """Σ over the ranks x ≡ c (mod classes), bucket by bucket.

    Summed by parts: Σ_b (ranks of class c up to the end of bucket b) · (value_b − value_b+1).
    No term is negative, so nothing cancels, and the work does not depend on the rows.
    """
    classes = lcm(members, gateways)
    ends, inside = _buckets(band, curve, values)
    if classes == 1:
        one = np.zeros(1, dtype=np.int64)
        return Dealt(one, one, (inside @ _widths(ends))[:, None])
    turns, rest = np.divmod(ends, classes)
    drops = inside.copy()
    drops[:, :-1] -= inside[:, 1:]
    full_turns = drops @ turns.astype(np.float64)
    sums = np.empty((len(values), classes))
    for row, drop in enumerate(drops):
        last_turn = np.bincount(rest, drop, classes + 1)
        sums[row] = full_turns[row] + last_turn[:0:-1].cumsum()[::-1]
    place = np.arange(classes, dtype=np.int64) + band.offset
    return Dealt(place % members, place % gateways, sums)


def _even_blocks(band: Band, curve: Curve, values: Floats, members: int, gateways: int) -> Dealt:
    ends, inside = _buckets(band, curve, values)
    total = inside @ _widths(ends)
    member, gateway = _grid(members, gateways)
    first, last = _block_edges(band, members)
    # places x of a block with x + offset ≡ gateway
    turn = (gateway - band.offset) % gateways
    count = -(-(last[member] - turn) // gateways) - -(-(first[member] - turn) // gateways)
    return Dealt(member, gateway, total[:, None] * (count / band.rows))


def _known_blocks(
    band: Band, curve: Curve, values: Floats, members: int, gateways: int, rows: Ints
) -> Dealt:
    """Touched rows one by one; the others, in id order, by how many lie between the edges."""
    seen = min(len(rows), curve.positions)
    places = _places(band, rows)
    ends = np.clip(curve.stops, band.start, max(band.start, min(band.stop, seen)))
    bucket = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=band.start))
    hot = places[: len(bucket)]
    block = -(-band.rows // members)
    group = hot // block * gateways + (hot + band.offset) % gateways
    classes = members * gateways
    sums: Floats = np.stack(
        [np.bincount(group, value[bucket], classes).astype(np.float64) for value in values]
    )
    first_unseen = max(band.start, len(rows))
    if first_unseen < min(curve.positions, band.stop):
        edges = np.append(_block_edges(band, members)[0], band.rows)
        edges = edges - np.searchsorted(np.sort(places), edges)  # rows never touched, before each
        cold = np.diff(_sums_from(curve, values, first_unseen, first_unseen + edges), axis=1)
        sums += np.repeat(cold / gateways, gateways, axis=1)
    member, gateway = _grid(members, gateways)
    return Dealt(member, gateway, sums)


def _buckets(band: Band, curve: Curve, values: Floats) -> tuple[Ints, Floats]:
    """Where the buckets that meet the band end, counted from its start, and their values."""
    low = int(curve.stops.searchsorted(band.start, side="right"))
    high = int(curve.stops.searchsorted(band.stop, side="left")) + 1
    return np.minimum(curve.stops[low:high], band.stop) - band.start, values[:, low:high]


def _widths(ends: Ints) -> Floats:
    widths = ends.astype(np.float64)
    widths[1:] -= ends[:-1]
    return widths


def _grid(members: int, gateways: int) -> tuple[Ints, Ints]:
    member, gateway = np.divmod(np.arange(members * gateways, dtype=np.int64), gateways)
    return member, gateway


def _block_edges(band: Band, members: int) -> tuple[Ints, Ints]:
    block = -(-band.rows // members)
    edges = np.minimum(np.arange(members + 1, dtype=np.int64) * block, band.rows)
    return edges[:-1], edges[1:]


def _places(band: Band, rows: Ints) -> Ints:
    """Position by id of the touched rows of a band among all rows of the band, hottest first."""
    mine = rows[band.start : band.stop]
    if not len(mine) or (band.start == 0 and mine.max() < band.stop):
        return mine  # the band's rows are 0, 1, 2, …, as those of a whole table
    here = _ranked(mine)
    untouched = band.stop - len(rows)  # in the band: the first ones in id order
    if untouched <= 0:
        return here
    below = _ranked(rows)[band.start : band.stop]
    return np.asarray(here + np.minimum(mine - below, untouched))


def _ranked(numbers: Ints) -> Ints:
    """How many of the numbers are less than each of them."""
    ranks = np.empty_like(numbers)
    ranks[np.argsort(numbers)] = np.arange(len(numbers))
    return ranks


def _sums_from(curve: Curve, values: Floats, first: int, ranks: Ints) -> NDArray[np.float64]:
    """Σ of values over the rows from rank `first` up to each of `ranks`."""
    stops = np.maximum(curve.stops, first)
    sums = np.cumsum(values * np.diff(stops, prepend=first), axis=1)
    stops = np.concatenate(([first], stops))
    return np.stack([np.interp(ranks, stops, np.concatenate(([0.0], total))) for total in sums])

"""Tables as the solver sees them, and what it found as bands."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.plan.constraints import Constraints
from rowtier.plan.recshard.heat import Item
from rowtier.plan.recshard.layout import PieceLayout, Slice
from rowtier.plan.recshard.machine import tiers_by_speed
from rowtier.profile.profile import Profile, TableStats

_COLUMNS = 8  # a row is cut into multiples of this many columns


class TablePart(NamedTuple):
    """Ranks `start` to `stop` and columns `left` to `right` of a table."""

    stats: TableStats
    start: int
    stop: int
    left: int
    right: int

    @property
    def columns(self) -> tuple[int, int] | None:
        """The columns, unless they are all."""
        whole = (self.left, self.right) == (0, self.stats.table.embedding_dim)
        return None if whole else (self.left, self.right)


def whole_tables(profile: Profile) -> list[TablePart]:
    """Every table as one part."""
    tables = [(stats, stats.table) for stats in profile.stats]
    return [TablePart(s, 0, table.num_embeddings, 0, table.embedding_dim) for s, table in tables]


def item_of(part: TablePart, profile: Profile, devices: int) -> Item:
    """How hot the rows of a part are, for the lookups of all devices."""
    stats, table = part.stats, part.stats.table
    width = part.right - part.left
    lookups = profile.lookups_per_step(stats) * devices
    rates = stats.curve.probabilities * (lookups * width * table.item_bytes)
    stops = stats.curve.stops
    if part.start > 0 or part.stop < stats.curve.positions:
        stops = np.clip(stops, part.start, part.stop) - part.start
        kept = np.diff(stops, prepend=0) > 0
        stops, rates = stops[kept], rates[kept]
    row_bytes = width * table.item_bytes + table.state_bytes(width)
    return Item(stops, rates, part.stop - part.start, row_bytes)


def heavy_rows_cut(part: TablePart, item: Item, cost: float, seconds: float) -> Iterator[TablePart]:
    """The part, or if its hottest rows take more than `seconds` each, those cut by columns."""
    alone = item.rates * cost
    heavy = int(np.count_nonzero(alone > seconds))
    units = (part.right - part.left) // _COLUMNS
    if not heavy or units < 2:
        yield part
        return
    stop = part.start + int(item.stops[heavy - 1])
    cuts = min(units, math.ceil(float(alone[0]) / seconds))
    edges = [part.left + _COLUMNS * (units * cut // cuts) for cut in range(cuts)]
    for left, right in pairwise([*edges, part.right]):
        yield TablePart(part.stats, part.start, stop, left, right)
    if stop < part.stop:
        yield part._replace(start=stop)


def bands_of(
    parts: Sequence[TablePart], layout: PieceLayout, cluster: Cluster, wanted: Constraints
) -> dict[str, tuple[Band, ...]]:
    """The bands of every table."""
    tiers = [tier.name for tier in tiers_by_speed(cluster)]
    any_band = Band(start=0, stop=1, scope=cluster.top, members=(0,), tier=tiers[0])
    owners, first = layout.owner.tolist(), layout.pieces.first.tolist()
    slices: dict[int, list[Slice]] = defaultdict(list)
    for entry in layout.slices:
        slices[int(layout.pieces.item[entry.piece])].append(entry)
    bands: dict[str, list[Band]] = {part.stats.table.name: [] for part in parts}
    for item, part in enumerate(parts):
        ways = int(layout.pieces.ways[item])
        home = owners[first[item] : first[item] + ways]
        cuts = layout.cuts[: len(tiers), item].tolist()
        like = any_band.model_copy(update={"exchange": wanted.exchange(part.stats.table)})
        for start, stop in _runs(part, cuts, slices[item]):
            members = list(home)
            for entry in slices[item]:
                if entry.start <= start and stop <= entry.stop:
                    members[entry.piece - first[item]] = entry.device
            tier = next(tier for tier, cut in zip(tiers, cuts, strict=True) if stop <= cut)
            bands[part.stats.table.name].append(_band(part, start, stop, members, tier, like))
    return {name: tuple(listed) for name, listed in bands.items()}


def _runs(part: TablePart, cuts: list[int], slices: list[Slice]) -> Iterator[tuple[int, int]]:
    """Ranks from one change of memory or holder to the next."""
    changes = {edge for entry in slices for edge in (entry.start, entry.stop)}
    yield from pairwise(sorted({0, part.stop - part.start, *cuts, *changes}))


def _band(
    part: TablePart, start: int, stop: int, members: list[int], tier: str, like: Band
) -> Band:
    # A copy is not validated again, which counts with thousands of bands; plans are checked.
    return like.model_copy(
        update={
            "start": part.start + start,
            "stop": part.start + stop,
            "columns": part.columns,
            "members": tuple(members),
            "offset": start % len(members),  # rank r of the part is dealt to member r mod ways
            "tier": tier,
        }
    )

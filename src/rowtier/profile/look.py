"""Looking at a profile: what matters about each table, and what to be alarmed about."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rowtier.profile.collisions import sharing_ids
from rowtier.profile.coverage import drift_overlap
from rowtier.profile.forecast import (
    Amount,
    Share,
    coverage_of,
    distinct_of,
    knows_neighbours,
    unseen_of,
)
from rowtier.profile.profile import Profile, TableStats
from rowtier.units import show_bytes

SERVED = (0.5, 0.9, 0.99)
_BARS = " ▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 12
_WASTE_SHARE, _WASTE_BYTES = 0.2, 2**20
_CHANGED = 0.1
_UNSEEN = 0.01
_MOST_SHARED = 0.5


@dataclass(frozen=True)
class TableLook:
    """One table of a profile, as people want to see it."""

    name: str
    rows: int
    touched: int
    coverage: float
    pooling: float
    lookups: int
    served_by: tuple[int, ...]  # rows that serve 50, 90 and 99 % of the lookups
    spark: str
    wasted_bytes: int
    distinct_ids: int | None
    collisions: int | None  # ids that share a row with another one
    unseen_share: float  # of lookups to come that will fall on rows never touched so far
    hot_set_change: float | None  # beyond what chance explains
    shared_share: float | None  # of lookups on ids that the vocabulary has no row for
    longest: int

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        return dict(self.__dict__)


def look_at(stats: TableStats) -> TableLook:
    """The figures of one table."""
    curve = stats.curve
    shares = np.concatenate(([0.0], np.cumsum(curve.lookups))) / max(curve.total, 1e-300)
    positions = np.concatenate(([0], curve.stops))
    served = tuple(int(np.ceil(np.interp(share, shares, positions))) for share in SERVED)
    distinct = None if stats.distinct_ids is None else stats.distinct_ids.count
    lengths = [length for feature in stats.features for length, _ in feature.lengths]
    return TableLook(
        name=stats.table.name,
        rows=stats.table.num_embeddings,
        touched=stats.touched,
        coverage=stats.coverage,
        pooling=stats.pooling,
        lookups=stats.lookups,
        served_by=served if stats.lookups else (0, 0, 0),
        spark=_spark(stats),
        wasted_bytes=stats.untouched * stats.table.stored_row_bytes,
        distinct_ids=distinct,
        collisions=None if stats.distinct_ids is None else sharing_ids(stats),
        unseen_share=unseen_of(stats).share if stats.lookups else 0.0,
        hot_set_change=_change(stats, served[0]),
        shared_share=_shared(stats),
        longest=max(lengths, default=0),
    )


COVERED = (0.001, 0.01, 0.05, 0.1)  # shares of a table's rows
STEPS = (1, 8, 64)  # devices whose batches are a step


@dataclass(frozen=True)
class Expected:
    """What data to come will do to a table, each figure with its interval."""

    coverage: tuple[tuple[int, Share], ...]  # rows, and the share of lookups they will take
    unseen: Share
    distinct: tuple[tuple[int, Amount], ...]  # samples, and the rows that they will look up
    in_time_order: tuple[tuple[int, Amount], ...]  # of neighbouring samples; none if not known

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        return {
            "coverage": [{"rows": rows, **share.to_dict()} for rows, share in self.coverage],
            "unseen": self.unseen.to_dict(),
            **{
                name: [{"samples": n, **amount.to_dict()} for n, amount in getattr(self, name)]
                for name in ("distinct", "in_time_order")
            },
        }


def expected_of(profile: Profile, stats: TableStats) -> Expected:
    """The forecasts of one table."""
    rows = stats.table.num_embeddings
    hot = sorted({math.ceil(share * rows) for share in COVERED})
    sizes = [devices * profile.batch_size for devices in STEPS]
    near = sizes if knows_neighbours(stats) else []
    return Expected(
        tuple((count, coverage_of(stats, count)) for count in hot),
        unseen_of(stats),
        tuple((size, distinct_of(stats, size)) for size in sizes),
        tuple((size, distinct_of(stats, size, "in_time_order")) for size in near),
    )


def alerts(look: TableLook) -> Iterator[str]:
    """What an engineer should know before planning with these statistics."""
    untouched = look.rows - look.touched
    wasted = untouched > _WASTE_SHARE * look.rows and look.wasted_bytes > _WASTE_BYTES
    if wasted and look.unseen_share > _UNSEEN:
        yield (
            f"{_percent(untouched / look.rows)} of {look.name!r} was not touched, but "
            f"{look.unseen_share:.1%} of lookups to come will be there: profile more data"
        )
    elif wasted:
        yield (
            f"{_percent(untouched / look.rows)} of {look.name!r} is never touched: "
            f"{show_bytes(look.wasted_bytes)} could be given back"
        )
    if look.hot_set_change is not None and look.hot_set_change > _CHANGED:
        yield f"hot set of {look.name!r} changed {look.hot_set_change:.0%} between halves"
    if look.collisions and look.distinct_ids and look.collisions > 0.1 * look.distinct_ids:
        yield (
            f"{_percent(look.collisions / look.distinct_ids)} of the ids of {look.name!r} share a "
            "row with another id: more rows would tell them apart"
        )
    if look.shared_share is not None and look.shared_share > _MOST_SHARED:
        yield (
            f"{_percent(look.shared_share)} of the lookups of {look.name!r} are on ids that its "
            "vocabulary has no row for: was it made from other data, or min_count too high?"
        )
    if not look.lookups:
        yield f"{look.name!r} is never looked up in this data"


def look_at_all(profile: Profile) -> list[TableLook]:
    """Every table of a profile."""
    return [look_at(stats) for stats in profile.stats]


def _percent(share: float) -> str:
    """A share in percent; what is not all of it is not shown as 100 %."""
    for digits in range(6):
        text = f"{share:.{digits}%}"
        if share >= 1 or float(text[:-1]) < 100:
            return text
    return "almost 100%"


def _shared(stats: TableStats) -> float | None:
    """The share of lookups on ids that the table's vocabulary has no row for."""
    counts = stats.counts
    if counts is None or not stats.table.has_vocabulary or not stats.lookups:
        return None
    return float(counts.counts[counts.rows >= stats.table.num_own].sum() / stats.lookups)


def _change(stats: TableStats, positions: int) -> float | None:
    """How much of the hot set (what serves 50 %) changed between the halves of the data."""
    drift = stats.drift
    if drift is None or drift.unknown is not None or not 0 < positions < stats.touched:
        return None
    pair = drift.long[-1]
    kept = max(1, positions >> drift.slices.thinning)
    return drift_overlap(pair.before, pair.after, kept).change


def _spark(stats: TableStats) -> str:
    """Share of lookups served by the hottest rows, over positions on a logarithmic axis."""
    if not stats.lookups:
        return ""
    positions = np.geomspace(1, stats.table.num_embeddings, _SPARK_WIDTH)
    shares = stats.curve.share(np.rint(positions).astype(np.int64))
    return "".join(_BARS[round(float(share) * (len(_BARS) - 1))] for share in shares)

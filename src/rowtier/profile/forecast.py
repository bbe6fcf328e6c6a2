"""What to expect of data to come, and how sure that is: coverage, unseen rows, distinct rows.

Each answer is a number with an interval that holds for the future, not for the sample, or words
where the data cannot tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from rowtier.errors import UserError
from rowtier.fields import check_horizon
from rowtier.profile.coverage import CoverageCurve, coverage_curve
from rowtier.profile.curve import Curve
from rowtier.profile.rarefaction import (
    BATCHES,
    LADDER,
    Batches,
    DistinctRows,
    Floats,
    Ints,
    rarefied,
)
from rowtier.profile.windows import TOP_BITS

if TYPE_CHECKING:
    from rowtier.profile.profile import Profile
    from rowtier.profile.table_stats import TableStats

_NOT_SURE = "the curve does not say how sure it is: profile data, and ask that profile"
_LEAST_WINDOWS = 4  # whole ones, to say what neighbours have in common
_OF_90 = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True)
class Share:
    """A share of lookups to come. Where the data cannot tell, no interval, and why in words."""

    share: float
    low: float | None
    high: float | None
    unknown: str = ""

    @property
    def interval(self) -> tuple[float, float]:
        """From low to high, or everything that is possible."""
        return (0.0, 1.0) if self.low is None or self.high is None else (self.low, self.high)

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        return dict(vars(self))


@dataclass(frozen=True)
class Amount:
    """An amount to come. Where the data cannot tell, no interval, and why in words."""

    value: float
    low: float | None
    high: float | None
    unknown: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        return dict(vars(self))


def why_unknown(stats: TableStats) -> str:
    """Why nothing is known of how a table's data changes; empty if something is."""
    if stats.counts is None:
        return _NOT_SURE
    if not stats.lookups:
        return "no lookup was seen"
    drift = stats.drift
    if drift is None:
        return "the profile does not know the order of the data: profile the data itself"
    return drift.unknown or ""


def coverage_of(stats: TableStats, rows: int, confidence: float = 0.9) -> Share:
    """The share of lookups to come that the hottest rows will take."""
    most = stats.table.num_embeddings
    if not 0 <= rows <= most:
        raise UserError(f"rows {rows}: table {stats.table.name!r} has {most:,}; give 0 to {most}")
    if rows in (0, most):
        return Share(rows / most, rows / most, rows / most)
    if stats.counts is None:
        return _of_curve(stats.curve, rows)
    share, low, high = curve_of(stats, confidence).at(rows)
    unknown = why_unknown(stats)
    return Share(share, None, None, unknown) if unknown else Share(share, low, high)


def _of_curve(curve: Curve, rows: int) -> Share:
    """What a curve still knows of it, nine times in ten."""
    (low, high), share = curve.interval(rows), float(curve.share(rows))
    if not math.isfinite(low):
        return Share(share, None, None, _NOT_SURE)
    return Share(share, low, high)


def unseen_of(stats: TableStats, confidence: float = 0.9) -> Share:
    """The share of lookups to come on rows that were never looked up so far."""
    seen = coverage_of(stats, min(stats.touched, stats.table.num_embeddings), confidence)
    low, high = (None if end is None else 1 - end for end in (seen.high, seen.low))
    return Share(1 - seen.share, low, high, seen.unknown)


def distinct_of(
    stats: TableStats, samples: int, batches: Batches = "shuffled", confidence: float = 0.9
) -> Amount:
    """Distinct rows that a batch will look up."""
    if samples < 1:
        raise UserError(f"samples {samples}: give a whole number, 1 or more")
    if batches not in BATCHES:
        raise UserError(f"batches {batches!r}: accepted are {', '.join(BATCHES)}")
    check_locality(stats, batches)
    ladder = stats.distinct_rows
    if ladder is None:
        p = stats.curve.probabilities
        lookups = samples * stats.lookups_per_sample
        rows = float(stats.curve.widths @ -np.expm1(lookups * np.log1p(-np.minimum(p, 1 - 1e-16))))
        return Amount(rows, None, None, why_unknown(stats))
    value, low, high = ladder.at(samples, batches)
    unknown = "" if stats.counts is None else why_unknown(stats)
    if samples > stats.samples:
        unknown = unknown or f"{stats.samples:,} samples were profiled: profile more"
    if unknown or not math.isfinite(low):
        return Amount(value, None, None, unknown or _NOT_SURE)
    z = _quantile(confidence) / _OF_90
    return Amount(value, value * (low / value) ** z, value * (high / value) ** z)


def looking_ahead(profile: Profile, horizon: float) -> Profile:
    """The same statistics with another horizon, which some table must be able to see."""
    check_horizon(horizon)
    looking = tuple(replace(stats, horizon=horizon) for stats in profile.stats)
    reasons = [why_unknown(stats) for stats in looking]
    if horizon != 1 and all(reasons):
        raise UserError(f"horizon {horizon:g}: {reasons[0]}")
    return replace(profile, stats=looking)


def knows_neighbours(stats: TableStats) -> bool:
    """Whether it is known how many distinct rows neighbouring samples have."""
    ladder = stats.distinct_rows
    return ladder is not None and math.isfinite(ladder.locality_at(1))


def check_locality(stats: TableStats, batches: Batches) -> None:
    """Refuse to speak of neighbours where nobody knows them."""
    if batches == "shuffled" or knows_neighbours(stats):
        return
    raise UserError(
        f"batches {batches}: the profile does not know which samples of table "
        f"{stats.table.name!r} are neighbours; profile data in its order, without --sample, and at "
        f"least {_LEAST_WINDOWS} samples"
    )


_CURVES: WeakKeyDictionary[TableStats, dict[float, CoverageCurve]] = WeakKeyDictionary()


def curve_of(stats: TableStats, confidence: float = 0.9) -> CoverageCurve:
    """Coverage of all hot sets of a table whose rows were counted."""
    assert stats.counts is not None
    known = _CURVES.setdefault(stats, {})
    if confidence not in known:
        counts, rows = stats.counts.counts, stats.table.num_embeddings
        known[confidence] = coverage_curve(counts, stats.drift, rows, confidence)
    return known[confidence]


def planning_curve(stats: TableStats, confidence: float | None = None) -> Curve:
    """The curve to plan with, or at a confidence its low end; with how steady heat is."""
    known = curve_of(stats, 0.9 if confidence is None else confidence)
    curve = known.smoothed(pessimistic=confidence is not None)
    curve = replace(curve, once=_first_lookups(stats, curve.stops))
    drift = stats.drift
    if drift is None or drift.unknown is not None or not len(curve.stops):
        return curve
    usual = curve_of(stats)
    return replace(
        curve, shape=drift.steadiness(curve.stops), low=usual.low.copy(), high=usual.high.copy()
    )


def _first_lookups(stats: TableStats, stops: Ints) -> Floats:
    """The share of lookups, per bucket, that are the first of their row in their sample."""
    counts, once = stats.counts, np.ones(len(stops))
    assert counts is not None
    if counts.samples is counts.counts or not len(stops):
        return once
    seen = int(np.searchsorted(stops, len(counts.rows), side="right"))  # buckets of touched rows
    starts = np.concatenate(([0], stops[: seen - 1]))
    first, all_ = (
        np.add.reduceat(array, starts, dtype=np.int64) for array in (counts.samples, counts.counts)
    )
    once[:seen] = first / all_
    return once


def cautious(stats: TableStats, confidence: float) -> TableStats:
    """Statistics with the low end of coverage, and the high end of distinct rows."""
    ladder = stats.distinct_rows
    if ladder is not None:
        z = _quantile(confidence) / _OF_90
        high = np.where(np.isfinite(ladder.high), ladder.high, ladder.value)
        value = ladder.value * (high / np.maximum(ladder.value, 1e-300)) ** z
        ladder = replace(ladder, value=np.maximum.accumulate(value))
    return replace(stats, bucketed=stats.curve_at(confidence), ladder=ladder)


def distinct_rows(stats: TableStats) -> DistinctRows:
    """Distinct rows of batches to come, on the ladder of batch sizes."""
    assert stats.counts is not None
    samples, held = stats.samples, stats.counts.samples
    known, spread = rarefied(held, samples, LADDER)
    value = _beyond(stats, known)
    drift = stats.drift
    change, reach = np.zeros(len(LADDER)), np.full(len(LADDER), np.nan)
    if drift is not None and drift.unknown is None:
        sizes = np.minimum(LADDER, max(samples, 1))
        noise = 2 * spread * sizes / max(samples, 1) / np.maximum(known, 1e-300) ** 2
        found = drift.distinct(LADDER, noise, stats.rows_held / max(stats.lookups, 1))
        change = found.mean
        reach = np.sqrt(_OF_90**2 * noise + found.reach**2)
    most = np.minimum(LADDER * stats.rows_held / max(samples, 1), stats.table.num_embeddings)
    value = np.maximum.accumulate(np.minimum(value * np.exp(change), most))
    low, high = value * np.exp(-reach), np.minimum(value * np.exp(reach), np.maximum(most, value))
    return DistinctRows(value, low, high, _locality(stats, known))


def _beyond(stats: TableStats, known: Floats) -> Floats:
    """Batches of more samples than were profiled: as the curve goes on."""
    inside = stats.samples >= LADDER
    if inside.all() or not inside.any() or not stats.lookups:
        return known
    curve = stats.curve
    held = curve.probabilities * curve.once * stats.lookups_per_sample
    hazard = -np.log1p(-np.minimum(held, 1 - 1e-12))
    model = np.array([curve.widths @ -np.expm1(-n * hazard) for n in LADDER[~inside]])
    last = curve.widths @ -np.expm1(-stats.samples * hazard)
    at_last = float(len(stats.counts.rows)) if stats.counts is not None else 0.0
    return np.concatenate((known[inside], model * (at_last / max(last, 1e-300))))


def _locality(stats: TableStats, known: Floats) -> Floats:
    """Distinct rows of neighbouring samples over those of a shuffled batch."""
    found = np.full(len(LADDER), np.nan)
    if stats.windows is None:
        return found
    for bits in range(TOP_BITS + 1):
        rows, windows = stats.windows.distinct(bits)
        at = int(np.searchsorted(LADDER, 2**bits))
        if windows >= _LEAST_WINDOWS and known[at] > 0:
            found[at] = rows / known[at]
    return found


def _quantile(confidence: float) -> float:
    return NormalDist().inv_cdf((1 + confidence) / 2)

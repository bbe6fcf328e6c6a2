"""Profiles that keep some of their statistics to themselves, to see what each is worth."""

from __future__ import annotations

import statistics

from rowtier import Curve, Profile, TableStats

# How hot rows are is always told; then which tables are in how many samples, with how many ids.
TOLD = ("frequency", "frequency and coverage", "frequency and pooling", "all")


def flattened(profile: Profile, told: str) -> Profile:
    """The profile with the mean of all tables wherever something is not told; rows unknown."""
    coverage = statistics.mean(stats.coverage for stats in profile.stats)
    pooling = statistics.mean(stats.pooling for stats in profile.stats)
    return Profile(
        profile.batch_size,
        tuple(
            _with(
                stats,
                stats.coverage if told in ("all", "frequency and coverage") else coverage,
                stats.pooling if told in ("all", "frequency and pooling") else pooling,
            )
            for stats in profile.stats
        ),
    )


def _with(stats: TableStats, coverage: float, pooling: float) -> TableStats:
    """The same hotness of rows, with other numbers of samples and lookups."""
    present = round(coverage * stats.samples)
    lookups = max(present, round(present * pooling))
    (feature,) = stats.features
    feature = feature.model_copy(update={"present": present, "lookups": lookups, "lengths": ()})
    share = lookups / stats.curve.total if stats.curve.total else 0.0
    curve = Curve(stats.curve.stops, stats.curve.lookups * share)
    return TableStats(stats.table, stats.samples, (feature,), curve, seen_rows=stats.touched)

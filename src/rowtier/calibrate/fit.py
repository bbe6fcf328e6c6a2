"""From times to figures: latency and bandwidth of a link, granularity and bandwidth of a tier.

Times on a shared machine have outliers, so both fits weigh absolute, not squared, errors,
and relative ones, so that a message of 1 KiB has its say beside one of 16 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, log, sqrt
from statistics import median_low

import numpy as np

SWEEPS = 20_000  # of the search for coefficients that hang together
SETTLED = 1e-9  # relative errors that a sweep changes no more


@dataclass(frozen=True)
class Line:
    """What a message costs: time = latency + bytes / bandwidth."""

    latency_s: float
    bandwidth_bytes_per_s: float

    def time_s(self, sent_bytes: float) -> float:
        """The time of a message of this size."""
        return self.latency_s + sent_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True)
class Grain:
    """What an access costs: its bytes, rounded up to the granularity, over the bandwidth."""

    granularity_bytes: int
    bandwidth_bytes_per_s: float

    def time_s(self, row_bytes: float) -> float:
        """The time of one row of this size."""
        return _moved(row_bytes, self.granularity_bytes) / self.bandwidth_bytes_per_s


def fit_line(sent_bytes: Sequence[float], times_s: Sequence[float]) -> Line:
    """The line with the least sum of relative errors, with no negative latency.

    Times of long messages are surer, so they weigh more: ten times as long, 1.8 times as much.
    Such a line runs through two of the points, or through one and the origin: few enough to try
    them all, which is exact and needs no start value.
    """
    points = list(zip(sent_bytes, times_s, strict=True))
    assert points, "a line needs a point"
    assert all(b > 0 and t > 0 for b, t in points), "sizes and times are positive"

    def error(line: Line) -> float:
        return sum(sqrt(sqrt(t)) * abs(line.time_s(b) / t - 1) for b, t in points)

    return min(_lines(points), key=error)


def _lines(points: list[tuple[float, float]]) -> Iterator[Line]:
    for (bytes_1, time_1), (bytes_2, time_2) in combinations(points, 2):
        if (bytes_2 - bytes_1) * (time_2 - time_1) > 0:
            bandwidth = (bytes_2 - bytes_1) / (time_2 - time_1)
            latency_s = time_1 - bytes_1 / bandwidth
            if latency_s >= 0:
                yield Line(latency_s, bandwidth)
    for sent_bytes, time_s in points:
        yield Line(0.0, sent_bytes / time_s)


def fit_grain(
    row_bytes: Sequence[int],
    times_s: Sequence[float],
    typical_row_bytes: int,
    granularities: Sequence[int],
) -> Grain:
    """The granularity that explains best how time grows with rows; exact for typical rows.

    Rows are listed by size, and a longer row never takes less time: what says so is noise.
    Granularities below the smallest row cannot be told apart: the largest of equals is taken.
    """
    points = list(zip(row_bytes, rising(times_s), strict=True))
    typical_s = dict(points)[typical_row_bytes]

    def grain(granularity: int) -> Grain:
        return Grain(granularity, _moved(typical_row_bytes, granularity) / typical_s)

    def error(candidate: Grain) -> float:
        return sum(abs(log(candidate.time_s(b) / t)) for b, t in points)

    # Rounded, so that what is equal but for the last digit counts as equal.
    largest_first = sorted(granularities, reverse=True)
    return min(map(grain, largest_first), key=lambda candidate: round(error(candidate), 9))


def rising(times_s: Sequence[float]) -> list[float]:
    """The times that never fall and are nearest to the given ones in absolute difference.

    Where times fall, neighbours are pooled and take their median.
    """
    pools: list[list[float]] = []
    for time_s in times_s:
        pools.append([time_s])
        while len(pools) > 1 and median_low(pools[-2]) > median_low(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    return [median_low(pool) for pool in pools for _ in pool]


def _moved(row_bytes: float, granularity_bytes: int) -> int:
    return ceil(row_bytes / granularity_bytes) * granularity_bytes


@dataclass(frozen=True)
class Round:
    """What a round of messages costs: a latency, something for each peer, and its bytes."""

    latency_s: float
    message_s: float
    bandwidth_bytes_per_s: float


def fit_round(points: Sequence[tuple[int, float, float]]) -> Round:
    """The round that explains peers, bytes and times best; with one number of peers, a line."""
    if len({peers for peers, _, _ in points}) == 1:
        line = fit_line([sent for _, sent, _ in points], [time for _, _, time in points])
        return Round(line.latency_s, 0.0, line.bandwidth_bytes_per_s)
    times_s = [time for _, _, time in points]
    counts = [(1.0, float(peers), sent) for peers, sent, _ in points]
    latency_s, message_s, byte_s = fit_nonnegative(counts, times_s, [t**0.75 for t in times_s])
    slowest = max(sent / time for _, sent, time in points)
    return Round(latency_s, message_s, 1 / byte_s if byte_s else slowest)


def fit_nonnegative(
    counts: Sequence[Sequence[float]], times_s: Sequence[float], scales_s: Sequence[float]
) -> list[float]:
    """Seconds for one of each count, none negative, with the least squares of relative errors.

    Errors are relative to `scales_s`. One coefficient after the other takes its best value, again
    and again, until none changes: the problem is convex, so that is the best of all.
    """
    matrix = np.array(counts) / np.array(scales_s)[:, None]
    left = np.array(times_s) / np.array(scales_s)
    size = np.maximum((matrix**2).sum(axis=0), 1e-300)
    found = np.zeros(len(size))
    for _ in range(SWEEPS):
        before = found.copy()
        for index, column in enumerate(matrix.T):
            better = max(0.0, float(found[index] + column @ left / size[index]))
            left -= column * (better - found[index])
            found[index] = better
        if (np.abs(found - before) * np.sqrt(size) < SETTLED).all():
            break
    return [float(seconds) for seconds in found]

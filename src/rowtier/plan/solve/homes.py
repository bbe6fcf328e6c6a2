"""The best home of every bucket of a table, at given prices: the inner loop of the dual."""

from __future__ import annotations

import numpy as np

from rowtier.plan.solve._jit import compiled
from rowtier.profile.curve import Floats, Ints


@compiled
def best_homes(
    seconds: Floats, paid: Floats, by_sums: Floats, widths: Floats, mass: Floats, lines: Floats
) -> tuple[float, int, Ints, Floats]:
    """The least cost, the line it lies on, the home of every bucket, and the rows of every home.

    `seconds[h, b]` is a row's time in home h and bucket b, `paid[h]` what its memory costs, and
    `lines` what the sums of a mass cost: for each of them rows choose alone, and the best wins.
    """
    homes, buckets = seconds.shape
    fetched, summed = np.full(buckets, np.inf), np.full(buckets, np.inf)
    fetched_in, summed_in = np.zeros(buckets, np.int64), np.zeros(buckets, np.int64)
    for home in range(homes):
        for bucket in range(buckets):
            cost = seconds[home, bucket] + paid[home]
            if by_sums[home] == 0:
                if cost < fetched[bucket]:
                    fetched[bucket], fetched_in[bucket] = cost, home
            elif cost < summed[bucket]:
                summed[bucket], summed_in[bucket] = cost, home
    best, line, slope = np.inf, 0, 0.0
    for number in range(max(len(lines), 1)):  # without sums there is no line, and one choice
        total, rise = (lines[number, 0], lines[number, 1]) if len(lines) else (0.0, 0.0)
        for bucket in range(buckets):
            total += widths[bucket] * min(fetched[bucket], summed[bucket] + rise * mass[bucket])
        if total < best:
            best, line, slope = total, number, rise
    choice, rows = np.empty(buckets, np.int64), np.zeros(homes)
    for bucket in range(buckets):
        by_sum = summed[bucket] + slope * mass[bucket] < fetched[bucket]
        choice[bucket] = summed_in[bucket] if by_sum else fetched_in[bucket]
        rows[choice[bucket]] += widths[bucket]
    return best, line, choice, rows

"""The best home of every bucket: the inner loop of the dual."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowtier.plan.solve.homes import best_homes


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(0, 3), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_homes_are_the_best_of_all_lines(seed: int, rows: int, sums: int, buckets: int) -> None:
    random = np.random.default_rng(seed)
    seconds, paid = random.random((rows + sums, buckets)), random.random(rows + sums)
    by_sums = random.permutation(np.repeat([0.0, 1.0], [rows, sums]))
    widths, mass = random.random(buckets) + 0.1, random.random(buckets)
    lines = random.random((4 if sums else 0, 2))
    cost, line, choice, held = best_homes(seconds, paid, by_sums, widths, mass, lines)
    priced = seconds + paid[:, None]
    totals = [
        start + (priced + by_sums[:, None] * slope * mass).min(axis=0) @ widths
        for start, slope in (lines if sums else np.zeros((1, 2)))
    ]
    assert cost == pytest.approx(min(totals))
    slope = lines[line, 1] if sums else 0.0
    at = priced[choice, np.arange(buckets)] + by_sums[choice] * slope * mass
    assert (lines[line, 0] if sums else 0.0) + at @ widths == pytest.approx(cost)
    assert held == pytest.approx(np.bincount(choice, weights=widths, minlength=rows + sums))

"""Sums and updates that are made in one go against those made one after the other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed")

from rowtier.runtime.kernels import indices, row_loops, update_loops


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=60),
    st.integers(1, 20),
    st.booleans(),
    st.sampled_from([1.0, 0.25, 1 / 3]),
    st.integers(0, 2**32),
)
def test_sgd_of_sums_is_the_same_to_the_last_bit(
    touched: list[int], width: int, weighted: bool, scale: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    slots, starts, order = indices.segments(np.array(touched), 10)
    lane = random.standard_normal((30, width), dtype=np.float32)
    at = random.integers(0, 30, len(touched))
    weights = random.random(len(touched) if weighted else 0, dtype=np.float32)
    factor, lr = np.float32(scale), np.float32(0.1)

    first = random.standard_normal((10, width), dtype=np.float32)
    apart, at_once = first.copy(), first.copy()
    sums = np.empty((len(slots), width), dtype=np.float32)
    row_loops.sum_segments(lane, at, weights, order, starts, 0, factor, sums)
    update_loops.sgd(apart, slots, slots, sums, lr)
    update_loops.sum_and_sgd(at_once, slots, lane, at, weights, order, starts, factor, lr)
    assert (apart == at_once).all()

    plain = np.zeros((10, width))
    for i, slot in enumerate(touched):
        plain[slot] += lane[at[i]] * (weights[i] if weighted else 1) * scale
    assert at_once == pytest.approx(first - 0.1 * plain, abs=1e-4)

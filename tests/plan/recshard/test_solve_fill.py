"""Water-filling against plain loops over rows."""

import numpy as np
import pytest
from solve_cases import least_time as plain_least_time
from solve_cases import random_heat, random_machine, rows_of

from rowtier.plan.recshard.fill import (
    NO_LIMIT,
    best_read,
    fill,
    fill_tiers,
    least_time,
    time_of_cuts,
)
from rowtier.plan.recshard.heat import Item, heat_of, read_until, rows_hotter


def _items(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int64)


def test_buckets_of_items_are_read_as_if_row_by_row() -> None:
    heat = heat_of(
        [
            Item(np.array([2, 5]), np.array([8.0, 2.0]), 9, 4),
            Item(np.empty(0, dtype=np.int64), np.empty(0), 3, 4),
        ]
    )
    assert [rows_hotter(heat, 0, price) for price in (3.0, 2.0, 0.5, 0.1, 0.0, -1.0)] == [
        0, 0, 2, 5, 5, 9,
    ]  # fmt: skip
    assert [read_until(heat, 0, rank) for rank in (0, 1, 2, 3.5, 5, 9)] == [0, 8, 16, 19, 22, 22]
    assert rows_hotter(heat, 1, 0.0) == 0
    assert read_until(heat, 1, 3) == 0


@pytest.mark.parametrize("seed", range(30))
def test_one_device_takes_what_sorting_its_rows_says(seed: int) -> None:
    random = np.random.default_rng(seed)
    heat = random_heat(random, items=int(random.integers(1, 6)))
    machine = random_machine(random, heat, 1, tiers=int(random.integers(2, 5)))
    found = least_time(heat, _items(heat.items), machine.sizes, machine.costs)
    assert found == pytest.approx(plain_least_time(heat, list(range(heat.items)), machine))


@pytest.mark.parametrize("seed", range(30))
def test_whole_rows_fill_every_memory_hottest_first_and_none_too_full(seed: int) -> None:
    random = np.random.default_rng(seed)
    heat = random_heat(random, items=int(random.integers(1, 6)))
    machine = random_machine(random, heat, 1, tiers=3)
    items = _items(heat.items)
    cuts = np.zeros((3, heat.items), dtype=np.int64)
    assert fill_tiers(heat, items, machine.sizes, cuts) == 0
    held = np.diff(cuts, axis=0, prepend=0) @ heat.row_bytes
    assert (held <= machine.sizes).all()
    assert (cuts[-1] == heat.rows).all()
    least = least_time(heat, items, machine.sizes, machine.costs)
    found = time_of_cuts(heat, items, machine.costs, cuts)
    assert found >= least * (1 - 1e-12)
    # A row that did not fit is hotter than anything in slower memory by less than its own room.
    room = machine.sizes[0] - held[0]
    left = [(j, cuts[0, j]) for j in range(heat.items) if cuts[0, j] < heat.rows[j]]
    assert all(heat.row_bytes[j] > room for j, _ in left)


def test_the_most_that_memory_can_serve_is_what_the_hottest_bytes_are_read() -> None:
    random = np.random.default_rng(5)
    heat = random_heat(random, items=4)
    items = _items(4)
    rows = sorted(rows_of(heat, [0, 1, 2, 3]), reverse=True)
    total = sum(size for _, size in rows)
    for room in (0, total // 7, total // 2, total, 2 * total):
        left, served = room, 0.0
        for density, size in rows:
            served += density * min(size, left)
            left -= min(size, left)
        found, price = best_read(heat, items, room, NO_LIMIT)
        assert found == pytest.approx(served)
        assert price >= 0


def test_what_is_left_over_goes_to_smaller_rows() -> None:
    one_each = np.array([1])
    large, small = (Item(one_each, np.array([rate]), 1, size) for rate, size in ((90, 9), (1, 2)))
    heat = heat_of([large, small])
    placed = np.zeros(2, dtype=np.int64)
    assert fill(heat, _items(2), placed, 8) == 6
    assert placed.tolist() == [0, 1]

"""No bound may exceed the best of all placements."""

import numpy as np
import pytest
from solve_cases import best_of_all, random_heat, random_machine

from rowtier.plan.recshard.bound import apart_bound, pool_bound, whole_bound
from rowtier.plan.recshard.exhaust import try_all
from rowtier.plan.recshard.whole import first_prices, solve_whole


@pytest.mark.parametrize("seed", range(60))
def test_bounds_of_whole_items_stay_below_the_best_of_all_placements(seed: int) -> None:
    random = np.random.default_rng(seed)
    heat = random_heat(random, items=int(random.integers(1, 8)), rows=25)
    devices = int(random.integers(1, 4))
    machine = random_machine(random, heat, devices, tiers=int(random.integers(2, 4)))
    best = best_of_all(heat, machine)
    if best == 0:
        return
    quick = whole_bound(heat, machine)
    pool = pool_bound(heat, machine, whole=False)
    assert pool.seconds * (1 - 1e-12) <= quick.seconds <= best
    # Told that twice the best was reached, it may not claim that nothing better is possible.
    sharp = apart_bound(heat, machine, first_prices(heat, machine), quick, 2 * best)
    assert quick.seconds <= sharp.seconds <= best


@pytest.mark.parametrize("seed", range(20))
def test_trying_all_placements_finds_the_best(seed: int) -> None:
    random = np.random.default_rng(seed)
    heat = random_heat(random, items=int(random.integers(1, 7)), rows=25)
    machine = random_machine(random, heat, int(random.integers(1, 4)), tiers=2)
    tried = try_all(heat, machine, np.arange(heat.items), np.inf)
    assert tried is not None
    assert tried.least == pytest.approx(best_of_all(heat, machine))
    assert tried.seconds >= tried.least * (1 - 1e-12)


def test_one_table_that_is_longer_than_all_others_is_named() -> None:
    random = np.random.default_rng(1)
    heat = random_heat(random, items=6)
    machine = random_machine(random, heat, 6, tiers=2)
    solution = solve_whole(heat, machine, 1e-3, seed=0)
    assert solution is not None
    assert solution.bound.reason in ("alone", "tried")
    assert solution.seconds <= solution.bound.seconds * (1 + 1e-3)

"""Pieces and runs of ranks against plain counting."""

import numpy as np
import pytest
from solve_cases import random_heat

from rowtier.plan.recshard.pieces import (
    needs_of,
    pieces_of,
    read_between,
    rows_between,
    run_worth,
)
from rowtier.plan.recshard.place import place


def _rates(heat, item: int) -> np.ndarray:
    start, stop = heat.first[item], heat.first[item + 1]
    widths = np.diff(heat.stops[start:stop], prepend=0)
    return np.repeat(heat.density[start:stop], widths) * heat.row_bytes[item]


@pytest.mark.parametrize("seed", range(20))
def test_a_piece_holds_every_kth_rank(seed: int) -> None:
    random = np.random.default_rng(seed)
    heat = random_heat(random, items=1)
    ways = int(random.integers(1, 9))
    start, stop = sorted(random.integers(0, heat.rows[0] + 1, 2).tolist())
    rates = _rates(heat, 0)
    for residue in range(ways):
        ranks = [rank for rank in range(start, stop) if rank % ways == residue]
        assert rows_between(ways, residue, start, stop) == len(ranks)
        read = read_between(heat, 0, ways, residue, start, stop)
        assert read == pytest.approx(rates[ranks].sum())


@pytest.mark.parametrize("seed", range(20))
def test_a_run_is_worth_what_was_asked_or_one_row_less(seed: int) -> None:
    random = np.random.default_rng(seed)
    heat = random_heat(random, items=1)
    ways = int(random.integers(1, 4))
    residue, rows = int(random.integers(0, ways)), int(heat.rows[0])
    amount = float(random.uniform(0, 1)) * read_between(heat, 0, ways, residue, 0, rows)
    start, stop = run_worth(heat, 0, ways, residue, 0, rows, amount)
    assert 0 <= start <= stop <= rows
    assert read_between(heat, 0, ways, residue, start, stop) <= amount * (1 + 1e-9)
    if stop < rows:
        assert read_between(heat, 0, ways, residue, start, stop + ways) >= amount * (1 - 1e-9)


def test_the_pieces_of_an_item_add_up_to_it() -> None:
    heat = random_heat(np.random.default_rng(3), items=3)
    cuts = np.stack((heat.rows // 3, heat.rows))
    costs = np.array([1.0, 7.0])
    whole, cut = pieces_of(np.ones(3, dtype=np.int64)), pieces_of(np.array([1, 2, 5]))
    seconds, held = needs_of(heat, whole, cuts, costs)
    cut_seconds, cut_held = needs_of(heat, cut, cuts, costs)
    assert np.bincount(cut.item, cut_seconds) == pytest.approx(seconds)
    for tier in range(2):
        assert (np.bincount(cut.item, cut_held[:, tier]) == held[:, tier]).all()


def test_pieces_of_one_item_get_different_devices() -> None:
    pieces = pieces_of(np.array([4, 4, 1, 1]))
    needs = np.random.default_rng(0).random((10, 2))
    owner = place(needs, pieces.item, np.ones(10, dtype=np.int64), 4, 100)
    assert owner is not None
    assert sorted(owner[:4].tolist()) == sorted(owner[4:8].tolist()) == [0, 1, 2, 3]


def test_bytes_that_fit_nowhere_are_not_placed() -> None:
    needs, held = np.ones((3, 1)), np.array([6, 6, 6])
    assert place(needs, np.arange(3), held, 2, 11) is None
    assert place(needs, np.arange(3), held, 2, 12) is not None

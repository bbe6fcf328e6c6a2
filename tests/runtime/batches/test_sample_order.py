"""Which samples come in which batch: every one once, in an order that only the data decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowtier import UserError
from rowtier.runtime.batches.sample_order import LANES, Dealing, EpochOrder


@st.composite
def dealings(draw: st.DrawFn, **fixed: Any) -> Dealing:
    facts = {
        "part_samples": tuple(draw(st.lists(st.integers(0, 12), min_size=1, max_size=60))),
        "batch_size": draw(st.integers(1, 5)),
        "world": draw(st.integers(1, 4)),
        "shuffle": draw(st.booleans()),
        "shuffle_window": draw(st.integers(1, 20)),
        "seed": draw(st.integers(0, 3)),
        "last": draw(st.sampled_from(["drop", "short"])),
    }
    return Dealing(**{**facts, **fixed})


def samples_of(order: EpochOrder, rank: int, number: int) -> list[int]:
    """Which samples of all data are in a batch, the slow way."""
    starts = np.concatenate(([0], np.cumsum(order.dealing.part_samples)))
    found: list[int] = []
    for window, start, stop in order.slices(rank, number):
        parts = order.windows[window]
        inside = [s for part in parts for s in range(starts[part], starts[part + 1])]
        picked = order.permutation(window)
        listed = inside if picked is None else [inside[i] for i in picked]
        found += listed[start:stop]
    return found


def everything(order: EpochOrder) -> list[list[list[int]]]:
    """By rank and number."""
    dealing = order.dealing
    return [
        [samples_of(order, rank, number) for number in range(dealing.batches)]
        for rank in range(dealing.world)
    ]


@settings(deadline=None)  # the first example compiles
@given(dealings(last="short"), st.integers(0, 3))
def test_every_sample_comes_exactly_once(dealing: Dealing, epoch: int) -> None:
    dealt = [s for rank in everything(dealing.epoch(epoch)) for batch in rank for s in batch]
    assert sorted(dealt) == list(range(dealing.samples))


@settings(deadline=None)  # the first example compiles
@given(dealings(last="drop"), st.integers(0, 3))
def test_dropping_gives_full_batches_and_leaves_less_than_one_of_all_ranks(
    dealing: Dealing, epoch: int
) -> None:
    batches = [batch for rank in everything(dealing.epoch(epoch)) for batch in rank]
    assert {len(batch) for batch in batches} <= {dealing.batch_size}
    dealt = [s for batch in batches for s in batch]
    assert len(set(dealt)) == len(dealt)
    assert dealing.samples - len(dealt) < dealing.batch_size * dealing.world


@settings(deadline=None)  # the first example compiles
@given(dealings(last="short"))
def test_no_rank_gets_an_empty_batch_where_that_can_be_avoided(dealing: Dealing) -> None:
    sizes = [[len(batch) for batch in rank] for rank in everything(dealing.epoch(0))]
    totals = [sum(rank) for rank in sizes]
    assert max(totals) - min(totals) <= 1
    if dealing.samples >= dealing.world and dealing.batch_size > 1:
        assert all(size > 0 for rank in sizes for size in rank)
    assert all(size <= dealing.batch_size for rank in sizes for size in rank)


@settings(deadline=None)  # the first example compiles
@given(dealings(shuffle=False))
def test_in_file_order_a_batch_of_all_ranks_is_the_next_samples(dealing: Dealing) -> None:
    ranks = everything(dealing.epoch(0))
    together = [s for number in range(dealing.batches) for rank in ranks for s in rank[number]]
    assert together == list(range(len(together)))


def test_epochs_and_seeds_shuffle_differently_and_the_same_ones_alike() -> None:
    def order(seed: int, epoch: int) -> Any:
        return everything(Dealing((40, 30, 50), 4, 2, True, 10, seed).epoch(epoch))

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


def test_workers_that_divide_the_lanes_decode_different_windows() -> None:
    order = Dealing((100,) * 96, 10, 2, True, 100).epoch(0)
    assert order.lanes == LANES[0]
    touched = [
        {
            piece.window
            for number in range(worker, order.dealing.batches, 4)
            for piece in order.slices(0, number)
        }
        for worker in range(4)
    ]
    assert sum(map(len, touched)) == len(set().union(*touched)) == 48


@settings(deadline=None)
@given(dealings(shuffle=True, last="drop"))
def test_the_windows_of_a_lane_come_one_after_the_other(dealing: Dealing) -> None:
    order = dealing.epoch(0)
    for lane in range(order.lanes):
        numbers = range(lane, dealing.batches, order.lanes)
        windows = [piece.window for number in numbers for piece in order.slices(0, number)]
        assert windows == sorted(windows)


def test_lanes_hold_no_more_than_the_window_allows() -> None:
    assert Dealing((1000,) * 48, 10, 1, True, 100).epoch(0).lanes == 1
    assert Dealing((300,) * 48, 10, 1, True, 100).epoch(0).lanes == 4
    assert Dealing((100,) * 8, 10, 1, True, 100).epoch(0).lanes == 2
    assert Dealing((100,) * 96, 10, 1, False, 100).epoch(0).lanes == 1


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"batch_size": 0}, "batch_size is 0; give 1 or more"),
        ({"shuffle_window": -1}, "shuffle_window is -1"),
        ({"last": "keep"}, "last is 'keep'; give one of 'drop', 'short'"),
    ],
)
def test_what_cannot_be_dealt_is_refused(facts: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Dealing(**{"part_samples": (10,), "batch_size": 2, **facts})

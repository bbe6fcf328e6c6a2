"""Shuffled replay: every sample at most once, whatever the data is cut into."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowtier.errors import UserError
from rowtier.evaluate import shuffled
from rowtier.evaluate.batches import StepWindow, Wanted
from rowtier.evaluate.shuffled import Listener, shuffled_windows
from rowtier.profile.readers import Source, TimeWindow, open_source

FEATURES = ["one", "bag", "text"]


def data(sizes: list[int]) -> list[dict[str, Any]]:
    """Batches whose samples say their own number in every feature."""
    batches, first = [], 0
    for size in sizes:
        numbers = np.arange(first, first + size)
        lengths = numbers % 4
        batch: dict[str, Any] = {
            "one": numbers + 2**40 * (first % 2),  # narrow in some batches only
            "bag": (np.repeat(numbers, lengths), lengths),
            "text": pa.array([str(i) if i % 3 else None for i in numbers], pa.large_string()),
        }
        batches.append(batch)
        first += size
    return batches


def samples_of(window: StepWindow) -> list[int]:
    """The numbers of a step's samples; all features must agree on them."""
    (piece,) = window.pieces
    assert (piece.start, piece.first, piece.stop) == (0, 0, window.chunk.samples)
    ids = window.chunk.features
    found: list[int] = (ids["one"].values % 2**40).tolist()
    assert ids["one"].values.dtype == np.int64
    assert window.chunk.numbers is not None
    assert found == window.chunk.numbers.tolist()
    lengths = np.array(found) % 4
    assert ids["bag"].values.tolist() == np.repeat(found, lengths).tolist()
    expected = [str(i) for i in found if i % 3]
    text = ids["text"].values
    assert (text.to_pylist() if len(expected) else list(text)) == expected
    return found


def steps_of(source: Source, wanted: Wanted, listener: Listener | None = None) -> list[list[int]]:
    windows = shuffled_windows(source, FEATURES, wanted, listener or Listener())
    return [samples_of(window) for window in windows]


SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=8)


@given(SIZES, st.integers(1, 7), st.booleans(), st.integers(0, 3))
@settings(deadline=None)
def test_all_steps_take_every_sample_at_most_once(
    sizes: list[int], step: int, once: bool, seed: int
) -> None:
    total = sum(sizes)
    batches = data(sizes)
    source = open_source(iter(batches) if once else batches, FEATURES)
    found = steps_of(source, Wanted(step, seed=seed))
    taken = Counter(number for numbers in found for number in numbers)
    assert [len(numbers) for numbers in found] == [step] * (total // step)
    assert set(taken) <= set(range(total))
    assert all(count == 1 for count in taken.values())
    if total % step == 0:
        assert set(taken) == set(range(total))
    again = open_source(data([total]), FEATURES)
    assert steps_of(again, Wanted(step, seed=seed)) == found


@given(SIZES, st.integers(1, 5), st.integers(1, 6))
@settings(deadline=None)
def test_steps_are_drawn_from_the_whole_window(sizes: list[int], step: int, steps: int) -> None:
    batches, total = data(sizes), sum(sizes)
    source = open_source(batches, FEATURES)
    wanted = Wanted(step, steps, seed=1)
    found = steps_of(source, wanted)
    assert len(found) == min(steps, total // step)
    if total >= 2:
        window = TimeWindow(after=0.5).of(source)
        late = [number for numbers in steps_of(window, wanted) for number in numbers]
        assert all(round(total / 2) <= number < total for number in late)
        assert len(set(late)) == len(late)


def test_a_large_draw_is_even_and_parts_without_samples_are_not_read(tmp_path: Path) -> None:
    table = pa.table({"one": np.arange(10_000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    source = open_source(tmp_path, ["one"])
    read: list[int] = []
    real = type(source).read

    def spy(self: Any, part: Any, features: Any) -> Any:
        read.append(part.index)
        return real(self, part, features)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(source), "read", spy)
        windows = list(shuffled_windows(source, ["one"], Wanted(100, 2)))
    numbers = np.concatenate([window.chunk.features["one"].values for window in windows])
    assert len(set(numbers.tolist())) == 200
    assert set(read) == set((numbers // 10).tolist())
    assert 4000 < numbers.mean() < 6000


def test_fewer_steps_are_drawn_where_memory_ends_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = open_source(data([50] * 20), FEATURES)
    monkeypatch.setattr(shuffled, "_PLACE_BYTES", 0.001)
    monkeypatch.setattr(shuffled, "LIMIT_BYTES", 8000)
    told: list[str] = []
    found = steps_of(source, Wanted(10), Listener(warn=told.append))
    assert 10 < len(found) < 100
    assert len({number for numbers in found for number in numbers}) == 10 * len(found)
    assert told == [
        f"{len(found)} of 100 steps are replayed, drawn at random, as the ids of more would take "
        "over 7.8 KiB of memory; --batches in_time_order replays all"
    ]
    with pytest.raises(UserError, match=r"--batches in_time_order, limit the steps with --steps"):
        steps_of(open_source(iter(data([50] * 20)), FEATURES), Wanted(10))
    some = steps_of(open_source(iter(data([50] * 20)), FEATURES), Wanted(10, 3))
    assert sorted(number for numbers in some for number in numbers) == list(range(30))


def test_places_of_samples_count_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffled, "LIMIT_BYTES", 3200)
    assert shuffled._most_steps(1000, 10) == 1  # listing all takes more, so few are drawn
    assert shuffled._most_steps(400, 10) == 10

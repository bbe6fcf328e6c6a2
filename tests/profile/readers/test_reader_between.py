"""Windows of the data: exactly the samples that are asked for, with their own numbers."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reader_helpers import chunks_of, numbers_of, samples_of

from rowtier.errors import UserError
from rowtier.profile.readers import (
    Between,
    Chunk,
    DataPart,
    Ids,
    Sample,
    Sampled,
    Shifted,
    TimeWindow,
    open_source,
)


class Memory:
    """A source of numbered samples in any parts and chunks, which notes what is read."""

    kind = "memory"
    ordered = True
    features = ("f",)

    def __init__(self, chunks: list[list[int]], known: bool = True):
        self.chunks, self.read_parts = chunks, set[int]()
        counts = [sum(sizes) for sizes in chunks]
        firsts = np.cumsum([0, *counts]).tolist()
        known = known or len(chunks) != 1
        self.samples = sum(counts) if known else None
        self.parts = tuple(
            DataPart(i, "memory", 10, samples=count if known else None, first_sample=first)
            for i, (count, first) in enumerate(zip(counts, firsts, strict=False))
        )

    def read(self, part: DataPart, features: Sequence[str]) -> Iterator[Chunk]:
        assert part == self.parts[part.index]
        self.read_parts.add(part.index)
        first = part.first_sample
        for size in self.chunks[part.index]:
            numbers = np.arange(first, first + size)
            lengths = numbers % 3
            ids = Ids(np.repeat(numbers, lengths), lengths)
            yield Chunk(size, dict.fromkeys(features, ids), first)
            first += size

    def count_samples(self) -> int:
        return sum(map(sum, self.chunks))

    def times(self, part: DataPart, _column: str) -> pa.Array:
        first = part.first_sample
        return pa.array(range(first, first + sum(self.chunks[part.index])))


CHUNKS = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=5)


@given(CHUNKS, st.data(), st.booleans(), st.integers(0, 9))
@settings(deadline=None)
def test_any_parts_give_exactly_the_samples_of_the_window(
    chunks: list[list[int]], data: st.DataObject, known: bool, by: int
) -> None:
    source = Memory(chunks, known)
    total = source.count_samples()
    first = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(first, total))
    window = Between(source, first, stop)
    assert window.samples == stop - first
    assert numbers_of(window, ["f"]) == list(range(first, stop))
    assert samples_of(window, ["f"])["f"] == [[i] * (i % 3) for i in range(first, stop)]
    assert sum(part.samples or 0 for part in window.parts) == stop - first
    outside = {
        part.index
        for part in source.parts
        if part.samples is not None
        and not (part.first_sample < stop and part.first_sample + part.samples > first)
    }
    assert not source.read_parts & outside
    assert numbers_of(Shifted(window, by), ["f"]) == list(range(first + by, stop + by))
    some = Sampled(window, Sample(0.5))
    everywhere = Sampled(source, Sample(0.5))
    inside = [i for i in numbers_of(everywhere, ["f"]) if first <= i < stop]
    assert numbers_of(some, ["f"]) == inside  # which samples are picked hangs on their numbers


@given(CHUNKS, st.floats(0, 1), st.floats(0, 1))
def test_a_share_is_rounded_to_whole_samples(
    chunks: list[list[int]], after: float, before: float
) -> None:
    source = Memory(chunks, known=False)
    total = source.count_samples()
    first, stop = round(after * total), round(before * total)
    window = TimeWindow(before, after)
    if first >= stop:
        with pytest.raises(UserError, match="no sample lies there"):
            window.of(source)
    else:
        assert numbers_of(window.of(source), ["f"]) == list(range(first, stop))


def test_no_window_is_the_source_itself() -> None:
    source = Memory([[3]])
    assert TimeWindow().of(source) is source


def write(folder: Path, times: Any, group: int = 4) -> Path:
    values = pa.array(times)
    table = pa.table({"f": np.arange(len(values)), "at": values})
    pq.write_table(table, folder / "a.parquet", row_group_size=group)
    return folder


DAY = dt.date(2016, 1, 1)
TIMES: dict[str, tuple[list[Any], Any]] = {
    "int": (list(range(100, 110)), 103),
    "int as text": (list(range(100, 110)), "103"),
    "nanoseconds": ([1451606400_000000000 + i for i in range(10)], "1451606400000000003"),
    "float": ([i / 2 for i in range(10)], "1.5"),
    "date": ([DAY + dt.timedelta(i) for i in range(10)], "2016-01-04"),
    "date given": ([DAY + dt.timedelta(i) for i in range(10)], dt.date(2016, 1, 4)),
    "datetime": ([dt.datetime(2016, 1, 1, i) for i in range(10)], "2016-01-01T03:00"),
    "zone": (
        [dt.datetime(2016, 1, 1, i, tzinfo=dt.timezone.utc) for i in range(10)],
        "2016-01-01T05:00+02:00",
    ),
    "text": ([f"2016-01-{i + 1:02}" for i in range(10)], "2016-01-04"),
    "text of moments": ([f"2016-01-01 {i:02}:00:00" for i in range(10)], "2016-01-01T03"),
}


@pytest.mark.parametrize("kind", TIMES)
def test_an_edge_may_be_a_time_of_any_kind(tmp_path: Path, kind: str) -> None:
    times, edge = TIMES[kind]
    source = open_source(write(tmp_path, times), ["f"])
    assert numbers_of(TimeWindow(edge, time="at").of(source), ["f"]) == [0, 1, 2]
    late = TimeWindow(after=edge, time="at").of(source)
    assert samples_of(late, ["f"])["f"] == [[i] for i in range(3, 10)]
    assert numbers_of(pickle.loads(pickle.dumps(late)), ["f"]) == list(range(3, 10))
    both = TimeWindow("80%", edge, "at").of(source)
    assert numbers_of(both, ["f"]) == list(range(3, 8))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 7), st.integers(0, 5))
@settings(deadline=None, max_examples=50)
def test_equal_times_are_never_parted(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], group: int, edge: int
) -> None:
    times = sorted(times)
    source = open_source(write(tmp_path_factory.mktemp("t"), times, group), ["f"])
    before = sum(time < edge for time in times)
    for window, expected in (
        (TimeWindow(before=edge, time="at"), range(before)),
        (TimeWindow(after=edge, time="at"), range(before, len(times))),
    ):
        if not times[0] <= edge <= times[-1]:
            with pytest.raises(UserError, match=rf"goes from {times[0]} to {times[-1]}"):
                window.of(source)
        elif not len(expected):
            with pytest.raises(UserError, match="no sample lies there"):
                window.of(source)
        else:
            assert numbers_of(window.of(source), ["f"]) == list(expected)


def test_hive_keys_npz_and_batches_have_times_too(tmp_path: Path) -> None:
    for day in ("2016-01-01", "2016-01-02"):
        folder = tmp_path / "hive" / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"f": [1, 2, 3]}), folder / "a.parquet")
    np.savez(tmp_path / "a.npz", f=np.arange(6), day=np.arange(6) // 3)
    batches = [{"f": np.arange(3), "day": np.full(3, day)} for day in range(2)]
    for data, edge in (
        (tmp_path / "hive", "2016-01-02"),
        (tmp_path / "a.npz", 1),
        (batches, 1),
    ):
        source = open_source(data, ["f"])
        assert numbers_of(TimeWindow(edge, time="day").of(source), ["f"]) == [0, 1, 2]
        assert numbers_of(TimeWindow(after=edge, time="day").of(source), ["f"]) == [3, 4, 5]


@pytest.mark.parametrize(
    ("times", "edge", "says"),
    [
        ([1, 2, 3, 4, 5, 6, 5, 7], 3, "'at' is not sorted: it falls back to 5 in sample 6; sort"),
        ([1, 2, 3, 4, 3, 4], 3, "'at' is not sorted: it falls back to 3 in sample 4; sort"),
        ([1, 2, None, 4, 5], 3, "no value in sample 2"),
        ([1.0, 2.0, float("nan"), 4.0], 3, "nan in sample 2"),
        ([1, 2, 3], 9, "after 9: is outside of the data, whose column 'at' goes from 1 to 3"),
        ([1, 2, 3], 0, "goes from 1 to 3"),
        ([1, 2, 3], "2016-01-01", "holds numbers"),
        (["2016-01-01", "2016-01-02"], "yesterday", "give a date such as"),
        (["2016-01-01", "2016-01-02"], "2017-01-01", "goes from 2016-01-01 to 2016-01-02"),
        (["monday", "tuesday"], "2016-01-01", "must hold numbers, timestamps"),
        ([[1], [2]], 3, "is no type of times"),
    ],
)
def test_times_that_do_not_work_are_refused(
    tmp_path: Path, times: list[Any], edge: Any, says: str
) -> None:
    source = open_source(write(tmp_path, times), ["f"])
    with pytest.raises(UserError, match=says.replace("'", ".")):
        TimeWindow(after=edge, time="at").of(source)


def test_formats_without_times_say_so(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("\t".join(["0"] * 40) + "\n")
    with pytest.raises(UserError, match=r"a\.tsv: there is no time column 'at', as Criteo"):
        TimeWindow(after=5, time="at").of(open_source(tmp_path / "a.tsv", ["C1"]))
    with pytest.raises(UserError, match="no such column; did you mean 'at'"):
        TimeWindow(after=5, time="att").of(open_source(write(tmp_path, [1]) / "a.parquet", ["f"]))
    with pytest.raises(UserError, match="no such feature"):
        TimeWindow(after=5, time="at").of(open_source([{"f": [1]}], ["f"]))
    with pytest.raises(UserError, match="'at' has 1 values for 2 samples"):
        TimeWindow(after=5, time="at").of(open_source([{"f": [1, 2], "at": [5]}], ["f"]))


def test_files_must_agree_on_the_type_of_their_times(tmp_path: Path) -> None:
    for name, times in (("a", [1, 2]), ("b", ["2016-01-01", "2016-01-02"])):
        pq.write_table(pa.table({"f": [1, 2], "at": times}), tmp_path / f"{name}.parquet")
    with pytest.raises(UserError, match=r"b\.parquet: time column 'at' holds string, and int64"):
        TimeWindow(before="50%", time="at").of(open_source(tmp_path, ["f"]))


def test_nanoseconds_are_named_without_them(tmp_path: Path) -> None:
    times = pa.array([10**18 + 1, 10**18 + 2], pa.timestamp("ns"))
    source = open_source(write(tmp_path, times), ["f"])
    with pytest.raises(UserError, match="goes from 2001-09-09 01:46:40 to 2001"):
        TimeWindow(before="1999-01-01", time="at").of(source)


def test_edges_of_the_wrong_kind_are_refused() -> None:
    source = Memory([[4]])
    for edge, says in (
        (1.5, "not between 0 and 1"),
        (-0.1, "not between 0 and 1"),
        ("half", "a share such as 10%"),
        (DAY, "a time needs --time COLUMN"),
    ):
        with pytest.raises(UserError, match=says):
            TimeWindow(before=edge).of(source)


def test_an_iterator_has_no_middle() -> None:
    for window in (TimeWindow(before=0.5), TimeWindow(before=3, time="f")):
        with pytest.raises(UserError, match="can be read only once; give files"):
            window.of(open_source(iter([{"f": [1]}]), ["f"]))


def test_progress_goes_from_nothing_to_all(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", f=np.arange(200_000))
    window = TimeWindow(after=0.5).of(open_source(tmp_path, ["f"]))
    done = [chunk.done for chunk in chunks_of(window, ["f"])]
    assert done[0] < 0.5
    assert done[-1] == 1.0

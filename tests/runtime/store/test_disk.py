"""Pages on disk: what was written is read, whatever is held, read ahead or written behind."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed")

from rowtier.errors import UserError
from rowtier.runtime.store import async_disk
from rowtier.runtime.store.async_disk import KernelAio, Threads
from rowtier.runtime.store.memory import Disk, Form, RamRows
from rowtier.runtime.store.pages import PAGE_BYTES, Pages

WAYS = [KernelAio, Threads]


def words(pages: Pages) -> Any:
    return np.frombuffer(pages.buffer, dtype=np.int64).reshape(pages.frames, -1)


def ints(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def write(pages: Pages, numbers: Any, value: int) -> None:
    frames = pages.hold(numbers)
    words(pages)[frames] = value
    pages.change(frames)


@pytest.mark.parametrize("way", WAYS)
def test_pages_come_back_from_the_file_as_they_were_written(way: Any, tmp_path: Path) -> None:
    count = 700
    buffer = mmap.mmap(-1, count * PAGE_BYTES)
    rows = np.frombuffer(buffer, dtype=np.int64).reshape(count, -1)
    rows[:] = np.arange(count)[:, None]
    file = async_disk.File(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | os.O_DIRECT))
    moved = way(file, buffer, PAGE_BYTES)
    order = np.random.default_rng(0).permutation(count)
    moved.write(order, np.arange(count))
    rows[:] = -1
    moved.read(order[::-1].copy(), np.arange(count))
    assert np.array_equal(rows, np.repeat(np.arange(count)[::-1, None], 512, axis=1))


@pytest.mark.parametrize("way", WAYS)
def test_a_page_past_the_end_is_an_error_and_nothing_is_left_under_way(
    way: Any, tmp_path: Path
) -> None:
    buffer = mmap.mmap(-1, 600 * PAGE_BYTES)
    file = async_disk.File(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT))
    os.truncate(file.handle, 300 * PAGE_BYTES)
    moved = way(file, buffer, PAGE_BYTES)
    with pytest.raises(OSError, match="Input/output error"):
        moved.read(np.arange(600), np.arange(600))
    moved.read(np.arange(300), np.arange(300))


@pytest.mark.parametrize("native", [True, False])
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("rwps"), st.lists(st.integers(0, 39), max_size=8))))
def test_any_course_of_steps_shows_the_latest_rows(
    native: bool, tmp_path_factory: Any, course: list[tuple[str, list[int]]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if not native:
            patch.setattr(async_disk, "_CALLS", {})
        pages = Pages(tmp_path_factory.getbasetemp(), buffer_bytes=32 * PAGE_BYTES)
    assert pages.allot(30) == 0
    assert pages.allot(10) == 30
    truth = np.zeros(40, dtype=np.int64)
    for turn, (what, numbers) in enumerate(course):
        some = ints(*numbers)
        if what == "p":
            pages.prefetch(some)
        elif what == "s":
            pages.settle()
        elif what == "w":
            write(pages, some, turn + 1)
            truth[some] = turn + 1
        else:
            assert (words(pages)[pages.hold(some)] == truth[some][:, None]).all()
    for page in range(40):
        assert (words(pages)[pages.hold(ints(page))] == truth[page]).all()


def test_a_page_is_read_once_a_step_and_not_at_all_if_it_was_read_ahead(tmp_path: Path) -> None:
    pages = Pages(tmp_path)
    pages.allot(100)
    write(pages, np.arange(100), 7)
    pages.settle()
    pages.close()
    pages.settle()
    pages.hold(ints(1, 2, 2, 1))
    pages.hold(ints(2, 1))
    assert pages.pages_read == 2
    pages.prefetch(ints(2, 3))
    write(pages, ints(2, 3), 8)
    pages.settle()
    assert (words(pages)[pages.hold(ints(2, 3))] == 8).all()
    assert pages.pages_read == 3
    pages.close()
    assert pages.pages_written == 102


def test_pages_that_were_never_written_are_zeros_and_not_read(tmp_path: Path) -> None:
    pages = Pages(tmp_path, buffer_bytes=8 * PAGE_BYTES)
    pages.allot(100)
    for page in range(100):
        frames = pages.hold(ints(page))
        assert not words(pages)[frames].any()
        words(pages)[frames] = 1
    assert pages.pages_read == 0


def test_the_file_has_no_name_and_its_room_is_taken_at_once(tmp_path: Path) -> None:
    pages = Pages(tmp_path / "new")
    pages.allot(256)
    assert list((tmp_path / "new").iterdir()) == []
    assert os.fstat(pages._file.handle).st_blocks * 512 >= 256 * PAGE_BYTES


def test_a_file_system_without_nameless_files_gets_one_that_is_unlinked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    pages = Pages(tmp_path)
    pages.allot(4)
    write(pages, np.arange(4), 3)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file/rows: rows cannot be kept there: Not a directory"):
        Pages(tmp_path / "file" / "rows")


def test_a_full_disk_is_named_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, os.strerror(28))

    pages = Pages(tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"no room for 3.9 MiB of rows: No space left.*make room"):
        pages.allot(1000)


def test_a_disk_that_fails_is_named_where_its_rows_are_needed(tmp_path: Path) -> None:
    pages = Pages(tmp_path)
    pages.allot(10)
    write(pages, np.arange(10), 1)
    pages.settle()
    pages.close()
    pages.settle()
    os.truncate(pages._file.handle, 0)
    pages.prefetch(ints(1))
    with pytest.raises(UserError, match="rows cannot be read: Input/output error"):
        pages.hold(ints(1))
    with pytest.raises(UserError, match="rows cannot be read"):
        pages.hold(ints(2))


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("page", [3, 4, 9])
def test_a_bit_that_flipped_on_the_disk_is_an_error_that_names_page_and_table(
    ahead: bool, page: int, tmp_path: Path
) -> None:
    pages = Pages(tmp_path)
    pages.allot(10)
    pages.name(0, 3, "user")
    pages.name(4, 9, "item")
    write(pages, np.arange(10), 1)
    pages.settle()
    pages.close()
    pages.settle()
    flip(pages, page, bit=8 * 1000 + 5)
    if ahead:
        pages.prefetch(ints(page))
    table = "user" if page == 3 else "item"
    with pytest.raises(UserError, match=rf"page {page} with rows of table '{table}'.*checksum"):
        pages.hold(ints(page))
    others = np.array([number for number in range(10) if number != page])
    assert (words(pages)[pages.hold(others)] == 1).all()
    flip(pages, page, bit=8 * 1000 + 5)
    assert (words(pages)[pages.hold(ints(page))] == 1).all()


def flip(pages: Pages, page: int, bit: int) -> None:
    """Flip a bit in the file, past the page cache as the file is."""
    room = mmap.mmap(-1, PAGE_BYTES)
    os.preadv(pages._file.handle, [room], page * PAGE_BYTES)
    room[bit // 8] ^= 1 << bit % 8
    os.pwritev(pages._file.handle, [room], page * PAGE_BYTES)


def test_two_pages_that_changed_places_are_told_apart(tmp_path: Path) -> None:
    pages = Pages(tmp_path)
    pages.allot(2)
    for page in (0, 1):
        write(pages, ints(page), page + 1)
    pages.settle()
    pages.close()
    pages.settle()
    pages._sums[:] = pages._sums[::-1].copy()
    with pytest.raises(UserError, match="page 0"):
        pages.hold(ints(0))


def test_a_collected_pool_closes_its_file(tmp_path: Path) -> None:
    pages = Pages(tmp_path)
    pages.allot(10)
    write(pages, np.arange(10), 1)
    pages.settle()
    handle = pages._file.handle
    del pages
    for _ in range(100):
        try:
            os.fstat(handle)
        except OSError:
            return
        time.sleep(0.02)
    raise AssertionError("still open")


FORMS = [
    Form(5000, 64, "f4", {}),  # fills pages evenly
    Form(5000, 64, "f4", {"sum": 1}),
    Form(3000, 7, "u2", {"exp_avg": 7, "exp_avg_sq": 7}),  # an odd number of 16-bit words
    Form(40, 700, "f4", {"exp_avg": 700, "exp_avg_sq": 700}),  # three pages a record
    Form(1, 1, "u2", {}),
]


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_any_form_are_the_same_on_disk_as_in_memory(form: Form, tmp_path: Path) -> None:
    disk, ram = Disk(tmp_path, 32 * PAGE_BYTES), RamRows(form)
    other = disk.rows(form._replace(rows=100))  # pages beside these are left alone
    rows, random = disk.rows(form), np.random.default_rng(0)
    for _ in range(60):
        slots = np.unique(random.integers(0, form.rows, min(form.rows, rows.at_once)))
        found, at_once = rows.places(slots), len(slots)
        assert np.array_equal(rows.weights[found], ram.weights[slots])
        values = random.integers(0, 1000, (at_once, form.width)).astype(form.dtype)
        rows.weights[found] = ram.weights[slots] = values
        for name in form.state:
            assert np.array_equal(rows.state[name][found], ram.state[name][slots])
            rows.state[name][found] += 1
            ram.state[name][slots] += 1
        rows.change(found)
        rows.prefetch(random.integers(0, form.rows, 4))
        disk.settle()
    for slots in np.array_split(np.arange(100), 50):
        assert not other.weights[other.places(slots)].any()


def test_a_buffer_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give at least 32768 bytes"):
        Disk(tmp_path, "4KiB")


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "rowwise_adagrad", "adam"])
def test_a_checkpoint_moves_rows_and_state_between_disk_and_memory(
    optimizer: str, tmp_path: Path
) -> None:
    import torch

    from rowtier import (
        Band,
        Cluster,
        Device,
        FeatureStats,
        Plan,
        Profile,
        RowCounts,
        Table,
        TableStats,
        Tier,
    )
    from rowtier.torch import ShardedEmbeddings, load_checkpoint, save_checkpoint

    tiers = tuple(
        Tier(name=name, capacity_bytes=2**30, bandwidth_bytes_per_s=1e9) for name in ("ram", "ssd")
    )
    cluster = Cluster(name="one", device=Device(tiers=tiers))
    table = Table(
        name="t", num_embeddings=3000, embedding_dim=64, features=("f",), optimizer=optimizer
    )
    heat = np.random.default_rng(0).integers(1, 9, 3000)
    feature = FeatureStats(name="f", present=100, lookups=int(heat.sum()))
    stats = TableStats.counted(table, 100, (feature,), RowCounts.from_dense(heat))
    bands = (
        Band(start=0, stop=500, scope=cluster.top, tier="ram"),
        Band(start=500, stop=3000, scope=cluster.top, tier="ssd"),
    )
    plan = Plan.build("half", Profile(4, (stats,)), cluster, {"t": bands})
    disk = {"ssd": Disk(tmp_path / "ssd", 16 * PAGE_BYTES)}  # far smaller than the tier

    def train(module: ShardedEmbeddings, steps: range) -> dict[str, Any]:
        for step in steps:
            ids = torch.from_numpy(np.random.default_rng(step).integers(0, 3000, (8, 50)))
            module({"f": ids})["f"].square().sum().backward()
            module.optimizer.step()
        state = module.optimizer.state_dict()["state"]
        return module.state_dict() | {k: v for d in state.values() for k, v in d.items()}

    whole = train(ShardedEmbeddings(plan), range(6))
    first, second = ShardedEmbeddings(plan, tiers=disk), ShardedEmbeddings(plan, tiers=disk)
    train(first, range(3))
    save_checkpoint(tmp_path / "run", model=first, rows=first.optimizer)
    load_checkpoint(tmp_path / "run", model=second, rows=second.optimizer)
    found = train(second, range(3, 6))
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], whole[name]) for name in whole)

"""Batches from files: the same for any number of workers, and after any stop."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed")

import torch
from file_batch_cases import ITEM, ROWS, TABLES, load, numbers, plan_of, tables_of, write
from torch.utils.data import DataLoader

from rowtier import MismatchError, Table, UserError
from rowtier.torch import Addressed, ParquetBatches, ShardedEmbeddings

# More processes than processors are what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
ONCE = [HealthCheck.function_scoped_fixture]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "data")


def test_a_batch_holds_what_the_files_do(folder: Path) -> None:
    plan = plan_of(folder, TABLES)
    data = ParquetBatches(folder, plan, columns=("number", "label"), shuffle=True)
    rows = data._to_features._remap.tables["item"].rows()
    for batch in data:
        assert isinstance(batch.features, Addressed)
        assert batch.samples == 4
        assert batch.columns["label"].dtype == torch.float32
        item, seen = (batch.features[name] for name in ("item", "seen"))
        for i, number in enumerate(batch.columns["number"].tolist()):
            assert batch.columns["label"][i] == number % 2
            found = rows[item.values[item.edges[i] : item.edges[i + 1]]].tolist()
            assert found == ([] if number % 9 == 0 else [number % ROWS])
            found = rows[seen.values[seen.edges[i] : seen.edges[i + 1]]].tolist()
            assert found == [(number + k) % ROWS for k in range(number % 4)]


def test_batches_train_as_they_come(folder: Path) -> None:
    plan = plan_of(folder, TABLES)
    module = ShardedEmbeddings(plan)
    batch = next(iter(ParquetBatches(folder, plan, 8)))
    assert module(batch.features)["seen"].shape == (8, 4)


def test_the_tables_of_a_module_serve_its_workers(folder: Path) -> None:
    plan = plan_of(folder, TABLES)
    module = ShardedEmbeddings(plan)
    data = ParquetBatches(folder, plan, 8, remapper=module.remapper)
    for batch, other in zip(load(data, 1), ParquetBatches(folder, plan, 8), strict=True):
        assert torch.equal(module(batch.features)["seen"], module(other.features)["seen"])
    with pytest.raises(UserError, match="only a plan has"):
        ParquetBatches(folder, TABLES, 8, remapper=module.remapper)
    with pytest.raises(UserError, match="without rows=True"):
        ParquetBatches(folder, plan, 8, remapper=plan.remapper(rows=True))
    wider = tables_of(ITEM.model_copy(update={"num_embeddings": 60}))
    with pytest.raises(MismatchError, match="for other tables"):
        ParquetBatches(folder, plan_of(folder, wider), 8, remapper=module.remapper)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_number_of_workers_changes_nothing(folder: Path, shuffle: bool, workers: int) -> None:
    data = ParquetBatches(
        folder, plan_of(folder, TABLES), 3, columns=["number"], shuffle=shuffle, shuffle_window=10
    )
    alone, found = load(data), load(data, workers)
    assert [batch.number for batch in found] == list(range(33))
    assert numbers(found) == numbers(alone)
    for batch, other in zip(found, alone, strict=True):
        for name, jagged in batch.features.items():
            assert np.array_equal(jagged.values, other.features[name].values)
            assert np.array_equal(jagged.edges, other.features[name].edges)


def test_workers_that_are_started_anew_give_the_same(folder: Path) -> None:
    data = ParquetBatches(folder, plan_of(folder, TABLES), 9, columns=["number"], shuffle=True)
    first = numbers(load(data, 2))
    assert numbers(load(data, 1)) == first
    spawned = DataLoader(
        data, batch_size=None, num_workers=1, multiprocessing_context="spawn",
        persistent_workers=True,
    )  # fmt: skip
    assert numbers(spawned) == first
    data.set_epoch(1)
    assert numbers(spawned) == numbers(load(data)) != first


def test_many_windows_are_read_the_same_by_any_number_of_workers(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", samples=700)
    data = ParquetBatches(folder, TABLES, 6, columns=["number"], shuffle=True, shuffle_window=14)
    assert data._dealing.epoch(0).lanes == 12
    alone = numbers(load(data))
    assert [numbers(load(data, workers)) for workers in (1, 2, 3)] == [alone] * 3


def test_a_rank_without_samples_gets_an_empty_batch_that_trains(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", samples=1, files=1)
    plan = plan_of(folder, TABLES)
    data = ParquetBatches(
        folder, plan, 3, columns=["number"], last="short", rank=1, world=2, shuffle=True
    )
    (batch,) = data
    assert (batch.samples, batch.columns["number"].shape) == (0, (0,))
    assert ShardedEmbeddings(plan)(batch.features)["seen"].shape == (0, 4)


def test_ids_of_2_to_the_63_and_more_stay_whole_across_row_groups(tmp_path: Path) -> None:
    ids = np.array([1, 2, 2**63 + 5, 3], dtype=np.uint64)
    pq.write_table(pa.table({"item": ids}), tmp_path / "a.parquet", row_group_size=2)
    tables = tables_of(ITEM.model_copy(update={"features": ("item",), "ids": "modulo"}))
    (batch,) = ParquetBatches(tmp_path, tables, 4)
    assert batch.features["item"][0].tolist() == (ids % np.uint64(ROWS)).tolist()


@settings(deadline=None, max_examples=30, suppress_health_check=ONCE)
@given(
    shuffle=st.booleans(),
    batch_size=st.integers(1, 9),
    world=st.integers(1, 3),
    last=st.sampled_from(["drop", "short"]),
    window=st.integers(1, 60),
    stop=st.integers(0, 200),
    epoch=st.integers(0, 2),
)
def test_a_resume_gives_the_tail_and_ranks_share_all(
    folder: Path, shuffle: bool, batch_size: int, world: int, last: Any, window: int, stop: int,
    epoch: int,
) -> None:  # fmt: skip
    options: dict[str, Any] = {
        "shuffle": shuffle, "last": last, "shuffle_window": window, "columns": ["number"],
    }  # fmt: skip
    dealt = []
    for rank in range(world):
        facts = {**options, "rank": rank, "world": world}
        data = ParquetBatches(folder, TABLES, batch_size, **facts)
        data.set_epoch(epoch)
        whole = numbers(data)
        assert len(whole) == len(data)
        done = stop % len(data)
        state = data.state_dict(done=done)
        other = ParquetBatches(folder, TABLES, batch_size, **facts)
        other.load_state_dict(json.loads(json.dumps(state)))
        assert numbers(other) == whole[done:]
        assert numbers(other) == whole  # a state holds for one pass
        dealt += [number for batch in whole for number in batch]
    assert len(set(dealt)) == len(dealt)
    assert len(dealt) == (100 if last == "short" else len(whole) * world * batch_size)


def test_a_resume_may_have_another_number_of_workers_and_goes_on_to_full_epochs(
    folder: Path,
) -> None:
    options: dict[str, Any] = {"columns": ["number"], "shuffle": True, "shuffle_window": 10}
    data = ParquetBatches(folder, TABLES, 3, **options)
    data.set_epoch(4)
    whole = numbers(load(data, 2))
    state = data.state_dict(done=10)
    data.set_epoch(5)
    following = numbers(load(data))
    for workers in (0, 1, 3):
        data = ParquetBatches(folder, TABLES, 3, **options)
        data.load_state_dict(state)
        assert data.epoch == 4
        persistent = workers > 0
        loader = DataLoader(
            data, batch_size=None, num_workers=workers, persistent_workers=persistent
        )
        data.set_epoch(4)  # as a loop over epochs does
        found = list(loader)
        assert [batch.number for batch in found] == list(range(10, 33))
        assert numbers(found) == whole[10:]
        assert numbers(loader) == whole
        data.set_epoch(5)
        assert numbers(loader) == following
        assert len(loader) == 33
        assert numbers(load(data, 2)) == following  # another loader of the same data


def test_the_end_of_an_epoch_is_the_begin_of_the_next(folder: Path) -> None:
    data = ParquetBatches(folder, TABLES, 3)
    assert (data.state_dict(done=33)["epoch"], data.state_dict(done=33)["done"]) == (1, 0)
    with pytest.raises(UserError, match="done is 34, and an epoch has 33 batches"):
        data.state_dict(done=34)


def test_a_resume_decodes_nothing_of_what_it_skips(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ParquetBatches(folder, TABLES, 5)
    data.load_state_dict(data.state_dict(done=14))  # samples 70 and later, of row groups of 7
    read: list[int] = []
    whole = type(data._files).chunks
    monkeypatch.setattr(
        type(data._files), "chunks", lambda files, part: (read.append(part), whole(files, part))[1]
    )
    assert len(list(data)) == 6
    assert min(read) >= 9
    assert len(read) == len(set(read))


def test_a_state_of_other_batches_is_refused_by_what_differs(folder: Path) -> None:
    data = ParquetBatches(folder, TABLES, 3, seed=1, rank=0, world=2)
    state = data.state_dict(done=2)
    for options, says in [
        ({"seed": 2}, "seed is 2 here and 1 in the state"),
        ({"batch_size": 5}, "batch_size is 5 here and 3"),
        ({"world": 1}, "world is 1 here and 2"),
        ({"shuffle": True}, "shuffle is True here and False"),
    ]:
        facts: dict[str, Any] = {"batch_size": 3, "seed": 1, "rank": 0, "world": 2, **options}
        with pytest.raises(MismatchError, match=says):
            ParquetBatches(folder, TABLES, **facts).load_state_dict(state)
    (folder / "1.parquet").rename(folder / "2.parquet")
    with pytest.raises(MismatchError, match=r"files is '[0-9a-f]+' here"):
        ParquetBatches(folder, TABLES, 3, seed=1, rank=0, world=2).load_state_dict(state)
    with pytest.raises(UserError, match="no 'done'"):
        data.load_state_dict({key: value for key, value in state.items() if key != "done"})


def test_the_state_is_the_same_on_all_ranks(folder: Path) -> None:
    one, two = (ParquetBatches(folder, TABLES, 3, rank=r, world=2) for r in range(2))
    assert one.state_dict(done=1) == two.state_dict(done=1)


@pytest.mark.parametrize("ids", ["vocabulary", "hash"])
def test_strings_may_be_missing_from_a_whole_row_group(tmp_path: Path, ids: Any) -> None:
    words = [None, None, "a", "b", "", None, None, None]
    pq.write_table(pa.table({"item": words}), tmp_path / "a.parquet", row_group_size=2)
    tables = tables_of(ITEM.model_copy(update={"features": ("item",), "ids": ids}))
    plan = plan_of(tmp_path, tables)
    for size in (2, 8):
        data = ParquetBatches(tmp_path, plan, size)
        rows = data._to_features._remap.tables["item"].rows()
        found = [batch.features["item"] for batch in data]
        lengths = np.concatenate([jagged.lengths for jagged in found])
        assert lengths.tolist() == [0, 0, 1, 1, 1, 0, 0, 0]
        values = np.concatenate([rows[jagged.values] for jagged in found])
        assert values.tolist() == plan.rows_of("item", ["a", "b", ""]).tolist()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch_size": 0}, "batch_size is 0; give 1 or more"),
        ({"batch_size": 101}, "100 samples, and a batch takes 101 for each of 1 ranks"),
        ({"columns": "label"}, "give a list of names"),
        ({"columns": ["labell"]}, "labell: there is no such column; did you mean 'label'"),
        ({"columns": ["seen"]}, "seen: .*list.*columns are numbers"),
        ({"rank": 2, "world": 2}, "rank is 2 of 2"),
        ({"rank": 2}, "give both, or neither"),
        ({"last": "keep"}, "last is 'keep'"),
    ],
)
def test_what_cannot_be_read_is_refused(folder: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=f"(?s){says}"):
        ParquetBatches(folder, TABLES, **{"batch_size": 3, **options})


def test_features_that_are_not_there_and_other_targets_are_refused(folder: Path) -> None:
    other = Table(name="o", num_embeddings=5, embedding_dim=4, features=("items",))
    with pytest.raises(UserError, match="items: there is no such column; did you mean 'item'"):
        ParquetBatches(folder, tables_of(other), 3)
    with pytest.raises(UserError, match="batches for a dict"):
        ParquetBatches(folder, {}, 3)
    with pytest.raises(UserError, match="give the path of data files"):
        ParquetBatches([{"item": [1], "seen": [1]}], TABLES, 3)
    words = ITEM.model_copy(update={"ids": "vocabulary"})
    with pytest.raises(UserError, match="do not hold it: give the profile, or the plan"):
        ParquetBatches(folder, tables_of(words), 3)
    with pytest.raises(UserError, match=r"call state_dict\(done=batch.number \+ 1\)"):
        ParquetBatches(folder, TABLES, 3).state_dict()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_changes_meanwhile_is_refused(folder: Path, workers: int) -> None:
    data = ParquetBatches(folder, TABLES, 3)
    path = folder / "1.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(UserError, match="the file changed while the data was being read"):
        load(data, workers)


def test_data_without_samples_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "none", samples=0)
    with pytest.raises(UserError, match="there is no sample in it"):
        ParquetBatches(folder, TABLES, 3)


def test_rank_and_world_come_from_torchrun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "RANK", "1")
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "3")
    data = ParquetBatches(folder, TABLES, columns=["number"])
    assert (data.rank, data.world, data.batch_size, data.samples) == (1, 3, 4, 100)
    assert numbers(data)[0] == [4, 5, 6, 7]

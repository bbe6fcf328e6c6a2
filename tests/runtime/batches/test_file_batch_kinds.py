"""Batches from files of every kind, with columns of every type."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from file_batch_cases import ITEM, TABLES, load, tables_of, write

from rowtier import UserError
from rowtier.torch import ParquetBatches

# More processes than processors are what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "data")


def test_columns_of_every_type_pass_through(tmp_path: Path) -> None:
    import datetime

    day = datetime.date(1970, 1, 3)
    columns = {
        "item": pa.array([1, 2, 3]),
        "flag": pa.array([True, False, True]),
        "wide": pa.array([1, 2, 3], pa.uint32()),
        "price": pa.array([0.5, None, 2.0]),
        "dense": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2)),
        "day": pa.array([day] * 3),
        "word": pa.array(["a", "b", "c"]),
        "hole": pa.array([1, None, 3]),
    }
    (tmp_path / "hour=5").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "hour=5" / "a.parquet")
    tables = tables_of(ITEM.model_copy(update={"features": ("item",)}))
    names = ("flag", "wide", "price", "dense", "day", "hour")
    (batch,) = ParquetBatches(tmp_path, tables, 3, columns=names)
    assert batch.columns["flag"].tolist() == [True, False, True]
    assert batch.columns["wide"].tolist() == [1, 2, 3]
    assert batch.columns["price"].isnan().tolist() == [False, True, False]
    assert batch.columns["dense"].shape == (3, 2)
    assert batch.columns["day"].tolist() == [2, 2, 2]
    assert batch.columns["hour"].tolist() == [5, 5, 5]
    with pytest.raises(UserError, match="word: 'string': columns are numbers"):
        ParquetBatches(tmp_path, tables, 3, columns=["word"])
    with pytest.raises(UserError, match="has nulls; fill them, or cast the column to float"):
        list(ParquetBatches(tmp_path, tables, 3, columns=["hole"]))


def test_a_column_must_be_of_one_type_in_all_files(tmp_path: Path) -> None:
    for name, kind in (("a", pa.int64()), ("b", pa.float32())):
        columns = {"item": [1, 2], "x": pa.array([1, 2], kind)}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    tables = tables_of(ITEM.model_copy(update={"features": ("item",)}))
    with pytest.raises(UserError, match=r"x: 'float': is int64 in .*a\.parquet"):
        ParquetBatches(tmp_path, tables, 2, columns=["x"])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_criteo_files_are_counted_and_have_labels(
    tmp_path: Path, packed: bool, shuffle: bool
) -> None:
    fields = [[i % 2, i or "", *[""] * 12, f"{i:x}", *["ff"] * 25] for i in range(40)]
    text = "\n\n".join("\t".join(map(str, line)) for line in fields).encode()
    path = tmp_path / ("day.tsv.gz" if packed else "day.tsv")
    path.write_bytes(gzip.compress(text) if packed else text)
    tables = tables_of(ITEM.model_copy(update={"features": ("C1",)}))
    data = ParquetBatches(path, tables, 6, columns=("label", "I1"), shuffle=shuffle, last="short")
    batches = load(data, 2)
    assert len(batches) == len(data) == 7
    rows = torch.cat([batch.features["C1"][0] for batch in batches])
    label, first = (torch.cat([b.columns[name] for b in batches]) for name in ("label", "I1"))
    assert sorted(rows.tolist()) == list(range(40))
    assert torch.equal(label, (rows % 2).double())
    assert torch.equal(first.nan_to_num(0), rows.double())
    with pytest.raises(UserError, match="label and I1 to I13"):
        ParquetBatches(path, tables, 6, columns=("click",))


def test_npz_and_pt_files_work_too(tmp_path: Path) -> None:
    lengths, values = np.arange(9) % 3, np.arange(9)
    np.savez(
        tmp_path / "a.npz", item=values, seen_values=values, seen_lengths=lengths, y=values / 2
    )
    (batch,) = ParquetBatches(tmp_path / "a.npz", TABLES, 9, columns=["y"])
    assert batch.columns["y"].tolist() == (values / 2).tolist()
    assert batch.features["seen"][1].tolist() == lengths.tolist()
    with pytest.raises(UserError, match="there is no such array"):
        ParquetBatches(tmp_path / "a.npz", TABLES, 9, columns=["z"])
    offsets = np.cumsum(lengths) - lengths
    torch.save(tuple(map(torch.from_numpy, (values, offsets, lengths[None]))), tmp_path / "b.pt")
    tables = tables_of(ITEM.model_copy(update={"features": ("t0",)}))
    (batch,) = ParquetBatches(tmp_path / "b.pt", tables, 9)
    assert batch.features["t0"][1].tolist() == lengths.tolist()
    with pytest.raises(UserError, match="this format holds ids only"):
        ParquetBatches(tmp_path / "b.pt", tables, 9, columns=["y"])

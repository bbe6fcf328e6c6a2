"""Deltas of growing tables in one process: ids of rows, ids that went, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import rowtier
from rowtier import Delta, MismatchError
from rowtier.runtime import growing_names
from rowtier.runtime.checkpoint.applied import apply_deltas
from rowtier.runtime.checkpoint.export import export
from rowtier.torch import SGD, ShardedEmbeddings, save_checkpoint

WEIGHT, IDS = "embedding_bags.t.weight", "embedding_bags.t.ids"


def embeddings(ids: Any = (1, 2), rows: int = 6, width: int = 4) -> ShardedEmbeddings:
    table = rowtier.Table(
        name="t", num_embeddings=rows, embedding_dim=width, features=("f",), optimizer="sgd",
        ids="grow", evict="lru", num_shared=1,
    )  # fmt: skip
    tables = rowtier.Tables(batch_size=2, tables=(table,))
    plan = rowtier.make_plan(
        rowtier.make_profile([{"f": list(ids)}], tables), rowtier.Cluster.local(1)
    )
    return ShardedEmbeddings(plan, SGD(lr=0.5), deltas=True)


def train(module: ShardedEmbeddings, *ids: Any) -> None:
    module({"f": list(ids)})["f"].sum().backward()
    module.optimizer.step()


def exported(module: ShardedEmbeddings, path: Path) -> Path:
    save_checkpoint(path / "save", model=module, rows=module.optimizer)
    export(path / "save", path / "tables.safetensors")
    return path / "tables.safetensors"


def test_ids_that_were_only_looked_up_are_in_deltas(tmp_path: Path) -> None:
    module = embeddings()
    base = exported(module, tmp_path / "base")
    with torch.no_grad():
        module({"f": [7, 8]})  # get rows, which do not change
    module.delta(tmp_path / "delta")
    apply_deltas(base, [tmp_path / "delta"], tmp_path / "out.safetensors")
    assert load_file(tmp_path / "out.safetensors")[IDS].tolist() == [1, 2, 7, 8]
    assert Delta.load(tmp_path / "delta").changed_rows == 2


def test_ids_that_came_and_went_are_not_named_as_gone(tmp_path: Path) -> None:
    module = embeddings()
    exported(module, tmp_path)
    for ids in ((3, 4), (5, 6), (7, 8), (2, 9)):  # 5 rows: 2 goes and comes back
        train(module, *ids)
    module.delta(tmp_path / "delta")
    index = Delta.load(tmp_path / "delta").index.tables[WEIGHT]
    now = module.vocabulary("t").ids.tolist()
    assert index.removed_ids == (1,)
    assert 2 in now
    assert 1 not in now


def test_a_table_that_lost_too_many_ids_is_written_whole(tmp_path: Path) -> None:
    module = embeddings(range(5))
    base = exported(module, tmp_path / "base")
    with patch.object(growing_names, "_MOST", 0):
        train(module, 11, 12)
    train(module, 13, 12)
    module.delta(tmp_path / "delta")
    index = Delta.load(tmp_path / "delta").index.tables[WEIGHT]
    assert (index.changed, index.removed_ids) == (6, ())
    apply_deltas(base, [tmp_path / "delta"], tmp_path / "out.safetensors")
    expected = load_file(exported(module, tmp_path / "now"))
    found = load_file(tmp_path / "out.safetensors")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    train(module, 11, 12)
    module.delta(tmp_path / "second")
    assert Delta.load(tmp_path / "second").changed_rows < 6


def test_bases_without_ids_or_with_others_are_refused(tmp_path: Path) -> None:
    numbers, words = embeddings(), embeddings(["a", "b"])
    bases, deltas = [], []
    for name, module in (("numbers", numbers), ("words", words)):
        module.delta(tmp_path / name / "delta")
        bases.append(exported(module, tmp_path / name))
        deltas.append(tmp_path / name / "delta")
    weight = {WEIGHT: load_file(bases[0])[WEIGHT]}
    before = weight[WEIGHT].clone()
    for delta, base, kind in ((deltas[0], bases[1], "strings"), (deltas[1], bases[0], "whole num")):
        with pytest.raises(MismatchError, match=f"has {kind}.* there: give embedding_bags.t.id"):
            apply_deltas(base, [delta], tmp_path / "out")
    with pytest.raises(MismatchError, match=r"has no embedding_bags\.t\.ids beside them"):
        Delta.load(deltas[0]).apply(weight)
    assert torch.equal(weight[WEIGHT], before)
    by_table = {"t": np.zeros((6, 4), np.float32), "t.ids": np.empty(0, np.int64)}
    Delta.load(deltas[0]).apply(by_table)
    assert by_table["t.ids"].tolist() == [1, 2]


def test_a_delta_is_hardly_larger_than_its_rows_and_ids(tmp_path: Path) -> None:
    module = embeddings(range(3000), rows=4000, width=16)
    exported(module, tmp_path)
    train(module, *range(2000, 3500))
    module.delta(tmp_path / "delta")
    total = sum(path.stat().st_size for path in (tmp_path / "delta").iterdir())
    rows = Delta.load(tmp_path / "delta").changed_rows
    assert rows == 1500
    assert total / (rows * (16 * 4 + 8)) <= 1.1

"""Growing tables together with deltas, saves of what changed, migrations and counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import growing_living_jobs as jobs
from safetensors.torch import load_file
from test_growing import drifting, growing_table, plan_of, spelled

from rowtier import Delta
from rowtier.runtime.checkpoint.applied import apply_deltas
from rowtier.runtime.checkpoint.export import export
from rowtier.torch import RowwiseAdagrad


@pytest.mark.parametrize(("strings", "ranks"), [(False, 2), (True, 3)])
def test_a_base_and_deltas_are_the_export_with_its_ids(
    workers: Any, tmp_path: Path, strings: bool, ranks: int
) -> None:
    table = growing_table(36, admit_after=2)
    known = spelled([3, 3, 3, 1, 1, 1], strings)
    plans = [plan_of(table, ranks, known, cut) for cut in (6, 25)]
    ids, *_ = workers.run(ranks, jobs.growing_deltas, plans, drifting(8, strings), tmp_path)
    base = tmp_path / "base.safetensors"
    export(tmp_path / "base", base)
    memory = load_file(base)
    before: Delta | str = str(base)
    for number in (1, 2, 3):
        expected, out = (tmp_path / f"{what}-{number}.safetensors" for what in ("is", "out"))
        export(tmp_path / f"save-{number}", expected)
        deltas = [tmp_path / f"delta-{n}" for n in range(1, number + 1)]
        apply_deltas(base, deltas, out)
        assert tensors_in(out) == tensors_in(expected)
        delta = Delta.load(deltas[-1])
        delta.apply(memory, after=before)
        before = delta
        wanted = load_file(expected)
        assert memory.keys() == wanted.keys()
        assert all(torch.equal(memory[name], wanted[name]) for name in wanted)
        facts = delta.index.tables["embedding_bags.t.weight"]
        assert facts.changed < table.num_embeddings
        assert set(facts.removed_ids) == set(ids[number - 1]) - set(ids[number])
        assert facts.ids == len(ids[number])
    assert facts.removed_ids


def tensors_in(path: Path) -> bytes:
    """What a file has after the header, in which weights have names of their own."""
    data = path.read_bytes()
    return data[8 + int.from_bytes(data[:8], "little") :]


@pytest.mark.parametrize(("strings", "ranks"), [(True, 1), (False, 2), (True, 3)])
def test_a_migration_keeps_everything_that_decides_on_ids(
    workers: Any, tmp_path: Path, strings: bool, ranks: int
) -> None:
    table = growing_table(evict="lfu", admit_after=2, optimizer="rowwise_adagrad")
    known = spelled([3, 3, 3, 1, 1, 1], strings)
    plans = [plan_of(table, ranks, known, cut) for cut in (6, 21)]
    batches, optimizer = drifting(8, strings), RowwiseAdagrad(lr=0.1)
    found = workers.run(
        ranks, jobs.migrated_and_reloaded, plans, batches, optimizer, tmp_path / "run"
    )
    assert found == [[table.num_own] * 2] * ranks


def test_saves_by_rows_have_the_vocabulary(workers: Any, tmp_path: Path) -> None:
    table = growing_table(evict="lfu", admit_after=2)
    plan = plan_of(table, 2, spelled([3, 3, 3, 1, 1, 1], True))
    names = workers.run(2, jobs.saved_by_rows, plan, drifting(7, True), tmp_path)
    assert names == [["save-000002", "save-000003", "save-000004"]] * 2


def test_a_plan_of_what_was_counted_fits_the_ids_of_now(workers: Any) -> None:
    plan = plan_of(growing_table(), 2, spelled([3, 3, 3, 1, 1, 1], False))
    one, other = workers.run(2, jobs.replanned, plan, drifting(8, False))
    assert one[1].vocabularies["t"].ids.tolist() == one[2] == other[2]
    assert one[0]["ids"] != one[2]

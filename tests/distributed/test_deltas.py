"""Deltas, saves of what changed and saves behind training, on real processes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

from cases import cluster_of, drawn_plans
from checkpoint_jobs import Training
from delta_jobs import carry_marks, deltas_and_saves, fail_behind_training, without_an_outcome
from safetensors.torch import load_file
from test_checkpoint import TABLES, joint_like, plan_of, row_wise
from test_migrate import plan_pairs

from rowtier import Plan, Profile
from rowtier.runtime.checkpoint.applied import apply_deltas
from rowtier.runtime.checkpoint.export import export


def alone(plan: Plan) -> Plan:
    """The same tables on one rank."""
    from strategies import counted

    cluster = cluster_of((1,))
    stats = tuple(counted(t, np.ones(t.num_embeddings, dtype=int)) for t, _ in plan)
    bands = {t.name: row_wise(t, cluster.scopes) for t, _ in plan}
    return Plan.build("drawn", Profile(4, stats), cluster, bands)


def check(workers: Any, plan: Plan, folder: Path, wait: bool, other: Plan | None = None) -> None:
    """A base and its deltas are the save of the same moment, in every bit."""
    ranks = plan.cluster.num_devices
    results = workers.run(ranks, deltas_and_saves, plan, folder, wait, other)
    assert {result["save"].name for result in results} == {"save-000003"}
    export(folder / "base", folder / "base.safetensors")
    export(folder / "run", folder / "expected.safetensors")
    deltas = [folder / "delta-1", folder / "delta-2"]
    apply_deltas(folder / "base.safetensors", deltas, folder / "out.safetensors")
    expected, found = (load_file(folder / f"{name}.safetensors") for name in ("expected", "out"))
    whole = results[-1]["whole"]
    for name, values in expected.items():
        assert torch.equal(found[name], values), name
        assert np.array_equal(values.float().numpy(), whole[f"model.embeddings.{name}"]), name
    reader = Training(alone(plan), None)
    reader.load(folder / "run")
    loaded = reader.whole()
    assert loaded.keys() == whole.keys()
    for name, values in whole.items():
        assert np.array_equal(loaded[name], values), name


@given(drawn_plans(dtypes=("fp32", "fp16", "bf16")), st.booleans())
@settings(
    max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True,
    phases=(Phase.explicit, Phase.generate),
)  # fmt: skip
def test_a_base_and_deltas_are_the_save_of_the_moment_under_any_plan(
    workers: Any, plan: Plan, wait: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(workers, plan, Path(folder), wait)


@given(plan_pairs(), st.booleans())
@settings(
    max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True,
    phases=(Phase.explicit, Phase.generate),
)  # fmt: skip
def test_a_base_and_deltas_are_the_save_of_the_moment_across_a_migration(
    workers: Any, plans: tuple[Plan, Plan], wait: bool
) -> None:
    old, new = plans
    with tempfile.TemporaryDirectory() as folder:
        check(workers, old, Path(folder), wait, new)


@pytest.mark.parametrize("wait", [True, False])
def test_copies_columns_and_all_optimizers_are_in_deltas(
    workers: Any, tmp_path: Path, wait: bool
) -> None:
    check(workers, plan_of((2, 2), joint_like), tmp_path, wait)


def test_a_save_of_what_changed_goes_on_under_another_plan(workers: Any, tmp_path: Path) -> None:
    workers.run(3, deltas_and_saves, plan_of((3,), row_wise), tmp_path, True)
    one = Training(plan_of((1,), row_wise), None)
    one.load(tmp_path / "run")
    assert one.step == 2


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_cannot_write_behind_training_is_named_on_all(
    workers: Any, tmp_path: Path, failing: int
) -> None:
    plan = plan_of((2,), row_wise, TABLES[:2])
    for said in workers.run(2, fail_behind_training, plan, tmp_path, failing):
        assert len(said) == 2
        for message in said:
            assert f"before it is whole (rank {failing}: OSError: [Errno 28] No space" in message
    other = Training(plan_of((1,), row_wise, TABLES[:2]), None)
    other.load(tmp_path)
    assert other.step == 1


def test_ranks_look_at_the_disk_if_the_first_one_left(workers: Any, tmp_path: Path) -> None:
    plan = plan_of((2,), row_wise, TABLES[:1])
    names = workers.run(2, without_an_outcome, plan, tmp_path)
    assert names == ["save-000001", "save-000001"]


def test_marks_go_by_row_to_another_plan(workers: Any) -> None:
    plans = [plan_of((2, 2), joint_like), plan_of((2, 2), row_wise)]
    for order in (plans, plans[::-1]):
        results = workers.run(4, carry_marks, order)
        for tables in zip(*results, strict=True):
            everywhere: dict[int, int] = {}
            for table in tables:
                for row, mark in zip(*table["here"], strict=True):
                    everywhere[int(row)] = everywhere.get(int(row), 0) | int(mark)
            expected = zip(tables[0]["rows"].tolist(), tables[0]["marks"].tolist(), strict=True)
            assert everywhere == dict(expected)

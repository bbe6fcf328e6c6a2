"""Checkpoints between plans and numbers of ranks, on real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from strategies import counted

torch = pytest.importorskip("torch", reason="torch is not installed")

from cases import cluster_of, drawn_plans
from checkpoint_jobs import (
    Training,
    fail_to_load,
    load_placed,
    numbered,
    round_trip,
    stage,
)

from rowtier import Band, Cluster, Plan, Profile, Server, Table

KINDS = ("sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "adamw")
TABLES = [
    Table(
        name=f"{kind}_{pooling}",
        num_embeddings=30 + 7 * index,
        embedding_dim=4,
        pooling=pooling,
        optimizer=kind,
        features=(f"f_{kind}_{pooling}",),
    )
    for index, (kind, pooling) in enumerate(
        [*((kind, "sum") for kind in KINDS), ("rowwise_adagrad", "none"), ("adam", "mean")]
    )
]


def plan_of(shape: tuple[int, ...], bands: Any, tables: list[Table] | None = None) -> Plan:
    """Bands of every table by a function of table and scopes."""
    return plan_on(cluster_of(shape), bands, tables)


def plan_on(cluster: Cluster, bands: Any, tables: list[Table] | None = None) -> Plan:
    """The same on a cluster."""
    random = np.random.default_rng(1)
    given = TABLES if tables is None else tables
    stats = tuple(counted(t, random.integers(0, 9, t.num_embeddings)) for t in given)
    placed = {table.name: bands(table, cluster.scopes) for table in given}
    return Plan.build("drawn", Profile(4, stats), cluster, placed)


def joint_like(table: Table, scopes: Any) -> tuple[Band, ...]:
    """Copies of the hottest, one per node of the next, and the rest in two runs of columns."""
    rows = table.num_embeddings
    pooled = "rows" if table.pooling == "none" else "sums"
    return (
        Band(start=0, stop=5, scope=scopes[0], tier="ram"),
        Band(start=5, stop=17, scope=scopes[1], tier="ram", coalesced=True, sync="sparse"),
        Band(start=17, stop=rows, columns=(0, 1), scope=scopes[-1], tier="ssd", exchange=pooled),
        Band(start=17, stop=rows, columns=(1, 4), scope=scopes[-1], tier="ram", order="blocks"),
    )


def row_wise(table: Table, scopes: Any) -> tuple[Band, ...]:
    """Contiguous blocks of rows."""
    return (Band(start=0, stop=table.num_embeddings, scope=scopes[-1], order="blocks", tier="ram"),)


def close(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """The same names, and values to 1e-5."""
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert values.shape == found[key].shape, key
        np.testing.assert_allclose(found[key], values, rtol=1e-5, atol=1e-5, err_msg=key)


def test_training_goes_on_under_other_plans_as_if_nothing_happened(
    workers: Any, tmp_path: Path
) -> None:
    alone = plan_of((1,), row_wise)
    reference = Training(alone, None)
    reference.run(5)
    first = workers.run(4, stage, plan_of((2, 2), joint_like), tmp_path, 5, True)
    close(first[3]["whole"], reference.whole())
    reference.run(5)
    second = workers.run(3, stage, plan_of((3,), row_wise), tmp_path, 5, False)
    close(second[2]["whole"], reference.whole())
    reference.run(5)
    third = Training(alone, None)  # no process group at all
    third.load(tmp_path)
    third.run(5)
    close(third.whole(), reference.whole())
    assert third.step == 15
    assert third.schedule.get_last_lr() == reference.schedule.get_last_lr()
    assert second[0]["lr"] == pytest.approx([0.05 * 0.25] * len(KINDS))


def test_copies_are_equal_bit_for_bit_after_a_load(workers: Any, tmp_path: Path) -> None:
    workers.run(3, stage, plan_of((3,), row_wise), tmp_path, 3, True)
    results = workers.run(4, stage, plan_of((2, 2), joint_like), tmp_path, 0, False)
    seen: dict[Any, Any] = {}
    for result in results:
        equal_copies(result["loaded"], seen)
    assert max(len(copies) for copies in seen.values()) == 4


def equal_copies(shards: list[Any], seen: dict[Any, list[Any]]) -> None:
    """Hold every row against the same row elsewhere."""
    for name, rows, columns, weights, state in shards:
        for slot, row in enumerate(rows):
            here = [weights[slot], *(values[slot] for values in state.values())]
            copies = seen.setdefault((name, int(row), columns[0]), [])
            for other in copies:
                assert all(map(np.array_equal, here, other)), (name, row)
            copies.append(here)


@given(drawn_plans(dtypes=("fp32", "fp16", "bf16")))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_logical_tensors_do_not_depend_on_the_plan(workers: Any, plan: Plan) -> None:
    alone = Plan.build(
        "drawn",
        Profile(4, tuple(counted(t, np.ones(t.num_embeddings, dtype=int)) for t, _ in plan)),
        cluster_of((1,)),
        {t.name: row_wise(t, cluster_of((1,)).scopes) for t, _ in plan},
    )
    expected = round_trip(0, None, alone)["weights"]
    seen: dict[Any, Any] = {}
    for result in workers.run(plan.cluster.num_devices, round_trip, plan):
        assert result["weights"].keys() == expected.keys()
        for key, values in expected.items():
            assert np.array_equal(result["weights"][key], values), key
        for shards in result["shards"]:
            equal_copies(shards, seen)


def test_rows_on_a_server_are_part_of_the_tables(workers: Any) -> None:
    usual = cluster_of((2,))
    server = Server(name="parameters", level="level0", tiers=usual.device.tiers)
    cluster = usual.model_copy(update={"servers": (server,)})

    def bands(table: Table, scopes: Any) -> tuple[Band, ...]:
        rows = table.num_embeddings
        cold = Band(start=5, stop=rows, scope=scopes[-1], members=(2, 0), tier="ssd")
        return (Band(start=0, stop=5, scope=scopes[0], tier="ram"), cold)

    results = workers.run(3, round_trip, plan_on(cluster, bands))
    expected = round_trip(0, None, plan_of((1,), row_wise))["weights"]
    for result in results:
        assert all(np.array_equal(result["weights"][key], expected[key]) for key in expected)
    assert any(len(rows) for _, rows, *_ in results[2]["shards"][0])


@pytest.mark.parametrize("kind", ["rows", "columns", "copies"])
def test_dtensors_of_any_placement_load(workers: Any, kind: str) -> None:
    tables = [TABLES[0], Table(name="one", num_embeddings=1, embedding_dim=4, features=("one",))]
    plan = plan_of((4,), row_wise, tables)
    for shards in workers.run(4, load_placed, plan, kind):
        for name, rows, (first, last), weights, _ in shards:
            table = next(t for t in tables if t.name == name)
            whole = numbered((table.num_embeddings, table.embedding_dim))
            assert np.array_equal(weights, whole[rows, first:last])


def test_small_rounds_move_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of((1,), row_wise)
    expected = round_trip(0, None, plan)["weights"]
    monkeypatch.setattr("rowtier.runtime.blocks.AT_ONCE_BYTES", 100)
    found = round_trip(0, None, plan)["weights"]
    assert all(np.array_equal(found[key], expected[key]) for key in expected)


def test_a_table_of_another_shape_is_refused_on_every_rank(workers: Any, tmp_path: Path) -> None:
    workers.run(2, stage, plan_of((2,), row_wise, TABLES[:1]), tmp_path, 1, True)
    other = [TABLES[0].model_copy(update={"num_embeddings": 31})]
    for message in workers.run(2, fail_to_load, plan_of((2,), row_wise, other), tmp_path):
        assert "embedding_bags.sgd_sum.weight has shape [30, 4] there and [31, 4] here" in message


def test_a_bit_that_flipped_in_the_shard_of_one_rank_is_an_error_on_every_rank(
    workers: Any, tmp_path: Path
) -> None:
    plan = plan_of((2,), row_wise, TABLES[2:3])
    workers.run(2, stage, plan, tmp_path, 1, True)
    path = tmp_path / "save-000001" / "__1_0.distcp"
    raw = bytearray(path.read_bytes())
    at = raw.index(b"PK", 1) - 200  # near the end of the first tensor
    raw[at] ^= 1
    path.write_bytes(raw)
    for message in workers.run(2, fail_to_load, plan, tmp_path):
        assert f"{path}: bytes " in message
        assert "differ from what was saved (checksum)" in message
    (tmp_path / "save-000001" / ".metadata").unlink()
    for message in workers.run(2, fail_to_load, plan, tmp_path):
        assert ".metadata: cannot be read" in message
    (tmp_path / "current.json").write_text('{"saves": [3]}')
    for message in workers.run(2, fail_to_load, plan, tmp_path):
        assert "current.json: 1 mistake" in message

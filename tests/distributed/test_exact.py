"""Training on any plan gives what one process with torch gives: drawn plans, real processes.

ROWTIER_DRAWN_PLANS multiplies how many plans are drawn, ROWTIER_DRAWN_STEPS says how many steps
they are trained for.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed")

from cases import Case, check, check_counters, drawn_plans

from rowtier import Plan
from rowtier.torch import Disk

STEPS = int(os.environ.get("ROWTIER_DRAWN_STEPS", "20"))
SEEDS = st.integers(0, 2**32)
MANY = int(os.environ.get("ROWTIER_DRAWN_PLANS", "1"))


def drawn(examples: int) -> Any:
    """So many plans, or more of them if asked."""
    return settings(
        max_examples=examples * MANY, deadline=None, suppress_health_check=list(HealthCheck)
    )


@drawn(75)
@given(drawn_plans(optimizer="sgd"), SEEDS)
def test_sgd_is_equal_bit_for_bit_where_sums_are_exact(workers: Any, plan: Plan, seed: int) -> None:
    case = Case(plan, seed, STEPS, exact=True)
    tables, outputs = case.reference(0.0, 1.0, 0.25)
    results = case.run(workers, gradients="sum", near=bool(seed % 2))
    check(case, results, tables, outputs, bitwise=True)


@drawn(75)
@given(drawn_plans(), SEEDS)
def test_all_optimizers_agree_with_torch(workers: Any, plan: Plan, seed: int) -> None:
    case = Case(plan, seed, STEPS, exact=False)
    tables, outputs = case.reference(0.125, 1 / case.size, 0.05)
    check(case, case.run(workers, 0.125, lr=0.05), tables, outputs, bitwise=False)


@drawn(60)
@given(drawn_plans(dtypes=("fp16", "bf16"), optimizer="sgd"), SEEDS)
def test_16_bit_tables_are_equal_bit_for_bit_where_nothing_is_rounded(
    workers: Any, plan: Plan, seed: int
) -> None:
    case = Case(plan, seed, 3, exact=True)
    tables, outputs = case.reference(0.0, 1.0, 1.0)
    check(case, case.run(workers, gradients="sum", lr=1.0), tables, outputs, bitwise=True)


@drawn(30)
@given(drawn_plans(optimizer="sgd", dtypes=("fp32", "bf16")), SEEDS)
def test_rows_on_disk_are_equal_bit_for_bit_where_sums_are_exact(
    workers: Any, tmp_path_factory: Any, plan: Plan, seed: int
) -> None:
    case = Case(plan, seed, 4, exact=True)
    tables, outputs = case.reference(0.0, 1.0, 0.25)
    folder = tmp_path_factory.mktemp("ssd")
    results = case.run(workers, gradients="sum", tiers={"ssd": str(folder)})
    check(case, results, tables, outputs, bitwise=True)
    assert os.listdir(folder) == []


@drawn(20)
@given(drawn_plans(dtypes=("fp32", "fp16")), SEEDS, st.booleans())
def test_rows_on_disk_are_the_same_as_in_memory(
    workers: Any, tmp_path_factory: Any, plan: Plan, seed: int, ahead: bool
) -> None:
    case = Case(plan, seed, 6, exact=False)
    # Room for two pages at a time: what a step reads does not fit, and is read again.
    disk = Disk(tmp_path_factory.getbasetemp(), 8 * 4096)
    same(case.run(workers, 0.125), case.run(workers, 0.125, tiers={"ssd": disk}, ahead=ahead))


@drawn(90)
@given(drawn_plans(dtypes=("fp32", "fp16")), SEEDS, st.sampled_from(["narrow", "wide"]))
def test_counters_equal_replay_to_the_byte(workers: Any, plan: Plan, seed: int, ids: str) -> None:
    case = Case(plan, seed, 3, exact=False, samples=3)
    results = case.run(workers, ids=ids)
    check_counters(case, results, ids=ids)


@drawn(20)
@given(drawn_plans(dtypes=("fp32", "fp16"), optimizer="sgd"), SEEDS)
def test_tables_that_run_as_one_give_and_count_what_they_do_alone(
    workers: Any, plan: Plan, seed: int
) -> None:
    case = Case(plan, seed, 3, exact=True, samples=3)
    together, alone = case.run(workers), case.run(workers, alone=True)
    same(together, alone)
    assert together[0]["counted"]["bands"] == alone[0]["counted"]["bands"]
    assert together[0]["counted"]["bytes"] == alone[0]["counted"]["bytes"]


@drawn(10)
@given(drawn_plans(), SEEDS)
def test_two_runs_are_equal_bit_for_bit(workers: Any, plan: Plan, seed: int) -> None:
    first, second = (Case(plan, seed, 4, exact=False).run(workers, 0.125) for _ in range(2))
    same(first, second)


def same(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
    """All outputs, weights and states of two runs are equal bit for bit."""
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one["outputs"], other["outputs"], strict=True):
            assert all(np.array_equal(a[name], b[name]) for name in a)
        for (*_, weights, state), (*_, others, state_too) in zip(
            one["shards"], other["shards"], strict=True
        ):
            assert np.array_equal(weights, others)
            assert all(np.array_equal(state[name], state_too[name]) for name in state)

"""Whole training steps on the pretend accelerator: drawn plans, one to four processes.

Rows lie on a device that refuses the host's tensors, and travel from device to device. What comes
out is held to torch alone and to replay, as on the host. ROWTIER_PRETEND_PLANS says how many plans
are drawn; `make gpu-proof` draws a hundred.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed")

import pretend_jobs
from cases import Case, check, check_counters, drawn_plans

from rowtier import Plan

PLANS = int(os.environ.get("ROWTIER_PRETEND_PLANS", "10"))
SEEDS = st.integers(0, 2**32)
TIERS = ("hbm", "dram")  # a device's own memory, and pinned memory of its host
STEPS = 3


def drawn(examples: int) -> Any:
    """So many plans."""
    return settings(
        max_examples=max(1, examples), deadline=None, suppress_health_check=list(HealthCheck)
    )


def trained(case: Case, workers: Any, follow: float = 0.0, **options: Any) -> list[dict[str, Any]]:
    """Train on real processes, on the device."""
    args = (case.plan, case.weights, case.steps, case.grads, follow, options)
    return workers.run(case.size, pretend_jobs.train, *args)


@drawn(PLANS - PLANS // 2 - PLANS // 5)
@given(drawn_plans(dtypes=("fp32", "fp16", "bf16"), optimizer="sgd", tiers=TIERS), SEEDS)
def test_sgd_is_equal_bit_for_bit_where_sums_are_exact(
    pretend_workers: Any, plan: Plan, seed: int
) -> None:
    case = Case(plan, seed, STEPS, exact=True, samples=3)
    lr = 1.0 if case.coarse else 0.25
    tables, outputs = case.reference(0.0, 1.0, lr)
    results = trained(case, pretend_workers, gradients="sum", lr=lr)
    check(case, results, tables, outputs, bitwise=True)
    check_counters(case, results, ids="narrow")
    assert all(len(result["stops"]) <= 1 for result in results), results[0]["stops"]


@drawn(PLANS // 2)
@given(drawn_plans(tiers=TIERS), SEEDS)
def test_all_optimizers_agree_with_torch(pretend_workers: Any, plan: Plan, seed: int) -> None:
    case = Case(plan, seed, STEPS, exact=False, samples=3)
    tables, outputs = case.reference(0.125, 1 / case.size, 0.05)
    results = trained(case, pretend_workers, 0.125, lr=0.05)
    check(case, results, tables, outputs, bitwise=False)
    check_counters(case, results, ids="narrow")
    assert all(len(result["stops"]) <= 1 for result in results), results[0]["stops"]


@drawn(PLANS // 5)
@given(drawn_plans(learned=True, tiers=TIERS), SEEDS)
def test_rows_on_disk_and_learned_weights_agree_with_torch(
    pretend_workers: Any, tmp_path_factory: Any, plan: Plan, seed: int
) -> None:
    case = Case(plan, seed, STEPS, exact=False)
    tables, outputs = case.reference(0.125, 1 / case.size, 0.05)
    tiers = {"dram": str(tmp_path_factory.getbasetemp())}
    results = trained(case, pretend_workers, 0.125, lr=0.05, tiers=tiers)
    check(case, results, tables, outputs, bitwise=False)

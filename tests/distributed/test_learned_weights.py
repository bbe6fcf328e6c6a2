"""Weights of lookups that want a gradient get that of one process, whoever made the plan."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

from cases import Case, check, cluster_of, drawn_plans
from strategies import counted

from rowtier import Constraints, Plan, PlanOptions, Profile, Table, UserError, make_plan
from rowtier.torch import ShardedEmbeddings

MANY = int(os.environ.get("ROWTIER_DRAWN_PLANS", "1"))
METHODS = ["joint", "row-wise", "row-wise-coalesced", "table-wise", "recshard", "flexshard", "sca"]


@settings(max_examples=15 * MANY, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn_plans(learned=True), st.integers(0, 2**32))
def test_learned_weights_get_the_gradients_of_one_process(
    workers: Any, plan: Plan, seed: int
) -> None:
    case = Case(plan, seed, 4, exact=False)
    tables, outputs = case.reference(0.125, 1 / case.size, 0.05)
    check(case, case.run(workers, 0.125, lr=0.05), tables, outputs, bitwise=False)


def profile_of(weights: str) -> Profile:
    """Tables that run as one, of which one has learned weights, a wider one, and a sequence."""
    stats, random = [], np.random.default_rng(5)
    for name, dim, pooling, kind in (
        ("mine", 4, "sum", weights),
        ("other", 4, "sum", "given"),
        ("wide", 8, "mean", weights),
        ("history", 4, "none", "given"),
    ):
        table = Table(
            name=name,
            num_embeddings=60,
            embedding_dim=dim,
            features=(f"{name}_f",),
            pooling=pooling,
            optimizer="rowwise_adagrad",
            weights=kind,
        )
        heat = random.permutation(3000 // np.arange(1, 61))
        stats.append(counted(table, heat, samples=int(heat.sum()) // 6))
    return Profile(8, tuple(stats))


def small_cluster(profile: Profile) -> Any:
    """Two ranks that have no room for copies of most rows."""
    cluster = cluster_of((2,))
    each = int(0.6 * sum(stats.table.stored_bytes for stats in profile.stats))
    tiers = tuple(t.model_copy(update={"capacity_bytes": each}) for t in cluster.device.tiers[:1])
    return cluster.model_copy(update={"device": cluster.device.model_copy(update={"tiers": tiers})})


@pytest.mark.parametrize("method", METHODS)
def test_plans_of_every_kind_train_learned_weights(workers: Any, method: str) -> None:
    profile = profile_of("learned")
    plan = make_plan(profile, small_cluster(profile), method, PlanOptions(split=True))
    alone = [b for name in ("mine", "wide") for b in plan.bands[name] if b.scope != "device"]
    assert alone, "some rows of it travel"
    assert {band.exchange for band in alone} == {"rows"}
    case = Case(plan, 3, 4, exact=False)
    tables, outputs = case.reference(0.125, 1 / 2, 0.05)
    assert set(case.of_weights[0][0]) == {"mine_f", "wide_f"}
    check(case, case.run(workers, 0.125, lr=0.05), tables, outputs, bitwise=False)


def test_what_the_refusal_of_sums_says_to_do_helps() -> None:
    profile, cluster = profile_of("given"), cluster_of((1,))
    one = (torch.tensor([1]), torch.tensor([1]))
    weights = torch.ones(2, requires_grad=True)
    batch = {"other_f": one, "wide_f": one, "history_f": one}
    batch["mine_f"] = (torch.tensor([1, 9]), torch.tensor([2]), weights)
    with pytest.raises(UserError, match="exchange sums") as caught:
        ShardedEmbeddings(make_plan(profile, cluster, "row-wise"))(batch)
    said = str(caught.value)
    assert "`weights: learned`" in said
    pin = said[said.index("`tables: ") :].strip("`")
    assert pin == "tables: {mine: {exchange: rows}}"
    options = PlanOptions(constraints=Constraints.model_validate(yaml.safe_load(pin)))
    for plan in (
        make_plan(profile, cluster, "row-wise", options),
        make_plan(profile_of("learned"), cluster, "row-wise"),
    ):
        weights.grad = None
        ShardedEmbeddings(plan)(batch)["mine_f"].sum().backward()
        assert weights.grad is not None
        assert weights.grad.all()

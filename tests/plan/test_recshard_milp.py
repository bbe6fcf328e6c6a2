"""RecShard's mixed-integer program, by HiGHS."""

from __future__ import annotations

import numpy as np
import pytest
from recshard_models import (
    flat_cluster,
    objective_of,
    skewed_model,
    total_bytes,
)

from rowtier import PlanOptions, UserError, make_plan


@pytest.mark.parametrize("seed", range(4))
def test_highs_finds_nothing_better(seed: int) -> None:
    random = np.random.default_rng(seed)
    profile = skewed_model(random, 6, rows=1e5)
    total = total_bytes(profile)
    cluster = flat_cluster(2, (total // 6, 1e12), (total, 2e10))
    options = PlanOptions(time_limit_s=2.0)
    milp = make_plan(profile, cluster, "recshard-milp", options)
    plan = make_plan(profile, cluster, "recshard", options)
    assert milp.certificate is not None
    assert milp.certificate.bound <= objective_of(plan) <= objective_of(milp) * (1 + 1e-9)
    highs = milp.origin["highs"]
    assert highs["stepped_objective_s"] == pytest.approx(objective_of(milp))


def test_highs_knows_two_tiers() -> None:
    profile = skewed_model(np.random.default_rng(0), 3, rows=100)
    three = flat_cluster(2, (10**9, 1e9), (10**9, 1e8), (10**9, 1e7))
    with pytest.raises(UserError, match="m0, m1, m2: use recshard"):
        make_plan(profile, three, "recshard-milp")

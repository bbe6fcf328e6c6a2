"""No placement, however it is made, is faster than a joint plan's bound says."""

import numpy as np
import pytest
from cost.cost_cases import rich_bands, rich_clusters, rich_profiles
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import counted

from rowtier import Band, Cluster, Profile, Table, make_plan
from rowtier.cost.options import CostOptions
from rowtier.cost.step import step_cost
from rowtier.plan.options import PlanOptions
from rowtier.plan.prove import proved_s


@given(st.data(), rich_clusters(), rich_profiles())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_placements_stay_above_the_bound(
    data: st.DataObject, cluster: Cluster, profile: Profile
) -> None:
    dense_s = data.draw(st.sampled_from([0.0, 1e-5, 1.0]))
    plan = make_plan(profile, cluster, "joint", PlanOptions(dense_s=dense_s))
    assert plan.certificate is not None
    proved = proved_s(plan)
    assert proved == pytest.approx(max(0.0, plan.certificate.bound), rel=1e-2, abs=1e-9)
    for _ in range(6):
        bands = {s.table.name: data.draw(rich_bands(s.table, cluster)) for s in profile.stats}
        cost = step_cost(bands, profile, cluster, options=CostOptions(dense_s=dense_s))
        assert plan.certificate.bound <= cost.step_s * (1 + 1e-9)


def test_servers_that_take_rows_off_the_devices_do_not_beat_the_bound() -> None:
    table = Table(name="t", num_embeddings=300, embedding_dim=16, features=("f",), pooling="none")
    profile = Profile(100, (counted(table, np.full(300, 50)),))
    tier = {"name": "ram", "capacity": "1GB", "bandwidth": "100MB/s"}
    cluster = Cluster.model_validate(
        {
            "name": "three",
            "levels": [{"name": "node", "size": 2, "bandwidth": 1e15}],
            "device": {"tiers": [tier]},
            "servers": [{"name": "server", "level": "node", "tiers": [tier]}],
        }
    )
    plan = make_plan(profile, cluster)
    assert plan.certificate is not None
    spread = Band(start=0, stop=300, scope="node", members=(0, 1, 2), tier="ram", coalesced=True)
    assert plan.certificate.bound <= step_cost({"t": (spread,)}, profile, cluster).step_s
    assert proved_s(plan) == pytest.approx(plan.certificate.bound, rel=1e-3)

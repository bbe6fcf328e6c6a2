"""No placement, however it is made, is faster than a joint plan's bound says."""

from dataclasses import replace

import numpy as np
import pytest
from cost.cost_cases import rich_bands, rich_clusters, rich_profiles
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import counted

from rowtier import Band, Cluster, Constraints, Profile, Table, make_plan
from rowtier.cost.options import CostOptions
from rowtier.cost.step import step_cost
from rowtier.plan.options import PlanOptions
from rowtier.plan.prove import proved_s
from rowtier.plan.verify import verify


@st.composite
def exchanges(draw: st.DrawFn, profile: Profile) -> tuple[Profile, dict[str, str]]:
    """The same statistics with learned weights of some tables, and pins of the exchange."""
    stats, words = [], {}
    for one in profile.stats:
        kind = draw(st.sampled_from(["", "", "learned", "rows", "sums"]))
        if kind == "learned" and one.table.pooling != "none":
            one = replace(one, table=one.table.model_copy(update={"weights": "learned"}))
        elif kind in one.table.exchanges:
            words[one.table.name] = kind
        stats.append(one)
    return replace(profile, stats=tuple(stats)), words


@given(st.data(), rich_clusters(), rich_profiles())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_placements_stay_above_the_bound(
    data: st.DataObject, cluster: Cluster, profile: Profile
) -> None:
    dense_s = data.draw(st.sampled_from([0.0, 1e-5, 1.0]))
    profile, words = data.draw(exchanges(profile))
    pins = {name: {"exchange": word} for name, word in words.items()}
    wanted = Constraints.model_validate({"tables": pins})
    plan = make_plan(profile, cluster, "joint", PlanOptions(dense_s=dense_s, constraints=wanted))
    assert plan.certificate is not None
    verdict = verify(plan)
    assert verdict.holds, verdict.mistakes
    proved = verdict.proved
    assert proved == pytest.approx(max(0.0, plan.certificate.bound), rel=1e-2, abs=1e-9)
    for _ in range(6):
        bands = {s.table.name: data.draw(rich_bands(s.table, cluster)) for s in profile.stats}
        for name, word in words.items():
            bands[name] = tuple(b.model_copy(update={"exchange": word}) for b in bands[name])
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

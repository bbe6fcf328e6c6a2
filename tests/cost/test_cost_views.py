import json
from typing import Any

import numpy as np
import pytest

from rowtier import Band, Cluster, Curve, FeatureStats, Profile, Table, TableStats, UserError
from rowtier.cost.step import step_cost
from rowtier.cost.views import VIEWS, access_time_s, objective
from rowtier.profile.curve import bucket_stops

CLUSTER = Cluster.preset("recshard-16")
SAMPLES = 10**6


def stats(name: str, rows: int, pooling: int = 4, present: int = SAMPLES // 2) -> TableStats:
    stops = bucket_stops(rows)
    edges = np.concatenate(([0], stops)).astype(float)
    lookups = np.diff(np.log1p(edges))
    lookups *= pooling * present / lookups.sum()
    table = Table(name=name, num_embeddings=rows, embedding_dim=64, features=(name,))
    feature = FeatureStats(name=name, present=present, lookups=pooling * present)
    return TableStats(table, SAMPLES, (feature,), Curve(stops, lookups))


def halves(rows: int, cut: int, **home: Any) -> tuple[Band, ...]:
    return (
        Band(start=0, stop=cut, scope="cluster", tier="hbm", **home),
        Band(start=cut, stop=rows, scope="cluster", tier="dram", **home),
    )


def test_recshard_counts_every_access_of_every_device_and_no_link() -> None:
    table = stats("t", 10**6)
    profile = Profile(16384, (table,))
    found = objective("recshard", {"t": halves(10**6, 1000, members=(5,))}, profile, CLUSTER)
    share = float(table.curve.share(1000))
    row_bytes = 64 * 4
    expected = 16 * 16384 * 0.5 * 4 * row_bytes * (share / 1500e9 + (1 - share) / 16e9)
    assert found == pytest.approx(expected)
    each = access_time_s({"t": halves(10**6, 1000, members=(5,))}, profile, CLUSTER)
    assert np.flatnonzero(each).tolist() == [5]


def test_recshard_ignores_coalescing() -> None:
    profile = Profile(512, (stats("t", 10**4),))
    found = {
        objective("recshard", {"t": halves(10**4, 100, members=(5,), **home)}, profile, CLUSTER)
        for home in ({}, {"coalesced": True}, {"staged": True}, {"exchange": "sums"})
    }
    assert len(found) == 1


def test_other_views_are_parts_of_the_step() -> None:
    profile, bands = Profile(512, (stats("t", 10**4),)), {"t": halves(10**4, 100, staged=True)}
    cost = step_cost(bands, profile, CLUSTER)
    found = {name: objective(name, bands, profile, CLUSTER) for name in VIEWS}
    assert found["flexshard"] == cost.time.links_s
    assert found["sca"] == cost.links.total_bytes.sum()
    slowest_s = (cost.time.memory_s + cost.time.work_s).max()
    assert found["step"] == cost.step_s == slowest_s + cost.time.links_s
    assert found["step"] > found["flexshard"] > 0


def test_an_unknown_view_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="no view 'speed'; there are recshard, flexshard"):
        objective("speed", {}, Profile(1, ()), CLUSTER)


def test_the_servers_link_carries_the_sum_over_readers() -> None:
    phones = Cluster.preset("federated-1000")
    band = Band(start=0, stop=10**6, scope="cluster", members=(1000,), tier="ram", coalesced=True)
    cost = step_cost({"t": (band,)}, Profile(8, (stats("t", 10**6),)), phones)
    flow = cost.links.forward
    assert flow.sent[1000, 0] == pytest.approx(flow.received[:1000, 0].sum())
    assert (cost.links.messages[:1000, 0] == 2).all()  # ids and gradients to the cloud
    assert cost.links.messages[1000, 0] == 1000
    own = cost.time.exchange_s[1000, 0]
    both = 2 * flow.sent[1000, 0] + cost.links.ids.received[1000, 0]
    assert own == pytest.approx(both / 10e9)


def test_the_cost_is_readable_by_machines() -> None:
    profile, bands = Profile(512, (stats("t", 10**4),)), {"t": halves(10**4, 100)}
    cost = step_cost(bands, profile, CLUSTER)
    data = json.loads(json.dumps(cost.to_dict()))
    assert data["step_s"] == cost.step_s
    assert [level["name"] for level in data["levels"]] == ["node", "cluster"]
    assert len(data["holders"]) == 16
    assert data["holders"][3]["name"] == "device 3"
    assert data["tables"][0]["forward_bytes"] == pytest.approx(cost.links.forward.total.tolist())


@pytest.mark.parametrize("rows", [10**6, 10**12])
def test_any_number_of_rows_has_as_many_buckets(rows: int) -> None:
    profile = Profile(4096, (stats("t", rows),))
    assert len(profile.stats[0].curve.stops) <= 1000
    cost = step_cost({"t": halves(rows, rows // 100)}, profile, CLUSTER)
    assert np.isfinite(cost.step_s)

"""The bound over everything that a band can say is below legal plans of every kind."""

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _bounds_draw import draw_band, draw_instance, hand_made
from _bounds_least import holdings
from bounds import look_at

from rowtier import Band, Cluster


def test_no_plan_is_below_the_bound_over_everything() -> None:
    rows = []
    for seed in range(12):
        random = np.random.default_rng(10_000 + seed)
        rows.append(look_at("drawn", draw_instance(random), random))
    found = [row for row in rows if row is not None]  # nothing fits into the others
    assert len(found) >= 9
    assert all(row["plans"] > 20 for row in found)
    assert [row["true_broken"] for row in found] == [0] * len(found)


def test_servers_beside_devices_beat_joint_and_stay_above_the_bound() -> None:
    row = look_at("hand", dict(hand_made())["2 devices and 2 servers"], np.random.default_rng(0))
    assert row is not None
    assert row["true_broken"] == 0
    assert row["joint_vs_other"] > 1  # until joint weighs servers against devices


def test_every_field_of_a_band_is_drawn_and_in_the_bound() -> None:
    said = {"start", "stop", "columns", "members", "order", "offset"}  # which rows, and where
    ways = {"scope", "tier", "exchange", "coalesced", "staged", "sync"}
    assert set(Band.model_fields) == said | ways
    cluster, random = Cluster.preset("dgx-h100-2"), np.random.default_rng(1)
    profile = draw_instance(np.random.default_rng(4)).profile
    pooled = next(s.table for s in profile.stats if s.table.pooling != "none")
    drawn = [draw_band(pooled, cluster, random, 0, 1, None) for _ in range(300)]
    for name in ways:
        values = {getattr(way.band, name) for way in holdings(cluster, pooled=True)}
        assert values == {getattr(band, name) for band in drawn}, name

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import plans

from rowtier import Plan
from rowtier.cost.lookups import served_lookups


@given(plans())
@settings(max_examples=80, deadline=None)
def test_served_lookups_equal_a_walk_over_every_row(plan: Plan) -> None:
    cluster = plan.cluster
    expected = np.zeros((cluster.num_holders, len(cluster.tier_names)))
    for stats in plan.profile.stats:
        order = plan.rows_in_order(stats.table.name)
        heat = np.zeros(len(order))
        curve = stats.curve
        heat[: curve.positions] = np.repeat(curve.probabilities, curve.widths)
        per_device = plan.profile.lookups_per_step(stats)
        for band in plan.bands[stats.table.name]:
            level = cluster.level_of(band.scope)
            members = band.member_list(cluster.group_size(level))
            by_id = sorted(range(band.start, band.stop), key=lambda rank: order[rank])
            block = -(-band.rows // len(members))
            for group in range(cluster.num_groups(level)):
                holders = cluster.members(level, group)
                for position, rank in enumerate(by_id):
                    if band.order == "blocks":
                        turn = position // block
                    else:
                        turn = (rank - band.start + band.offset) % len(members)
                    tier = cluster.tier_names.index(band.tier)
                    share = heat[rank] * per_device * cluster.group_size(level)
                    expected[holders[members[turn]], tier] += share
    found = served_lookups(plan.bands, plan.profile, cluster, plan.order)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)

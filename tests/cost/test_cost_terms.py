"""What a solver is told of one row agrees with what the whole plan is found to cost."""

import numpy as np
import pytest
from cost_cases import rich_clusters
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rowtier import Band, Cluster, Curve, FeatureStats, Profile, Table, TableStats
from rowtier.cost.options import CostOptions
from rowtier.cost.step import StepCost, step_cost
from rowtier.cost.terms import RowTerms, row_terms, sums_bytes
from rowtier.cost.time import turn_shares
from rowtier.cost.touch import table_basis
from rowtier.cost.tree import tree_of

RICH = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def profile(rows: int, lookups: np.ndarray, stops: list[int], batch: int = 50) -> Profile:
    total = int(lookups.sum())
    feature = FeatureStats(name="f", present=total // 3, lookups=total)
    table = Table(name="t", num_embeddings=rows, embedding_dim=8, features=("f",))
    curve = Curve(np.array(stops), lookups.astype(float))
    return Profile(batch, (TableStats(table, total, (feature,), curve),))


@st.composite
def homes(draw: st.DrawFn, cluster: Cluster, rows: int) -> Band:
    scope = draw(st.sampled_from(cluster.scopes))
    positions = cluster.members(cluster.level_of(scope))
    servers = [i for i, holder in enumerate(positions) if holder >= cluster.num_devices]
    kinds = [{"members": "all", "tier": tier.name} for tier in cluster.device.tiers]
    kinds += [
        {"members": (i,), "tier": tier.name}
        for i in servers
        for tier in cluster.tiers_of(positions[i])
    ]
    return Band(
        start=0,
        stop=rows,
        scope=scope,
        exchange=draw(st.sampled_from(["rows", "sums"])),
        coalesced=draw(st.booleans()),
        staged=draw(st.booleans()),
        sync=draw(st.sampled_from(["dense", "sparse"])),
        **draw(st.sampled_from(kinds)),
    )


@given(st.data(), rich_clusters(), st.booleans())
@RICH
def test_terms_times_rows_are_the_bytes_of_the_plan(
    data: st.DataObject, cluster: Cluster, training: bool
) -> None:
    stats = profile(40, np.array([60, 90, 150, 30]), [1, 4, 20, 30])
    table = stats.stats[0]
    home, options = data.draw(homes(cluster, 40)), CostOptions(training=training)
    cost = step_cost({"t": (home,)}, stats, cluster, options=options)
    basis = table_basis(table, stats, tree_of(cluster).sizes, rest=True)  # ten are never looked up
    rows = np.append(table.curve.widths, 10)
    terms = row_terms(home, table.table, basis, cluster, options)
    copies = cluster.num_groups(cluster.level_of(home.scope))
    total = rows * copies
    if home.exchange == "rows":
        assert cost.links.forward.total == pytest.approx(terms.forward_bytes @ total)
        assert cost.links.backward.total == pytest.approx(terms.backward_bytes @ total)
        buffers = cost.memory.buffers.sum()
        expected = terms.buffer_bytes @ total
        assert expected * (1 - 1e-9) <= buffers <= expected * (1 + 1e-9) + cluster.num_holders
    assert cost.links.ids.total == pytest.approx(terms.id_bytes @ total)
    assert cost.links.sync.total == pytest.approx(terms.sync_bytes @ total)
    assert cost.links.sync_ids.total == pytest.approx(terms.sync_id_bytes @ total)
    assert cost.read_bytes.sum(axis=0) == pytest.approx(terms.read_bytes @ total)
    assert cost.written_bytes.sum(axis=0) == pytest.approx(terms.written_bytes @ total)
    assert cost.memory.rows.sum() == terms.stored_bytes * total.sum()


@given(st.data(), rich_clusters())
@RICH
def test_terms_add_up_to_the_step_time_of_an_even_plan(
    data: st.DataObject, cluster: Cluster
) -> None:
    assume(not cluster.overlap)
    cost, terms, widths = _even_plan(data, cluster)
    found = terms.step_s() @ widths
    assert found == pytest.approx(cost.step_s - _fixed_s(cost, cluster), rel=1e-6, abs=1e-12)
    halved = terms.step_s(0.5) @ widths
    assert found - halved == pytest.approx(0.5 * cost.time.sync_s.max(axis=0).sum(), abs=1e-12)


@given(st.data(), rich_clusters())
@RICH
def test_terms_are_no_more_than_an_even_plan_where_things_run_side_by_side(
    data: st.DataObject, cluster: Cluster
) -> None:
    cost, terms, widths = _even_plan(data, cluster)
    found = terms.step_s() @ widths
    assert found <= (cost.step_s - _fixed_s(cost, cluster)) * (1 + 1e-6) + 1e-12


def _even_plan(data: st.DataObject, cluster: Cluster) -> tuple[StepCost, RowTerms, np.ndarray]:
    """What a plan whose devices are loaded alike costs, and its rows one by one."""
    rows = 2 * cluster.num_devices
    stats = profile(rows, np.array([900]), [rows])
    table = stats.stats[0]
    home = data.draw(homes(cluster, rows))
    assume(home.members == "all" and home.exchange == "rows")
    cost = step_cost({"t": (home,)}, stats, cluster)
    basis = table_basis(table, stats, tree_of(cluster).sizes)
    return cost, row_terms(home, table.table, basis, cluster), table.curve.widths


def _fixed_s(cost: StepCost, cluster: Cluster) -> float:
    """What a row has no part in: waiting, and work of steps, rounds, tables and bands."""
    work, rounds = cluster.work, sum(cost.phases().values())
    work_s = work.step_s + work.round_s * rounds + work.table_s
    work_s += cost.pieces.work_s(work, training=True)
    work_s += 2 * work.output_byte_s * float(cost.memory.outputs.max())
    shares = turn_shares(tree_of(cluster), "levels")
    waits_s = shares @ (cost.time.exchange_latency_s + cost.time.sync_latency_s)
    return float(waits_s + work_s)


@given(st.data(), rich_clusters())
@RICH
def test_partial_sums_of_evenly_held_rows(data: st.DataObject, cluster: Cluster) -> None:
    rows = 2 * cluster.num_devices
    stats = profile(rows, np.array([900]), [rows])
    home = data.draw(homes(cluster, rows))
    assume(home.members == "all" and home.exchange == "sums")
    cost = step_cost({"t": (home,)}, stats, cluster)
    found = sums_bytes(home, stats, stats.stats[0], np.array([1.0]), cluster)
    assert found[:, 0] * cluster.num_devices == pytest.approx(cost.links.forward.total)

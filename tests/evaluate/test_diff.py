"""What moves between two plans, against a dictionary of every number of every row."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report.report_cases import cluster, profile
from strategies import bands, clusters, counted, profiles

import rowtier
from rowtier import Cluster, MismatchError, Plan, Profile, Server, Tier


@st.composite
def pairs(draw: st.DrawFn, ordered: bool = True) -> tuple[Plan, Plan]:
    """Two plans for the same tables: other heat, other bands, perhaps another cluster."""
    first = draw(profiles(max_tables=2))
    heat = [
        draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
        for n in (s.table.num_embeddings for s in first.stats)
    ]
    stats = [
        counted(s.table, np.array(h, dtype=np.int64))
        for s, h in zip(first.stats, heat, strict=True)
    ]
    second = draw(st.sampled_from([first, Profile(first.batch_size, tuple(stats))]))
    machine = draw(clusters())
    other = draw(st.one_of(st.just(machine), clusters()))
    made = []
    for of, on in ((first, machine), (second, other)):
        placed = {s.table.name: draw(bands(s.table, on)) for s in of.stats}
        made.append(Plan.build("random", of if ordered else of.to_curve(), on, placed))
    return made[0], made[1]


def homes(plan: Plan, table: str) -> dict[tuple[int, int], dict[str, str]]:
    """For every number (row, column) the holders by name, and their tiers."""
    found: dict[tuple[int, int], dict[str, str]] = {}
    facts = plan.profile[table].table
    if plan.order is None:
        rows = list(range(facts.num_embeddings))
    else:
        rows = plan.rows_in_order(table).tolist()
    for band in plan.bands[table]:
        level = plan.cluster.level_of(band.scope)
        ids = rows[band.start : band.stop]
        members = band.member_list(plan.cluster.group_size(level))
        block = -(-len(ids) // len(members))
        for rank, row in enumerate(ids):
            if band.order == "spread":
                member = members[(rank + band.offset) % len(members)]
            else:
                member = members[sorted(ids).index(row) // block]
            for column in range(*(band.columns or (0, facts.embedding_dim))):
                for group in range(plan.cluster.num_groups(level)):
                    holder = plan.cluster.members(level, group)[member]
                    name = plan.cluster.holder_name(holder)
                    found.setdefault((row, column), {})[name] = band.tier
    return found


def distance(cluster: Cluster, one: int, other: int) -> int:
    if one == other:
        return 0
    return next(
        level
        for level in range(len(cluster.levels) + 1)
        for group in range(cluster.num_groups(level))
        if {one, other} <= set(cluster.members(level, group))
    )


def naive(old: Plan, new: Plan) -> dict[str, dict[object, int]]:
    """Received, sent, within and outside bytes by (table, holder), and links by (holder, level)."""
    before, after = (
        [p.cluster.holder_name(h) for h in range(p.cluster.num_holders)] for p in (old, new)
    )
    shrinks = len(before) > len(after) and set(after) <= set(before)
    world, names = (old.cluster, before) if shrinks else (new.cluster, after)
    sums: dict[str, dict[object, int]] = defaultdict(lambda: defaultdict(int))
    for table, placed in new:
        was, now = homes(old, table.name), homes(new, table.name)
        order = None if new.order is None else new.rows_in_order(table.name).tolist()
        firsts = {
            (rank if order is None else order[rank], (band.columns or (0, 0))[0])
            for band in placed
            for rank in range(band.start, band.stop)
        }
        for (row, column), wanted in now.items():
            amount = table.item_bytes
            beside = {"momentum": 4, "adagrad": 4, "adam": 8, "adamw": 8}
            amount += beside.get(table.optimizer, 0)
            if table.optimizer == "rowwise_adagrad" and (row, column) in firsts:
                amount += 4
            have = {n: t for n, t in was[row, column].items() if n in names}
            for name, tier in wanted.items():
                if name in have:
                    sums["within"][table.name, name] += amount * (have[name] != tier)
                    continue
                if not have:
                    sums["outside"][table.name, name] += amount
                    continue
                target = names.index(name)
                far = {n: distance(world, target, names.index(n)) for n in have}
                near = sorted((n for n in have if far[n] == min(far.values())), key=names.index)
                source = near[target % len(near)]
                sums["received"][table.name, name] += amount
                sums["sent"][table.name, source] += amount
                sums["numbers"][table.name, name] += 1
                sums["link sent"][source, far[source]] += amount
                sums["link received"][name, far[source]] += amount
    return sums


def check(old: Plan, new: Plan) -> None:
    found, expected = rowtier.diff(old, new), naive(old, new)
    names = [found.cluster.holder_name(h) for h in range(found.cluster.num_holders)]
    for index, entry in enumerate(found.tables):
        for key in ("received", "sent", "within", "outside"):
            counted = getattr(found, f"{key}_bytes")[index].tolist()
            assert counted == [expected[key].get((entry.name, name), 0) for name in names], key
        arrived = sum(
            v
            for (t, _), v in expected["numbers"].items()
            if t == entry.name  # type: ignore[misc]
        )
        dim = new.profile[entry.name].table.embedding_dim
        if not found.outside_bytes[index].any():
            assert entry.rows == pytest.approx(arrived / dim)
    for level, facts in enumerate(found.levels, start=1):
        sent = [expected["link sent"].get((name, level), 0) for name in names]
        got = [expected["link received"].get((name, level), 0) for name in names]
        assert facts.moved_bytes == sum(sent) == sum(got)
        assert facts.busiest_bytes == max(sent + got)
        links = found.cluster.levels[level - 1]
        waits_s = links.latency_s * (sum(sent) > 0)
        assert facts.seconds == pytest.approx(
            max(sent + got) / links.bandwidth_bytes_per_s + waits_s
        )


@given(pairs())
@settings(max_examples=100, deadline=None)
def test_what_moves_is_what_a_dictionary_of_all_rows_says(both: tuple[Plan, Plan]) -> None:
    check(*both)


@given(pairs(ordered=False))
@settings(max_examples=60, deadline=None)
def test_plans_without_rows_are_compared_by_position(both: tuple[Plan, Plan]) -> None:
    check(*both)
    assert "by position" in rowtier.diff(*both).notes[0]


@given(pairs())
@settings(max_examples=20, deadline=None)
def test_a_plan_does_not_differ_from_itself(both: tuple[Plan, Plan]) -> None:
    found = rowtier.diff(both[0], both[0])
    assert found.moved_bytes == found.within_bytes.sum() == found.move_s == 0
    assert found.verdict.startswith("nothing moves")


def test_servers_are_found_by_their_names() -> None:
    tier = Tier(name="tier0", capacity_bytes=2**40, bandwidth_bytes_per_s=1e9)
    base = cluster()
    served = base.model_copy(
        update={"servers": (Server(name="store", count=2, level="node", tiers=(tier,)),)}
    )
    of = profile("user", rows=50)
    before = {"user": (rowtier.Band(start=0, stop=50, scope="node", tier="hbm"),)}
    after = {
        "user": (rowtier.Band(start=0, stop=50, scope="cluster", members=(4, 7), tier="tier0"),)
    }
    here, there = Plan.build("a", of, base, before), Plan.build("b", of, served, after)
    check(here, there)
    check(there, here)
    assert rowtier.diff(there, here).outside_bytes.sum() == 0


def test_more_devices_fetch_from_those_that_were_there() -> None:
    of = profile("user", "item", rows=1000)
    small, large = (rowtier.make_plan(of, cluster(nodes=n), "row-wise") for n in (1, 4))
    grown, shrunk = rowtier.diff(small, large), rowtier.diff(large, small)
    assert grown.cluster.num_devices == shrunk.cluster.num_devices == 8
    assert grown.outside_bytes.sum() == shrunk.outside_bytes.sum() == 0
    assert "8 devices" in grown.notes[-1]


def test_different_tables_are_refused_by_name() -> None:
    one = rowtier.make_plan(profile("user", "item"), cluster(), "row-wise")
    other = rowtier.make_plan(profile("user", "ad", rows=10_000), cluster(), "row-wise")
    with pytest.raises(MismatchError, match=r"'item' is only in the old.*'user' has num_emb"):
        rowtier.diff(one, other)


def test_the_result_speaks_to_people_and_machines() -> None:
    of = profile("user", "item", rows=1000)
    one, other = (rowtier.make_plan(of, cluster(), m) for m in ("row-wise", "table-wise"))
    found = rowtier.diff(one, other)
    assert repr(found).startswith("<Diff: ")
    facts = found.to_dict()
    assert facts["moved_bytes"] == sum(table["moved_bytes"] for table in facts["tables"])
    frame = found.to_frame()
    assert sum(frame["received_bytes"].to_pylist()) == sum(frame["sent_bytes"].to_pylist())
    assert sum(frame["received_bytes"].to_pylist()) == facts["moved_bytes"]

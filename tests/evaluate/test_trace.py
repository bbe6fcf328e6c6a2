import json
from collections import defaultdict
from pathlib import Path

import pytest
from evaluate.test_replay import machine, samples, tables

import rowtier
from rowtier.cost.options import CostOptions
from rowtier.evaluate.figures import StepFacts
from rowtier.report.trace import phases, write_trace


@pytest.fixture(scope="module", params=["sca", "row-wise", "joint"])
def plan(request: pytest.FixtureRequest) -> rowtier.Plan:
    profile = rowtier.make_profile([samples(0)], tables())
    return rowtier.make_plan(profile, machine(), request.param)


def read(path: Path) -> list[dict]:
    data = json.loads(path.read_text())
    assert set(data) == {"displayTimeUnit", "traceEvents"}
    return data["traceEvents"]


def slices(events: list[dict]) -> dict[tuple[int, int], list[dict]]:
    found = defaultdict(list)
    for event in events:
        assert event["ph"] in ("M", "X")
        assert {"pid", "tid", "name", "args"} <= set(event)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] > 0
            found[event["pid"], event["tid"]].append(event)
    return found


def check(path: Path, facts: StepFacts, cluster: rowtier.Cluster) -> None:
    events = read(path)
    by_track = slices(events)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    holders = [cluster.holder_name(holder) for holder in range(cluster.num_holders)]
    assert sorted(names.values()) == sorted([*holders, "step"])
    end_us = 1e6 * facts.time.step_s
    for track in by_track.values():
        stop = 0.0
        for event in sorted(track, key=lambda event: event["ts"]):
            assert event["ts"] >= stop - 1e-6 * end_us, "slices of a track do not overlap"
            stop = event["ts"] + event["dur"]
        assert stop <= end_us * (1 + 1e-9)
    tiers = range(len(cluster.tier_names))
    for holder in range(cluster.num_holders):
        busy = sum(event["dur"] for tier in tiers for event in by_track[holder, tier])
        assert busy == pytest.approx(1e6 * facts.time.memory_s[holder])
        for level in range(len(cluster.levels)):
            events = by_track[holder, len(tiers) + level]
            busy = sum(event["dur"] for event in events if event["name"] != "latency")
            expected = facts.time.exchange_s[holder, level] + facts.time.sync_s[holder, level]
            assert busy == pytest.approx(1e6 * expected)


def test_the_trace_of_a_predicted_step_adds_up(plan: rowtier.Plan, tmp_path: Path) -> None:
    found = rowtier.predict(plan)
    write_trace(tmp_path / "step.json", found.facts, plan.cluster)
    check(tmp_path / "step.json", found.facts, plan.cluster)


def test_the_trace_of_a_replayed_step_adds_up(plan: rowtier.Plan, tmp_path: Path) -> None:
    found = rowtier.replay(plan, [samples(1)])
    write_trace(tmp_path / "step.json", found.worst, plan.cluster)
    check(tmp_path / "step.json", found.worst, plan.cluster)
    assert found.worst.time.step_s == found.figure("step").worst


def test_the_parts_of_a_step_end_with_it(plan: rowtier.Plan) -> None:
    for dense_s in (0.0, 1e-5, 1.0):
        facts = rowtier.predict(plan, CostOptions(dense_s=dense_s)).facts
        parts = phases(facts, plan.cluster)
        assert parts[0].start_s == 0
        assert parts[-1].stop_s == pytest.approx(facts.time.step_s)
        shown = [part for part in parts if part.waited_for]
        assert sum(p.stop_s - p.start_s for p in shown) == pytest.approx(facts.time.step_s)


def test_work_has_a_track_of_its_own(plan: rowtier.Plan, tmp_path: Path) -> None:
    facts = rowtier.predict(plan).facts
    write_trace(tmp_path / "step.json", facts, plan.cluster)
    tracks, last = slices(read(tmp_path / "step.json")), len(plan.cluster.tier_names) + 2
    for holder, seconds in enumerate(facts.time.work_s):
        (work,) = tracks[holder, last]
        assert work["name"] == "work"
        assert work["dur"] == pytest.approx(1e6 * seconds)
        assert work["ts"] == pytest.approx(1e6 * facts.time.memory_s[holder])


def test_what_runs_side_by_side_begins_together(tmp_path: Path) -> None:
    base = machine()
    beside = base.model_copy(
        update={
            "overlap": (base.tier_names[:2], tuple(level.name for level in base.levels)),
            "work": base.work.model_copy(update={"hidden": 0.5}),
        }
    )
    profile = rowtier.make_profile([samples(0)], tables())
    plan = rowtier.make_plan(profile, beside)
    for dense_s in (0.0, 1e-5):
        facts = rowtier.predict(plan, CostOptions(dense_s=dense_s)).facts
        write_trace(tmp_path / "step.json", facts, plan.cluster)
        tracks = slices(read(tmp_path / "step.json"))
        ends = [e["ts"] + e["dur"] for track in tracks.values() for e in track]
        assert max(ends) <= 1e6 * facts.time.step_s * (1 + 1e-9)
        parts = tracks[plan.cluster.num_holders, 0]
        assert sum(p["dur"] for p in parts) == pytest.approx(1e6 * facts.time.step_s)

"""A step as a trace that Perfetto and Chrome's tracing page open.

Holders are processes; each has a track per memory tier, per link level and for its work. A
process called "step" shows the parts that the step's time is made of, one after the other: memory,
work, the exchange of every level, then what keeps copies equal (which begins earlier by the share
of it that is hidden).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rowtier.cluster import Cluster
from rowtier.cost.links import Flow
from rowtier.cost.time import Purpose, link_time_s, tier_time_s
from rowtier.cost.tree import tree_of
from rowtier.evaluate.figures import StepFacts
from rowtier.files import StrPath, write_atomic
from rowtier.profile.curve import Floats

_MICROSECONDS = 1e6
_EXCHANGE = ("ids", "forward", "backward")

Event = dict[str, Any]


class Phase(NamedTuple):
    """A part of the step."""

    name: str
    level: int | None  # of the links; None is memory or work
    start_s: float
    stop_s: float


def write_trace(path: StrPath, facts: StepFacts, cluster: Cluster) -> None:
    """Write a predicted or replayed step as a trace file."""
    events = list(trace_events(facts, cluster))
    data = {"displayTimeUnit": "ms", "traceEvents": events}
    write_atomic(path, json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n")


def trace_events(facts: StepFacts, cluster: Cluster) -> Iterator[Event]:
    """The events of a step, in the order of holders."""
    found = phases(facts, cluster)
    step = cluster.num_holders
    links = [f"{level.name} links" for level in cluster.levels]
    tracks = [*cluster.tier_names, *links, "work"]
    yield from _named(step, "step", -1, ["parts"])
    for phase in found:
        yield _slice(step, 0, phase.name, phase.start_s, phase.stop_s - phase.start_s, {})
    for holder in range(cluster.num_holders):
        yield from _named(holder, cluster.holder_name(holder), holder, tracks)
        yield from _memory(facts, cluster, holder)
    for phase in found:
        if phase.level is not None:
            yield from _links(facts, cluster, phase)


def phases(facts: StepFacts, cluster: Cluster) -> list[Phase]:
    """The parts of a step; the last one ends with it."""
    time, names = facts.time, [level.name for level in cluster.levels]
    at = time.slowest_memory_s
    found = [Phase("memory", None, 0.0, at)]
    found.append(Phase("work", None, at, at + time.slowest_work_s))
    at += time.slowest_work_s
    for level, name in enumerate(names):
        stop = at + float(time.exchange_level_s[level])
        found.append(Phase(f"exchange, {name}", level, at, stop))
        at = stop
    at -= (1 - time.sync_kept) * float(time.sync_level_s.sum())
    for level, name in enumerate(names):
        stop = at + float(time.sync_level_s[level])
        found.append(Phase(f"keeping copies equal, {name}", level, at, stop))
        at = stop
    return [phase for phase in found if phase.stop_s > phase.start_s]


def _memory(facts: StepFacts, cluster: Cluster, holder: int) -> Iterator[Event]:
    """A holder's tiers, one after the other, then its work."""
    at = 0.0
    time_s = tier_time_s(tree_of(cluster), facts.read + facts.written)[holder]
    for tier, name in enumerate(cluster.tier_names):
        read, written = float(facts.read[holder, tier]), float(facts.written[holder, tier])
        seconds = float(time_s[tier])
        if seconds:
            amounts = {"read_bytes": read, "written_bytes": written}
            amounts["lookups"] = float(facts.served[holder, tier])
            yield _slice(holder, tier, name, at, seconds, amounts)
            at += seconds
    work_s = float(facts.time.work_s[holder])
    if work_s:
        track = len(cluster.tier_names) + len(cluster.levels)
        yield _slice(holder, track, "work", at, work_s, {})


def _links(facts: StepFacts, cluster: Cluster, phase: Phase) -> Iterator[Event]:
    """What each holder's links of a level do in a phase: bytes first, then waiting."""
    assert phase.level is not None
    level, flows, waiting_s = phase.level, _flows(facts, phase), 0.0
    exchange = phase.name.startswith("exchange")
    latencies = facts.time.exchange_latency_s if exchange else facts.time.sync_latency_s
    waiting_s = float(latencies[level])
    track = len(cluster.tier_names) + level
    at = np.full(cluster.num_holders, phase.start_s)
    for name, flow in flows.items():
        purpose: Purpose = "exchange" if exchange else "sync"
        seconds: Floats = link_time_s(tree_of(cluster), [flow], purpose)[:, level]
        for holder in np.flatnonzero(seconds):
            amounts = {
                "sent_bytes": float(flow.sent[holder, level]),
                "received_bytes": float(flow.received[holder, level]),
            }
            yield _slice(
                int(holder), track, name, float(at[holder]), float(seconds[holder]), amounts
            )
        at = at + seconds
    for holder in np.flatnonzero(at > phase.start_s) if waiting_s else ():
        yield _slice(int(holder), track, "latency", float(at[holder]), waiting_s, {})


def _flows(facts: StepFacts, phase: Phase) -> dict[str, Flow]:
    if phase.name.startswith("exchange"):
        return {name: facts.flows[name] for name in _EXCHANGE}
    return {"sync": facts.flows["sync"] + facts.flows["sync_ids"]}


def _named(process: int, name: str, place: int, tracks: list[str]) -> Iterator[Event]:
    """Names of a process and its tracks, and where it stands."""
    yield _metadata(process, 0, "process_name", {"name": name})
    yield _metadata(process, 0, "process_sort_index", {"sort_index": place})
    for track, label in enumerate(tracks):
        yield _metadata(process, track, "thread_name", {"name": label})
        yield _metadata(process, track, "thread_sort_index", {"sort_index": track})


def _metadata(process: int, track: int, name: str, arguments: dict[str, Any]) -> Event:
    return {"ph": "M", "pid": process, "tid": track, "name": name, "args": arguments}


def _slice(
    process: int, track: int, name: str, start_s: float, seconds: float, amounts: dict[str, float]
) -> Event:
    return {
        "ph": "X",
        "pid": process,
        "tid": track,
        "name": name,
        "cat": "step",
        "ts": start_s * _MICROSECONDS,
        "dur": seconds * _MICROSECONDS,
        "args": amounts,
    }

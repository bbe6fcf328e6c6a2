"""A step as a trace that Perfetto and Chrome's tracing page open.

Holders are processes; each has a track per memory tier, per link level and for its work. A
process called "step" shows the parts that the step's time is made of, one after the other: memory,
work, the exchange of every level, then what keeps copies equal, as far as the rest of the model
does not hide it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rowtier.cluster import Cluster
from rowtier.cost.links import Flow
from rowtier.cost.time import Purpose, link_time_s, tier_time_s, tiers_side_by_side
from rowtier.cost.tree import tree_of
from rowtier.evaluate.figures import StepFacts
from rowtier.profile.curve import Floats
from rowtier.reading import StrPath
from rowtier.writing import write_atomic

_MICROSECONDS = 1e6
_EXCHANGE = ("ids", "forward", "backward")

Event = dict[str, Any]


class TracePhase(NamedTuple):
    """A part of the step."""

    name: str
    level: int | None  # of the links; None is memory or work
    start_s: float
    stop_s: float
    waited_for: bool = True  # or does something that takes longer run beside it


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
    for phase in (one for one in found if one.waited_for):
        yield _slice(step, 0, phase.name, phase.start_s, phase.stop_s - phase.start_s, {})
    for holder in range(cluster.num_holders):
        yield from _named(holder, cluster.holder_name(holder), holder, tracks)
        yield from _memory(facts, cluster, holder)
    for phase in found:
        if phase.level is not None:
            yield from _links(facts, cluster, phase)


def phases(facts: StepFacts, cluster: Cluster) -> list[TracePhase]:
    """The parts of a step; the last one ends with it."""
    time, levels = facts.time, range(len(cluster.levels))
    names = [level.name for level in cluster.levels]
    at = time.slowest_memory_s
    found = [TracePhase("memory", None, 0.0, at)]
    found.append(TracePhase("work", None, at, at + time.slowest_work_s))
    at += time.slowest_work_s
    for title, level_s, counts in (
        ("exchange", time.exchange_level_s, time.exchange_counts > 0),
        ("keeping copies equal", time.sync_kept * time.sync_level_s, time.sync_counts > 0),
    ):
        starts = _starts(level_s, time.side_by_side, at)
        for level in levels:
            stop = starts[level] + float(level_s[level])
            phase = TracePhase(f"{title}, {names[level]}", level, starts[level], stop)
            found.append(phase._replace(waited_for=bool(counts[level])))
        at = max([at, *(phase.stop_s for phase in found)])
    return [phase for phase in found if phase.stop_s > phase.start_s]


def _starts(seconds: Floats, side_by_side: tuple[tuple[int, ...], ...], at: float) -> list[float]:
    """When each begins, one after the other, but together where they run side by side."""
    starts: dict[int, float] = {}
    for index in range(len(seconds)):
        if index not in starts:
            together = next((some for some in side_by_side if index in some), (index,))
            starts |= dict.fromkeys(together, at)
            at += max(float(seconds[i]) for i in together)
    return [starts[index] for index in range(len(seconds))]


def _memory(facts: StepFacts, cluster: Cluster, holder: int) -> Iterator[Event]:
    """A holder's tiers, one after the other or side by side, then its work."""
    tree = tree_of(cluster)
    time_s = tier_time_s(tree, facts.read + facts.written)[holder]
    starts = _starts(time_s, tiers_side_by_side(tree), 0.0)
    for tier, name in enumerate(cluster.tier_names):
        read, written = float(facts.read[holder, tier]), float(facts.written[holder, tier])
        seconds = float(time_s[tier])
        if seconds:
            amounts = {"read_bytes": read, "written_bytes": written}
            amounts["lookups"] = float(facts.served[holder, tier])
            yield _slice(holder, tier, name, starts[tier], seconds, amounts)
    work_s = float(facts.time.work_s[holder])
    if work_s:
        track, at = len(cluster.tier_names) + len(cluster.levels), facts.time.memory_s[holder]
        yield _slice(holder, track, "work", float(at), work_s, {})


def _links(facts: StepFacts, cluster: Cluster, phase: TracePhase) -> Iterator[Event]:
    """What each holder's links of a level do in a phase: bytes first, then waiting.

    Of keeping copies equal, what the rest of the model hides is left out.
    """
    assert phase.level is not None
    level, time = phase.level, facts.time
    exchange = phase.name.startswith("exchange")
    purpose: Purpose = "exchange" if exchange else "sync"
    kept = 1.0 if exchange else time.sync_kept
    latencies = time.exchange_latency_s if exchange else time.sync_latency_s
    waiting_s = kept * float(latencies[level])
    track = len(cluster.tier_names) + level
    at = np.full(cluster.num_holders, phase.start_s)
    for name, flow in _flows(facts, phase).items():
        seconds: Floats = kept * link_time_s(tree_of(cluster), [flow], purpose)[:, level]
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


def _flows(facts: StepFacts, phase: TracePhase) -> dict[str, Flow]:
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

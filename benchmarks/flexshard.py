"""FlexShard's table on real processes: bytes and time between nodes of a sequence table.

One table of a million rows (64 columns, fp32, SGD), sequences of 50 ids, 4096 of them per rank
and step, in `cluster/`: 2 nodes of 2 ranks and 4 nodes of 1, links of 1 Gbit/s. One setting has
100 Mbit/s and 144 sequences. Ids are drawn by Zipf laws, or are real sessions in time order, 1400
per rank and step: the first 60 % are profiled, training goes on from there.

All contenders train on the same batches, in the same processes, in turns:

    torchrec row_wise   EmbeddingCollection, every id's row travels
    row-wise plain      rowtier doing the same
    row-wise coalesced  rowtier, rows spread, each rank asks for a row once a step
    flexshard           the paper's three bands
    joint               rowtier's own

Plans are made, and predicted, for the cluster as `rowtier calibrate` finds it just before; with
--quick, which has to count the same bytes every time, for round figures of such links (`nominal`).
Memory is equal: no device may use more than plain row-wise does at its peak, exchange
buffers included (`memory_ratio`). 16-bit rows are a line of their own, and in no figure.

Measured per step:

    measured_bytes   what left all nodes, counted outside the ranks: headers and all
    replay_bytes     what `rowtier.replay` says leaves the nodes on the same batches
    comm_ms          time in collectives, each after a barrier, until its last rank is done;
                     median over steps
    predicted_ms     what the cost model says of it: `rowtier.replay` of the same batches on the
                     cluster as `rowtier calibrate` found it here
    profile_ms       what it says from the profile alone (`rowtier.predict`). Real ids drift
                     between what was profiled and what is trained, by blocks of ids the most
    bound_bytes      the least rows and gradients that a static placement moves between nodes on
                     these batches: every row that a node touches comes once and its gradient
                     goes once, unless it lives there: Σ 2·s·rows·(nodes − 1)/nodes. No ids.
    row_bytes        the part of replay_bytes that the bound is about: rows, gradients and sync

Figures: `bytes_error_max_*` is |measured/replay − 1| of rowtier's own four, for exchanges of at
least 1 MiB per node and step, and for smaller ones; `time_error_*` is |predicted/measured − 1| of
theirs, and `time_error_*_from_profile` the same of profile_ms; `static_bound_excess_max` is
joint's row_bytes/bound_bytes − 1. Reductions and ratios name what joint is compared with:
TorchRec's row-wise, or rowtier's coalesced. On real sessions, all clusters:
`sessions_order_agreement` is the share of settings in which predicted_ms and comm_ms agree on
whether joint or row-wise coalesced is faster, `sessions_joint_vs_coalesced_min` the least comm_ms
of row-wise coalesced over joint's, and `sessions_step_joint_vs_coalesced_min` the same of step_ms.
Plans with equal bands (`as_joint`) are equally fast, and agree.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cluster import Shaped, why_not
from harness.flexshard.data import Data, Sessions, Zipf, distinct_by_node
from harness.flexshard.job import TORCHREC, build, step
from harness.flexshard.plans import (
    NARROW,
    OURS,
    PLENTY_BYTES,
    joint,
    nominal,
    peak_bytes,
    plans_of,
    replayed_bytes,
    replayed_s,
    with_capacity,
)
from harness.folders import DATA
from harness.form import Measured, run

import rowtier
from rowtier import Cluster, Plan

GOALS: dict[str, Any] = {
    "bytes_error_max_large": ("<=", 0.03),
    "bytes_error_max_small": ("<=", 0.06),
    "time_error_median": ("<=", 0.15),
    "time_error_max": ("<=", 0.30),
    "flexshard_bytes_reduction": (">=", 0.85),
    "flexshard_time_ratio": (">=", 6.0),
    "static_bound_excess_max": ("<=", 0.05),
}
HALF = "joint fp16"
ZIPFS = (0.8, 1.0, 1.2)
REAL = ("diginetica", "nowplaying")
LARGE_BYTES = 2**20
Row = dict[str, Any]


@dataclass(frozen=True)
class Steps:
    """How often a setting is measured: first for nothing, then for bytes, then for time.

    Where data ends sooner, the batches that are timed come again.
    """

    warm: int = 2
    counted: int = 3
    timed: int = 8

    def counts(self) -> list[int]:
        """The batches whose bytes are counted."""
        return list(range(self.warm, self.warm + self.counted))

    def times(self, most: int) -> list[int]:
        """The batches that are timed, if there are so many."""
        first = self.warm + self.counted
        there = min(self.timed, most - first)
        return [first + number % there for number in range(self.timed)]


def calibrated(shaped: Shaped) -> Cluster:
    """The same cluster as `rowtier calibrate` finds it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.yaml"
        name = f"{shaped.nodes}x{shaped.ranks_per_node[0]}"
        done = shaped.launch(
            [sys.executable, "-m", "rowtier", "calibrate", "-o", str(path), "--name", name]
        )
        if done.code:
            raise RuntimeError(f"calibrate: {done.stderr[done.first_failed or 0]}")
        return with_capacity(Cluster.load(path), PLENTY_BYTES)


def contest(shaped: Shaped, data: Data, plans: dict[str, Plan], steps: Steps) -> dict[str, Row]:
    """Measured bytes and times of everyone, in turns, step by step."""
    shaped.call(build, data, plans, shaped.ranks_per_node[0])
    names = (TORCHREC, *plans)
    sent: dict[str, list[int]] = {name: [] for name in names}
    step_s: dict[str, list[float]] = {name: [] for name in names}
    comm_s: dict[str, list[float]] = {name: [] for name in names}
    batches = [*range(steps.warm), *steps.counts(), *steps.times(data.most_steps(shaped.world))]
    for turn, number in enumerate(batches):
        timed = turn >= steps.warm + steps.counted
        for name in names:
            before = sum(shaped.sent_bytes())
            seconds, inside = zip(*shaped.call(step, name, number, timed), strict=True)
            after = sum(shaped.sent_bytes())
            if timed:
                assert min(map(len, inside)) > 0, f"no collective of {name} was timed"
                # A collective is over when its last rank has done its part: an owner of hot rows
                # is the last to receive gradients, and the first to have sent its rows.
                comm_s[name].append(sum(map(max, zip(*inside, strict=True))))
            elif turn >= steps.warm:
                sent[name].append(after - before)
                step_s[name].append(max(seconds))
    return {
        name: {
            "measured_bytes": statistics.mean(sent[name]),
            "step_ms": 1e3 * statistics.median(step_s[name]),
            "comm_ms": 1e3 * statistics.median(comm_s[name]),
        }
        for name in names
    }


def setting(
    shaped: Shaped, links: Cluster | None, data: Data, steps: Steps, half: bool
) -> Iterator[Row]:
    """The rows of one kind of data on one cluster, planned for the links that were calibrated.

    Without them it is planned for round figures, and nothing is predicted.
    """
    nodes, ranks, world = shaped.nodes, shaped.ranks_per_node[0], shaped.world
    rate = shaped.rate_bits_per_s
    assert rate is not None
    cluster = links or nominal(nodes, ranks, rate)
    plans = plans_of(data.profile(world), cluster)
    if half:
        profile = data.profile(world, "fp16")
        plans[HALF] = joint(profile, rowtier.make_plan(profile, cluster, "row-wise"))
    found = contest(shaped, data, plans, steps)
    counted, timed = steps.counts(), steps.times(data.most_steps(world))
    touched = [sum(distinct_by_node(data, nodes, ranks, number)) for number in counted]
    table = plans["joint"].profile.stats[0].table
    bound = 2 * table.row_bytes * statistics.mean(touched) * (nodes - 1) / nodes
    for name, measured in found.items():
        row = {
            "cluster": f"{nodes}x{ranks}", "mbit_per_s": rate / 1e6, "data": data.name,
            "contender": name, "measured_bytes": round(measured["measured_bytes"]),
            "replay_bytes": None, "row_bytes": None,
            "bound_bytes": round(bound * (0.5 if name == HALF else 1)),
            "step_ms": round(measured["step_ms"], 2), "comm_ms": round(measured["comm_ms"], 2),
            "predicted_ms": None, "profile_ms": None, "memory_ratio": None, "as_joint": None,
        }  # fmt: skip
        if name in plans:
            moved, rows = replayed_bytes(plans[name], data, world, counted)
            ratio = peak_bytes(plans[name]) / peak_bytes(plans[OURS[0]])
            row |= {"replay_bytes": round(moved), "row_bytes": round(rows)}
            row |= {"memory_ratio": round(ratio, 4)}
            row |= {"as_joint": plans[name].bands == plans["joint"].bands}
        if name in plans and links is not None:
            plan = replace(plans[name], cluster=links)
            row["predicted_ms"] = round(1e3 * replayed_s(plan, data, world, timed), 2)
            row["profile_ms"] = round(1e3 * rowtier.predict(plan, NARROW).cost.time.links_s, 2)
        yield row


def real_data(batch_size: int) -> Iterator[Data]:
    """The real sessions that are there."""
    for name in REAL:
        if (DATA / f"{name}.parquet").exists():
            yield Sessions.load(name, batch_size)
        else:
            print(f"no {name}: {DATA} does not have it; set ROWTIER_DATA", file=sys.stderr)


def measure(quick: bool) -> Measured:
    """All settings."""
    if reason := why_not():
        print(f"flexshard was not measured: {reason}", file=sys.stderr)
        return Measured([], figures_of([]))
    rows: list[Row] = []
    if quick:
        with Shaped(2, 2, 1e9) as shaped:
            steps = Steps(warm=2, counted=2, timed=2)
            drawn = Zipf(1.2, batch_size=1024)
            rows += setting(shaped, None, drawn, steps, half=True)
        return Measured(rows, figures_of(rows))
    for nodes, ranks, rate in ((2, 2, 1e9), (4, 1, 1e9), (2, 2, 1e8)):
        with Shaped(nodes, ranks, rate) as shaped:
            cluster = calibrated(shaped)
            print(cluster.levels, file=sys.stderr)
            slow = rate < 1e9
            every: list[Data] = [Zipf(1.2, 144)] if slow else [Zipf(a, 4096) for a in ZIPFS]
            if not slow:
                every += real_data(batch_size=1400)
            for data in every:
                half = data.name == "zipf 1.2" and ranks == 2 and not slow
                rows += setting(shaped, cluster, data, Steps(), half)
                print(f"{nodes}x{ranks} {data.name} done", file=sys.stderr)
    return Measured(rows, figures_of(rows))


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """What follows from the rows."""
    ours = [row for row in rows if row["contender"] in OURS]
    bytes_errors: dict[bool, list[float]] = {True: [], False: []}
    for row in ours:
        nodes = int(row["cluster"].split("x")[0])
        large = row["replay_bytes"] / nodes >= LARGE_BYTES
        bytes_errors[large].append(abs(row["measured_bytes"] / row["replay_bytes"] - 1))
    times, before = (
        [abs(row[what] / row["comm_ms"] - 1) for row in ours if row[what]]
        for what in ("predicted_ms", "profile_ms")
    )
    excess = [
        row["row_bytes"] / row["bound_bytes"] - 1 for row in ours if row["contender"] == "joint"
    ]
    figures: dict[str, float | None] = {
        "bytes_error_max_large": max(bytes_errors[True], default=None),
        "bytes_error_max_small": max(bytes_errors[False], default=None),
        "time_error_median": statistics.median(times) if times else None,
        "time_error_max": max(times, default=None),
        "time_error_median_from_profile": statistics.median(before) if before else None,
        "time_error_max_from_profile": max(before, default=None),
        "flexshard_bytes_reduction": _against(rows, "zipf 1.2", TORCHREC, "measured_bytes", True),
        "flexshard_time_ratio": _against(rows, "zipf 1.2", TORCHREC, "comm_ms", False),
        "static_bound_excess_max": max(excess, default=None),
    }
    for data in (*(f"zipf {alpha}" for alpha in ZIPFS), *REAL):
        name = data.replace("zipf ", "zipf")
        for other, called in ((TORCHREC, "torchrec"), (OURS[1], "coalesced")):
            figures[f"bytes_reduction_{name}_vs_{called}"] = _against(
                rows, data, other, "measured_bytes", True
            )
            figures[f"time_ratio_{name}_vs_{called}"] = _against(
                rows, data, other, "comm_ms", False
            )
    return figures | sessions_figures(rows)


def sessions_figures(rows: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """joint against row-wise coalesced on real sessions, all clusters."""
    settings: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if row["data"] in REAL and row["contender"] in ("joint", OURS[1]):
            key = row["cluster"], row["mbit_per_s"], row["data"]
            settings.setdefault(key, {})[row["contender"]] = row
    pairs = [(both["joint"], both[OURS[1]]) for both in settings.values() if len(both) == 2]
    agreed = [_agree(*pair) for pair in pairs if pair[0]["predicted_ms"]]
    return {
        "sessions_order_agreement": sum(agreed) / len(agreed) if agreed else None,
        "sessions_joint_vs_coalesced_min": min(_ratios(pairs, "comm_ms"), default=None),
        "sessions_step_joint_vs_coalesced_min": min(_ratios(pairs, "step_ms"), default=None),
    }


def _agree(joint: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the faster one by the model is the faster one."""
    faster = [joint[what] < other[what] for what in ("predicted_ms", "comm_ms")]
    return bool(other["as_joint"]) or faster[0] == faster[1]


def _ratios(
    pairs: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]], what: str
) -> Iterator[float]:
    """Times of row-wise coalesced over joint's."""
    return (1.0 if other["as_joint"] else other[what] / joint[what] for joint, other in pairs)


def _against(
    rows: Sequence[Mapping[str, Any]], data: str, other: str, what: str, saved: bool
) -> float | None:
    """joint against another contender, 2x2 at 1 Gbit/s: the share it saves, or the ratio."""
    here = {
        row["contender"]: row[what]
        for row in rows
        if (row["cluster"], row["mbit_per_s"], row["data"]) == ("2x2", 1000, data)
    }
    if other not in here:
        return None
    mine, theirs = float(here["joint"]), float(here[other])
    return 1 - mine / theirs if saved else theirs / mine


if __name__ == "__main__":
    run("flexshard", measure, goals=GOALS)

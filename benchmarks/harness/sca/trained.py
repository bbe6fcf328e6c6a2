"""sca.py, really trained: parameters on a server behind a link of 1 Gbit/s.

The server is the last rank, alone on its node. The workers share another node, or are *apart*:
each on a node of its own, so that copies of cached rows are kept equal over slow links too. All
contenders train the same samples from the same first weights, and take turns. The dense part is
one linear layer over all vectors.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import rowtier
from harness.sca.plans import PLENTY_BYTES, home_plan, sca_plan, without_coalescing, workers_of
from harness.sca.ranks import SEED, Batch, compare, set_up, train
from rowtier import Plan, Profile, Tables
from rowtier.cost.options import CostOptions

Row = dict[str, object]

RATE_BITS_PER_S = 1e9
CACHE, DIM = 0.1, 64
PLAIN, SCA = "plain", "sca"


@dataclass(frozen=True)
class Size:
    """How much is trained."""

    scale: float  # of MLPerf's tables
    profiled: int  # samples that the plans are made from; others are trained
    batch: int  # samples of a worker and step
    rounds: int
    steps: int  # of each contender in a round

    @property
    def all_steps(self) -> int:
        """Every contender trains so many, one round to warm up included."""
        return (self.rounds + 1) * self.steps


FULL = Size(scale=0.02, profiled=1_000_000, batch=4096, rounds=12, steps=2)
QUICK = Size(scale=0.004, profiled=200_000, batch=4096, rounds=3, steps=2)


@dataclass(frozen=True)
class Setting:
    """Who trains, and where."""

    workers: int
    apart: bool = False

    @property
    def ranks_per_node(self) -> tuple[int, ...]:
        """Workers first, as a plan numbers them; the server is the last."""
        return (1,) * (self.workers + 1) if self.apart else (self.workers, 1)

    @property
    def name(self) -> str:
        """What people call it."""
        return "criteo, workers apart" if self.apart else "criteo"


def trained(size: Size, settings: list[Setting]) -> Iterator[Row]:
    """Samples per second and bytes over the links of every contender, setting by setting."""
    from cluster import Shaped

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        most = max(setting.workers for setting in settings)
        profile, batches = workload(size, most, folder)
        np.savez(folder / "ids.npz", **batches)
        for setting in settings:
            plans = contenders(profile, setting)
            for name, plan in plans.items():
                plan.save(folder / name)
            nodes = setting.ranks_per_node
            with Shaped(len(nodes), nodes, RATE_BITS_PER_S) as cluster:
                runs = train_all(cluster, folder, list(plans), size)
            counted = {name: replayed_bytes(plan, batches, size) for name, plan in plans.items()}
            lookups = sum(ids.shape[1] for ids in batches.values())
            yield from rows_of(runs, counted, size, setting, lookups)


def workload(size: Size, workers: int, folder: Path) -> tuple[Profile, Batch]:
    """Statistics of the first samples of a criteo-like dataset, and those that come after."""
    samples = size.profiled + size.all_steps * size.batch * workers
    options: dict[str, Any] = {"embedding_dim": DIM, "batch_size": size.batch}
    rowtier.make_workload(
        "criteo", folder / "made", seed=SEED, samples=samples, scale=size.scale, **options
    )
    tables = Tables.load(folder / "made" / "tables.yaml")
    data = pq.read_table(folder / "made" / "data")
    ids = {name: _matrix(data.column(name).combine_chunks()) for name in data.column_names}
    first = {name: column[: size.profiled] for name, column in ids.items()}
    later = {name: column[size.profiled :] for name, column in ids.items()}
    return rowtier.make_profile([first], tables), later


def _matrix(column: Any) -> Any:
    """Ids as samples × ids of a sample."""
    listed = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    values = (column.flatten() if listed else column).to_numpy()
    return values.reshape(len(column), -1)


def contenders(profile: Profile, setting: Setting) -> dict[str, Plan]:
    """The plan of method `sca`, the same without its cache or without coalescing, and neither."""
    together = setting.workers > 1 and not setting.apart
    cluster = workers_of(setting.workers, PLENTY_BYTES, nodes=together)
    best = sca_plan(profile, cluster, CACHE)
    return {
        PLAIN: home_plan(profile, best.cluster, coalesced=False),
        "coalescing": home_plan(profile, best.cluster, coalesced=True),
        "cache": without_coalescing(best, profile),
        SCA: best,
    }


def replayed_bytes(plan: Plan, batches: Batch, size: Size) -> float:
    """Bytes over the link in all steps after the first round, by replay of the same samples."""
    each = size.batch * plan.cluster.num_devices
    trained_ids = slice(size.steps * each, size.all_steps * each)
    measured = {name: ids[trained_ids] for name, ids in batches.items()}
    found = rowtier.replay(
        plan, [measured], batches="in_time_order", options=CostOptions(ids="narrow")
    )
    per_step = sum(
        figure.replayed
        for figure in found.figures
        if figure.label.kind == "level"
        and figure.label.of == "cluster"
        and figure.label.unit == "bytes"
    )
    return per_step * found.steps


@dataclass
class Run:
    """What a contender did after its first round."""

    seconds: list[float]  # a step, one entry per round
    losses: list[float]
    link_bytes: int = 0
    off: float = 0.0  # the largest difference of any weight from plain's


def train_all(cluster: Any, folder: Path, names: list[str], size: Size) -> dict[str, Run]:
    """Train all contenders, round by round, and compare their weights in the end."""
    workers = cluster.world - 1
    cluster.call(set_up, folder, names, size.batch)
    runs = {name: Run([], []) for name in names}
    for turn in range(size.rounds + 1):
        for name, run in runs.items():
            before = sum(cluster.sent_bytes())
            found = cluster.call(train, name, turn * size.steps, size.steps)
            run.losses += [statistics.fmean(losses) for losses in _by_step(found[:workers])]
            if turn:  # the first one compiles and warms up
                run.link_bytes += sum(cluster.sent_bytes()) - before
                run.seconds.append(max(seconds for seconds, _ in found) / size.steps)
    for name, off in zip(names, _largest(cluster.call(compare, names)), strict=True):
        runs[name].off = off
    return runs


def _by_step(found: list[tuple[float, list[float]]]) -> list[tuple[float, ...]]:
    return list(zip(*(losses for _, losses in found), strict=True))


def _largest(found: list[list[float]]) -> list[float]:
    return [max(values) for values in zip(*found, strict=True)]


def rows_of(
    runs: dict[str, Run], counted: dict[str, float], size: Size, setting: Setting, lookups: int
) -> list[Row]:
    """Two lines for each contender: how fast it is, and what crosses the link."""
    lines: list[Row] = []
    plain = runs[PLAIN]
    samples = size.batch * setting.workers
    for name, run in runs.items():
        step_s = statistics.median(run.seconds)
        common: Row = {
            "data": setting.name,
            "method": name,
            "lookups": samples * lookups,
            "workers": setting.workers,
            "cache": CACHE if name in ("cache", SCA) else 0.0,
        }
        speed: Row = {
            "unit": "samples/s",
            "expected": None,
            "measured": samples / step_s,
            "error": None,
            "sampling_error": None,
            "ratio": statistics.median(plain.seconds) / step_s,
            "counted": float(len(run.seconds) * size.steps),
        }
        steps = size.rounds * size.steps
        moved: Row = {
            "unit": "bytes/step",
            "expected": counted[name] / steps,
            "measured": run.link_bytes / steps,
            "error": counted[name] / run.link_bytes - 1,
            "sampling_error": None,
            "ratio": plain.link_bytes / run.link_bytes,
            "counted": float(run.link_bytes),
        }
        lines += [{"part": "trained", **common, **speed}, {"part": "link", **common, **moved}]
    lines.append(_same(runs, setting))
    return lines


def _same(runs: dict[str, Run], setting: Setting) -> Row:
    """One line: how far the contenders' losses and weights are apart."""
    losses = np.array([run.losses for run in runs.values()])
    return {
        "part": "exact",
        "data": setting.name,
        "method": "all",
        "lookups": None,
        "workers": setting.workers,
        "cache": None,
        "unit": "weights",
        "expected": float(losses[0, -1]),
        "measured": float(losses[-1, -1]),
        "error": max(run.off for run in runs.values()),
        "sampling_error": float(np.ptp(losses, axis=0).max()),
        "ratio": None,
        "counted": float(losses.shape[1]),
    }


def why_not_here() -> str | None:
    """Why nothing can be trained behind a link on this machine; None if it can."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return "torch is not installed"
    from cluster import why_not

    return why_not()


def trained_or_not(quick: bool) -> list[Row]:
    """The lines of all settings, the first of them alone if quick; none where no link can be."""
    reason = why_not_here()
    if reason is not None:
        print(f"nothing is trained: {reason}", file=sys.stderr)
        return []
    settings = [Setting(1), Setting(2), Setting(2, apart=True)]
    return list(trained(QUICK, settings[:1]) if quick else trained(FULL, settings))


def speed_ratio(
    rows: list[Row], method: str, data: str = "criteo", workers: int = 1
) -> float | None:
    """Samples per second of a method over those of plain rows; None if nothing was trained."""
    for line in rows:
        if (line["part"], line["data"], line["method"], line["workers"]) == (
            "trained", data, method, workers,
        ):  # fmt: skip
            ratio = line["ratio"]
            return ratio if isinstance(ratio, float) else None
    return None


def largest(rows: list[Row], part: str) -> float | None:
    """The largest error of a part."""
    errors = [
        abs(error)
        for line in rows
        if line["part"] == part and isinstance(error := line["error"], float)
    ]
    return max(errors, default=None)

"""TorchRec's planner against RowtierPlanner and `joint`, by TorchRec's estimator and by ours.

Instances: 400 RecShard-like tables (`plan_scale.model`, 680 GB with optimizer state) on 16
devices with RecShard's bandwidths, 80 GB or 20 GB of fast memory and 128 GiB of slow memory each.
Both planners get the same statistics, topology and storage reservation, TorchRec's default;
TorchRec's runs with its default proposers for at most 300 s (`--quick`: 30 s). `joint`
knows nothing of that reservation and may split tables by row, which TorchRec cannot execute.

    worst_score_ratio   RowtierPlanner's slowest device over TorchRec's, by TorchRec's estimator,
                        the worst of all instances for which TorchRec found a plan in time
    time_ratio          seconds of RowtierPlanner over seconds of TorchRec's planner, the worst of
                        80 GB and 20 GB; from a profile in memory to a ShardingPlan, compilation
                        left out
    unplanned           instances for which TorchRec's planner found nothing within its limit

All seconds, the limit's too, are CPU seconds of one process, so that a busy machine favours nobody.

`ours_ms` is a step by rowtier's model. `replayed_ms` is the same counted on real batches, which a
curve profile has none of: so a dataset of 400 tables (`meta`, scaled down) is planned too, on
devices whose fast memory holds the same share of all rows as 20 GB above, with 30 s for TorchRec.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from harness.form import Measured, run
from plan_scale import model
from torchrec.distributed.planner import planners

import rowtier.torchrec as rt
from rowtier import Cluster, Plan, Profile, Tables, make_plan, make_profile, make_workload, predict
from rowtier import replay as replay_plan
from rowtier.backends.method import run_planner
from rowtier.backends.modules import model_of
from rowtier.errors import InfeasibleError, RowtierError

TABLES, GB = 400, 10**9
FAST_GB = (80, 20)
SEED = 0
LIMIT_S, QUICK_LIMIT_S = 300.0, 30.0
STEPS = 16  # that are replayed
GOALS: dict[str, Any] = {"worst_score_ratio": ("<=", 1.0), "time_ratio": ("<=", 1 / 15)}


@dataclass(frozen=True)
class Instance:
    """What is planned, where, and the batches that it can be replayed on."""

    name: str
    profile: Profile
    cluster: Cluster
    data: Path | None = None


@dataclass(frozen=True)
class Made:
    """A plan of one planner, as TorchRec's if it can be, and how long it took."""

    planner: str
    seconds: float
    plan: Plan | None
    theirs: Any = None
    finished: bool = True


def measure(quick: bool) -> Measured:
    """Every planner on every instance."""
    warm_up()
    rows: list[dict[str, object]] = []
    scores, times, unplanned = [], [], 0
    limit = QUICK_LIMIT_S if quick else LIMIT_S
    with tempfile.TemporaryDirectory() as folder:
        for instance in instances(Path(folder)):
            allowed = limit if instance.data is None else QUICK_LIMIT_S
            found = {made.planner: made for made in planned(instance, allowed)}
            measured = {name: figures(instance, made) for name, made in found.items()}
            rows += list(measured.values())
            ours, theirs = (measured[name]["torchrec_ms"] for name in ("rowtier", "torchrec"))
            if isinstance(ours, float) and isinstance(theirs, float):
                scores.append(ours / theirs)
            unplanned += found["torchrec"].plan is None
            if instance.data is None:
                times.append(found["rowtier"].seconds / found["torchrec"].seconds)
    worst = max(scores) if scores else None
    facts = {"worst_score_ratio": worst, "time_ratio": max(times), "unplanned": float(unplanned)}
    return Measured(rows, facts)


def instances(folder: Path) -> Iterator[Instance]:
    """The generated model with much and with little fast memory, then the dataset."""
    profile = model(TABLES, SEED, fat=False)
    for gigabytes in FAST_GB:
        yield Instance(f"{gigabytes} GB", profile, machine(gigabytes * GB))
    make_workload("meta", folder / "meta", tables=TABLES, scale=0.02, batches=2)
    tables = Tables.load(folder / "meta" / "tables.yaml").model_copy(update={"batch_size": 128})
    data = folder / "meta" / "data"
    counted = make_profile(data, tables)
    # What a batch takes does not shrink with the rows, so room for it is added.
    fast = FAST_GB[-1] * GB * stored(counted) / stored(profile) + batch_bytes(counted)
    yield Instance(f"dataset, as {FAST_GB[-1]} GB", counted, machine(int(fast)), data)


def stored(profile: Profile) -> int:
    """Bytes of all rows."""
    return sum(stats.table.stored_bytes for stats in profile.stats)


def batch_bytes(profile: Profile) -> float:
    """What TorchRec counts for a batch on a device: twenty copies of its ids, and its outputs."""
    ids = 20 * 8 * sum(profile.lookups_per_step(stats) for stats in profile.stats)
    outputs = profile.batch_size * sum(stats.table.row_bytes for stats in profile.stats)
    return (ids + 1.5 * outputs) / 0.85  # some devices have more than others; 15 % stay free


def machine(fast_bytes: int) -> Cluster:
    """RecShard's sixteen devices with another size of fast memory."""
    usual = Cluster.preset("recshard-16")
    fast, slow = usual.device.tiers
    tiers = (fast.model_copy(update={"capacity_bytes": fast_bytes}), slow)
    return usual.model_copy(update={"device": usual.device.model_copy(update={"tiers": tiers})})


def planned(instance: Instance, limit_s: float) -> Iterator[Made]:
    """The plans of all three."""
    profile, cluster, tables = instance.profile, instance.cluster, instance.profile.tables
    started = time.process_time()
    theirs = rt.RowtierPlanner(profile, cluster).plan(model_of(tables))
    seconds = time.process_time() - started
    ours = rt.from_plan(theirs, tables, profile, cluster, method="rowtier")
    yield Made("rowtier", seconds, ours, theirs)
    started = time.process_time()
    found = torchrecs_own(profile, cluster, limit_s)
    seconds = time.process_time() - started
    plan = None if found is None else rt.from_plan(found, tables, profile, cluster)
    yield Made("torchrec", seconds, plan, found, seconds < limit_s)
    started = time.process_time()
    joint = make_plan(profile, cluster, "joint")
    seconds = time.process_time() - started
    yield Made("joint", seconds, joint, as_torchrecs(joint))


def torchrecs_own(profile: Profile, cluster: Cluster, limit_s: float) -> Any:
    """What TorchRec's planner finds within the limit, on a clock that counts CPU seconds."""
    clock = SimpleNamespace(time=time.process_time)
    try:
        with mock.patch.object(planners, "time", clock):
            return run_planner(profile, cluster, limit_s).sharding_plan
    except InfeasibleError:
        return None


def as_torchrecs(plan: Plan) -> Any:
    """The TorchRec plan of the same placement, if there is one."""
    try:
        return rt.to_plan(plan, module=model_of(plan.profile.tables))
    except RowtierError:
        return None


def figures(instance: Instance, made: Made) -> dict[str, object]:
    """A plan by TorchRec's estimator, by rowtier's model and replayed."""
    score = ours = replayed = None
    if made.theirs is not None:
        score = rt.score(made.theirs, instance.profile, instance.cluster)
    if made.plan is not None:
        ours = 1e3 * predict(made.plan).step_s
        if instance.data is not None:
            replayed = 1e3 * replay_plan(made.plan, instance.data, steps=STEPS).step_s
    return {
        "instance": instance.name,
        "planner": made.planner,
        "seconds": made.seconds,
        "finished": made.finished,
        "torchrec_ms": score,
        "ours_ms": ours,
        "replayed_ms": replayed,
    }


def warm_up() -> None:
    """Compile everything and import TorchRec."""
    profile = model(20, 0, fat=False)
    for fast_bytes in (80 * GB, 16 * GB):
        rt.RowtierPlanner(profile, machine(fast_bytes)).plan(model_of(profile.tables))
    make_plan(profile, machine(80 * GB), "joint")


if __name__ == "__main__":
    run("torchrec_planner", measure, goals=GOALS)

"""`rowtier plan --method torchrec`: TorchRec's own planner on the same profile and cluster."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.types import PlannerError
from torchrec.distributed.sharding_plan import get_default_sharders

from rowtier.backends.modules import model_of
from rowtier.backends.planner import quiet, reservation
from rowtier.backends.read import from_plan
from rowtier.backends.said import ORIGIN
from rowtier.backends.statistics import constraints_of
from rowtier.backends.topology import topology_of
from rowtier.cluster import Cluster
from rowtier.errors import InfeasibleError, UserError
from rowtier.plan.constraints import Constraints
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.profile.profile import Profile


def plan(profile: Profile, cluster: Cluster, options: PlanOptions | None = None) -> Plan:
    """What TorchRec's planner finds in `time_limit_s`; `origin` keeps its time and its score."""
    options = options or PlanOptions()
    if options.constraints != Constraints():
        raise UserError("torchrec takes no constraints; plan with joint, or with RowtierPlanner")
    if options.fit == "all":
        raise UserError("torchrec reserves memory in its own way; drop --fit all, or use --reserve")
    statistics = profile.for_planning(options.confidence)
    run = run_planner(statistics, cluster, options.time_limit_s, options.reserve)
    made = from_plan(run.sharding_plan, profile.tables, profile, cluster)
    facts = {
        "planner_seconds": round(run.seconds, 3),
        "time_limit_s": options.time_limit_s,
        "finished": run.finished,
        "score_ms": run.score,
    }
    origin: dict[str, Any] = {ORIGIN: {**made.origin[ORIGIN], **facts}}
    if options.unusual:
        origin["options"] = options.unusual
    return replace(made, origin=origin)


class PlannerRun:
    """What TorchRec's planner found, how long it took and how it rates it."""

    def __init__(self, sharding_plan: Any, seconds: float, finished: bool, score: float):
        self.sharding_plan, self.seconds = sharding_plan, seconds
        self.finished, self.score = finished, score


def run_planner(
    profile: Profile, cluster: Cluster, time_limit_s: float, reserve: float = 0.0
) -> PlannerRun:
    """TorchRec's planner with its default proposers and the profile's statistics."""
    topology = topology_of(cluster, reserve=reserve)
    module, sharders = model_of(profile.tables), get_default_sharders()
    limit = max(1, round(time_limit_s))
    with quiet():
        started = time.perf_counter()
        planner = EmbeddingShardingPlanner(
            topology=topology,
            batch_size=profile.batch_size,
            constraints=constraints_of(profile, cluster.num_devices),
            storage_reservation=reservation(),
            stats=[],  # a report of hundreds of lines
            debug=False,
            timeout_seconds=limit,
        )
        try:
            sharding_plan = planner.plan(module, sharders)
        except PlannerError as error:
            seconds = time.perf_counter() - started
            raise InfeasibleError(
                f"TorchRec's planner found no plan in {seconds:.0f} s ({_first_line(error)}): "
                "raise --time-limit, add memory, or use RowtierPlanner"
            ) from None
    seconds = time.perf_counter() - started
    score = NoopPerfModel(topology).rate(planner._best_plan)
    return PlannerRun(sharding_plan, seconds, seconds < limit, float(score))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:160] if lines else type(error).__name__

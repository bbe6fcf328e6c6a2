"""What the ranks of `step_truth.py` do: calibrate twice, plan, train under the plans in turns."""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.ranks import join
from harness.step_truth.data import Bags, Workload
from rowtier import Cluster, Plan, Profile, make_plan
from rowtier.cost.options import CostOptions
from rowtier.cost.step import StepCost, step_cost

METHODS = ("joint", "row-wise", "row-wise-coalesced", "table-wise")
AGAIN = "joint again"  # a second module of joint's plan: how much equal plans differ
NARROW = CostOptions(ids="narrow")  # as the runtime sends them
LR = 0.01


@dataclass(frozen=True, eq=False)
class Task:
    """What the ranks measure."""

    workloads: Sequence[tuple[Workload, Profile]]
    rounds: Mapping[int, int]  # by batch size
    warm: int = 2  # rounds that are not timed, whenever modules are made
    makes: int = 5  # times that modules are made: where rows lie in memory is luck
    quick: bool = False  # calibrate roughly


def calibrate_and_measure(
    rank: int, size: int, ports: tuple[int, int, int], task: Task
) -> tuple[list[Cluster], list[dict[str, Any]]]:
    """Two calibrations of these ranks, one after the other, and what `measure_cells` finds then."""
    clusters = calibrated_twice(rank, size, ports, task.quick)
    return clusters, measure_cells(rank, size, clusters, task)


def calibrated_twice(
    rank: int, size: int, ports: tuple[int, int, int], quick: bool
) -> list[Cluster]:
    """Leave the group of this job, which calibrate makes for itself, and join again."""
    import torch.distributed as dist

    from rowtier.calibrate.job import Job
    from rowtier.calibrate.make import CalibrateOptions, calibrate

    dist.destroy_process_group()
    found = []
    for port in ports[:2]:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        options = CalibrateOptions(name=f"local-{size}", quick=quick)
        found.append(calibrate(options, job=Job(rank, size, size)).cluster)
    join(rank, size, ports[2])
    return found


def measure_cells(
    rank: int, size: int, clusters: Sequence[Cluster], task: Task
) -> list[dict[str, Any]]:
    """One entry for every workload, batch size and plan; predictions are those of all clusters.

    Plans are made for the first cluster. Predictions are made with the work that is measured once
    more, by the same code, one pass after each cell: this machine's memory is up to 1.5 times
    slower in one minute than in the next, and so its weather is the same for both.
    """
    from rowtier.calibrate.job import Job, from_first
    from rowtier.calibrate.work import Probes

    job = Job(rank, size, size)
    probes, found = Probes(job, clusters[0]), []
    for workload, profile in task.workloads:
        for samples in task.rounds:
            here = replace(profile, batch_size=samples)
            plans = from_first(job, lambda: plans_of(here, clusters[0]))  # noqa: B023
            times = time_plans(rank, size, distinct(plans), workload, samples, task)
            probes.time()
            found.append(({"ranks": size, "data": workload.name, "batch": samples}, plans, times))
    now = clusters[0].model_copy(update={"work": probes.found().work()})
    rows = []
    for cell, plans, times in found:
        rows += [cell | row for row in rows_of(plans, times, [now, *clusters])]
        say(rank, cell, rows[-len(plans) :])
    return rows


def say(rank: int, cell: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """What was found, for those who wait."""
    if rank == 0:
        lines = ["{ranks} ranks, {data}, batch {batch}: ms predicted / measured".format(**cell)]
        for row in rows:
            lines.append(
                "    {plan:18} {predicted_ms:9.4g} / {measured_ms:<9.4g} memory {memory_ms:.3g}, "
                "work {work_ms:.3g}, links {links_ms:.3g}".format(**row)
            )
        print("\n".join(lines), file=sys.stderr, flush=True)


def plans_of(profile: Profile, cluster: Cluster) -> dict[str, Plan]:
    """The plan of every method."""
    return {method: make_plan(profile, cluster, method) for method in METHODS}


def first_alike(plans: dict[str, Plan]) -> dict[str, str]:
    """By the name of each plan that of the first one with equal bands, maybe its own."""
    return {
        name: next(other for other, one in plans.items() if as_run(one) == as_run(plan))
        for name, plan in plans.items()
    }


def as_run(plan: Plan) -> Any:
    """The bands, without what says how rows are exchanged if there is nobody to exchange with."""
    if plan.cluster.num_devices > 1:
        return plan.bands
    return {
        name: [(band.start, band.stop, band.columns, band.tier) for band in bands]
        for name, bands in plan.bands.items()
    }


def distinct(plans: dict[str, Plan]) -> dict[str, Plan]:
    """The plans whose bands no earlier one has."""
    return {name: plans[name] for name in dict.fromkeys(first_alike(plans).values())}


class Trained:
    """A plan, trained."""

    def __init__(self, plan: Plan):
        from rowtier.torch import SGD, ShardedEmbeddings

        self.tables = {stats.table.features[0]: stats.table for stats in plan.profile.stats}
        self.module = ShardedEmbeddings(plan, SGD(lr=LR), rows=True)

    def prepare(self, bags: dict[str, Bags]) -> tuple[Any, Any]:
        """A batch, and a gradient for everything that is looked up."""
        import torch

        batch, grads = {}, []
        for feature, table in self.tables.items():
            rows, lengths = bags[feature]
            batch[feature] = torch.from_numpy(rows), torch.from_numpy(lengths)
            lines = len(rows) if table.pooling == "none" else len(lengths)
            grads.append(torch.full((lines, table.embedding_dim), 1e-3))
        return batch, grads

    def step(self, batch: Any, grads: Any) -> None:
        """Look up, go back, update."""
        import torch

        found = self.module(batch)
        outs = [
            found[feature].values if table.pooling == "none" else found[feature]
            for feature, table in self.tables.items()
        ]
        torch.autograd.backward(outs, grads)
        self.module.optimizer.step()

    def timed(self, lead: dict[str, Bags], bags: dict[str, Bags]) -> float:
        """Seconds of a step. One on other samples goes before: caches are then this plan's own."""
        import torch.distributed as dist

        self.step(*self.prepare(lead))
        prepared = self.prepare(bags)
        dist.barrier()
        began = time.perf_counter()
        self.step(*prepared)
        return time.perf_counter() - began


def time_plans(
    rank: int, size: int, plans: dict[str, Plan], workload: Workload, samples: int, task: Task
) -> dict[str, list[float]]:
    """Seconds of a step on the slowest rank, round by round; plans take turns.

    Under `AGAIN` are those of a second module of joint's plan, made and run as the others are.
    """
    times: dict[str, list[float]] = {name: [] for name in [*plans, AGAIN]}
    number = 0
    for rounds in parts_of(task.rounds[samples], task.makes):
        trained = {name: Trained(plans.get(name, plans["joint"])) for name in times}
        for turn in range(task.warm + rounds):
            number += 1
            lead, bags = (
                workload.batch(rank, size, 2 * number + second, samples) for second in (0, 1)
            )
            for name in rotated(list(trained), number):
                seconds = trained[name].timed(lead, bags)
                if turn >= task.warm:
                    times[name].append(seconds)
        trained.clear()
        gc.collect()
    return slowest(times, size)


def parts_of(whole: int, parts: int) -> list[int]:
    """A number of rounds in so many parts, as equal as can be, none of them empty."""
    return [part for i in range(parts) if (part := (whole + i) // parts)]


def rotated(names: list[str], by: int) -> list[str]:
    """The same names, beginning with another."""
    at = by % len(names)
    return names[at:] + names[:at]


def slowest(times: dict[str, list[float]], size: int) -> dict[str, list[float]]:
    """The longest time of all ranks in every round."""
    import torch.distributed as dist

    every: list[Any] = [None] * size
    dist.all_gather_object(every, times)
    return {
        name: [max(ranks) for ranks in zip(*(found[name] for found in every), strict=True)]
        for name in times
    }


def rows_of(
    plans: dict[str, Plan], times: dict[str, list[float]], clusters: Sequence[Cluster]
) -> list[dict[str, Any]]:
    """Predicted and measured, plan by plan."""
    rows, alike = [], first_alike(plans)
    for name, plan in plans.items():
        costs = [cost_on(plan, cluster) for cluster in clusters]
        measured = times[alike[name]]
        low, middle, high = statistics.quantiles(measured, n=4, method="inclusive")
        predicted, before, again = (1e3 * cost.step_s for cost in costs)
        beside = times[AGAIN] if name == "joint" else measured
        least, usual, most = paired_ratio(beside, times["joint"])
        parts = costs[0].time
        rows.append(
            {
                "plan": name,
                "same as": None if alike[name] == name else alike[name],
                "measured_ms": 1e3 * middle,
                "predicted_ms": predicted,
                "ratio": predicted / (1e3 * middle),
                "memory_ms": 1e3 * parts.slowest_memory_s,
                "work_ms": 1e3 * parts.slowest_work_s,
                "links_ms": 1e3 * parts.links_s,
                "measured_low_ms": 1e3 * low,
                "measured_high_ms": 1e3 * high,
                "over_joint": usual,
                "over_joint_low": least,
                "over_joint_high": most,
                "predicted_before_ms": before,
                "predicted_again_ms": again,
            }
        )
    return rows


def paired_ratio(times: Sequence[float], others: Sequence[float]) -> tuple[float, float, float]:
    """The median over rounds of times over others', between the ends of its 95 % interval.

    The interval is that of the sign test: it takes nothing for granted of how times are spread.
    """
    ratios = sorted(one / other for one, other in zip(times, others, strict=True))
    off = min(int(0.98 * len(ratios) ** 0.5) + 1, len(ratios) // 2)
    middle = len(ratios) // 2
    return (
        ratios[middle - off],
        statistics.median(ratios),
        ratios[min(middle + off, len(ratios) - 1)],
    )


def cost_on(plan: Plan, cluster: Cluster) -> StepCost:
    """What a plan's step costs on a cluster, which may be the same one measured again."""
    return step_cost(plan.bands, plan.profile, cluster, plan.order, NARROW)

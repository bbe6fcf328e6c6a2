"""Time whole steps of the runtime, and find the coefficients of `work:` that explain them.

Steps of small models (`probes.py`) are timed on all ranks at once. What memory and links take is
taken off by the cost model; the rest is work, which is a sum of coefficients times what the model
counts: asked with one coefficient at a time, it gives the counts itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from rowtier.calibrate.fit import fit_nonnegative
from rowtier.calibrate.hidden import time_hidden
from rowtier.calibrate.job import Job, from_first
from rowtier.calibrate.probes import SHAPES, Shape, plans
from rowtier.calibrate.tiers import Tick, rounded
from rowtier.cluster import Cluster
from rowtier.cost.step import step_cost
from rowtier.plan.plan import Plan
from rowtier.work import UpdateWork, Work

LEAST_PASSES, QUICK_PASSES = 8, 1  # over all steps
LEAST_S = 30.0  # that they take, as memory is slower in one second than in the next
ROUNDS = 4  # of each step in a pass; a fifth, the first, is not timed
LONGEST_S = 90.0  # after which steps are not repeated any more, whether halves agree or not
AGREE = 0.10  # medians of two halves of the passes, relative
BATCHES = 4
LEAST_COUNTED_S = 1e-13  # for one of anything: a byte in a buffer takes some 1e-11
_ONE_BYTE = 1.0  # per second: a byte in a buffer then takes a second

UNITS: dict[str, Work] = {
    "step": Work(step_s=1),
    "round": Work(round_s=1),
    "table": Work(table_s=1),
    "bundle": Work(bundle_s=1),
    "band": Work(band_s=1),
    "copied": Work(copied_s=1),
    "lookup": Work(lookup_s=1),
    "distinct": Work(distinct_s=1),
    "plain": Work(plain_s=1),
    "row": Work(row_s=1),
    "sum": Work(sum_s=1),
    "buffer": Work(buffer_bytes_per_s=_ONE_BYTE),
    "output": Work(output_bytes_per_s=_ONE_BYTE),
    **{name: Work(update=UpdateWork(**{name: 1})) for name in UpdateWork.model_fields},
}


@dataclass(frozen=True)
class StepSample:
    """A step that was timed: how long, how well its repeats agree, and what the model counts."""

    name: str
    time_s: float
    spread: float  # of the medians of two halves of the repeats
    known_s: float  # that memory and links take by the model
    counts: tuple[float, ...]  # as in UNITS

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        counts = dict(zip(UNITS, self.counts, strict=True))
        facts = {"name": self.name, "time_s": self.time_s, "spread": self.spread}
        return facts | {"known_s": self.known_s, "counts": counts}


@dataclass(frozen=True)
class WorkTimes:
    """The steps that were timed, the same on all ranks, and the work that follows from them."""

    steps: tuple[StepSample, ...]
    hidden: float = 0.0

    @cached_property
    def seconds(self) -> dict[str, float]:
        """The coefficients, in seconds for one."""
        found = fit_nonnegative(
            [step.counts for step in self.steps],
            [step.time_s - step.known_s for step in self.steps],
            [step.time_s for step in self.steps],
        )
        return dict(zip(UNITS, found, strict=True))

    def work(self) -> Work:
        """The work as a cluster file has it."""
        found = {n: rounded(s) if s >= LEAST_COUNTED_S else 0.0 for n, s in self.seconds.items()}
        updates = {name: found.pop(name) for name in UpdateWork.model_fields}
        buffer_s, output_s = found.pop("buffer"), found.pop("output")
        return Work(
            **{f"{name}_s": seconds for name, seconds in found.items()},
            buffer_bytes_per_s=rounded(1 / buffer_s) if buffer_s else None,
            output_bytes_per_s=rounded(1 / output_s) if output_s else None,
            update=UpdateWork(**updates),
            hidden=round(self.hidden, 2),
        )

    @property
    def error(self) -> float:
        """How far the fitted steps are from the timed ones: the median, relative."""
        seconds = np.array(list(self.seconds.values()))
        errors = [
            abs((step.known_s + float(np.array(step.counts) @ seconds)) / step.time_s - 1)
            for step in self.steps
        ]
        return float(median(errors))

    @property
    def spread(self) -> float:
        """By how much two halves of the repeats differ, at the worst step."""
        return max(step.spread for step in self.steps)

    @property
    def agrees(self) -> bool:
        """Whether the halves agree."""
        return self.spread <= AGREE

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "seconds": self.seconds,
            "hidden": self.hidden,
            "error": self.error,
            "spread": self.spread,
            "steps": [step.to_dict() for step in self.steps],
        }


STEPS = LEAST_PASSES


def time_work(job: Job, cluster: Cluster, tick: Tick, *, quick: bool = False) -> WorkTimes:
    """Time steps on the cluster that was measured so far; all ranks return the same.

    Until halves of the passes agree, or it takes too long; `quick` makes one pass.
    """
    probes, started, seconds = Probes(job, cluster), perf_counter(), 0.0
    while seconds < LONGEST_S and (seconds < LEAST_S or not probes.agree):
        probes.time()
        if probes.passes <= LEAST_PASSES:
            tick()
        if quick and probes.passes == QUICK_PASSES:
            break
        seconds = _agreed(job, perf_counter() - started)
    for _ in range(probes.passes, LEAST_PASSES):
        tick()
    hidden = time_hidden(job, cluster, quick=quick) if job.world > 1 else 0.0
    return replace(probes.found(), hidden=_agreed(job, hidden))


class Probes:
    """All steps that are timed, in turns, pass after pass, whenever the caller has time for one.

    So what disturbs the machine for a while touches all of them alike.
    """

    def __init__(self, job: Job, cluster: Cluster):
        self._job = job
        placed = [(shape, plan) for shape in SHAPES for plan in plans(shape, cluster)]
        self._probes = [_Probe(s, p, _step_of(job, s, p)) for s, p in placed]
        self._times: list[Any] = []  # of each pass: rounds × probes, of the slowest rank

    @property
    def passes(self) -> int:
        """How many there were."""
        return len(self._times)

    def time(self) -> None:
        """One pass over all steps; all ranks must call this."""
        times, number = np.zeros((ROUNDS, len(self._probes))), self.passes
        every = range(len(self._probes))
        for at in every if number % 2 else reversed(every):
            step = self._probes[at].step
            step(number)  # its rows are in no cache yet
            for turn in range(ROUNDS):
                _barrier(self._job)
                start = perf_counter()
                step(number + turn + 1)
                times[turn, at] = perf_counter() - start
        self._times.append(_slowest(self._job, times))

    @property
    def agree(self) -> bool:
        """Whether there were enough, and the medians of two halves of them agree."""
        if self.passes < LEAST_PASSES:
            return False
        first, second = (np.median(self._times[at::2], axis=(0, 1)) for at in (0, 1))
        return bool((np.maximum(first, second) <= (1 + AGREE) * np.minimum(first, second)).all())

    def found(self) -> WorkTimes:
        """What the passes so far come to; all ranks must call this."""
        return from_first(self._job, self._found)

    def _found(self) -> WorkTimes:
        times = np.array(self._times)
        samples = [probe.sample(times[:, :, at]) for at, probe in enumerate(self._probes)]
        return WorkTimes(tuple(samples))


@dataclass(frozen=True, eq=False)
class _Probe:
    """A step that is timed."""

    shape: Shape
    plan: Plan
    step: Callable[[int], None]

    def sample(self, times: Any) -> StepSample:
        """What its times, passes × rounds, come to."""
        shape = self.shape
        halves = [median(half.reshape(-1).tolist()) for half in _halves(times)]
        return StepSample(
            name=f"{shape.tables} tables × {shape.dim}, batch {shape.batch}, {self.plan.method}",
            time_s=median(times.reshape(-1).tolist()),
            spread=max(halves) / min(halves) - 1,
            known_s=_known_s(self.plan),
            counts=_counts(self.plan),
        )


def _halves(times: Any) -> tuple[Any, Any]:
    """Every other pass; of a single one every other round."""
    return (times[::2], times[1::2]) if len(times) > 1 else (times[:, ::2], times[:, 1::2])


def _known_s(plan: Plan) -> float:
    """What memory and links take."""
    cost = step_cost(plan.bands, plan.profile, _with_work(plan.cluster, Work()), plan.order)
    return cost.step_s


def _counts(plan: Plan) -> tuple[float, ...]:
    """How often the busiest rank does each of UNITS."""
    found = []
    for work in UNITS.values():
        cluster = _with_work(plan.cluster, work)
        cost = step_cost(plan.bands, plan.profile, cluster, plan.order)
        found.append(float(cost.time.work_s.max()))
    return tuple(found)


def _with_work(cluster: Cluster, work: Work) -> Cluster:
    return cluster.model_copy(update={"work": work})


def _step_of(job: Job, shape: Shape, plan: Plan) -> Callable[[int], None]:
    """A training step of the embeddings: look up, backward, update."""
    import torch

    from rowtier.runtime.module import ShardedEmbeddings

    embeddings = ShardedEmbeddings(plan, local_world_size=job.local_world)
    random = np.random.default_rng((7, job.rank))
    lengths = torch.full((shape.batch,), shape.length)
    batches = [
        {
            stats.table.name: (torch.from_numpy(shape.ids(number, random).reshape(-1)), lengths)
            for number, stats in enumerate(plan.profile.stats)
        }
        for _ in range(BATCHES)
    ]

    lines = shape.batch if shape.pooled else shape.batch * shape.length
    gradients = [torch.full((lines, shape.dim_of(n)), 1e-3) for n in range(shape.tables)]

    def step(number: int) -> None:
        given = embeddings(batches[number % BATCHES]).values()
        outputs = list(given) if shape.pooled else [rows.values for rows in given]
        torch.autograd.backward(outputs, gradients)
        embeddings.optimizer.step()

    return step


def _barrier(job: Job) -> None:
    if job.world > 1:
        import torch.distributed as dist

        dist.barrier()


def _slowest(job: Job, times: Any) -> Any:
    """The longest time of any rank."""
    if job.world == 1:
        return times
    import torch
    import torch.distributed as dist

    shared = torch.from_numpy(times)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return shared.numpy()


def _agreed(job: Job, seconds: float) -> float:
    """The same number on all ranks."""
    return float(_slowest(job, np.array([seconds]))[0])

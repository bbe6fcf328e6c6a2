"""The main path: a dataset in, a profile out.

    source.parts ──legs──▶ count ──▶ partial profiles ──merge──▶ Profile

A *leg* is a run of parts counted together; its result is a profile of its own. Merging
is exact, so neither the number of legs, workers or passes nor their order changes a bit of
the result. Finished legs are kept beside the output until the whole is done, and a run
that was interrupted goes on from them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context, parent_process
from typing import Any

from rowtier.errors import UserError
from rowtier.fields import MOST_COUNT, check_horizon
from rowtier.profile.count_ids import Vocabularies, vocabularies_for, with_vocabularies
from rowtier.profile.count_legs import CountingJob, count_leg
from rowtier.profile.counters import COUNTER_BYTES
from rowtier.profile.finished_legs import FinishedLegs
from rowtier.profile.forecast import looking_ahead
from rowtier.profile.legs import Leg, RowRange, by_parts
from rowtier.profile.merge import join_passes, merge_profiles
from rowtier.profile.on_dask import profile_on_dask
from rowtier.profile.profile import Profile
from rowtier.profile.readers import Edge, Sample, Sampled, Shifted, TimeWindow, open_source
from rowtier.reading import StrPath
from rowtier.tables import OutOfRange, Tables
from rowtier.units import show_bytes, show_count

Progress = Callable[[float], None]
LEG_BYTES = 2 * 2**30  # of files; about a quarter of a minute
LEGS_PER_WORKER = 4
MOST_PASSES = 1024  # over the data, where counters do not fit into memory


@dataclass(frozen=True)
class ProfileOptions:
    """How to profile: which samples, what happens to their ids, and how the work is divided.

    `on_out_of_range` is for all tables, instead of what each of them says. `vocabulary` is an
    earlier profile or plan folder (or table name → `Vocabulary`) whose vocabularies are used.
    """

    sample: float = 1.0
    seed: int = 0
    before: Edge | None = None  # only samples before this share of them, or this time
    after: Edge | None = None
    time: str | None = None  # a column by which the data is sorted
    first_sample: int | None = None  # number of the first one in a whole that this is part of
    horizon: float = 1.0  # how far ahead to look, in lengths of the data
    on_out_of_range: OutOfRange | None = None
    workers: int = 1
    memory_bytes: int | None = None  # for counters; half of this machine's, if not given
    dask: str | None = None  # address of a Dask scheduler
    resume: bool = False
    vocabulary: StrPath | Vocabularies | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        Sample(self.sample, self.seed)
        check_horizon(self.horizon)
        if self.workers < 1:
            raise UserError(f"workers {self.workers}: give a whole number, 1 or more")
        if self.first_sample is not None and not 0 <= self.first_sample <= MOST_COUNT // 2:
            accepted = f"give a whole number, 0 or more and at most {MOST_COUNT // 2}"
            raise UserError(f"first_sample {self.first_sample}: {accepted}")
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise UserError(f"memory {self.memory_bytes}: give a size such as 4GiB")


def make_profile(
    data: StrPath | Iterable[Any],
    tables: Tables | StrPath,
    options: ProfileOptions | None = None,
    *,
    progress: Progress | None = None,
    finished: FinishedLegs | None = None,
) -> Profile:
    """Count how the data touches every row of the tables.

    `data` is a path (Parquet, Criteo TSV, npz, pt; files, folders, globs), or an iterable of
    KeyedJaggedTensors or of dicts feature → (values, lengths).
    """
    options = options or ProfileOptions()
    if not isinstance(tables, Tables):
        tables = Tables.load(tables)
    tables = tables.with_policy(options.on_out_of_range)
    features = [name for table in tables for name in table.features]
    window = TimeWindow(options.before, options.after, options.time)
    source = window.of(open_source(data, features))
    if options.first_sample:
        source = Shifted(source, options.first_sample)
    if options.sample < 1:
        source = Sampled(source, Sample(options.sample, options.seed))
    if not source.parts:
        raise _no_samples(data)
    vocabularies, progress = vocabularies_for(source, tables, options.vocabulary, progress)
    job = CountingJob(source, tables, vocabularies)
    legs = plan_legs(job, options)
    finished = finished or FinishedLegs()
    report = _Report(job, legs, progress)
    if options.dask is not None:
        found = profile_on_dask(job, legs, options.dask, report.leg_done)
        return with_vocabularies(looking_ahead(found, options.horizon), vocabularies)
    finished.begin(job.fingerprint(legs), options.resume)
    open_legs = []
    for leg in legs:
        if finished.has(leg):
            report.leg_done(leg)
        else:
            open_legs.append(leg)
    for leg, profile in _counted(job, open_legs, options, report):
        finished.keep(leg, profile)
    profile = merge_profiles(_joined(legs, finished))
    if not any(stats.samples for stats in profile.stats):
        raise _no_samples(data)
    return with_vocabularies(looking_ahead(profile, options.horizon), vocabularies)


def _joined(legs: list[Leg], finished: FinishedLegs) -> Iterator[Profile]:
    """The profiles of all runs of parts, those of several passes put together."""
    for passes in by_parts(legs):
        yield join_passes(list(finished.profiles(passes)))


def _no_samples(data: StrPath | Iterable[Any]) -> UserError:
    named = f"{data}: " if isinstance(data, (str, os.PathLike)) else ""
    return UserError(f"{named}the data holds no samples; give data with at least one")


def plan_legs(job: CountingJob, options: ProfileOptions) -> list[Leg]:
    """Cut the data into legs, and the rows into shards whose counters fit into memory."""
    workers = 1 if options.dask else options.workers  # on this machine
    rows = sum(table.num_embeddings for table in job.tables)
    needed = workers * COUNTER_BYTES * rows
    shards = -(-needed // (options.memory_bytes or _half_of_memory()))
    if shards > MOST_PASSES:
        raise UserError(
            f"the counters of {show_count(rows)} rows need {show_bytes(needed)}, which takes "
            f"{shards:,} passes over the data in the memory allowed, and {MOST_PASSES} are the "
            f"most: allow at least {show_bytes(-(-needed // MOST_PASSES))}, or use fewer workers"
        )
    if shards > 1 and job.source.kind == "batches":
        raise UserError(
            f"the counters need {show_bytes(needed)}, more than the memory allowed, and this data "
            "can be read only once: allow more memory, or give the data as files"
        )
    weights = [part.weight_bytes for part in job.source.parts]
    least = len(weights) if options.dask else 1 if workers == 1 else LEGS_PER_WORKER * workers
    size = min(LEG_BYTES, sum(weights) / max(1, least))
    edges, held = [0], 0.0
    for index, weight in enumerate(weights):
        held += weight
        if held >= size or index + 1 == len(weights):
            edges.append(index + 1)
            held = 0.0
    ranges = [RowRange(index, shards) for index in range(shards)]
    return [Leg(a, b, r) for r in ranges for a, b in pairwise(edges)]


def _counted(
    job: CountingJob, legs: list[Leg], options: ProfileOptions, report: _Report
) -> Iterator[tuple[Leg, Profile]]:
    """Count legs here or in processes; each is given out as soon as it is done."""
    if options.workers > 1 and len(legs) > 1:
        for leg, profile in _in_processes(job, legs, options.workers):
            report.leg_done(leg)
            yield leg, profile
    else:
        for leg in legs:
            yield leg, count_leg(job, leg, report.part_done)


def _in_processes(job: CountingJob, legs: list[Leg], workers: int) -> Iterator[tuple[Leg, Profile]]:
    # Spawned, not forked: forking a process that has threads (Arrow's) may hang.
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_end_with_parent) as pool:
        waiting = {pool.submit(count_leg, job, leg): leg for leg in legs}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        except BrokenProcessPool:
            raise UserError(
                f"a worker of {workers} was killed, most likely for want of memory; "
                "use fewer --workers or a smaller --memory, and --resume"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """In a worker: end when the process that started it does, also if that was killed."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Report:
    """Tells how much of the data is done, by the size of its parts."""

    def __init__(self, job: CountingJob, legs: list[Leg], progress: Progress | None):
        self._weights = [max(1, part.weight_bytes) for part in job.source.parts]
        self._total = sum(sum(self._weights[leg.start : leg.stop]) for leg in legs)
        self._done = 0
        self._progress = progress

    def part_done(self, index: int, share: float) -> None:
        weight = self._weights[index]
        if self._progress is not None:
            self._progress((self._done + weight * share) / self._total)
        if share >= 1:
            self._done += weight

    def leg_done(self, leg: Leg) -> None:
        for index in range(leg.start, leg.stop):
            self.part_done(index, 1.0)


def _half_of_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2

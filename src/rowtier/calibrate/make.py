"""The main path: time memory, disk and links, agree with the other ranks, make a cluster."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from rowtier.calibrate import disk, links, memory, work
from rowtier.calibrate.job import Job, joined, together
from rowtier.calibrate.links import LinkTimes
from rowtier.calibrate.tiers import ROW_BYTES, Tick, TierTimes, slowest
from rowtier.calibrate.work import AGREE, WorkTimes
from rowtier.cluster import Cluster, Device, Tier
from rowtier.errors import UserError
from rowtier.files import FORMAT_VERSION
from rowtier.work import Work
from rowtier.writing import is_special, real, write_atomic, writing

MARK = "# Measured by rowtier calibrate"


@dataclass(frozen=True)
class CalibrateOptions:
    """What to measure; `row_bytes` is the size of row that the tiers' bandwidth is given for."""

    name: str = "local"
    disk: Path | None = None
    memory_bytes: int | None = None
    row_bytes: int = 256
    quick: bool = False  # a few repeats of each step

    def check(self) -> None:
        """Refuse what cannot be measured."""
        if self.row_bytes not in ROW_BYTES:
            sizes = ", ".join(map(str, ROW_BYTES))
            raise UserError(f"rows of {self.row_bytes} bytes are not timed; accepted are {sizes}")
        tier = Tier(name="ram", capacity_bytes=1, bandwidth_bytes_per_s=1)
        Cluster(name=self.name, device=Device(tiers=(tier,)))  # refuses a bad name now


@dataclass(frozen=True)
class Calibration:
    """What was measured, the same on all ranks, and the cluster that follows from it."""

    name: str
    row_bytes: int
    tiers: tuple[TierTimes, ...]
    links: tuple[LinkTimes, ...]
    work: WorkTimes | None = None  # None: torch is not installed

    @property
    def cluster(self) -> Cluster:
        """The cluster for planning."""
        tiers = tuple(times.tier(self.row_bytes) for times in self.tiers)
        levels = tuple(times.level() for times in self.links)
        own_work = Work() if self.work is None else self.work.work()
        device = Device(tiers=tiers)
        return Cluster(name=self.name, levels=levels, device=device, work=own_work)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the cluster, and every time behind it."""
        return {
            "cluster": self.cluster.to_data(),
            "row_bytes": self.row_bytes,
            "tiers": [times.to_dict() for times in self.tiers],
            "links": [times.to_dict() for times in self.links],
            "work": None if self.work is None else self.work.to_dict(),
        }

    def to_yaml(self) -> str:
        """The cluster file, with what a cluster has no keys for in comments at its top."""
        data = {"format_version": FORMAT_VERSION, **self.cluster.to_data()}
        body = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
        return "\n".join([*self._comments(), body])

    def _comments(self) -> list[str]:
        lines = [f"{MARK}: rows of {self.row_bytes} bytes, read and written in random order."]
        for times in self.links:
            if times.per == "group":
                lines.append(f"# {times.name}: the {times.sharers} processes of a node share it.")
        return lines + [f"# {note}" for note in self.notes]

    @property
    def notes(self) -> list[str]:
        """What is to be known about the figures."""
        if self.work is None:
            return [
                'work was not measured, as torch is not installed: pip install "rowtier[torch]"'
            ]
        found = [
            f"work: explains the steps that were timed to {self.work.error:.0%} in the median",
            f"two halves of the repeats differ by {self.work.spread:.0%} at most",
        ]
        if not self.work.agrees:
            found.append(
                f"more than {AGREE:.0%} is too much: calibrate again when the machine is idle"
            )
        return found


def calibrate(
    options: CalibrateOptions,
    output: Path | None = None,
    job: Job | None = None,
    progress: Callable[[float], None] = lambda _share: None,
) -> Calibration:
    """Measure this process, or the job it belongs to; rank 0 writes the file if one is wanted."""
    options.check()
    job = Job.from_environment() if job is None else job
    with joined(job):
        _check_alike(together(job, lambda: _prepare(job, options, output)))
        tick = _ticks(_steps(job, options), progress)
        tiers = _time_tiers(job, options, tick)
        between = links.time_links(job, tick)
        # A second time: what disturbs a machine for a moment is not there a while later.
        tiers = (tiers[0].mean_with(_time_memory(job, options, tick)), *tiers[1:])
        found = Calibration(options.name, options.row_bytes, tiers, between)
        if has_torch():
            found = replace(
                found, work=work.time_work(job, found.cluster, tick, quick=options.quick)
            )
        together(job, lambda: _write(job, found, output))
    return found


def has_torch() -> bool:
    """Whether the runtime can be timed."""
    return importlib.util.find_spec("torch") is not None


def _prepare(job: Job, options: CalibrateOptions, output: Path | None) -> str:
    """Get ready, and say how this rank was started: all must do the same, or they would hang."""
    memory.compile_kernels()
    if output is not None and job.rank == 0:
        check_output(output)
    disk_too = "with" if options.disk is not None else "without"
    return f"LOCAL_WORLD_SIZE {job.local_world}, {options.row_bytes} B rows, {disk_too} --disk"


def _check_alike(starts: list[str]) -> None:
    for rank, start in enumerate(starts):
        if start != starts[0]:
            raise UserError(
                f"rank 0 was started with {starts[0]}, rank {rank} with {start}: start as many "
                "processes on every node, with the same options"
            )


def _time_tiers(job: Job, options: CalibrateOptions, tick: Tick) -> tuple[TierTimes, ...]:
    """Every rank times at once, since that is how training uses memory."""
    local, folder = job.local_world, options.disk
    tiers = [_time_memory(job, options, tick)]
    if folder is not None:
        tiers.append(slowest(together(job, lambda: disk.time_disk(folder, local, tick))))
    return tuple(tiers)


def _time_memory(job: Job, options: CalibrateOptions, tick: Tick) -> TierTimes:
    local = job.local_world
    return slowest(together(job, lambda: memory.time_memory(local, options.memory_bytes, tick)))


def _write(job: Job, found: Calibration, output: Path | None) -> bool:
    if output is not None and job.rank == 0:
        write_atomic(output, found.to_yaml())
    return True


def check_output(output: Path) -> None:
    """Refuse, before a minute of work, a place that cannot be written or is not ours to replace."""
    if output.is_dir():
        raise UserError(f"{output}: is a folder where a file is to be written; give a file")
    if is_special(output):
        return
    with writing(output):
        output = real(output)
        if output.exists() and not _is_ours(output):
            raise UserError(
                f"{output}: was not written by rowtier calibrate, so it is left alone; "
                "give another file, or remove this one"
            )
        output.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=output.parent).close()


def _is_ours(output: Path) -> bool:
    with output.open("rb") as file:
        return file.read(len(MARK)) == MARK.encode()


def _steps(job: Job, options: CalibrateOptions) -> int:
    tiers = 2 * memory.STEPS + (disk.STEPS if options.disk is not None else 0)
    return tiers + links.steps(job) + (work.STEPS if has_torch() else 0)


def _ticks(steps: int, progress: Callable[[float], None]) -> Tick:
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        progress(done / steps)

    return tick

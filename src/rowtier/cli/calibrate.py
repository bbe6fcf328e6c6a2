"""`rowtier calibrate`: measure this machine, or a job under torchrun, into a cluster file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rowtier.cli import show
from rowtier.units import parse_bytes

if TYPE_CHECKING:
    from rowtier.calibrate.links import LinkTimes
    from rowtier.calibrate.make import Calibration
    from rowtier.calibrate.tiers import TierTimes
    from rowtier.work import Work


def command(
    output: Annotated[Path, typer.Option("--output", "-o", help="The cluster file to write.")],
    disk: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Time the disk under this folder too, as a tier."),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            parser=parse_bytes,
            metavar="SIZE",
            help="Memory of each machine for rows, such as 8GiB; all of it if left out.",
        ),
    ] = None,
    row_bytes: Annotated[
        int,
        typer.Option(
            parser=parse_bytes,
            metavar="SIZE",
            help="The row that bandwidths are given for: 64B, 128B, … 4KiB.",
        ),
    ] = "256B",  # type: ignore[assignment]
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Repeat little: seconds instead of a minute, and less sure."),
    ] = False,
    name: Annotated[str, typer.Option(help="What the cluster is called.")] = "local",
    json: show.JsonOption = False,
) -> None:
    """Measure memory, disk, links and work into a cluster file for `rowtier plan --cluster`.

    Alone it measures one process. Under torchrun it also times the links between all of them:
    torchrun --nproc-per-node 4 -m rowtier calibrate -o cluster.yaml
    """
    from rowtier.calibrate.job import Job
    from rowtier.calibrate.make import CalibrateOptions, calibrate

    job = Job.from_environment()
    options = CalibrateOptions(name, disk, memory, row_bytes, quick)
    with show.progress("measuring", quiet=json or job.rank > 0) as progress:
        found = calibrate(options, output, job, progress)
    if job.rank > 0:
        return
    if json:
        show.as_json({"output": str(output), **found.to_dict()})
        return
    _show(found)
    show.written(output)


def _show(found: Calibration) -> None:
    first = ("tier", "capacity", "granularity", "bandwidth", "read", "write", "in sequence")
    show.table(first, [_tier_row(times, found.row_bytes) for times in found.tiers])
    if found.links:
        second = ("level", "size", "latency", "message", "bandwidth", "exchange", "copies")
        show.table(second, [_level_row(times) for times in found.links])
    if found.work is not None:
        show.table(("work", "for one"), _work_rows(found.cluster.work))
    for note in found.notes:
        show.line(f"note: {note}")
    for times in found.tiers:
        if times.cached:
            show.line(
                f"note: the disk of {times.name} allows no direct access, so the page cache "
                "flatters its figures"
            )


def _tier_row(times: TierTimes, row_bytes: int) -> tuple[str, ...]:
    from rowtier.calibrate.tiers import ROW_BYTES
    from rowtier.units import show_bytes, show_count

    tier, at = times.tier(row_bytes), ROW_BYTES.index(row_bytes)
    return (
        tier.name,
        show_bytes(tier.capacity_bytes),
        show_bytes(tier.granularity_bytes),
        f"{show_count(tier.bandwidth_bytes_per_s)}B/s",
        f"{show_count(1 / times.read_s[at])}rows/s",
        f"{show_count(1 / times.write_s[at])}rows/s",
        f"{show_count(times.sequential_read_bytes_per_s)}B/s",
    )


def _level_row(times: LinkTimes) -> tuple[str, ...]:
    from rowtier.units import show_count

    level = times.level()
    return (
        level.name,
        str(level.size),
        f"{1e6 * level.latency_s:.3g} us",
        f"{1e6 * level.message_s:.3g} us",
        f"{show_count(level.bandwidth_bytes_per_s)}B/s",
        f"{level.exchange_efficiency:.0%}",
        f"{level.sync_efficiency:.0%}",
    )


def _work_rows(work: Work) -> list[tuple[str, str]]:
    data = work.to_data()
    updates = data.pop("update", {})
    rows = [(name, str(value)) for name, value in data.items()]
    return rows + [(f"update, {name}", str(value)) for name, value in updates.items()]

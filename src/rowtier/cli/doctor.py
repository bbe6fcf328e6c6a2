"""`rowtier doctor`: whether kernels give the host's bits on this machine's devices."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rowtier.cli import show

if TYPE_CHECKING:
    from rowtier.runtime.device.doctor import Health

MOST = 10  # troubles that are listed


def command(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the facts to this JSON file too.")
    ] = None,
    json: show.JsonOption = False,
) -> None:
    """Check device kernels against the host's bits here (exit code 1 if any differs).

    On GPUs every kernel runs, and memory is timed. Without one they are interpreted and compiled,
    which takes a minute. Needs the extra "torch", and "cuda" for triton's kernels.
    """
    from rowtier.errors import UserError
    from rowtier.writing import new_file

    try:
        from rowtier.runtime.device.doctor import examine
    except ImportError as error:
        raise UserError(
            f"doctor needs {error.name}, which is not installed: pip install 'rowtier[torch]'"
        ) from None
    if output is not None and output.is_dir():
        raise UserError(f"{output}: is a folder; name a file, such as {output / 'doctor.json'}")
    with contextlib.nullcontext() if output is None else new_file(output) as file:
        with show.progress("checking kernels", quiet=json, after_s=1.0) as progress:
            health = examine(progress)
        if file is not None:
            file.write_text(show.json_text(health.to_dict()) + "\n")
    if json:
        show.as_json(health.to_dict())
    else:
        _show(health)
        if output is not None:
            show.written(output)
    if health.troubles:
        raise typer.Exit(1)


def _show(health: Health) -> None:
    from rowtier.units import show_bytes, show_count

    show.line(health.verdict)
    for note in health.notes:
        show.line(f"note: {note}")
    rows = [
        (c.what, c.where, str(c.cases), f"{len(c.troubles)} wrong" if c.troubles else "all right")
        for c in health.checks
    ]
    show.table(("check", "where", "cases", "found"), rows)
    for said in health.troubles[:MOST]:
        show.line(f"  {said}")
    if len(health.troubles) > MOST:
        show.line(f"  and {len(health.troubles) - MOST} more (--json lists them)")
    if health.devices:
        found = [
            (d["device"], d["name"], d["arch"], show_bytes(d["memory_bytes"]))
            for d in health.devices
        ]
        show.table(("device", "name", "arch", "memory"), found)
    if health.bandwidths:
        rates = [
            (b["what"], b["device"], f"{show_count(b['bytes_per_s'])}B/s")
            for b in health.bandwidths
        ]
        show.table(("read", "device", "bandwidth"), rates)
    there = (f"{name} {version}" for name, version in health.versions.items() if version)
    show.line(f"with {', '.join(there)}")

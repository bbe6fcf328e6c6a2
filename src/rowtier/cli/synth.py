"""`rowtier synth`: write a generated workload."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rowtier.cli import show
from rowtier.units import parse_count

_SHAPE, _LENGTHS = "Sizes", "Distributions"
_NAME_HELP = "criteo, sequence, meta or drift (datasets), rm1, rm2 or rm3 (curve profiles)."


def _count(text: str, panel: str = _SHAPE) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        parser=parse_count, metavar="COUNT", help=text, rich_help_panel=panel
    )
    return option


def command(
    name: Annotated[str, typer.Argument(help=_NAME_HELP)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.")],
    seed: Annotated[int, typer.Option(help="Equal seeds and options give equal bytes.")] = 0,
    samples: Annotated[int | None, _count("Samples to write: criteo, sequence, drift.")] = None,
    scale: Annotated[
        float | None,
        typer.Option(help="Share of the published size: criteo, meta.", rich_help_panel=_SHAPE),
    ] = None,
    rows: Annotated[int | None, _count("Rows of the item table: sequence, drift.")] = None,
    users: Annotated[int | None, _count("Rows of the user table: sequence.")] = None,
    tables: Annotated[int | None, _count("Number of tables: meta.")] = None,
    batches: Annotated[int | None, _count("Batches to write: meta.")] = None,
    embedding_dim: Annotated[int | None, _count("Numbers in a row: datasets.")] = None,
    batch_size: Annotated[
        int | None, _count("Samples per device and step: criteo, sequence, drift.")
    ] = None,
    zipf: Annotated[
        float | None,
        typer.Option(help="Skew: criteo, sequence, drift.", rich_help_panel=_LENGTHS),
    ] = None,
    mean_length: Annotated[
        float | None,
        typer.Option(help="Mean items per session: sequence.", rich_help_panel=_LENGTHS),
    ] = None,
    max_length: Annotated[
        int | None, _count("Items in the longest session: sequence.", _LENGTHS)
    ] = None,
    spread: Annotated[
        float | None,
        typer.Option(help="Sigma of the log-normal length: sequence.", rich_help_panel=_LENGTHS),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Share of the ranks that change owner: drift.", rich_help_panel=_LENGTHS),
    ] = None,
    year: Annotated[
        int | None,
        typer.Option(help="Which histograms, 2021 or 2022: meta.", rich_help_panel=_LENGTHS),
    ] = None,
    hashed: Annotated[
        bool,
        typer.Option(
            "--hashed",
            help="Hash as many values as rows, so 1/e stay untouched: criteo.",
            rich_help_panel=_LENGTHS,
        ),
    ] = False,
    fat: Annotated[
        bool,
        typer.Option("--fat", help="Use nearly all rows: rm1, rm2, rm3.", rich_help_panel=_LENGTHS),
    ] = False,
    json: show.JsonOption = False,
) -> None:
    """Write a generated dataset, or the statistics of an enormous model.

    Options that are left out have the workload's own defaults: docs/workloads.md lists them.
    """
    from rowtier.synth.make import make_workload
    from rowtier.units import show_bytes, show_count

    options = {
        "samples": samples, "scale": scale, "rows": rows, "users": users, "tables": tables,
        "batches": batches, "embedding_dim": embedding_dim, "batch_size": batch_size,
        "zipf": zipf, "mean_length": mean_length, "max_length": max_length, "spread": spread,
        "rate": rate, "year": year, "hashed": hashed or None, "fat": fat or None,
    }  # fmt: skip
    with show.progress(f"writing {name}", quiet=json) as progress:
        written = make_workload(name, output, seed=seed, progress=progress, **options)
    if json:
        show.as_json(written.to_dict())
        return
    show.line(
        f"{name}: {written.tables} tables, {show_count(written.samples)} samples, "
        f"{show_count(written.ids)} ids in {written.files} files ({show_bytes(written.bytes)})"
    )
    show.written(output)

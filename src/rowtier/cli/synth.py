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


_Name = Annotated[str, typer.Argument(help=_NAME_HELP)]
_Output = Annotated[Path, typer.Option("--output", "-o", help="The folder to write.")]
_Seed = Annotated[int, typer.Option(help="Equal seeds and options give equal bytes.")]
_Samples = Annotated[int | None, _count("Samples to write: criteo, sequence, drift.")]
_Scale = Annotated[
    float | None,
    typer.Option(help="Share of the published size: criteo, meta.", rich_help_panel=_SHAPE),
]
_Rows = Annotated[int | None, _count("Rows of the item table: sequence, drift.")]
_Users = Annotated[int | None, _count("Rows of the user table: sequence.")]
_Tables = Annotated[int | None, _count("Number of tables: meta.")]
_Batches = Annotated[int | None, _count("Batches to write: meta.")]
_EmbeddingDim = Annotated[int | None, _count("Numbers in a row: datasets.")]
_BatchSize = Annotated[int | None, _count("Samples per device and step: criteo, sequence, drift.")]
_Zipf = Annotated[
    float | None,
    typer.Option(help="Skew: criteo, sequence, drift.", rich_help_panel=_LENGTHS),
]
_MeanLength = Annotated[
    float | None,
    typer.Option(help="Mean items per session: sequence.", rich_help_panel=_LENGTHS),
]
_MaxLength = Annotated[int | None, _count("Items in the longest session: sequence.", _LENGTHS)]
_Spread = Annotated[
    float | None,
    typer.Option(help="Sigma of the log-normal length: sequence.", rich_help_panel=_LENGTHS),
]
_Rate = Annotated[
    float | None,
    typer.Option(help="Share of the positions that change owner: drift.", rich_help_panel=_LENGTHS),
]
_Year = Annotated[
    int | None,
    typer.Option(help="Which histograms, 2021 or 2022: meta.", rich_help_panel=_LENGTHS),
]
_Hashed = Annotated[
    bool,
    typer.Option(
        "--hashed",
        help="Hash as many values as rows, so 1/e stay untouched: criteo.",
        rich_help_panel=_LENGTHS,
    ),
]
_Fat = Annotated[
    bool,
    typer.Option("--fat", help="Use nearly all rows: rm1, rm2, rm3.", rich_help_panel=_LENGTHS),
]


def command(
    name: _Name,
    output: _Output,
    seed: _Seed = 0,
    samples: _Samples = None,
    scale: _Scale = None,
    rows: _Rows = None,
    users: _Users = None,
    tables: _Tables = None,
    batches: _Batches = None,
    embedding_dim: _EmbeddingDim = None,
    batch_size: _BatchSize = None,
    zipf: _Zipf = None,
    mean_length: _MeanLength = None,
    max_length: _MaxLength = None,
    spread: _Spread = None,
    rate: _Rate = None,
    year: _Year = None,
    hashed: _Hashed = False,
    fat: _Fat = False,
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

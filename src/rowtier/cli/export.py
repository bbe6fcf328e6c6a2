"""`rowtier export`: the tables of a checkpoint as plain tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from rowtier.cli import show

_Checkpoint = Annotated[
    Path, typer.Argument(help="The folder that save_checkpoint wrote, or one save in it.")
]
_Output = Annotated[Path, typer.Option("--output", "-o", help="The file to write, or the folder.")]
_RowsAs = Annotated[
    str | None,
    typer.Option(
        "--rows-as",
        metavar="TYPE",
        help="Write rows for serving: int8 with a scale for each row, fp16 or fp32; without, "
        "as they are in the checkpoint.",
    ),
]
_To = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="safetensors: one file; or parquet: a folder with a file for each table.",
    ),
]
_Plan = Annotated[
    Path | None,
    typer.Option(help="The plan that was trained: it has the ids of vocabularies."),
]


def command(
    checkpoint: _Checkpoint,
    output: _Output = Path("tables.safetensors"),
    rows_as: _RowsAs = None,
    to: _To = "safetensors",
    plan: _Plan = None,
    json: show.JsonOption = False,
) -> None:
    """Write the tables of a checkpoint to one safetensors file, for torch.nn.EmbeddingBag.

    Rows stand in the order of their ids, whatever the plan was. No process group is needed.
    With --rows-as they are written for serving, by id, as safetensors or Parquet; read_export
    of Python reads them back. Needs the extra "torch".
    """
    from rowtier.errors import UserError

    chosen = _format(output, to)
    try:
        import safetensors  # noqa: F401

        from rowtier.runtime.checkpoint.export import export
    except ImportError as error:
        raise UserError(
            f"export needs {error.name}, which is not installed: pip install 'rowtier[torch]'"
        ) from None
    form = cast(Any, rows_as)  # others are refused there
    with show.progress("reading tables", quiet=json) as progress:
        tables = export(checkpoint, output, progress, rows_as=form, to=chosen, plan=plan)
    total = sum(table.size_bytes for table in tables)
    if json:
        listed = [table.to_dict() for table in tables]
        show.as_json({"output": str(output), "bytes": total, "tables": listed})
        return
    from rowtier.units import show_bytes, show_count

    show.line(f"{len(tables)} table{'s' if len(tables) > 1 else ''}, {show_bytes(total)}")
    columns = ("tensor", "rows", "columns", "type", "size")
    rows = [
        (t.name, show_count(t.shape[0]), str(t.shape[1]), t.stored, show_bytes(t.size_bytes))
        for t in tables
    ]  # fmt: skip
    show.table(columns, rows)
    show.written(output)


def _format(output: Path, asked: str) -> Literal["safetensors", "parquet"]:
    """The format that was asked for, which the output's name must not contradict."""
    from rowtier.errors import UserError

    if asked not in ("safetensors", "parquet"):
        raise UserError(f"--format {asked!r}: accepted are safetensors and parquet")
    if asked == "parquet":
        if output.suffix == ".safetensors":
            raise UserError(f"{output}: --format parquet writes a folder; give one, -o tables/")
        return "parquet"
    return "safetensors"

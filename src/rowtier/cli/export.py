"""`rowtier export`: the tables of a checkpoint as plain tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rowtier.cli import show


def command(
    checkpoint: Annotated[
        Path, typer.Argument(help="The folder that save_checkpoint wrote, or one save in it.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The safetensors file to write.")
    ] = Path("tables.safetensors"),
    json: show.JsonOption = False,
) -> None:
    """Write the tables of a checkpoint to one safetensors file, for torch.nn.EmbeddingBag.

    Rows stand in the order of their ids, whatever the plan was. No process group is needed.
    Needs the extra "torch".
    """
    from rowtier.errors import UserError

    try:
        import safetensors  # noqa: F401

        from rowtier.runtime.checkpoint.export import export
    except ImportError as error:
        raise UserError(
            f"export needs {error.name}, which is not installed: pip install 'rowtier[torch]'"
        ) from None
    with show.progress("reading tables", quiet=json) as progress:
        tables = export(checkpoint, output, progress)
    total = sum(table.size_bytes for table in tables)
    if json:
        listed = [table.to_dict() for table in tables]
        show.as_json({"output": str(output), "bytes": total, "tables": listed})
        return
    from rowtier.units import show_bytes, show_count

    show.line(f"{len(tables)} table{'s' if len(tables) > 1 else ''}, {show_bytes(total)}")
    columns = ("tensor", "rows", "columns", "type", "size")
    rows = [
        (t.name, show_count(t.shape[0]), str(t.shape[1]), t.to_dict()["dtype"],
         show_bytes(t.size_bytes))
        for t in tables
    ]  # fmt: skip
    show.table(columns, rows)
    show.written(output)

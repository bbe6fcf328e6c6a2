"""`rowtier apply`: the rows of deltas onto exported tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rowtier.cli import show


def command(
    base: Annotated[
        Path, typer.Argument(help="The safetensors file that export, or apply, wrote.")
    ],
    deltas: Annotated[
        list[Path], typer.Argument(help="The folders that embeddings.delta() wrote, in order.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The safetensors file to write; may be BASE.")
    ] = Path("tables.safetensors"),
    json: show.JsonOption = False,
) -> None:
    """Put the rows of deltas onto exported tables: the export of that moment, bit for bit.

    A delta that does not follow the base, or the delta before it, is refused. Needs the extra
    "torch".
    """
    from rowtier.errors import UserError

    try:
        import safetensors  # noqa: F401

        from rowtier.runtime.checkpoint.applied import apply_deltas
    except ImportError as error:
        raise UserError(
            f"apply needs {error.name}, which is not installed: pip install 'rowtier[torch]'"
        ) from None
    with show.progress("writing tables", quiet=json) as progress:
        found = apply_deltas(base, deltas, output, progress)
    if json:
        positions = {name: str(position) for name, position in found.positions.items()}
        show.as_json({**found._asdict(), "positions": positions})
        return
    from rowtier.units import show_count

    many = "s" if found.deltas > 1 else ""
    show.line(f"{found.deltas} delta{many}, {show_count(found.changed_rows)} rows")
    show.written(output)

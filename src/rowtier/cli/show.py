"""What commands share for showing results: tables that fit, JSON, a progress bar."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from rowtier.plan.plan import Certificate

WIDTH = 100

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the facts as one JSON object for machines.")
]


def as_json(data: object) -> None:
    """Print one JSON object."""
    typer.echo(json.dumps(data, ensure_ascii=False))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table at most 100 columns wide: first column left, the others right."""
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for index, column in enumerate(columns):
        grid.add_column(column, justify="right" if index else "left", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    _console().print(grid)


def line(text: str = "") -> None:
    """Print a line of text, wrapped to 100 columns."""
    _console().print(text, highlight=False, markup=False)


def amount(certificate: Certificate) -> str:
    """A plan's objective in the unit of its view."""
    from rowtier.cost.views import VIEWS
    from rowtier.units import show_bytes

    if VIEWS[certificate.view].unit == "s":
        return f"{1e3 * certificate.objective:.4g} ms"
    return show_bytes(certificate.objective)


def written(path: Path) -> None:
    """Say where the result is; a path is never wrapped, so that it can be copied."""
    typer.echo(f"written to {path}")


@contextlib.contextmanager
def progress(
    what: str, quiet: bool = False, after_s: float = 0.0
) -> Iterator[Callable[[float], None]]:
    """A progress bar on a terminal, nothing elsewhere; call it with the share that is done.

    It is shown when the work has taken so many seconds.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda _share: None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=1.0)
    begin = threading.Timer(after_s, bar.start)
    begin.start()
    try:
        yield lambda share: bar.update(task, completed=share)
    finally:
        begin.cancel()
        bar.stop()


def _console() -> Console:
    from rich.console import Console

    console = Console()
    return Console(width=min(console.width, WIDTH) if console.is_terminal else WIDTH)

"""What commands share for showing results: tables that fit, JSON, a progress bar.

All that is printed passes through here, and all of it may hold names and paths of others, so it is
made safe to show (`foreign.py`), whoever gives it.
"""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rowtier.cli import streams
from rowtier.foreign import columns as width_of
from rowtier.foreign import plain, shown
from rowtier.progress_bar import progress as progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from rowtier.plan.plan import Certificate

WIDTH = 100
LONGEST_LINE = 4000  # of text that others may have made as long as they like
_FILLER = "\0"

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the facts as one JSON object for machines.")
]


def as_json(data: object) -> None:
    """Print one JSON object, valid and safe to show whatever is in it."""
    typer.echo(json_text(data, streams.encoding()))


def json_text(data: object, encoding: str = "utf-8") -> str:
    """JSON in letters that an encoding has; what is no number is null, as JSON has no word for it.

    Letters that a terminal would obey are escaped, which changes nothing for who parses it.
    """
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    except ValueError:
        data = _finite(data)
        text = json.dumps(data, ensure_ascii=False)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = json.dumps(data)
    return text.replace("\x7f", "\\u007f")


def _finite(data: object) -> object:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table at most 100 columns wide: first column left, the others right."""
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for index, column in enumerate(columns):
        grid.add_column(_text(column), justify="right" if index else "left", overflow="fold")
    for row in rows:
        grid.add_row(*map(_text, row))
    _console().print(grid)


def line(text: str = "") -> None:
    """Print a line of text, wrapped to 100 columns."""
    _console().print(_text(text))


def error(entries: Sequence[str]) -> None:
    """Print an error on standard error, wrapped to 100 columns: a line, and what it lists."""
    for index, entry in enumerate(entries):
        indent = "  " if index else ""
        said = plain(shown(entry, LONGEST_LINE), getattr(sys.stderr, "encoding", None) or "utf-8")
        # A letter that takes two columns is counted as two, and may have to hang over by one.
        spread = "".join(letter + _FILLER * (width_of(letter) - 1) for letter in said)
        width = WIDTH - (_FILLER in spread)
        lines = textwrap.wrap(indent + spread, width, subsequent_indent=indent + "  ")
        typer.echo("\n".join(lines).replace(_FILLER, ""), err=True)


def amount(certificate: Certificate) -> str:
    """A plan's objective in the unit of its view."""
    from rowtier.cost.views import VIEWS
    from rowtier.units import show_bytes

    if VIEWS[certificate.view].unit == "s":
        return f"{1e3 * certificate.objective:.4g} ms"
    return show_bytes(certificate.objective)


def written(path: Path) -> None:
    """Say where the result is; a path is never wrapped, so that it can be copied."""
    typer.echo(plain(f"written to {shown(path)}", streams.encoding()))


def _text(text: str) -> Text:
    """Words for rich, which takes a plain string for markup; lines of ours stay lines."""
    from rich.text import Text

    return Text(plain("\n".join(map(shown, text.split("\n"))), streams.encoding()))


def _console() -> Console:
    from rich.console import Console

    console = Console()
    return Console(width=min(console.width, WIDTH) if console.is_terminal else WIDTH)

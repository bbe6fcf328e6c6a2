"""The figures behind a chart: drawn from it, and downloaded from the page as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Cell = str | int | float | bool | None
DIGITS = 6
# Vega keeps groups in plain objects of JavaScript, which have these from the start.
_TAKEN = frozenset(
    [
        *("constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "valueOf"),
        *("toString", "toLocaleString", "__proto__", "__defineGetter__", "__defineSetter__"),
        *("__lookupGetter__", "__lookupSetter__"),
    ]
)


@dataclass(frozen=True)
class Sheet:
    """A small table of figures, in SI base units."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @classmethod
    def of(cls, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Sheet:
        """Keep plain numbers with six digits: more than any chart shows, and half the bytes."""
        return cls(tuple(columns), tuple(tuple(_plain(cell) for cell in row) for row in rows))

    def column(self, name: str) -> list[Cell]:
        """All cells of one column."""
        at = self.columns.index(name)
        return [row[at] for row in self.rows]

    def where(self, name: str, cell: Cell) -> Sheet:
        """The rows that have a cell in a column."""
        at = self.columns.index(name)
        return Sheet(self.columns, tuple(row for row in self.rows if row[at] == cell))

    def to_dict(self) -> dict[str, Any]:
        """The same for the page."""
        return {"columns": list(self.columns), "rows": [list(row) for row in self.rows]}


def drawable(name: str) -> str:
    """A name that charts can group by; a space tells it from what every object has."""
    return f"{name} " if name in _TAKEN else name


def _plain(cell: Any) -> Cell:
    if cell is None or isinstance(cell, (str, bool)):
        return cell
    value = cell.item() if hasattr(cell, "item") else cell
    if isinstance(value, int):
        return value
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded

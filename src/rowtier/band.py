"""A band: a run of positions (and columns) of one table, and the home it is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from rowtier.errors import Mistake
from rowtier.fields import Name, Rows
from rowtier.files import Noun
from rowtier.tables import Exchange


def _members(value: Any) -> Any:
    listed = isinstance(value, (list, tuple)) and all(type(entry) is int for entry in value)
    if value == "all" or (listed and value):
        return value if value == "all" else tuple(value)
    raise PydanticCustomError("rowtier", "write all, or a list of member numbers such as [0, 3]")


def _columns(value: Any) -> Any:
    if value is None or (
        isinstance(value, (list, tuple)) and [type(entry) for entry in value] == [int, int]
    ):
        return value if value is None else tuple(value)
    raise PydanticCustomError("rowtier", "write two whole numbers [first, after the last]")


class Band(Noun):
    """Positions `start` to `stop` of a table, kept once per group of `scope` in one memory tier."""

    start: Rows
    stop: Rows
    columns: Annotated[tuple[int, int] | None, BeforeValidator(_columns)] = None
    scope: Name
    members: Annotated[tuple[int, ...] | Literal["all"], BeforeValidator(_members)] = "all"
    order: Literal["spread", "blocks"] = "spread"
    offset: Rows = 0
    tier: Name
    exchange: Exchange = "rows"
    coalesced: bool = Field(default=False, strict=True)
    staged: bool = Field(default=False, strict=True)
    sync: Literal["dense", "sparse"] = "dense"

    @classmethod
    def cross_mistakes(cls, data: Mapping[str, Any]) -> Iterator[Mistake]:
        """A band holds at least one row and one column, and a member once."""
        start, stop, columns = data.get("start"), data.get("stop"), data.get("columns", ())
        if type(start) is int and type(stop) is int and stop <= start:
            yield Mistake("stop", stop, f"must be greater than start, {start}")
        pair = isinstance(columns, (list, tuple)) and [type(c) for c in columns] == [int, int]
        if pair and not 0 <= columns[0] < columns[1]:
            yield Mistake("columns", columns, "must be [first, after the last], rising from 0")
        members = data.get("members")
        if isinstance(members, (list, tuple)) and len(set(map(str, members))) < len(members):
            yield Mistake("members", members, "a member appears twice; name each once")

    @property
    def rows(self) -> int:
        """How many positions the band holds."""
        return self.stop - self.start

    def width(self, embedding_dim: int) -> int:
        """How many columns the band holds."""
        return embedding_dim if self.columns is None else self.columns[1] - self.columns[0]

    def member_list(self, group_devices: int) -> tuple[int, ...]:
        """The members as numbers; `all` means all devices of the scope group, no servers."""
        return tuple(range(group_devices)) if self.members == "all" else self.members

    def rows_per_member(self, members: int) -> NDArray[np.int64]:
        """How many of the band's rows each of its members keeps, by position in the list."""
        position = np.arange(members, dtype=np.int64)
        if self.order == "blocks":
            block = -(-self.rows // members)
            return np.clip(self.rows - position * block, 0, block)
        share, rest = divmod(self.rows, members)
        return share + ((position - self.offset) % members < rest)


Bands = Mapping[str, tuple[Band, ...]]  # per table name


def layers_of(bands: Sequence[Band]) -> list[list[Band]]:
    """As few lists as possible of bands that share no row; almost every table has one."""
    layers: list[list[Band]] = []
    for band in sorted(bands, key=lambda band: (band.start, band.stop)):
        free = next((layer for layer in layers if layer[-1].stop <= band.start), None)
        if free is None:
            layers.append([band])
        else:
            free.append(band)
    return layers

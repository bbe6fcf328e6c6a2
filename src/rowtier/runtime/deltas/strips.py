"""Rows as a rank holds them, copied with their ids: in files, and from files onto tables.

In a file a strip has a number: its tensors are `<number>|ids` and, for every field of the rows,
`<number>|<first column>|<label>`, with a line for each id. Of growing tables `ids`
are rows, and what ids these have now is `<number>|names`, or for strings `<number>|name_starts` and
`<number>|name_text`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rowtier.plan.remap import TableMap
from rowtier.runtime.blocks import is_by_row
from rowtier.runtime.deltas.tensor_file import DTYPE_NAMES, Held
from rowtier.runtime.engine import Engine
from rowtier.runtime.store.address import Piece
from rowtier.runtime.store.memory import RamRows
from rowtier.runtime.store.storage import Shard

Ints = NDArray[np.int64]
Array = NDArray[Any]
Labels = Mapping[str, Mapping[str, str]]  # table → field ("weight" or a kind of state) → label


@dataclass(frozen=True, eq=False)
class RowStrip:
    """Some rows of a piece, as they were when they were copied."""

    piece: Piece
    entry: TableMap
    slots: Ints | None  # None: all
    fields: dict[str, tuple[str, int, Array]]  # label → type, first column, a line for each row

    @property
    def count(self) -> int:
        """How many rows."""
        return self.piece.rows_here if self.slots is None else len(self.slots)

    def ids(self, rows: Ints) -> Ints:
        """Which rows these are; `rows`: of the table, by address."""
        address = self.piece.addresses_here()
        if self.slots is not None:
            address = address[self.slots]
        return np.asarray(rows[self.entry.in_first_layer(self.piece.layer, address)])


class ReadStrip(NamedTuple):
    """A strip of a file."""

    ids: torch.Tensor
    fields: dict[str, tuple[int, torch.Tensor]]  # label → first column, a line for each id
    names: dict[str, torch.Tensor]  # the ids of a growing table's rows

    def check_rows(self, count: int) -> None:
        """Refuse ids that are no rows of a table."""
        if len(self.ids) and not 0 <= int(self.ids.min()) <= int(self.ids.max()) < count:
            raise ValueError(f"ids from {self.ids.min()} to {self.ids.max()} of {count} rows")

    def put(self, label: str, target: torch.Tensor, first_row: int) -> None:
        """Write a field onto a table, or a part of one that begins with some row."""
        first, values = self.fields[label]
        at = self.ids - first_row
        inside = (at >= 0) & (at < len(target))
        if not bool(inside.all()):
            at, values = at[inside], values[inside]
        lines = target if target.ndim == 2 else target[:, None]
        lines[at, first : first + values.shape[1]] = values


def strip_bytes(engine: Engine, labels: Labels, bit: int) -> tuple[int, int]:
    """Bytes of this rank's fields that changed, and of all, those that it would write."""
    changed = every = 0
    for shard, fields in _written(engine, labels):
        arrays = [_array(shard, field) for field in fields]
        row_bytes = sum(array.itemsize * array.shape[1] for array in arrays)
        assert engine.changes is not None
        changed += row_bytes * len(engine.changes.slots(shard, bit))
        every += row_bytes * shard.piece.rows_here
    return changed, every


def copy_strips(engine: Engine, labels: Labels, bit: int | None) -> list[RowStrip]:
    """Copy this rank's rows that have a mark, or all; no other rank is asked."""
    found = []
    for shard, fields in _written(engine, labels):
        slots = None
        if bit is not None:
            assert engine.changes is not None
            slots = engine.changes.slots(shard, bit)
            if len(slots) == shard.piece.rows_here:
                slots = None
        table = shard.piece.table
        copies = {}
        for field, label in fields.items():
            first = 0 if is_by_row(table, field) else shard.piece.columns[0]
            dtype = DTYPE_NAMES[table.dtype] if field == "weight" else "F32"
            copies[label] = (dtype, first, _copy(shard, field, slots))
        if slots is None or len(slots):
            found.append(RowStrip(shard.piece, engine.remapper.tables[table.name], slots, copies))
    return found


def tensors_of(
    strips: list[RowStrip], names: Callable[[str, Ints], dict[str, Array]] = lambda *_: {}
) -> Iterator[Held]:
    """What a file of strips holds; `names` gives the ids of rows of a growing table."""
    rows: dict[str, Ints] = {}
    for number, strip in enumerate(strips):
        name = strip.piece.table.name
        if name not in rows:
            rows = {name: strip.entry.rows()}  # of one table at a time
        ids = strip.ids(rows[name]).astype(np.int64, copy=False)
        # Once for each row, beside its first columns.
        beside = names(name, ids) if strip.piece.columns[0] == 0 else {}
        small = beside and strip.piece.table.num_embeddings <= np.iinfo(np.int32).max
        yield Held(f"{number}|ids", *(("I32", ids.astype(np.int32)) if small else ("I64", ids)))
        for part, array in beside.items():
            yield Held(f"{number}|{part}", "U8" if array.dtype == np.uint8 else "I64", array)
        for label, (dtype, first, values) in strip.fields.items():
            yield Held(f"{number}|{first}|{label}", dtype, values)


def read_strips(path: Path) -> Iterator[ReadStrip]:
    """The strips of a file whose bytes were checked before."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        names: dict[str, list[str]] = {}
        for name in file.keys():  # noqa: SIM118 - no mapping
            names.setdefault(name.partition("|")[0], []).append(name)
        for of_strip in names.values():
            fields, beside = {}, {}
            for name in of_strip:
                _, *rest = name.split("|", 2)
                if len(rest) == 2:
                    fields[rest[1]] = (int(rest[0]), file.get_tensor(name))
                else:
                    beside[rest[0]] = file.get_tensor(name)
            yield ReadStrip(beside.pop("ids").to(torch.int64), fields, beside)


def _written(engine: Engine, labels: Labels) -> Iterator[tuple[Shard, dict[str, str]]]:
    """The shards that this rank writes, of each copied band the first group's, and their fields."""
    for table, fields in labels.items():
        for piece in (piece for layer in engine.pieces[table] for piece in layer):
            if piece.rows_here and piece.group == 0:
                # Row-wise state is the same beside all columns of a row: the first layer has it.
                here = {
                    field: label
                    for field, label in fields.items()
                    if piece.layer == 0 or not is_by_row(piece.table, field)
                }
                if here:
                    yield engine.shards[piece.number], here


def _array(shard: Shard, field: str) -> Array:
    found: Array = shard.weights if field == "weight" else shard.state[field]
    return found


def _copy(shard: Shard, field: str, slots: Ints | None) -> Array:
    if slots is None and isinstance(shard.rows, RamRows):
        return _array(shard, field).copy()
    return shard.take(field, np.arange(shard.piece.rows_here) if slots is None else slots)

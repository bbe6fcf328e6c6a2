"""Deltas onto an export: the export that would have been written at the moment of the last one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rowtier.errors import MismatchError, UserError
from rowtier.reading import StrPath
from rowtier.runtime.checkpoint import exported
from rowtier.runtime.checkpoint.export import write_export
from rowtier.runtime.checkpoint.export_tables import Rooms
from rowtier.runtime.deltas.delta import Delta, TensorForm, check_table, positions_in
from rowtier.runtime.deltas.row_ids import check_ids, id_names, newer_ids
from rowtier.runtime.store.position import Position

_TORCH = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class AppliedDeltas(NamedTuple):
    """What came of it."""

    output: str
    deltas: int
    changed_rows: int  # written, some perhaps several times
    positions: dict[str, Position]  # of the tensors in the output


def apply_deltas(
    base: StrPath,
    deltas: Sequence[StrPath],
    output: StrPath,
    progress: Callable[[float], None] = lambda _: None,
) -> AppliedDeltas:
    """Write an export with the rows of deltas, in their order; every byte is checked first."""
    path, target = Path(base), Path(output)
    if not deltas:
        raise UserError("no deltas: name the folders that embeddings.delta() wrote, in order")
    if target.is_dir():
        raise UserError(f"{target}: is a folder; give a file, such as {target}/tables.safetensors")
    exported.check_export(path)
    loaded = [Delta.load(delta) for delta in deltas]
    with path.open("rb") as file:
        entries, first = exported.read_header(path, file)
    positions = _followed(path, entries, loaded)
    starts = accumulate((entry.size_bytes for entry in entries), initial=first)
    places = {entry.name: (start, entry) for start, entry in zip(starts, entries, strict=False)}

    ids = _newer_ids(path, places, loaded)

    def fill(rooms: Rooms) -> None:
        for name, room in rooms.items():
            start, entry = places[name]
            if name in ids:
                room.numpy()[:] = np.ascontiguousarray(ids[name]).view(np.uint8)
            elif entry.size_bytes:
                room.numpy()[:] = np.memmap(path, np.uint8, "r", start, (entry.size_bytes,))
            if name in positions:  # scales and ids beside a table are there already
                table = room.view(_TORCH[entry.dtype]).view(entry.shape)
                for delta in loaded:
                    delta.put({name: table})

    renamed = [
        entry._replace(
            sums=(),
            position=str(positions[entry.name]) if entry.position else "",
            shape=ids[entry.name].shape if entry.name in ids else entry.shape,
        )
        for entry in entries
    ]
    write_export(target, [[entry] for entry in renamed], fill, progress)
    changed = sum(delta.changed_rows for delta in loaded)
    return AppliedDeltas(str(target), len(loaded), changed, positions)


def _followed(
    path: Path, entries: list[exported.Entry], deltas: Sequence[Delta]
) -> dict[str, Position]:
    """Where all tables are in the end; refused unless every delta follows what is before it."""
    positions, forms = positions_in(path), {e.name: TensorForm(e.shape, e.dtype) for e in entries}
    what = dict.fromkeys(positions, str(path))
    for delta in deltas:
        for name in delta.index.tables:
            if name not in positions:
                raise MismatchError(
                    f"{delta.path}: has rows of {name}, and {path} has no such table; it has "
                    f"{', '.join(forms)}: it is a delta of another model"
                )
            check_table(delta, name, forms[name], str(path))
            check_ids(delta, name, name, forms, str(path))
            delta.check_follows(positions[name], what[name])
            positions[name], what[name] = delta.position, str(delta.path)
    return positions


def _newer_ids(
    path: Path, places: Mapping[str, tuple[int, exported.Entry]], deltas: Sequence[Delta]
) -> dict[str, NDArray[Any]]:
    """The ids of growing tables after all deltas, by the names of their tensors."""
    found: dict[str, NDArray[Any]] = {}
    for delta in deltas:
        for name, table in delta.index.tables.items():
            if table.id_kind is None:
                continue
            names = {full.rpartition(".")[2]: full for full in id_names(name, table.id_kind)}
            for full in names.values():
                if full not in found:
                    found[full] = _read(path, *places[full])
            before = {part: found[full] for part, full in names.items()}
            newer = newer_ids(delta, name, before)
            found |= {names[part]: values for part, values in newer.items()}
    return found


def _read(path: Path, start: int, entry: exported.Entry) -> NDArray[Any]:
    """A tensor of ids of an export."""
    kind = np.uint8 if entry.dtype == "U8" else np.int64
    with path.open("rb") as file:
        file.seek(start)
        return np.frombuffer(file.read(entry.size_bytes), dtype=kind)

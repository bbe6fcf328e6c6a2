"""A checkpoint's tables as one safetensors file, or a Parquet file each: no process group.

The safetensors file is laid out first (a header, then every tensor at its place) and each table is
read straight into its place, or in parts if its rows are written in another form, so that memory
holds no more than what one rank had of one table. The header has checksums of everything:
`exported.py` checks them. No pickle is run: neither the list of tensors nor a tensor can ask for
anything but data.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.locks import is_free, lock
from rowtier.plan.plan import Plan
from rowtier.reading import StrPath
from rowtier.runtime.checkpoint import exported, saves
from rowtier.runtime.checkpoint.checksums import read_run
from rowtier.runtime.checkpoint.export_tables import Exported, Rooms, tables_of
from rowtier.runtime.checkpoint.row_chain import RowChain
from rowtier.runtime.checkpoint.row_forms import ROWS_AS, RowsAs
from rowtier.writing import writing

FORMATS = ("safetensors", "parquet")
Progress = Callable[[float], None]
Fill = Callable[[Rooms], None]


def export(
    checkpoint: StrPath,
    output: StrPath,
    progress: Progress = lambda _: None,
    *,
    rows_as: RowsAs | None = None,
    to: Literal["safetensors", "parquet"] = "safetensors",
    plan: Plan | StrPath | None = None,
) -> list[Exported]:
    """Write the tables of a checkpoint's current save to a safetensors file.

    Names are those of TorchRec's collections: `embedding_bags.<table>.weight`, and
    `embeddings.<table>.weight` for tables that are not pooled. `rows_as` writes rows for serving:
    "int8" with a scale for each row, "fp16" or "fp32". To "parquet": a folder with a file for each
    table. Ids of tables that have a vocabulary come from the `plan` that was trained; rows for
    serving, and Parquet, cannot do without.
    """
    if rows_as not in (None, *ROWS_AS):
        raise UserError(f"rows_as {rows_as!r}: accepted are {', '.join(ROWS_AS)}")
    if to not in FORMATS:
        raise UserError(f"format {to!r}: accepted are {' and '.join(FORMATS)}")
    if plan is not None and not isinstance(plan, Plan):
        plan = Plan.load(plan)
    save, target = saves.current(Path(checkpoint)), Path(output)
    if to == "safetensors" and target.is_dir():
        raise UserError(f"{target}: is a folder; give a file, such as {target}/tables.safetensors")
    chain = RowChain(saves.chain(save))
    by_id = plan is not None or rows_as is not None or to == "parquet"
    tables = tables_of(chain, rows_as, None if plan is None else plan.vocabularies, by_id=by_id)
    if to == "parquet":
        from rowtier.runtime.checkpoint.export_parquet import write_parquet

        write_parquet(chain, tables, target, progress)
        return tables
    by_name = {table.name: table for table in tables}

    def fill(rooms: Rooms) -> None:
        by_name[next(iter(rooms))].fill(chain, rooms, target.parent)

    write_export(target, [table.entries for table in tables], fill, progress)
    return tables


def write_export(
    target: Path,
    groups: Sequence[Sequence[exported.Entry]],
    fill: Fill,
    progress: Progress = lambda _: None,
) -> None:
    """Write a file of tensors whose bytes are filled in, one group of them after the other."""
    with writing(target), _beside(target) as path:
        _write(groups, fill, path, progress)
        _check(path, [entry for group in groups for entry in group])
        path.replace(target)


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A file beside the target that is gone afterwards; those of killed exports go, too."""
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}.rowtier-export-"
    for left in target.parent.glob(f"{prefix}*"):
        with suppress(OSError), left.open("rb+") as file:
            if is_free(file.fileno()):
                left.unlink()
    handle, name = tempfile.mkstemp(prefix=prefix, dir=target.parent)
    lock(handle)
    try:
        Path(name).chmod(target.stat().st_mode if target.exists() else 0o666 & ~_umask())
        yield Path(name)
    finally:
        os.close(handle)
        Path(name).unlink(missing_ok=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _write(
    groups: Sequence[Sequence[exported.Entry]], fill: Fill, path: Path, progress: Progress
) -> None:
    # Wide numbers first, so that all are aligned, as the safetensors library does it.
    entries = [entry for group in groups for entry in group]
    entries.sort(key=lambda entry: -exported.ITEM_BYTES[entry.dtype])
    start, places = len(exported.header(entries)), {}
    end = start
    for entry in entries:
        places[entry.name] = end
        end += entry.size_bytes
    sums, done = {}, 0
    # Read without a buffer, which would hold bytes of a table from before they were filled in.
    with path.open("rb+") as file, path.open("rb", buffering=0) as filled:
        # Taken now: writing to mapped memory that has no room on the disk would end the process.
        os.posix_fallocate(file.fileno(), 0, end)
        for group in groups:
            memory = {entry.name: _mapped(path, places[entry.name], entry) for entry in group}
            fill({name: torch.from_numpy(room) for name, room in memory.items()})
            for entry in group:
                room, at = memory[entry.name], places[entry.name]
                if isinstance(room, np.memmap):
                    room.flush()
                sums[entry.name] = read_run(filled, at, at + entry.size_bytes).sums
                done += entry.size_bytes
            progress(done / max(1, end - start))
        file.seek(0)
        file.write(exported.header([e._replace(sums=sums[e.name]) for e in entries]))
        file.flush()
        os.fsync(file.fileno())


def _mapped(path: Path, at: int, entry: exported.Entry) -> NDArray[np.uint8]:
    """The bytes of a tensor in the file; nothing cannot be mapped."""
    if not entry.size_bytes:
        return np.empty(0, dtype=np.uint8)
    return np.memmap(path, np.uint8, "r+", at, (entry.size_bytes,))


def _check(path: Path, entries: list[exported.Entry]) -> None:
    """The library that will read the file has the last word on its form."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    assert found == {entry.name: entry.shape for entry in entries}

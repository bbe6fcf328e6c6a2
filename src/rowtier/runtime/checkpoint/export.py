"""A checkpoint's tables as one safetensors file: plain tensors, no process group.

The file is laid out first (a header, then every table at its place) and each table is read
straight into its place, so that memory holds no more than what one rank had of one table. The
header has checksums of everything: `exported.py` checks them. No pickle is run: neither the list
of tensors nor a tensor can ask for anything but data.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rowtier.errors import UserError
from rowtier.locks import is_free, lock
from rowtier.reading import StrPath
from rowtier.runtime.checkpoint import exported, saves, shards
from rowtier.runtime.checkpoint.checksums import read_run
from rowtier.runtime.checkpoint.dcp_metadata import tensor_at
from rowtier.runtime.checkpoint.shards import CheckedReader
from rowtier.writing import writing

_DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass(frozen=True)
class Exported:
    """A table in the file."""

    key: str  # in the checkpoint
    name: str  # in the file
    table: str
    pooling: str
    shape: tuple[int, int]
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        """Bytes of its weights."""
        return self.shape[0] * self.shape[1] * int(self.dtype.itemsize)

    def to_dict(self) -> dict[str, Any]:
        """The facts for machines."""
        return {
            "table": self.table,
            "name": self.name,
            "pooling": self.pooling,
            "shape": list(self.shape),
            "dtype": _DTYPES[self.dtype],
            "bytes": self.size_bytes,
        }


def export(
    checkpoint: StrPath, output: StrPath, progress: Callable[[float], None] = lambda _: None
) -> list[Exported]:
    """Write the tables of a checkpoint's current save to a safetensors file.

    Names are those of TorchRec's collections: `embedding_bags.<table>.weight`, and
    `embeddings.<table>.weight` for tables that are not pooled.
    """
    save, target = saves.current(Path(checkpoint)), Path(output)
    if target.is_dir():
        raise UserError(f"{target}: is a folder; give a file, such as {target}/tables.safetensors")
    reader = CheckedReader(save, saves.about(save))
    tables = _tables(reader)
    with writing(target), _beside(target) as path:
        _write(reader, tables, path, progress)
        _check(path, tables)
        path.replace(target)
    return tables


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


def _tables(reader: CheckedReader) -> list[Exported]:
    about = reader.about.tables
    if not about:
        raise UserError(
            f"{reader.save}: no part of the checkpoint has embedding tables: save the model, or "
            "the ShardedEmbeddings, as a part"
        )
    often = Counter(entry.name for entry in about.values())
    stored, path = reader.read_metadata(), reader.save / shards.METADATA
    found = []
    for key, entry in about.items():
        tensor = tensor_at(path, stored, key)
        if tensor.properties.dtype not in _DTYPES or len(tensor.size) != 2:
            raise UserError(f"{path}: {key} is no table ({tensor.properties.dtype}); save it anew")
        # Two modules of a model may have tables of the same name: then say which.
        name = entry.name if often[entry.name] == 1 else key
        rows, columns = tensor.size
        dtype = tensor.properties.dtype
        found.append(Exported(key, name, entry.table, entry.pooling, (rows, columns), dtype))
    # Wide numbers first, so that all are aligned, as the safetensors library does it.
    return sorted(found, key=lambda table: -table.dtype.itemsize)


def _write(
    reader: CheckedReader, tables: list[Exported], path: Path, progress: Callable[[float], None]
) -> None:
    total = sum(table.size_bytes for table in tables)
    entries = [exported.Entry(t.name, _DTYPES[t.dtype], t.shape, t.size_bytes) for t in tables]
    start = len(exported.header(entries))
    with path.open("rb+") as file:
        # Taken now: writing to mapped memory that has no room on the disk would end the process.
        os.posix_fallocate(file.fileno(), 0, start + total)
        at, summed = start, []
        for entry, table in zip(entries, tables, strict=True):
            _copy(reader, table, path, at)
            stop = at + table.size_bytes
            summed.append(entry._replace(sums=read_run(file, at, stop).sums))
            at = stop
            progress((at - start) / total)
        file.seek(0)
        file.write(exported.header(summed))
        file.flush()
        os.fsync(file.fileno())


def _copy(reader: CheckedReader, table: Exported, path: Path, at: int) -> None:
    """Read a table into its place."""
    if table.size_bytes:
        memory = np.memmap(path, np.uint8, "r+", at, (table.size_bytes,))
        room = torch.from_numpy(memory).view(table.dtype).view(table.shape)
        shards.read(reader, {table.key: room}, None, alone=True)
        memory.flush()


def _check(path: Path, tables: list[Exported]) -> None:
    """The library that will read the file has the last word on its form."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    assert found == {table.name: table.shape for table in tables}

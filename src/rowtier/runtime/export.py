"""A checkpoint's tables as one safetensors file: plain tensors, no process group.

The file is laid out first (a header, then every table at its place) and each table is read
straight into its place, so that memory holds no more than what one rank had of one table.
"""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

from rowtier.errors import UserError
from rowtier.files import StrPath, writing
from rowtier.runtime import saves

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
    tables = _tables(save)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write(save, tables, beside, progress)
            _check(beside, tables)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    return tables


def _tables(save: Path) -> list[Exported]:
    about = saves.about(save)["tables"]
    if not about:
        raise UserError(
            f"{save}: no part of the checkpoint has embedding tables: save the model, or the "
            "ShardedEmbeddings, as a part"
        )
    often = Counter(entry["name"] for entry in about.values())
    stored = dcp.FileSystemReader(save).read_metadata().state_dict_metadata
    found = [
        Exported(
            key,
            # Two modules of a model may have tables of the same name: then say which.
            entry["name"] if often[entry["name"]] == 1 else key,
            entry["table"],
            entry["pooling"],
            tuple(stored[key].size),
            stored[key].properties.dtype,
        )
        for key, entry in about.items()
    ]
    # Wide numbers first, so that all are aligned, as the safetensors library does it.
    return sorted(found, key=lambda table: -table.dtype.itemsize)


def _header(tables: list[Exported]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for table in tables:
        entries[table.name] = {
            "dtype": _DTYPES[table.dtype],
            "shape": list(table.shape),
            "data_offsets": [at, at + table.size_bytes],
        }
        at += table.size_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write(
    save: Path, tables: list[Exported], path: Path, progress: Callable[[float], None]
) -> None:
    header, total = _header(tables), sum(table.size_bytes for table in tables)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + total)
    at, start = len(header), len(header)
    for table in tables:
        memory = np.memmap(path, np.uint8, "r+", at, (table.size_bytes,))
        with warnings.catch_warnings():
            # torch warns that one process reads alone, which is what was asked for.
            warnings.filterwarnings("ignore", message=".*torch.distributed is")
            dcp.load(
                {table.key: torch.from_numpy(memory).view(table.dtype).view(table.shape)},
                storage_reader=dcp.FileSystemReader(save),
                planner=DefaultLoadPlanner(flatten_state_dict=False),
                no_dist=True,
            )
        memory.flush()
        at += table.size_bytes
        progress((at - start) / total)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _check(path: Path, tables: list[Exported]) -> None:
    """The library that will read the file has the last word on its form."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    assert found == {table.name: table.shape for table in tables}

"""A save as it is read: its own tensors, and rows from the saves that it follows, oldest first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rowtier.runtime.blocks import block_of
from rowtier.runtime.checkpoint import shards
from rowtier.runtime.checkpoint.about import About
from rowtier.runtime.checkpoint.dcp_metadata import tensor_at
from rowtier.runtime.checkpoint.shards import CheckedReader
from rowtier.runtime.deltas.strips import read_strips

ROWS_FILES = "rows-*.safetensors"
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class StoredForm(NamedTuple):
    """The shape and type of a saved tensor."""

    shape: torch.Size
    dtype: torch.dtype


class RowChain:
    """The saves that one save is made of."""

    def __init__(self, links: list[tuple[Path, About]]):
        self.links = links
        self.save, self.about = links[-1]
        self.reader = CheckedReader(*links[-1])
        first_save, first = links[0]
        # The first may have all rows in the files of ranks, too: then there is no more to read.
        apart = bool(self.about.rows) and not first.rows
        self._base = CheckedReader(first_save, first) if apart else None

    def form(self, key: str) -> StoredForm:
        """What a tensor was when it was saved."""
        if key in self.about.rows:
            rows = self.about.rows[key]
            return StoredForm(torch.Size(rows.shape), _DTYPES[rows.dtype])
        path = self.save / shards.METADATA
        stored = tensor_at(path, self.reader.read_metadata(), key)
        return StoredForm(stored.size, stored.properties.dtype)

    def names(self) -> list[str]:
        """The names of all tensors."""
        stored = self.reader.read_metadata().state_dict_metadata.items()
        return [*(key for key, its in stored if hasattr(its, "size")), *self.about.rows]

    def read(
        self, room: Mapping[str, torch.Tensor], group: dist.ProcessGroup | None, alone: bool
    ) -> None:
        """Fill tensors in place; all ranks must call this, and then `put_rows`."""
        rows = {key: tensor for key, tensor in room.items() if key in self.about.rows}
        plain: dict[str, Any] = {key: t for key, t in room.items() if key not in rows}
        shards.read(self.reader, plain, group, alone)
        if self._base is not None and rows:
            shards.read(self._base, rows, group, alone)

    def put_rows(self, room: Mapping[str, torch.Tensor]) -> None:
        """Write rows that the files of ranks have onto tensors that were read."""
        targets = {key: _local(room[key]) for key in self.about.rows if key in room}
        for save, about in self.links if targets else ():
            for name in about.files:
                if Path(name).match(ROWS_FILES):
                    about.check_file(save / name)
                    for strip in read_strips(save / name):
                        for key in strip.fields.keys() & targets.keys():
                            strip.put(key, *targets[key])


def _local(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """What this rank has of a tensor, and with which row that begins."""
    if not isinstance(tensor, DTensor):
        return tensor, 0
    mesh = tensor.device_mesh
    return tensor.to_local(), block_of(tensor.shape[0], mesh.get_local_rank(), mesh.size())[0]

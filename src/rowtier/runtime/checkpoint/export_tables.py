"""Which tables of a save are exported, in which form, and their rows one part after the other."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rowtier.errors import MismatchError, UserError
from rowtier.runtime.checkpoint.about import SavedTable
from rowtier.runtime.checkpoint.exported import WEIGHT, Entry
from rowtier.runtime.checkpoint.row_chain import RowChain
from rowtier.runtime.checkpoint.row_forms import STORED, RowsAs, StoredRows, stored_rows
from rowtier.runtime.checkpoint.saved_vocabularies import saved_vocabularies

if TYPE_CHECKING:
    from rowtier.profile.vocabulary import Vocabulary

Rooms = Mapping[str, torch.Tensor]  # the bytes of tensors in a file, by their names
DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
PART_BYTES = 16 << 20  # of rows that are changed at once
_IDS = {"i8": "I64", "u8": "U64", "u1": "U8"}


@dataclass(frozen=True)
class Exported:
    """A table in the file."""

    key: str  # in the checkpoint
    name: str  # in the file
    table: str
    pooling: str
    shape: tuple[int, int]
    dtype: torch.dtype  # in the checkpoint
    rows_as: RowsAs | None = None  # in the file, if not as in the checkpoint
    vocabulary: Vocabulary | None = None  # the ids that its first rows stand for
    position: str = ""  # what its weights are called, for deltas

    @property
    def stored(self) -> str:
        """The type of its rows in the file, as safetensors calls it."""
        return DTYPES[self.dtype] if self.rows_as is None else STORED[self.rows_as]

    @property
    def saved_bytes(self) -> int:
        """Bytes of its weights in the checkpoint."""
        return self.shape[0] * self.shape[1] * int(self.dtype.itemsize)

    @property
    def size_bytes(self) -> int:
        """Bytes of its weights, and of scales and ids beside them."""
        return sum(entry.size_bytes for entry in self.entries)

    def beside(self, what: str) -> str:
        """The name of what stands beside the weights."""
        return f"{self.name.removesuffix(WEIGHT)}.{what}"

    @property
    def entries(self) -> list[Entry]:
        """Its tensors, the weights first."""
        # Deltas have rows as they are trained: they do not go onto other forms.
        position = "" if self.rows_as else self.position
        found = [Entry(self.name, self.stored, self.shape, position=position)]
        if self.stored == "I8":
            found.append(Entry(self.beside("scale"), "F32", self.shape[:1]))
        found += [
            Entry(self.beside(what), _IDS[array.dtype.str[1:]], array.shape)
            for what, array in self.ids.items()
        ]
        return found

    @cached_property
    def ids(self) -> dict[str, NDArray[Any]]:
        """The ids of a vocabulary as arrays, by the names that they have in the file."""
        if self.vocabulary is None:
            return {}
        ids = self.vocabulary.ids
        if isinstance(ids, np.ndarray):
            return {"ids": ids}
        from rowtier.profile.hashing import string_parts

        starts, text = string_parts(ids)
        return {"id_starts": starts - starts[0], "id_text": text[starts[0] : starts[-1]]}

    def to_dict(self) -> dict[str, Any]:
        """The facts for machines."""
        facts = {
            "table": self.table,
            "name": self.name,
            "pooling": self.pooling,
            "shape": list(self.shape),
            "dtype": self.stored,
            "bytes": self.size_bytes,
        }
        beside = [entry.name for entry in self.entries[1:]]
        return facts | ({"beside": beside} if beside else {})

    def fill(self, chain: RowChain, rooms: Rooms, folder: Path) -> None:
        """Write it to its places in a file: as it is, or part by part in another form."""
        for what, array in self.ids.items():
            rooms[self.beside(what)].numpy()[:] = _as_bytes(array)
        weights = rooms[self.name]
        if self.stored == DTYPES[self.dtype]:
            self._read(chain, weights.view(self.dtype).view(self.shape))
            return
        for first, rows in self.parts(chain, folder):
            _put(weights, first, rows.weights)
            if rows.scales is not None:
                _put(rooms[self.beside("scale")], first, rows.scales)

    def _read(self, chain: RowChain, room: torch.Tensor) -> None:
        into = {self.key: room}
        chain.read(into, None, alone=True)
        chain.put_rows(into)

    def parts(self, chain: RowChain, folder: Path) -> Iterator[tuple[int, StoredRows]]:
        """Its rows in the form that is written, by the first row of each part.

        They pass through a file in `folder` that nobody sees, so that memory stays small.
        """
        rows_as = self.rows_as or ("fp16" if self.dtype == torch.float16 else "fp32")
        step = max(1, PART_BYTES // (4 * self.shape[1]))
        with tempfile.TemporaryFile(dir=folder) as file:
            # Taken now: writing to mapped memory that has no room would end the process.
            os.posix_fallocate(file.fileno(), 0, self.saved_bytes)
            memory = np.memmap(file, np.uint8, "r+", 0, (self.saved_bytes,))
            room = torch.from_numpy(memory).view(self.dtype).view(self.shape)
            self._read(chain, room)
            for first in range(0, self.shape[0], step):
                rows = room[first : first + step].float().numpy()
                yield first, stored_rows(rows, rows_as, self.table, first)


def _as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _put(room: torch.Tensor, first: int, rows: NDArray[Any]) -> None:
    """Write rows, from one on, to the bytes of a tensor."""
    found = _as_bytes(rows)
    at = first * (rows.nbytes // len(rows))
    room.numpy()[at : at + len(found)] = found


def tables_of(
    chain: RowChain,
    rows_as: RowsAs | None,
    vocabularies: Mapping[str, Vocabulary] | None,
    *,
    by_id: bool,
) -> list[Exported]:
    """The tables of a save; `by_id`: those with a vocabulary must have it."""
    about = chain.about.tables
    if not about:
        raise UserError(
            f"{chain.save}: no part of the checkpoint has embedding tables: save the model, or "
            "the ShardedEmbeddings, as a part"
        )
    often = Counter(entry.name for entry in about.values())
    found, grown = [], saved_vocabularies(chain.reader)
    for key, entry in about.items():
        form = chain.form(key)
        if form.dtype not in DTYPES or len(form.shape) != 2:
            raise UserError(f"{chain.save}: {key} is no table ({form.dtype}); save it anew")
        # Two modules of a model may have tables of the same name: then say which.
        name = entry.name if often[entry.name] == 1 else key
        rows, columns = form.shape
        words = grown.get(key)  # of a growing table
        if words is None and by_id:
            words = _vocabulary(chain.save, entry, vocabularies)
        facts = (key, name, entry.table, entry.pooling, (rows, columns), form.dtype)
        found.append(Exported(*facts, rows_as, words, entry.position or ""))
    # Wide numbers first, so that all are aligned, as the safetensors library does it.
    return sorted(found, key=lambda table: -table.dtype.itemsize)


def _vocabulary(
    save: Path, saved: SavedTable, known: Mapping[str, Vocabulary] | None
) -> Vocabulary | None:
    """The ids of a table's rows; a save has their fingerprint, and the plan the ids."""
    if saved.vocabulary is None:
        return None
    found = (known or {}).get(saved.table)
    if found is None:
        lacks = "which the plan given does not have" if known is not None else "which a plan has"
        raise UserError(
            f"{save}: rows of table {saved.table!r} stand for ids of a vocabulary, {lacks}: give "
            "the plan that was trained, --plan PLAN"
        )
    if found.fingerprint != saved.vocabulary:
        raise MismatchError(
            f"{save}: table {saved.table!r} was trained with vocabulary {saved.vocabulary} and the "
            f"plan given has {found.fingerprint}: give the plan that was trained"
        )
    return found

"""Rows and their optimizer state where a plan puts them: in RAM, or in files.

`Memory` is all a tier has to offer: arrays by name. RAM and folders of files are here; device
memory would be a third kind (there was none to try it on).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.files import StrPath
from rowtier.jit import compiled
from rowtier.runtime import kernels
from rowtier.runtime.address import Piece
from rowtier.tables import Table

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Init = Callable[[Table, Ints], Any]  # a table and some of its rows → their first weights

TORCH_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
NO_WEIGHTS = np.empty(0, dtype=np.float32)
_BLOCK_ROWS = 2048


class Memory(Protocol):
    """Where arrays of a tier are kept."""

    def array(self, name: str, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """A new array of zeros."""
        ...


class Ram:
    """Plain process memory."""

    def array(self, name: str, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:  # noqa: ARG002
        """A new array of zeros."""
        return np.zeros(shape, dtype=dtype)


class Files:
    """Files in a folder, mapped into memory; the system keeps in RAM what it has room for."""

    def __init__(self, folder: StrPath, rank: int):
        self.folder = Path(folder) / f"rank-{rank}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.folder}: cannot keep rows there: {error.strerror}") from error

    def array(self, name: str, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """A new array of zeros."""
        if not np.prod(shape):
            return np.zeros(shape, dtype=dtype)
        return np.memmap(self.folder / f"{name}.bin", dtype=dtype, mode="w+", shape=shape)


class Part(NamedTuple):
    """Gradients that rows got in one backward pass, in the order they are added up."""

    slots: Ints
    at: Ints  # where each is in `lane`
    weights: Floats  # of the lookups; empty: all 1
    first: int  # column
    lane: Floats
    runs: Ints | None = None  # edges of runs of slots that rise


@dataclass(eq=False)
class Shard:
    """What one rank keeps of one band: weights, state beside them, and gradients that wait."""

    piece: Piece
    memory: Memory
    state_names: tuple[str, ...]
    weights: NDArray[Any] = field(init=False)  # float32, or 16 bits as uint16
    state: dict[str, Floats] = field(init=False)
    parts: list[Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        piece, rows = self.piece, self.piece.rows_here
        label = f"{piece.table.name}-{piece.number}".replace("/", "_")
        dtype = "f4" if piece.table.dtype == "fp32" else "u2"
        self.weights = self.memory.array(f"{label}.weight", (rows, piece.width), dtype)
        by_row = piece.table.optimizer == "rowwise_adagrad"
        shape = (rows, 1 if by_row else piece.width)
        self.state = {
            name: self.memory.array(f"{label}.{name}", shape, "f4") for name in self.state_names
        }

    @property
    def plain(self) -> bool:
        """Whether weights are stored as they are computed with."""
        return self.weights.dtype == np.float32

    def fetch(self, slots: Ints) -> Floats:
        """Rows in fp32."""
        found = self.weights[slots]
        return found if self.plain else from_bits(found, self.piece.table.dtype)

    def store(self, slots: Ints, rows: Floats) -> None:
        """Write rows, rounded to the nearest number that the table can hold."""
        self.weights[slots] = rows if self.plain else to_bits(rows, self.piece.table.dtype)

    def gather(self, slots: Ints, lane: Floats, at: Ints) -> None:
        """Copy rows to their spots."""
        if self.plain:
            kernels.gather(self.weights, slots, lane, at)
        else:
            kernels.gather(self.fetch(slots), np.arange(len(slots)), lane, at)

    def sum(self, slots: Ints, weights: Floats, lane: Floats, at: Ints, first: int) -> None:
        """Add rows, from column `first`, to the partial sums at their spots."""
        if self.plain:
            kernels.sum_rows(self.weights, slots, weights, lane, at, first)
        else:
            rows, places = self.fetch(slots), np.arange(len(slots))
            kernels.sum_rows(rows, places, weights, lane, at, first)

    def blocks(self) -> Iterator[tuple[Ints, Floats]]:
        """What `merged` gives in blocks that fit into the processor's cache."""
        if len(self.parts) != 1 or self.parts[0].lane.shape[1] != self.piece.width:
            yield self.merged()
            return
        part = self.parts.pop()
        slots, starts, order = _segments(part)
        for first in range(0, len(slots), _BLOCK_ROWS):
            here = slots[first : first + _BLOCK_ROWS]
            sums = np.empty((len(here), self.piece.width), dtype=np.float32)
            kernels.sum_segments(part.lane, part.at, part.weights, order, starts, first, sums)
            yield here, sums

    def merged(self) -> tuple[Ints, Floats]:
        """The slots that have gradients, rising, and the sum of each."""
        parts, self.parts = self.parts, []
        width = self.piece.width
        if not parts:
            return np.empty(0, dtype=np.int64), np.empty((0, width), dtype=np.float32)
        slots = np.concatenate([part.slots for part in parts])
        small = slots.astype(np.int32) if self.piece.rows_here <= 2**31 else slots
        found, inverse = kernels.distinct(small)
        sums, at = np.zeros((len(found), width), dtype=np.float32), 0
        for part in parts:
            index = inverse[at : at + len(part.slots)]
            kernels.add_grads(sums, index, part.lane, part.at, part.weights, part.first)
            at += len(part.slots)
        return found.astype(np.int64), sums


def _segments(part: Part) -> tuple[Ints, Ints, Ints]:
    """Distinct slots of a part, where the entries of each begin, and the entries."""
    if part.runs is not None:
        return kernels.merge_runs(part.slots, part.runs)
    keys = (part.slots << 32) | np.arange(len(part.slots))
    keys.sort()
    slots, order = np.empty_like(keys), np.empty_like(keys)
    found, starts = kernels.segments(keys, slots, order)
    return found, starts, order


def from_bits(bits: NDArray[np.uint16], dtype: str) -> Floats:
    """16-bit numbers in fp32."""
    tensor = torch.from_numpy(np.ascontiguousarray(bits)).view(TORCH_DTYPES[dtype])
    return np.asarray(tensor.float().numpy())


def to_bits(rows: Floats, dtype: str) -> NDArray[np.uint16]:
    """fp32 rounded to 16-bit numbers, to the nearest, ties to even."""
    tensor = torch.from_numpy(np.ascontiguousarray(rows)).to(TORCH_DTYPES[dtype])
    return np.asarray(tensor.view(torch.uint16).numpy())


def first_weights(table: Table, rows: Ints, seed: int) -> Floats:
    """Uniform in ±1/√num_embeddings, as TorchRec: a function of seed, table, row and column."""
    key = np.uint64(xxhash.xxh64_intdigest(table.name.encode(), seed=seed))
    out = np.empty((len(rows), table.embedding_dim), dtype=np.float32)
    _uniform(key, rows, np.float32(table.num_embeddings**-0.5), out)
    return out


@compiled
def _uniform(key: np.uint64, rows: Ints, limit: np.float32, out: Floats) -> None:
    width = np.uint64(out.shape[1])
    for i in range(len(rows)):
        for c in range(out.shape[1]):
            # splitmix64 of the element's number
            x = key + (np.uint64(rows[i]) * width + np.uint64(c)) * np.uint64(0x9E3779B97F4A7C15)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x = x ^ (x >> np.uint64(31))
            unit = np.float32(x >> np.uint64(40)) * np.float32(2.0**-24)
            out[i, c] = (np.float32(2) * unit - np.float32(1)) * limit


def memories(
    tier_names: tuple[str, ...], paths: Mapping[str, StrPath], rank: int
) -> dict[str, Memory]:
    """What keeps each tier: files where a path is given, else RAM."""
    for name in paths:
        if name not in tier_names:
            raise UserError(f"tiers: no tier {name!r}; the plan's are {', '.join(tier_names)}")
    return {name: Files(paths[name], rank) if name in paths else Ram() for name in tier_names}

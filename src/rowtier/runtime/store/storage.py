"""Rows and their optimizer state where a plan puts them, whatever memory that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from rowtier.jit import compiled
from rowtier.runtime.kernels import indices
from rowtier.runtime.kernels.protocol import Array
from rowtier.runtime.kernels.rule import Rule
from rowtier.runtime.kernels.side import BLOCK_ROWS, HOST, ComputeSide
from rowtier.runtime.store.address import Piece
from rowtier.runtime.store.memory import TORCH_DTYPES, DiskRows, Form, Memory, Rows
from rowtier.tables import Table

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Init = Callable[[Table, Ints], Any]  # a table and some of its rows → their first weights

NO_WEIGHTS = np.empty(0, dtype=np.float32)
ALL = slice(None)
_COPIED_ROWS = 8192  # of 16-bit numbers, in fp32 at once


class Part(NamedTuple):
    """Gradients that rows got in one backward pass, in the order they are added up."""

    slots: Ints
    at: Ints  # where each is in `lane`
    weights: Floats  # of the lookups; empty: all 1
    first: int  # column
    lane: Array
    runs: Ints | None = None  # edges of runs of slots that rise

    @property
    def is_one_run(self) -> bool:
        """Whether all slots rise, and their gradients lie one after the other: nothing to sum."""
        if self.runs is None or len(self.weights) or not len(self.slots):
            return False
        alone = bool(np.diff(self.runs).max() == len(self.slots))
        return alone and int(self.at[-1] - self.at[0]) == len(self.at) - 1


class Segments(NamedTuple):
    """Distinct slots of a part, rising, where the entries of each begin, and the entries."""

    slots: Ints
    starts: Ints
    order: Ints
    part: Part


@dataclass(eq=False)
class Shard:
    """What one rank keeps of one band: weights, state beside them, and gradients that wait."""

    piece: Piece
    memory: Memory
    state_names: tuple[str, ...]
    inside: Shard | None = None  # of a bundle: then the rows are there, from slot `base` on
    base: int = 0
    given: Rows | None = None  # rows that are kept already, in the same slots
    side: ComputeSide = HOST  # where lanes and gradients are
    rows: Rows = field(init=False)
    weights: Array = field(init=False)  # by place; on the host float32, or 16 bits as uint16
    state: dict[str, Array] = field(init=False)
    parts: list[Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.inside is not None:
            self._share(self.inside)
            return
        piece = self.piece
        dtype = "f4" if piece.table.dtype == "fp32" else "u2"
        by_row = piece.table.optimizer == "rowwise_adagrad"
        state = dict.fromkeys(self.state_names, 1 if by_row else piece.width)
        form = Form(piece.rows_here, piece.width, dtype, state, piece.table.dtype)
        self.rows = self.memory.rows(form) if self.given is None else self.given
        self.weights, self.state = self.rows.weights, self.rows.state
        self.rows.name(0, piece.rows_here, piece.table.name)

    def _share(self, inside: Shard) -> None:
        self.rows, self.weights, self.state = inside.rows, inside.weights, inside.state
        self.rows.name(self.base, self.piece.rows_here, self.piece.table.name)
        if self.rows.in_slots:
            here = slice(self.base, self.base + self.piece.rows_here)
            self.weights = inside.weights[here]
            self.state = {name: array[here] for name, array in inside.state.items()}

    @property
    def plain(self) -> bool:
        """Whether weights are stored as they are computed with."""
        return self.piece.table.dtype == "fp32"

    @property
    def on_disk(self) -> bool:
        """Whether reading rows may take long."""
        return isinstance(self.rows, DiskRows)

    @property
    def in_reach(self) -> bool:
        """Whether kernels of the side can take rows where they lie."""
        return self.rows.side is self.side

    def stored_as(self, name: str) -> np.dtype[Any]:
        """The type of what `take` gives."""
        return np.dtype("f4" if name != "weight" or self.plain else "u2")

    def prefetch(self, slots: Ints, steps: int = 1) -> None:
        """Start to bring rows that the next batch reads, or this one (`steps=0`).

        Never needed: rows that are not here when they are read are waited for.
        """
        self.rows.prefetch(slots + self.base, steps)

    def chunks(self, count: int) -> Iterator[slice]:
        """So many rows in parts for which places can be asked at once, and copies made."""
        step = self.rows.at_once if self.plain else min(self.rows.at_once, _COPIED_ROWS)
        for start in range(0, count, step):
            yield slice(start, min(start + step, count))

    def take(self, name: str, slots: Ints, columns: slice = ALL) -> NDArray[Any]:
        """Weights ("weight") or state of rows, as they are stored; of some columns."""
        if self.inside is not None:
            return self.inside.take(name, slots + self.base, columns)
        array = self._array(name)[:, columns]
        if len(slots) <= self.rows.at_once:
            return self.rows.read(array, self.rows.places(slots))
        found = np.empty((len(slots), array.shape[1]), dtype=self.stored_as(name))
        order = np.argsort(slots, kind="stable")  # so that a page is read once, not once a row
        for part in self.chunks(len(slots)):
            places = self.rows.places(slots[order[part]])
            found[order[part]] = self.rows.read(array, places)
        return found

    def put(self, name: str, slots: Ints, values: NDArray[Any], columns: slice = ALL) -> None:
        """Write weights or state of rows, as they are stored; some columns of them."""
        if self.inside is not None:
            self.inside.put(name, slots + self.base, values, columns)
            return
        array = self._array(name)[:, columns]
        if len(slots) > self.rows.at_once:
            order = np.argsort(slots, kind="stable")
            for part in self.chunks(len(slots)):
                self.put(name, slots[order[part]], values[order[part]], columns)
            return
        places = self.rows.places(slots)
        self.rows.write(array, places, values)
        self.rows.change(places)

    def _array(self, name: str) -> Array:
        return self.weights if name == "weight" else self.state[name]

    def fetch(self, slots: Ints) -> Floats:
        """Rows in fp32."""
        found = self.take("weight", slots)
        return found if self.plain else from_bits(found, self.piece.table.dtype)

    def store(self, slots: Ints, rows: Floats) -> None:
        """Write rows, rounded to the nearest number that the table can hold."""
        self.put("weight", slots, rows if self.plain else to_bits(rows, self.piece.table.dtype))

    def fill_state(self, value: float) -> None:
        """Set all state of all rows, which is zeros at first, to a number."""
        for name in self.state if value else ():
            rows, width = self.piece.rows_here, self.state[name].shape[1]
            for start in range(0, rows, BLOCK_ROWS):
                slots = np.arange(start, min(start + BLOCK_ROWS, rows))
                self.put(name, slots, np.full((len(slots), width), value, dtype=np.float32))

    def restart(self, slots: Ints, rows: Floats, state: float) -> None:
        """Rows begin anew: with these weights, and with all state a number."""
        self.store(slots, rows)
        for name, array in self.state.items():
            self.put(name, slots, np.full((len(slots), array.shape[1]), state, dtype=np.float32))

    def gather(self, slots: Ints, lane: Array, at: Ints) -> None:
        """Copy rows to their spots."""
        side = self.side
        for part in self.chunks(len(slots)):
            rows, places = self._where(slots[part])
            side.kernels.gather(rows, places, lane, side.put(at[part]), 0)

    def sum(self, slots: Ints, weights: Floats, lane: Array, at: Ints, first: int) -> None:
        """Add rows, from column `first`, to the partial sums at their spots."""
        put = self.side.put
        for part in self.chunks(len(slots)):
            rows, places = self._readable(slots[part])
            args = (rows, places, put(weights[part]), lane, put(at[part]), first)
            self.side.kernels.add_rows(*args)

    def values(self, slots: Ints) -> Array:
        """Rows in fp32, beside their gradients."""
        found = self.side.empty(len(slots), self.piece.width)
        self.gather(slots, found, np.arange(len(slots)))
        return found

    def _where(self, slots: Ints) -> tuple[Array, Array]:
        """An array that the side's kernels gather from, and where rows lie in it."""
        if self.in_reach:
            return self._stored, self.side.put(self.rows.places(slots))
        return self.side.put(self.fetch(slots)), self.side.every(len(slots))

    def _readable(self, slots: Ints) -> tuple[Array, Array]:
        """The same, of rows in fp32."""
        if self.plain or not self.in_reach:
            return self._where(slots)
        return self.values(slots), self.side.every(len(slots))

    @property
    def _stored(self) -> Array:
        """Weights as kernels take them."""
        fp16_of_host = self.piece.table.dtype == "fp16" and self.rows.side is HOST
        return self.weights.view(np.float16) if fp16_of_host else self.weights

    def pooled(self, slots: Ints, starts: Ints, weights: Floats) -> Array | None:
        """Sums of rows by bag, from where each begins; None if they cannot be had at once."""
        if not len(slots):
            return self.side.empty(0, self.piece.width)
        # Of records with state beside them torch would copy the whole buffer.
        evenly = self.in_reach and (not self.side.on_host or self.weights.flags.c_contiguous)
        if not self.plain or not evenly or len(slots) > self.rows.at_once:
            return None
        put, edges = self.side.put, np.append(starts, len(slots))
        args = (self.weights, put(self.rows.places(slots)), put(edges), put(weights))
        return self.side.kernels.pool(*args, None, 0)

    def update(self, rule: Rule, slots: Ints, grads: Array, squares: Array | None) -> None:
        """Change rows, one chunk at most, and their state by their gradients."""
        near, places = self.rows.side, self.rows.places(slots)
        if not self.in_reach:
            grads = self.side.host(grads)
            squares = None if squares is None else self.side.host(squares)
        none = near.put(NO_WEIGHTS) if squares is None else squares
        state = tuple(self.state.values())
        near.kernels.update(rule, self._stored, near.put(places), grads, state, none)
        self.rows.change(places)

    def sum_and_update(self, rule: Rule, found: Segments, scale: float) -> None:
        """Sum gradients and change their rows, each while it is at hand."""
        put, (slots, starts, order, part) = self.side.put, found
        self.side.kernels.sum_and_update(
            rule, self.weights, put(slots), part.lane, put(part.at), put(part.weights), put(order),
            put(starts), scale,
        )  # fmt: skip

    def blocks(self, scale: np.float32) -> Iterator[tuple[Ints, Array]]:
        """What `merged` gives, scaled, in blocks that fit into the processor's cache."""
        if not self._one_part:
            slots, grads = self.merged()
            yield slots, grads if scale == 1 else grads * scale
            return
        part, step = self.parts.pop(), self.side.block_rows
        if part.is_one_run:  # nothing is to be summed
            for first in range(0, len(part.slots), step):
                at = int(part.at[first])
                here = part.slots[first : first + step]
                grads = part.lane[at : at + len(here)]
                yield here, grads if scale == 1 else grads * scale
            return
        slots, starts, order, _ = self.segments(part)
        put = self.side.put
        args = (part.lane, put(part.at), put(part.weights), put(order))
        for first in range(0, len(slots), step):
            edges = put(starts[first : first + step + 1])
            sums = self.side.kernels.sum_segments(*args, edges, float(scale))
            yield slots[first : first + step], sums

    def take_segments(self) -> Segments | None:
        """All gradients that wait, if rows may be changed while they are summed."""
        if self.on_disk or not self.in_reach or not self.plain:
            return None
        if not self._one_part or self.parts[0].is_one_run:
            return None
        return self.segments(self.parts.pop())

    @property
    def _one_part(self) -> bool:
        """Whether all gradients that wait are of one pass, and of whole rows."""
        return len(self.parts) == 1 and self.parts[0].lane.shape[1] == self.piece.width

    def segments(self, part: Part) -> Segments:
        """What is to be summed for each row."""
        if part.runs is not None:
            return Segments(*indices.merge_runs(part.slots, part.runs), part)
        return Segments(*indices.segments(part.slots, self.piece.rows_here), part)

    def merged(self) -> tuple[Ints, Array]:
        """The slots that have gradients, rising, and the sum of each."""
        parts, self.parts = self.parts, []
        width = self.piece.width
        if not parts:
            return np.empty(0, dtype=np.int64), self.side.empty(0, width)
        slots = np.concatenate([part.slots for part in parts])
        found, inverse = indices.distinct(slots, self.piece.rows_here)
        sums, at, put = self.side.full(len(found), width, 0.0), 0, self.side.put
        for part in parts:
            index = put(inverse[at : at + len(part.slots)])
            args = (part.lane, put(part.at), put(part.weights), sums, index, part.first)
            self.side.kernels.add_rows(*args)
            at += len(part.slots)
        return found.astype(np.int64), sums


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

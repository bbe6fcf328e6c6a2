"""What keeps the rows of a tier: RAM, or pages of a file. Both look alike to everything else.

Rows and their state are arrays, and a row lies in them at its *place*. In RAM that is its slot.
On disk the arrays are the frames of the pages in memory, and asking for places brings the
pages there. Memory that a device reaches is in `device_memory.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.reading import StrPath
from rowtier.runtime.kernels.protocol import Array
from rowtier.runtime.kernels.side import HOST, ComputeSide
from rowtier.runtime.store.pages import BUFFER_BYTES, LEAST_FRAMES, PAGE_BYTES, Pages
from rowtier.units import parse_bytes

TORCH_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class Form(NamedTuple):
    """What is kept: how many rows, of how many numbers, with which state beside them."""

    rows: int
    width: int
    dtype: str  # of weights; state is f4
    state: Mapping[str, int]  # name → numbers a row
    kind: str = "fp32"  # what the bits of weights mean


class Rows(Protocol):
    """The rows of one shard."""

    weights: Array
    state: dict[str, Array]
    at_once: int  # how many places may be asked for in one call
    in_slots: bool  # places are slots

    @property
    def side(self) -> ComputeSide:
        """Whose kernels take these arrays."""
        ...

    def read(self, array: Array, places: Ints) -> NDArray[Any]:
        """Rows of one of the arrays, or of some of its columns, on the host."""
        ...

    def write(self, array: Array, places: Ints, values: NDArray[Any]) -> None:
        """Set such rows."""
        ...

    def places(self, slots: Ints) -> Ints:
        """Where rows lie in `weights` and `state`, until the next call for any rows of the tier."""
        ...

    def change(self, places: Ints) -> None:
        """Say that rows were written to."""
        ...

    def prefetch(self, slots: Ints, steps: int = 1) -> None:
        """Start to bring rows of the next step, or of this one; never needed, never wrong."""
        ...

    def name(self, slot: int, count: int, table: str) -> None:
        """Say whose rows begin at a slot, for errors."""
        ...

    def release(self) -> None:
        """Forget all rows, and give back what they took."""
        ...


class Memory(Protocol):
    """Keeps the rows of all shards of a tier."""

    def rows(self, form: Form) -> Rows:
        """Room for rows, all zeros."""
        ...

    def settle(self) -> None:
        """End a step."""
        ...


class HostRows:
    """Arrays that the host reads and writes."""

    side: ComputeSide = HOST

    def read(self, array: NDArray[Any], places: Ints) -> NDArray[Any]:
        """Rows of one of the arrays, or of some of its columns."""
        return np.asarray(array[places])

    def write(self, array: NDArray[Any], places: Ints, values: NDArray[Any]) -> None:
        """Set such rows."""
        array[places] = values


class RamRows(HostRows):
    """Arrays of the process."""

    at_once, in_slots = sys.maxsize, True

    def __init__(self, form: Form):
        self.weights: NDArray[Any] = np.zeros((form.rows, form.width), dtype=form.dtype)
        self.state: dict[str, Floats] = {
            name: np.zeros((form.rows, width), dtype=np.float32)
            for name, width in form.state.items()
        }

    def places(self, slots: Ints) -> Ints:
        """The slots themselves."""
        return slots

    def change(self, places: Ints) -> None:
        """Nothing is to be written back."""

    def prefetch(self, slots: Ints, steps: int = 1) -> None:
        """Everything is here."""

    def name(self, slot: int, count: int, table: str) -> None:
        """Memory is not checked."""

    def release(self) -> None:
        """Arrays are gone with the last who has them."""


class Ram:
    """Plain process memory."""

    def rows(self, form: Form) -> RamRows:
        """Room for rows, all zeros."""
        return RamRows(form)

    def settle(self) -> None:
        """Nothing to do."""


class DiskRows(HostRows):
    """Records of weights and state, several a page, in the order of slots: hottest first."""

    in_slots = False

    def __init__(self, pages: Pages, form: Form):
        self._pages = pages
        weight_bytes = _weight_bytes(form)
        record_bytes = _record_bytes(form)
        self._per_page = pages.page_bytes // record_bytes
        self._count = -(-form.rows // self._per_page)
        self._first = pages.allot(self._count)
        self.at_once = pages.at_once
        # Places count records if those fill pages evenly, else words of 4 bytes: then rows of
        # the arrays overlap, and only those where a record begins are ever used.
        unit = record_bytes if pages.page_bytes % record_bytes == 0 else 4
        self._frame_units, self._record_units = pages.page_bytes // unit, record_bytes // unit
        count = (pages.frames * pages.page_bytes - record_bytes) // unit + 1
        item = np.dtype(form.dtype).itemsize
        self.weights: NDArray[Any] = np.ndarray(
            (count, form.width), form.dtype, pages.buffer, 0, (unit, item)
        )
        self.state: dict[str, Floats] = {}
        at = weight_bytes
        for name, width in form.state.items():
            self.state[name] = np.ndarray((count, width), np.float32, pages.buffer, at, (unit, 4))
            at += 4 * width

    def places(self, slots: Ints) -> Ints:
        """Bring the pages of rows into memory; where the rows lie there."""
        page, record = np.divmod(slots, self._per_page)
        frames = self._pages.hold(page + self._first)
        return np.asarray(frames * self._frame_units + record * self._record_units)

    def change(self, places: Ints) -> None:
        """Have the pages of rows written at the end of the step."""
        self._pages.change(places // self._frame_units)

    def prefetch(self, slots: Ints, steps: int = 1) -> None:
        """Start to read the pages of rows in the background."""
        self._pages.prefetch(slots // self._per_page + self._first, steps)

    def name(self, slot: int, count: int, table: str) -> None:
        """Say whose rows begin at a slot, for errors."""
        if count:
            first, last = slot // self._per_page, (slot + count - 1) // self._per_page
            self._pages.name(first + self._first, last + self._first, table)

    def release(self) -> None:
        """Forget all rows."""
        self._pages.release(self._first, self._count)


class Disk:
    """A tier in a folder: scratch files, which only a checkpoint outlives.

    `buffer`: memory for the pages of a step, in bytes or as "64MiB"; a step that needs more
    works, and reads pages twice. As much as a step needs of it is resident.

    >>> ShardedEmbeddings(plan, SGD(lr=0.1), tiers={"ssd": Disk("/scratch/rows", "256MiB")})
    """

    def __init__(self, folder: StrPath, buffer: int | str = BUFFER_BYTES):
        self.folder = Path(folder)
        self.buffer_bytes = parse_bytes(buffer) if isinstance(buffer, str) else int(buffer)
        if self.buffer_bytes < LEAST_FRAMES * PAGE_BYTES:
            raise UserError(
                f"buffer {buffer!r} of {folder}: give at least {LEAST_FRAMES * PAGE_BYTES} bytes"
            )
        self.pages: dict[int, Pages] = {}  # by the bytes of a page

    def new(self) -> Disk:
        """The same without any rows, so that two modules may be given one."""
        return Disk(self.folder, self.buffer_bytes)

    def rows(self, form: Form) -> Rows:
        """Room for rows, all zeros."""
        if not form.rows or not form.width:
            return RamRows(form)
        page_bytes = -(-_record_bytes(form) // PAGE_BYTES) * PAGE_BYTES
        if page_bytes not in self.pages:
            self.pages[page_bytes] = Pages(self.folder, page_bytes, self.buffer_bytes)
        return DiskRows(self.pages[page_bytes], form)

    def settle(self) -> None:
        """Write what the step changed, behind the next one."""
        for pages in self.pages.values():
            pages.settle()


def _weight_bytes(form: Form) -> int:
    return -(-form.width * np.dtype(form.dtype).itemsize // 4) * 4  # state begins at a word


def _record_bytes(form: Form) -> int:
    return _weight_bytes(form) + 4 * sum(form.state.values())

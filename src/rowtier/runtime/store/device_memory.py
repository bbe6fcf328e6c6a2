"""Rows that a device's kernels read and write in place, in its memory or the host's pinned memory.

A row's place is its slot, as in RAM. The host sees rows only when somebody asks for them: for a
checkpoint, say.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rowtier.runtime.device.side import DeviceSide
from rowtier.runtime.store.memory import TORCH_DTYPES, Form

Ints = NDArray[np.int64]


class DeviceRows:
    """Tensors of a device, or of the host that a device reaches."""

    at_once, in_slots = sys.maxsize, True

    def __init__(self, form: Form, side: DeviceSide, *, pinned: bool):
        self.side = side
        dtype = TORCH_DTYPES[form.kind]
        self.weights = side.zeros(form.rows, form.width, dtype, pinned=pinned)
        self.state = {
            name: side.zeros(form.rows, width, torch.float32, pinned=pinned)
            for name, width in form.state.items()
        }

    def read(self, array: Tensor, places: Ints) -> NDArray[Any]:
        """Rows of one of the tensors, or of some of its columns, on the host; 16 bits as uint16."""
        whole = _bits(array)
        if whole.device.type == "cpu":
            self.side.wait()
            found = np.asarray(whole.numpy()[places])
        else:
            found = self.side.host(whole[self.side.put(places)])
        return found.view(np.uint16) if found.itemsize == 2 else found

    def write(self, array: Tensor, places: Ints, values: NDArray[Any]) -> None:
        """Set such rows."""
        given = values.view(np.int16) if values.itemsize == 2 else values
        whole = _bits(array)
        if whole.device.type == "cpu":
            self.side.wait()
            whole.numpy()[places] = given
        else:
            whole[self.side.put(places)] = self.side.put(given)

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
        """Tensors are gone with the last who has them."""


class DeviceMemory:
    """A device's own memory, or pinned memory of its host."""

    def __init__(self, side: DeviceSide, *, pinned: bool):
        self.side, self.pinned = side, pinned

    def rows(self, form: Form) -> DeviceRows:
        """Room for rows, all zeros."""
        return DeviceRows(form, self.side, pinned=self.pinned)

    def settle(self) -> None:
        """Nothing to do."""


def _bits(array: Tensor) -> Tensor:
    return array.view(torch.int16) if array.element_size() == 2 else array

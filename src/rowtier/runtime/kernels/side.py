"""The side on which a rank computes with rows: its kernels, and the arrays that they take.

Ids, addresses, slots and spots are worked out on the host, whatever the side, and are put beside
the rows where a kernel wants them. On the host nothing is copied.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rowtier.runtime.kernels.host import HostKernels
from rowtier.runtime.kernels.protocol import Array, Kernels

BLOCK_ROWS = 4096  # that fit into a processor's cache with their gradients


class ComputeSide(Protocol):
    """Where rows are computed with."""

    kernels: Kernels
    device: torch.device
    on_host: bool
    block_rows: int  # that are summed and updated at once

    def meet(self, group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
        """Have the group that carries rows of this side; all ranks call this."""
        ...

    def put(self, array: NDArray[Any]) -> Array:
        """Have an array of the host where kernels can take it."""
        ...

    def host(self, array: Array) -> NDArray[Any]:
        """Have an array as numpy's; a device is waited for."""
        ...

    def tensor(self, array: Array) -> torch.Tensor:
        """Have an array as a tensor, which shares its memory."""
        ...

    def take(self, tensor: torch.Tensor) -> Array:
        """Have a tensor of any device in fp32, one line after the other."""
        ...

    def full(self, rows: int, width: int, value: float) -> Array:
        """New rows of one value."""
        ...

    def empty(self, rows: int, width: int) -> Array:
        """New rows of any values."""
        ...

    def every(self, count: int) -> Array:
        """Have the numbers from 0 on."""
        ...

    def joined(self, arrays: Sequence[Array]) -> Array:
        """Several arrays, one after the other."""
        ...

    def norm_squared(self, arrays: Sequence[Array]) -> float:
        """The sum of all squares, in fp64; a device is waited for."""
        ...


class HostSide:
    """Numpy arrays, which numba's loops take as they are."""

    device, on_host, block_rows = torch.device("cpu"), True, BLOCK_ROWS

    def __init__(self) -> None:
        self.kernels: Kernels = HostKernels()

    def meet(self, group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
        """The same."""
        return group

    def put(self, array: NDArray[Any]) -> NDArray[Any]:
        """The same."""
        return array

    def host(self, array: NDArray[Any]) -> NDArray[Any]:
        """The same."""
        return array

    def tensor(self, array: NDArray[Any]) -> torch.Tensor:
        """A tensor that shares its memory."""
        return torch.from_numpy(array)

    def take(self, tensor: torch.Tensor) -> NDArray[Any]:
        """A tensor of any device in fp32, one line after the other."""
        array = tensor.detach().to("cpu", torch.float32).numpy()
        return np.ascontiguousarray(array)

    def full(self, rows: int, width: int, value: float) -> NDArray[Any]:
        """New rows of one value."""
        if value == 0 and not np.signbit(value):
            return np.zeros((rows, width), dtype=np.float32)
        return np.full((rows, width), value, dtype=np.float32)

    def empty(self, rows: int, width: int) -> NDArray[Any]:
        """New rows of any values."""
        return np.empty((rows, width), dtype=np.float32)

    def every(self, count: int) -> NDArray[Any]:
        """The numbers from 0 on."""
        return np.arange(count)

    def joined(self, arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Several arrays, one after the other."""
        return np.concatenate(arrays)

    def norm_squared(self, arrays: Sequence[NDArray[Any]]) -> float:
        """The sum of all squares, in fp64."""
        return sum(float(np.square(array, dtype=np.float64).sum()) for array in arrays)


HOST: ComputeSide = HostSide()
ALL_ROWS = sys.maxsize

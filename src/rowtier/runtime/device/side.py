"""A device as the side that computes: tensors there, put beside the rows without a stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from rowtier.runtime.kernels.protocol import Kernels
from rowtier.runtime.kernels.side import ALL_ROWS

PRETEND, CUDA = "pretend", "cuda"


class DeviceSide:
    """Tensors of one device, one stream."""

    on_host, block_rows = False, ALL_ROWS

    def __init__(self, device: torch.device, kernels: Kernels):
        self.device, self.kernels = device, kernels

    def meet(self, group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
        """The group that carries what lies there; all of its ranks call this."""
        return group

    def put(self, array: NDArray[Any]) -> Tensor:
        """A copy there, which the host does not wait for."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self.device.type == CUDA:
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def host(self, array: Tensor) -> NDArray[Any]:
        """A copy on the host, which waits for the device."""
        return np.asarray(array.cpu().numpy())

    def tensor(self, array: Tensor) -> Tensor:
        """The same."""
        return array

    def take(self, tensor: Tensor) -> Tensor:
        """A tensor in fp32 there, one line after the other."""
        return tensor.detach().to(self.device, torch.float32).contiguous()

    def full(self, rows: int, width: int, value: float) -> Tensor:
        """New rows of one value."""
        return torch.full((rows, width), value, dtype=torch.float32, device=self.device)

    def empty(self, rows: int, width: int) -> Tensor:
        """New rows of any values."""
        return torch.empty((rows, width), dtype=torch.float32, device=self.device)

    def every(self, count: int) -> Tensor:
        """The numbers from 0 on."""
        return torch.arange(count, device=self.device)

    def joined(self, arrays: Sequence[Tensor]) -> Tensor:
        """Several tensors, one after the other."""
        return torch.cat(list(arrays))

    def norm_squared(self, arrays: Sequence[Tensor]) -> float:
        """The sum of all squares, in fp64; the device is waited for once."""
        sums = [array.double().square().sum() for array in arrays]
        return float(torch.stack(sums).sum()) if sums else 0.0

    def zeros(self, rows: int, width: int, dtype: torch.dtype, *, pinned: bool) -> Tensor:
        """Rows of zeros: in the device's memory, or in the host's where the device reaches them."""
        if pinned and self.device.type == CUDA:
            return torch.zeros((rows, width), dtype=dtype, pin_memory=True)
        return torch.zeros((rows, width), dtype=dtype, device=self.device)

    def wait(self) -> None:
        """Wait until everything that was started is done."""
        if self.device.type == CUDA:
            torch.cuda.synchronize(self.device)

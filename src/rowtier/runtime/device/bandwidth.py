"""What memory of a GPU, and pinned memory of its host, gives: copies in sequence, rows anywhere.

Rows are read by the kernel that training would read them with, in place: those of pinned memory
come over the bus one by one. Never run by us: there was no GPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from rowtier.runtime.device.triton_launch import TritonKernels

WIDTH = 128  # fp32: rows of 512 bytes
MOST_BYTES = 256 << 20
SHARE = 8  # of the memory that is free
ROUNDS = 7


def bandwidths(device: str) -> Iterator[tuple[str, float]]:
    """Bytes per second, each with what was read; a byte that is copied counts once."""
    free, _ = torch.cuda.mem_get_info(device)
    rows = max(1, min(MOST_BYTES, free // SHARE) // (4 * WIDTH))
    there = torch.zeros(rows, WIDTH, device=device)
    lane = torch.empty_like(there)
    slots, at = torch.randperm(rows, device=device), torch.arange(rows, device=device)
    kernels = TritonKernels()
    with torch.cuda.device(device):
        yield "device memory, copied", _rate(lambda: lane.copy_(there), lane)
        yield (
            "device memory, rows of 512 bytes",
            _rate(lambda: kernels.gather(there, slots, lane, at, 0), lane),
        )
        pinned = torch.zeros(rows, WIDTH, pin_memory=True)
        yield (
            "pinned host memory, copied",
            _rate(lambda: lane.copy_(pinned, non_blocking=True), lane),
        )
        yield (
            "pinned host memory, rows of 512 bytes",
            _rate(lambda: kernels.gather(pinned, slots, lane, at, 0), lane),
        )


def _rate(call: Callable[[], object], moved: Tensor) -> float:
    """Bytes of a tensor over the median time of a call, by the device's clock."""
    times = []
    for _ in range(ROUNDS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return float(moved.numel() * moved.element_size() / statistics.median(times[1:]))

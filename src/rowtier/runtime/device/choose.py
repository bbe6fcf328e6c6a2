"""Which device computes: what was given, or what tiers and the process group imply."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from rowtier.errors import UserError
from rowtier.runtime.device.side import CUDA, PRETEND, DeviceSide
from rowtier.runtime.kernels.protocol import Kernels
from rowtier.runtime.kernels.side import HOST, ComputeSide


def side_of(
    given: str | torch.device | None, has_hbm: bool, group: dist.ProcessGroup | None
) -> ComputeSide:
    """The side that computes: what is given, or what tiers and the process group imply."""
    if given is None:
        implied = has_hbm and torch.cuda.is_available() and _carries(group, CUDA)
        given = CUDA if implied else "cpu"
    name = str(given)
    kind = name.partition(":")[0]
    if kind == "cpu":
        return HOST
    if kind == PRETEND:
        from rowtier.runtime.device.pretend_group import PretendSide

        return PretendSide()
    if kind != CUDA:
        raise UserError(f"device {name!r}: accepted are cpu and cuda (or cuda:0 and so on)")
    side = DeviceSide(_cuda(name), _triton())
    if not _carries(group, kind):
        raise UserError(
            f"device {name!r}: the process group carries nothing of {kind}, and rows travel from "
            'device to device: start the job with init_process_group("cpu:gloo,cuda:nccl")'
        )
    return side


def _carries(group: dist.ProcessGroup | None, kind: str) -> bool:
    """Whether a process group has a backend for a kind of device."""
    return group is None or any(one.type == kind for one in group._device_types)


def _cuda(name: str) -> torch.device:
    if not torch.cuda.is_available():
        raise UserError(f"device {name!r}: torch finds no GPU here; `rowtier doctor` says more")
    if ":" in name:
        return torch.device(name)
    local = os.environ.get("LOCAL_RANK")
    return torch.device(CUDA, torch.cuda.current_device() if local is None else int(local))


def _triton() -> Kernels:
    try:
        from rowtier.runtime.device.triton_launch import TritonKernels
    except ImportError as error:
        raise UserError(
            "device 'cuda': its kernels are triton's, which is not installed: "
            "pip install 'rowtier[cuda]'"
        ) from error
    return TritonKernels()

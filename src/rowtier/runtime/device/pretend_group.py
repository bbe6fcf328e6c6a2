"""A process group of the pretend accelerator, and the side that computes there.

It carries tensors of that device and nothing else, over gloo, as nccl carries those of GPUs; and it
asks for what nccl asks for: whole tensors without gaps, sizes that are the host's numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import torch.distributed as dist

from rowtier.runtime.device.pretend import NAME, PretendTensor, install
from rowtier.runtime.device.side import DeviceSide
from rowtier.runtime.kernels.plain import PlainKernels

_PATIENCE = timedelta(seconds=60)


class PretendSide(DeviceSide):
    """The pretend accelerator, with torch's own operations as kernels."""

    def __init__(self) -> None:
        super().__init__(install(), PlainKernels())

    def meet(self, group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
        """A group of the same ranks that carries what lies there; all of them call this."""
        return None if group is None else _beside(group)


class PretendGroup(dist.ProcessGroup):  # type: ignore[misc]
    """All that is asked of a process group for rows: an all-to-all."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta):
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(dist.PrefixStore(NAME, store), rank, size, timeout)

    def getBackendName(self) -> str:  # noqa: N802  (torch calls it)
        """The name that torch knows it by."""
        return NAME

    def alltoall_base(
        self, got: Any, sent: Any, got_sizes: Sequence[int], sizes: Sequence[int], _opts: Any = None
    ) -> Any:
        """Exchange parts of tensors of the device."""
        for tensor, parts in ((got, got_sizes), (sent, sizes)):
            if not isinstance(tensor, PretendTensor):
                raise RuntimeError(f"the process group of {NAME} carries no tensors of the host")
            if not tensor.is_contiguous() or sum(parts) != len(tensor):
                raise RuntimeError(f"parts {list(parts)} of a tensor of {tuple(tensor.shape)}")
        return self._gloo.alltoall_base(got.held, sent.held, list(got_sizes), list(sizes))


@cache
def _beside(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """One for each group; torch would number them, and ranks may have made others before."""
    ranks = "-".join(map(str, dist.get_process_group_ranks(group)))
    store = dist.PrefixStore(f"{NAME}/{ranks}", dist.distributed_c10d._get_default_store())
    number = store.add(f"groups of rank {dist.get_rank(group)}", 1)
    store = dist.PrefixStore(str(number), store)
    return PretendGroup(store, dist.get_rank(group), dist.get_world_size(group), _PATIENCE)

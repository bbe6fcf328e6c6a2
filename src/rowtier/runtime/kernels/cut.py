"""Where the chunks of long segments begin and end, without asking the device how many there are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rowtier.runtime.kernels.protocol import CHUNK


class Cut(NamedTuple):
    """Chunks after the first of each segment; those at the end that nobody needs are empty."""

    starts: Tensor
    stops: Tensor
    edges: Tensor  # segments + 1: which chunks are whose


def first_ends(starts: Tensor) -> Tensor:
    """Where the first chunk of each segment ends."""
    return torch.minimum(starts[1:], starts[:-1] + CHUNK)


def cut_segments(starts: Tensor, entries: int) -> Cut:
    """Cut what is left of segments after their first chunk: at most one for every full chunk."""
    most = entries // CHUNK
    more = (starts[1:] - starts[:-1] - 1).clamp(min=0) // CHUNK
    edges = torch.cat((more.new_zeros(1), more.cumsum(0)))
    if not most or not len(more):
        none = starts.new_empty(0)
        return Cut(none, none, edges)
    chunk = torch.arange(most, device=starts.device)
    of = torch.searchsorted(edges[1:], chunk, right=True).clamp(max=len(more) - 1)
    begin = starts[of] + CHUNK * (1 + chunk - edges[of])
    stop = torch.minimum(starts[of + 1], begin + CHUNK)
    return Cut(begin, torch.where(chunk < edges[-1], stop, begin), edges)

"""The host's loops held to the rule of sums, on tensors: what devices are compared with.

Where a row has more terms than a chunk they are laid apart first, so that the loops, which add all
terms one by one, do each chunk alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rowtier.runtime.kernels import indices
from rowtier.runtime.kernels.host import HostKernels
from rowtier.runtime.kernels.protocol import CHUNK
from rowtier.runtime.kernels.rule import Rule

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
_NONE = np.empty(0, dtype=np.float32)
_LOOPS = HostKernels()


class ChainedKernels:
    """The operations on host memory, in chains of `CHUNK`."""

    name = "host"

    def __getattr__(self, operation: str) -> Any:
        """All that adds up nothing, or no more than a row: the loops on views of the tensors."""
        loop = getattr(_LOOPS, operation)
        return lambda *args: _as_tensors(loop(*map(_as_array, args)))

    def add_rows(
        self, rows: Tensor, slots: Tensor, weights: Tensor, lane: Tensor, at: Tensor, first: int
    ) -> None:
        """See `Kernels`."""
        cut = _Cut(lane.numpy(), at.numpy())
        _LOOPS.add_rows(rows.numpy(), slots.numpy(), weights.numpy(), cut.lane, cut.at, first)
        cut.close()

    def pool(
        self, lane: Tensor, at: Tensor, edges: Tensor, weights: Tensor, out: Tensor | None,
        first: int,
    ) -> Tensor:  # fmt: skip
        """See `Kernels`."""
        bags, width = _Chunks(edges.numpy()), lane.shape[1]
        found = torch.zeros(len(edges) - 1, width) if out is None else out
        args = (lane.numpy(), at.numpy())
        if not bags.long:
            _LOOPS.pool(*args, edges.numpy(), weights.numpy(), found.numpy(), first)
            return found
        to = found.numpy()[:, first : first + width]
        sums = np.full((bags.count, width), -0.0, dtype=np.float32)
        sums[bags.first] = to
        _LOOPS.pool(*args, bags.starts, weights.numpy(), sums, 0)
        to[:] = sums[bags.first]
        later = np.setdiff1d(np.arange(bags.count), bags.first)
        _LOOPS.add_rows(sums, later, _NONE, found.numpy(), bags.of[later], first)
        return found

    def pool_back(
        self, lane: Tensor, at: Tensor, edges: Tensor, weights: Tensor, grad: Tensor, first: int
    ) -> None:
        """See `Kernels`."""
        cut = _Cut(lane.numpy(), at.numpy())
        _LOOPS.pool_back(cut.lane, cut.at, edges.numpy(), weights.numpy(), grad.numpy(), first)
        cut.close()

    def spread_back(self, lane: Tensor, at: Tensor, grad: Tensor, first: int) -> None:
        """See `Kernels`."""
        cut = _Cut(lane.numpy(), at.numpy())
        _LOOPS.spread_back(cut.lane, cut.at, grad.numpy(), first)
        cut.close()

    def sum_segments(
        self, lane: Tensor, at: Tensor, weights: Tensor, order: Tensor, starts: Tensor, scale: float
    ) -> Tensor:
        """See `Kernels`."""
        parts = _Chunks(starts.numpy())
        args = (lane.numpy(), at.numpy(), weights.numpy(), order.numpy())
        if not parts.long:
            return torch.from_numpy(_LOOPS.sum_segments(*args, starts.numpy(), scale))
        sums = _LOOPS.sum_segments(*args, parts.starts, 1.0)
        every, ends = np.arange(parts.count), np.append(parts.first, parts.count)
        return torch.from_numpy(_LOOPS.sum_segments(sums, every, _NONE, every, ends, scale))

    def sum_and_update(
        self, rule: Rule, rows: Tensor, slots: Tensor, lane: Tensor, at: Tensor, weights: Tensor,
        order: Tensor, starts: Tensor, scale: float,
    ) -> None:  # fmt: skip
        """See `Kernels`."""
        if not _Chunks(starts.numpy()).long:
            _LOOPS.sum_and_update(
                rule, rows.numpy(), slots.numpy(), lane.numpy(), at.numpy(), weights.numpy(),
                order.numpy(), starts.numpy(), scale,
            )  # fmt: skip
            return
        sums = self.sum_segments(lane, at, weights, order, starts, scale)
        self.update(rule, rows, slots, sums, (), weights[:0])


def _as_array(value: Any) -> Any:
    """A view of a tensor as the loops take it, bf16 as its bits."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_as_array, value))
    if not isinstance(value, Tensor):
        return value
    return (value.view(torch.uint16) if value.dtype == torch.bfloat16 else value).numpy()


def _as_tensors(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_as_tensors, value))
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


class _Chunks:
    """Segments cut into chunks: where each begins, which segment it is of, which are first."""

    def __init__(self, starts: Ints):
        lengths = np.diff(starts)
        self.long = bool(lengths.max(initial=0) > CHUNK)
        if self.long:
            counts = np.maximum(1, -(-lengths // CHUNK))
            self.count = int(counts.sum())
            self.first = np.cumsum(counts) - counts
            self.of = np.repeat(np.arange(len(counts)), counts)
            within = np.arange(self.count) - self.first[self.of]
            self.starts = np.append(starts[self.of] + within * CHUNK, starts[-1])


class _Cut:
    """A lane to add to: chunks after a spot's first have spots of their own, behind the others.

    Those begin with −0.0, which changes no sum.
    """

    def __init__(self, lane: Floats, at: Ints):
        self.whole, self.lane, self.at = lane, lane, at
        self.later = np.empty(0, dtype=np.int64)  # whose the spots behind are
        if len(at) > CHUNK:
            self._lay_apart()

    def _lay_apart(self) -> None:
        rows, live = len(self.whole), np.flatnonzero(self.at >= 0)
        spots = self.at[live]
        order, counts = indices.group(spots, rows)
        if counts.max(initial=0) <= CHUNK:
            return
        chunk = np.empty(len(spots), dtype=np.int64)
        begins = np.cumsum(counts) - counts
        chunk[order] = (np.arange(len(spots)) - np.repeat(begins, counts)) // CHUNK
        more = np.maximum(counts - 1, 0) // CHUNK
        self.later = np.repeat(np.arange(rows), more)
        behind = rows + (np.cumsum(more) - more)[spots] + chunk - 1
        self.at = self.at.copy()
        self.at[live] = np.where(chunk == 0, spots, behind)
        rest = np.full((len(self.later), self.whole.shape[1]), -0.0, dtype=np.float32)
        self.lane = np.concatenate((self.whole, rest))

    def close(self) -> None:
        """Bring the sums of all chunks together, in order."""
        if len(self.later):
            rows = len(self.whole)
            self.whole[:] = self.lane[:rows]
            behind = rows + np.arange(len(self.later))
            _LOOPS.add_rows(self.lane, behind, _NONE, self.whole, self.later, 0)

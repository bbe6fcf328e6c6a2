"""The operations on host memory: numba's loops over views of the tensors, without copies.

Only where a row has more terms than a chunk are they laid apart first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rowtier.plan.remap import look_up_all
from rowtier.runtime.device.protocol import CHUNK
from rowtier.runtime.device.rule import Rule
from rowtier.runtime.kernels import indices, row_loops, update_loops

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
_NONE = np.empty(0, dtype=np.float32)


class HostKernels:
    """Today's loops."""

    name = "host"

    def remap(
        self, ids: Tensor, ends: Tensor, places: Tensor, tables: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `Kernels`."""
        missing = np.empty(len(ends), dtype=np.bool_)
        found = look_up_all(ids.numpy(), ends.numpy(), places.numpy(), tables.numpy(), missing)
        return torch.from_numpy(found), torch.from_numpy(missing)

    def distinct(self, address: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """See `Kernels`."""
        found, inverse = indices.distinct(address.numpy(), rows)
        return torch.from_numpy(found), torch.from_numpy(inverse)

    def holders(self, address: Tensor, bands: Tensor, owners: Tensor, ranks: int) -> Tensor:
        """See `Kernels`."""
        found = indices.owners_of(address.numpy(), bands.numpy(), owners.numpy(), ranks)
        return torch.from_numpy(found)

    def group(self, keys: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """See `Kernels`."""
        order, counts = indices.group(keys.numpy(), size)
        return torch.from_numpy(order), torch.from_numpy(counts)

    def gather(self, rows: Tensor, slots: Tensor, lane: Tensor, at: Tensor) -> None:
        """See `Kernels`."""
        if rows.dtype == torch.float32:
            row_loops.gather(rows.numpy(), slots.numpy(), lane.numpy(), at.numpy())
        else:
            lane[at] = rows[slots].float()

    def add_rows(
        self, rows: Tensor, slots: Tensor, weights: Tensor, lane: Tensor, at: Tensor, first: int
    ) -> None:
        """See `Kernels`."""
        cut = _Cut(lane.numpy(), at.numpy())
        row_loops.sum_rows(rows.numpy(), slots.numpy(), weights.numpy(), cut.lane, cut.at, first)
        cut.close()

    def pool(
        self, lane: Tensor, at: Tensor, edges: Tensor, weights: Tensor, out: Tensor, first: int
    ) -> None:
        """See `Kernels`."""
        bags, width = _Chunks(edges.numpy()), lane.shape[1]
        if not bags.long:
            args = (lane.numpy(), at.numpy(), edges.numpy(), weights.numpy())
            row_loops.pool(*args, out.numpy(), first)
            return
        to = out.numpy()[:, first : first + width]
        sums = np.full((bags.count, width), -0.0, dtype=np.float32)
        sums[bags.first] = to
        row_loops.pool(lane.numpy(), at.numpy(), bags.starts, weights.numpy(), sums, 0)
        to[:] = sums[bags.first]
        later = np.setdiff1d(np.arange(bags.count), bags.first)
        row_loops.add_bags(sums, later, bags.of[later], out.numpy(), first)

    def pool_back(
        self, lane: Tensor, at: Tensor, edges: Tensor, weights: Tensor, grad: Tensor, first: int
    ) -> None:
        """See `Kernels`."""
        cut = _Cut(lane.numpy(), at.numpy())
        args = (cut.lane, cut.at, edges.numpy(), weights.numpy(), grad.numpy())
        row_loops.pool_back(*args, first, len(lane))
        cut.close()

    def spread(self, lane: Tensor, at: Tensor, out: Tensor, first: int) -> None:
        """See `Kernels`."""
        row_loops.spread_rows(lane.numpy(), at.numpy(), out.numpy(), first)

    def spread_back(self, lane: Tensor, at: Tensor, grad: Tensor, first: int) -> None:
        """See `Kernels`."""
        cut = _Cut(lane.numpy(), at.numpy())
        row_loops.collect_rows(cut.lane, cut.at, grad.numpy(), first)
        cut.close()

    def sum_segments(
        self, lane: Tensor, at: Tensor, weights: Tensor, order: Tensor, starts: Tensor, scale: float
    ) -> Tensor:
        """See `Kernels`."""
        parts, factor = _Chunks(starts.numpy()), np.float32(scale)
        out = np.empty((len(starts) - 1, lane.shape[1]), dtype=np.float32)
        args = (lane.numpy(), at.numpy(), weights.numpy(), order.numpy())
        if not parts.long:
            row_loops.sum_segments(*args, starts.numpy(), 0, factor, out)
            return torch.from_numpy(out)
        sums = np.empty((parts.count, lane.shape[1]), dtype=np.float32)
        row_loops.sum_segments(*args, parts.starts, 0, np.float32(1), sums)
        every, ends = np.arange(parts.count), np.append(parts.first, parts.count)
        row_loops.sum_segments(sums, every, _NONE, every, ends, 0, factor, out)
        return torch.from_numpy(out)

    def squares(self, grads: Tensor) -> Tensor:
        """See `Kernels`."""
        return torch.from_numpy(update_loops.squares_of(grads.numpy()))

    def update(
        self, rule: Rule, weights: Tensor, slots: Tensor, grads: Tensor, state: Sequence[Tensor],
        squares: Tensor,
    ) -> None:  # fmt: skip
        """See `Kernels`."""
        args = (slots.numpy(), grads.numpy(), [part.numpy() for part in state], squares.numpy())
        if weights.dtype == torch.float32:
            _update(rule, weights.numpy(), slots.numpy(), *args)
        else:
            rows = weights[slots].float()
            _update(rule, rows.numpy(), np.arange(len(slots)), *args)
            weights[slots] = rows.to(weights.dtype)

    def count_bands(self, entries: Tensor, counts: Tensor, starts: Tensor) -> Tensor:
        """See `Kernels`."""
        found = indices.count_spans(entries.numpy(), counts.numpy(), starts.numpy())
        return torch.from_numpy(found)


def _update(
    rule: Rule, weights: Floats, rows: Ints, slots: Ints, grads: Floats, state: list[Floats],
    squares: Floats,
) -> None:  # fmt: skip
    rate, eps, beta1, beta2, kept = map(
        np.float32, (rule.rate, rule.eps, rule.beta1, rule.beta2, rule.kept)
    )
    more: dict[str, tuple[Any, ...]] = {
        "sgd": (rate,),
        "momentum": (*state, rate, kept),
        "adagrad": (*state, rate, eps),
        "rowwise_adagrad": (squares, *state, rate, eps),
        "adam": (*state, rate, beta1, beta2, eps, kept),
    }
    getattr(update_loops, rule.kind)(weights, rows, slots, grads, *more[rule.kind])


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
            row_loops.add_spots(self.lane, behind, self.whole, self.later)

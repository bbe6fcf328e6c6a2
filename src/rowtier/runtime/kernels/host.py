"""The operations on host memory: numba's loops on numpy arrays, as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rowtier.plan.remap import look_up_all
from rowtier.runtime.kernels import indices, row_loops, update_loops
from rowtier.runtime.kernels.rule import Rule

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Stored = NDArray[Any]  # float32, float16, or bits of bf16 as uint16


class HostKernels:
    """Today's loops."""

    name = "host"

    def remap(self, ids: Ints, ends: Ints, places: Ints, tables: Stored) -> tuple[Stored, Stored]:
        """See `Kernels`."""
        missing = np.empty(len(ends), dtype=np.bool_)
        return look_up_all(ids, ends, places, tables, missing), missing

    def distinct(self, address: Stored, rows: int) -> tuple[Stored, Ints]:
        """See `Kernels`."""
        return indices.distinct(address, rows)

    def holders(self, address: Stored, bands: Ints, owners: Ints, ranks: int) -> Stored:
        """See `Kernels`."""
        return indices.owners_of(address, bands, owners, ranks)

    def group(self, keys: Ints, size: int) -> tuple[Ints, Ints]:
        """See `Kernels`."""
        return indices.group(keys, size)

    def gather(self, rows: Stored, slots: Ints, lane: Floats, at: Ints, first: int) -> None:
        """See `Kernels`."""
        if rows.dtype != np.float32:
            lane[at] = widened(rows[slots])[:, first : first + lane.shape[1]]
        elif lane.shape[1] == rows.shape[1]:
            row_loops.gather(rows, slots, lane, at)
        else:
            row_loops.take_bags(lane, at, slots, rows, first)

    def add_rows(
        self, rows: Floats, slots: Ints, weights: Floats, lane: Floats, at: Ints, first: int
    ) -> None:
        """See `Kernels`."""
        if lane.shape[1] > rows.shape[1]:
            row_loops.add_grads(lane, at, rows, slots, weights, first)
        else:
            row_loops.sum_rows(rows, slots, weights, lane, at, first)

    def pool(
        self, lane: Floats, at: Ints, edges: Ints, weights: Floats, out: Floats | None, first: int
    ) -> Floats:
        """See `Kernels`."""
        if out is None:
            return _bag_sums(lane, at, edges, weights)
        row_loops.pool(lane, at, edges, weights, out, first)
        return out

    def pool_back(
        self, lane: Floats, at: Ints, edges: Ints, weights: Floats, grad: Floats, first: int
    ) -> None:
        """See `Kernels`."""
        row_loops.pool_back(lane, at, edges, weights, grad, first, min(len(lane), len(at)))

    def weights_back(
        self, lane: Floats, at: Ints, edges: Ints, grad: Floats, first: int, out: Floats
    ) -> None:
        """See `Kernels`."""
        row_loops.weights_back(lane, at, edges, grad, first, out)

    def spread(self, lane: Floats, at: Ints, out: Floats, first: int) -> None:
        """See `Kernels`."""
        row_loops.spread_rows(lane, at, out, first)

    def spread_back(self, lane: Floats, at: Ints, grad: Floats, first: int) -> None:
        """See `Kernels`."""
        row_loops.collect_rows(lane, at, grad, first)

    def sum_segments(
        self, lane: Floats, at: Ints, weights: Floats, order: Ints, starts: Ints, scale: float
    ) -> Floats:
        """See `Kernels`."""
        out = np.empty((len(starts) - 1, lane.shape[1]), dtype=np.float32)
        row_loops.sum_segments(lane, at, weights, order, starts, 0, np.float32(scale), out)
        return out

    def sum_and_update(
        self, rule: Rule, rows: Floats, slots: Ints, lane: Floats, at: Ints, weights: Floats,
        order: Ints, starts: Ints, scale: float,
    ) -> None:  # fmt: skip
        """See `Kernels`."""
        update_loops.sum_and_sgd(
            rows, slots, lane, at, weights, order, starts, np.float32(scale), np.float32(rule.rate)
        )

    def squares(self, grads: Floats) -> Floats:
        """See `Kernels`."""
        return update_loops.squares_of(grads)

    def update(
        self, rule: Rule, weights: Stored, slots: Ints, grads: Floats, state: Sequence[Floats],
        squares: Floats,
    ) -> None:  # fmt: skip
        """See `Kernels`."""
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
        change = getattr(update_loops, rule.kind)
        if weights.dtype == np.float32:
            change(weights, slots, slots, grads, *more[rule.kind])
            return
        rows = widened(weights[slots])
        change(rows, np.arange(len(slots)), slots, grads, *more[rule.kind])
        weights[slots] = narrowed(rows, weights.dtype)

    def count_bands(self, entries: Stored, counts: Ints, starts: Ints) -> Ints:
        """See `Kernels`."""
        return indices.count_spans(entries, counts, starts)


def widened(rows: Stored) -> Floats:
    """Rows of 16 bits in fp32."""
    tensor = torch.from_numpy(np.ascontiguousarray(rows))
    tensor = tensor.view(torch.bfloat16) if rows.dtype == np.uint16 else tensor
    return np.asarray(tensor.float().numpy())


def narrowed(rows: Floats, dtype: np.dtype[Any]) -> Stored:
    """Rows rounded to 16 bits, to the nearest, ties to even."""
    tensor = torch.from_numpy(np.ascontiguousarray(rows))
    if dtype == np.uint16:
        return np.asarray(tensor.to(torch.bfloat16).view(torch.uint16).numpy())
    return np.asarray(tensor.to(torch.float16).numpy())


def _bag_sums(rows: Floats, at: Ints, edges: Ints, weights: Floats) -> Floats:
    """Sums by torch's own kernel, which is the fastest for rows that lie anywhere."""
    found = torch.embedding_bag(
        torch.from_numpy(rows),
        torch.from_numpy(at),
        torch.from_numpy(edges[:-1]),
        per_sample_weights=torch.from_numpy(weights) if len(weights) else None,
    )
    return np.asarray(found[0].numpy())

"""The operations in torch's own, on any device: to be read as what the others must do.

No sum of floats depends on the order in which a device happens to work: `_run` adds one term to
every row at a time. That is slow where rows have many terms, and it stops the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from rowtier.runtime.kernels.cut import cut_segments, first_ends
from rowtier.runtime.kernels.rule import Rule

Term = Callable[[Tensor], Tensor]  # entries → their rows


class PlainKernels:
    """The specification."""

    name = "plain"

    def remap(
        self, ids: Tensor, ends: Tensor, places: Tensor, tables: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `Kernels`."""
        every = torch.arange(len(ids), device=ids.device)
        part = torch.searchsorted(ends, every, right=True)
        start, rows = places[part].unbind(1)
        outside = (ids < 0) | (ids >= rows)
        missing = torch.bincount(part[outside], minlength=len(ends)) > 0
        return tables[start + torch.where(outside, 0, ids)], missing

    def distinct(self, address: Tensor, rows: int) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """See `Kernels`."""
        found, inverse = torch.unique(address, return_inverse=True)
        return found, inverse

    def holders(self, address: Tensor, bands: Tensor, owners: Tensor, ranks: int) -> Tensor:
        """See `Kernels`."""
        entry = address.long()
        band = (torch.searchsorted(bands[:, 0].contiguous(), entry, right=True) - 1).clamp(min=0)
        start, stop, offset, block, members = bands[band].unbind(1)
        inside = (entry >= start) & (entry < stop)
        place = torch.where(inside, entry - start, 0)
        spread = (place + offset) % members
        position = torch.where(block > 0, place // block.clamp(min=1), spread)
        position = torch.where((block > 0) | (members > 1), position, 0)
        return torch.where(inside, owners[band, position], ranks).int()

    def group(self, keys: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """See `Kernels`."""
        return torch.argsort(keys, stable=True), torch.bincount(keys, minlength=size)

    def gather(self, rows: Tensor, slots: Tensor, lane: Tensor, at: Tensor, first: int) -> None:
        """See `Kernels`."""
        lane[at] = rows[slots, first : first + lane.shape[1]].to(lane.dtype)

    def add_rows(
        self, rows: Tensor, slots: Tensor, weights: Tensor, lane: Tensor, at: Tensor, first: int
    ) -> None:
        """See `Kernels`."""
        source, lane = same_columns(rows, lane, first)
        self._add_at(lane, at, _weighted(source, slots, weights))

    def pool(
        self, lane: Tensor, at: Tensor, edges: Tensor, weights: Tensor, out: Tensor | None,
        first: int,
    ) -> Tensor:  # fmt: skip
        """See `Kernels`."""
        if out is None:
            out = lane.new_zeros(len(edges) - 1, lane.shape[1])
        to = out[:, first : first + lane.shape[1]]
        to.copy_(_sums(to.clone(), edges, len(at), _weighted(lane, at, weights)))
        return out

    def pool_back(
        self, lane: Tensor, at: Tensor, edges: Tensor, weights: Tensor, grad: Tensor, first: int
    ) -> None:
        """See `Kernels`."""
        every = torch.arange(len(at), device=at.device)
        bag = torch.searchsorted(edges, every, right=True) - 1
        source = grad[:, first : first + lane.shape[1]]
        self._add_at(lane, at, _weighted(source, bag, weights))

    def weights_back(
        self, lane: Tensor, at: Tensor, edges: Tensor, grad: Tensor, first: int, out: Tensor
    ) -> None:
        """See `Kernels`."""
        every = torch.arange(len(at), device=at.device)
        bag = torch.searchsorted(edges, every, right=True) - 1
        come = grad[bag, first : first + lane.shape[1]].double()
        products = (lane[at.clamp(min=0)].double() * come).sum(1).float()
        out.copy_(torch.where(at >= 0, out + products, out))

    def spread(self, lane: Tensor, at: Tensor, out: Tensor, first: int) -> None:
        """See `Kernels`."""
        live = torch.nonzero(at >= 0)[:, 0]
        out[live, first : first + lane.shape[1]] = lane[at[live]]

    def spread_back(self, lane: Tensor, at: Tensor, grad: Tensor, first: int) -> None:
        """See `Kernels`."""
        live = torch.nonzero(at >= 0)[:, 0]
        source = grad[:, first : first + lane.shape[1]]
        self._add_at(lane, at[live], lambda entries: source[live[entries]])

    def sum_segments(
        self, lane: Tensor, at: Tensor, weights: Tensor, order: Tensor, starts: Tensor, scale: float
    ) -> Tensor:
        """See `Kernels`."""
        term = _weighted(lane, at, weights)
        empty = torch.full((len(starts) - 1, lane.shape[1]), -0.0, device=lane.device)
        return _sums(empty, starts, len(order), lambda i: term(order[i])) * scale

    def sum_and_update(
        self, rule: Rule, rows: Tensor, slots: Tensor, lane: Tensor, at: Tensor, weights: Tensor,
        order: Tensor, starts: Tensor, scale: float,
    ) -> None:  # fmt: skip
        """See `Kernels`."""
        sums = self.sum_segments(lane, at, weights, order, starts, scale)
        self.update(rule, rows, slots, sums, (), weights[:0])

    def squares(self, grads: Tensor) -> Tensor:
        """See `Kernels`."""
        return grads.double().square().sum(1).float()

    def update(
        self, rule: Rule, weights: Tensor, slots: Tensor, grads: Tensor, state: Sequence[Tensor],
        squares: Tensor,
    ) -> None:  # fmt: skip
        """See `Kernels`."""
        w, g, s = weights[slots].float(), grads, [part[slots] for part in state]
        match rule.kind:
            case "sgd":
                w = w - rule.rate * g
            case "momentum":
                s[0] = rule.kept * s[0] + g
                w = w - rule.rate * s[0]
            case "adagrad":
                s[0] = s[0] + g * g
                w = w - rule.rate * (g / (_root(s[0]) + rule.eps))
            case "rowwise_adagrad":
                s[0] = s[0] + squares[:, None]
                w = w - torch.full_like(s[0], rule.rate) / (_root(s[0]) + rule.eps) * g
            case "adam":
                s[0] = s[0] + _rest(rule.beta1) * (g - s[0])
                s[1] = s[1] + _rest(rule.beta2) * (g * g - s[1])
                w = rule.kept * w - rule.rate * (s[0] / (_root(s[1]) + rule.eps))
        weights[slots] = w.to(weights.dtype)
        for part, changed in zip(state, s, strict=True):
            part[slots] = changed

    def count_bands(self, entries: Tensor, counts: Tensor, starts: Tensor) -> Tensor:
        """See `Kernels`."""
        ranks, bands = len(counts), len(starts) - 1
        rank = torch.repeat_interleave(torch.arange(ranks, device=counts.device), counts)
        band = torch.searchsorted(starts, entries.long(), right=True) - 1
        return torch.bincount(band * ranks + rank, minlength=bands * ranks).view(bands, ranks)

    def _add_at(self, lane: Tensor, at: Tensor, term: Term) -> None:
        """Add terms to spots of a lane, each spot's in order."""
        spots, inverse = self.distinct(at, len(lane))
        order, counts = self.group(inverse, len(spots))
        starts = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
        lane[spots] = _sums(lane[spots], starts, len(at), lambda i: term(order[i]))


def same_columns(rows: Tensor, lane: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Rows and lane as wide as the narrower one, the wider one from a column on."""
    width = min(rows.shape[1], lane.shape[1])
    if lane.shape[1] > width:
        return rows, lane[:, first : first + width]
    return rows[:, first : first + width], lane


def _weighted(source: Tensor, come: Tensor, weights: Tensor) -> Term:
    if len(weights):
        return lambda entries: weights[entries][:, None] * source[come[entries]]
    return lambda entries: source[come[entries]]


def _rest(beta: float) -> float:
    """What is left of 1, in fp32."""
    return float(np.float32(1) - np.float32(beta))


def _root(x: Tensor) -> Tensor:
    """√x rounded to the nearest, which torch's own in fp32 is not on processors."""
    return x.double().sqrt().float()


def _sums(total: Tensor, starts: Tensor, entries: int, term: Term) -> Tensor:
    """The rule of sums: add the terms of each segment to its row."""
    cut = cut_segments(starts, entries)
    _run(total, starts[:-1], first_ends(starts), term)
    later = torch.full((len(cut.starts), total.shape[1]), -0.0, device=total.device)
    _run(later, cut.starts, cut.stops, term)
    _run(total, cut.edges[:-1], cut.edges[1:], lambda entries: later[entries])
    return total


def _run(total: Tensor, starts: Tensor, stops: Tensor, term: Term) -> None:
    """Add entries from start to stop to each row, one after the other."""
    most = int((stops - starts).max()) if len(starts) else 0
    for step in range(most):
        live = torch.nonzero(starts + step < stops)[:, 0]
        total[live] = total[live] + term(starts[live] + step)

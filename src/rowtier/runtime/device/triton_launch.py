"""The operations as launches of Triton's kernels: grids, arguments, and little else.

Import this only where triton is wanted. Prefix sums, sorts of many keys, bisections over whole
arrays and gradients of learned weights are torch's. The host stops only in `distinct`, which has
to know how many there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rowtier.runtime.device import triton_kernels as loops
from rowtier.runtime.kernels.cut import cut_segments, first_ends
from rowtier.runtime.kernels.plain import PlainKernels, same_columns
from rowtier.runtime.kernels.protocol import CHUNK
from rowtier.runtime.kernels.rule import Rule

# Tiles that need no more registers than there are, on any target: benchmarks/device_gate.py.
NARROW, WIDE = {"ROWS": 16, "COLUMNS": 32}, {"ROWS": 4, "COLUMNS": 128}
ENTRIES = 512
DIVIDED = 128  # entries, where each is divided: division of 64 bits takes many registers
MOST_COUNTED = 64  # with more keys, sorting does less than counting each
BITS_PER_LOOKUP = 256  # a bit for every row, unless there are far more rows than lookups
FEW_ROWS = 1 << 20
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
# Left to itself, NVIDIA's assembler unrolls loops beyond the registers that it then allows itself.
OPTIONS_OF = {"cuda": {**OPTIONS, "maxnreg": 128}, "hip": OPTIONS}

Watch = Callable[[Any, tuple[Any, ...], dict[str, Any]], contextlib.AbstractContextManager[None]]


class _Terms(NamedTuple):
    """What is added: rows `come` (None: their own numbers) of a source, in an order."""

    source: Tensor
    come: Tensor | None
    weights: Tensor
    order: Tensor | None


class TritonKernels:
    """The operations on a device; `watch` is entered around every launch."""

    name = "triton"

    def __init__(self, watch: Watch | None = None):
        self.watch = watch

    def remap(
        self, ids: Tensor, ends: Tensor, places: Tensor, tables: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `Kernels`."""
        found = tables.new_empty(len(ids))
        missing = torch.zeros(len(ends), dtype=torch.int32, device=ids.device)
        args = (ids, ends, places, tables, found, missing, len(ids), len(ends), _steps(len(ends)))
        self._over_entries(loops.remap, len(ids), *args)
        return found, missing > 0

    def distinct(self, address: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """See `Kernels`."""
        if rows > FEW_ROWS + BITS_PER_LOOKUP * len(address) or not len(address):
            found, inverse = torch.unique(address, return_inverse=True)
            return found, inverse
        words = torch.zeros(rows // 32 + 1, dtype=torch.int32, device=address.device)
        self._over_entries(loops.mark_bits, len(address), address, words, len(address))
        counts = torch.empty(len(words), dtype=torch.int64, device=address.device)
        self._over_entries(loops.count_bits, len(words), words, counts, len(words))
        ends = counts.cumsum(0)
        before = ends - counts
        found = address.new_empty(int(ends[-1]))
        self._over_entries(loops.list_bits, len(words), words, before, found, len(words))
        inverse = torch.empty(len(address), dtype=torch.int64, device=address.device)
        args = (address, words, before, inverse, len(address))
        self._over_entries(loops.place_bits, len(address), *args)
        return found, inverse

    def holders(self, address: Tensor, bands: Tensor, owners: Tensor, ranks: int) -> Tensor:
        """See `Kernels`."""
        found = torch.empty(len(address), dtype=torch.int32, device=address.device)
        numbers = (len(address), len(bands), _steps(len(bands)), owners.shape[1], ranks)
        args = (address, bands, owners, found, *numbers)
        self._over_entries(loops.holders, len(address), *args, size=DIVIDED)
        return found

    def group(self, keys: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """See `Kernels`."""
        if size > MOST_COUNTED:
            ordered, order = torch.sort(keys, stable=True)
            bounds = torch.arange(size + 1, device=keys.device)
            return order, torch.searchsorted(ordered, bounds).diff()
        blocks = -(-len(keys) // ENTRIES)
        counts = torch.empty(size, blocks, dtype=torch.int64, device=keys.device)
        self._over_entries(loops.group_counts, len(keys), keys, counts, len(keys), size, blocks)
        before = counts.flatten().cumsum(0).view_as(counts) - counts
        order = torch.empty_like(keys)
        args = (keys, before, order, len(keys), size, blocks)
        self._over_entries(loops.group_places, len(keys), *args)
        return order, counts.sum(1)

    def gather(self, rows: Tensor, slots: Tensor, lane: Tensor, at: Tensor, first: int) -> None:
        """See `Kernels`."""
        self._move(rows[:, first : first + lane.shape[1]], slots, lane, at)

    def add_rows(
        self, rows: Tensor, slots: Tensor, weights: Tensor, lane: Tensor, at: Tensor, first: int
    ) -> None:
        """See `Kernels`."""
        source, lane = same_columns(rows, lane, first)
        self._add_at(lane, at, source, slots, weights)

    def pool(
        self, lane: Tensor, at: Tensor, edges: Tensor, weights: Tensor, out: Tensor | None,
        first: int,
    ) -> Tensor:  # fmt: skip
        """See `Kernels`."""
        if out is None:
            out = lane.new_zeros(len(edges) - 1, lane.shape[1])
        to = out[:, first : first + lane.shape[1]]
        self._sum(to, lane, at, weights, None, edges, seeded=True)
        return out

    def pool_back(
        self, lane: Tensor, at: Tensor, edges: Tensor, weights: Tensor, grad: Tensor, first: int
    ) -> None:
        """See `Kernels`."""
        every = torch.arange(len(at), device=at.device)
        bag = torch.searchsorted(edges, every, right=True) - 1
        self._add_at(lane, at, grad[:, first : first + lane.shape[1]], bag, weights)

    def weights_back(
        self, lane: Tensor, at: Tensor, edges: Tensor, grad: Tensor, first: int, out: Tensor
    ) -> None:
        """See `Kernels`."""
        PlainKernels().weights_back(lane, at, edges, grad, first, out)

    def spread(self, lane: Tensor, at: Tensor, out: Tensor, first: int) -> None:
        """See `Kernels`."""
        self._move(lane, at, out[:, first : first + lane.shape[1]], None)

    def spread_back(self, lane: Tensor, at: Tensor, grad: Tensor, first: int) -> None:
        """See `Kernels`."""
        source = grad[:, first : first + lane.shape[1]]
        self._add_at(lane, at, source, None, lane.new_empty(0))

    def sum_segments(
        self, lane: Tensor, at: Tensor, weights: Tensor, order: Tensor, starts: Tensor, scale: float
    ) -> Tensor:
        """See `Kernels`."""
        out = lane.new_empty(len(starts) - 1, lane.shape[1])
        self._sum(out, lane, at, weights, order, starts, scale=scale)
        return out

    def sum_and_update(
        self, rule: Rule, rows: Tensor, slots: Tensor, lane: Tensor, at: Tensor, weights: Tensor,
        order: Tensor, starts: Tensor, scale: float,
    ) -> None:  # fmt: skip
        """See `Kernels`."""
        sums = self.sum_segments(lane, at, weights, order, starts, scale)
        self.update(rule, rows, slots, sums, (), weights[:0])

    def squares(self, grads: Tensor) -> Tensor:
        """See `Kernels`."""
        found, (rows, width), tile = grads.new_empty(len(grads)), grads.shape, _tile(grads.shape[1])
        grid = (-(-rows // tile["ROWS"]),)
        self._launch(loops.squares, grid, grads, found, rows, width, **tile)
        return found

    def update(
        self, rule: Rule, weights: Tensor, slots: Tensor, grads: Tensor, state: Sequence[Tensor],
        squares: Tensor,
    ) -> None:  # fmt: skip
        """See `Kernels`."""
        rates, (rows, width) = grads, grads.shape
        if rule.kind == "rowwise_adagrad":
            rates = torch.empty_like(squares)
            args = (state[0], slots, squares, rates, rows, rule.rate, rule.eps)
            self._over_entries(loops.row_rates, rows, *args)
        first, second = (*state, grads, grads)[:2]
        self._launch(
            loops.update_rows, _grid(rows, width), _raw(weights), slots, grads, first, second,
            rates, rows, width, rule.rate, rule.eps, rule.beta1, rule.beta2, rule.kept,
            KIND=rule.kind, BF16=weights.dtype == torch.bfloat16, **_tile(width),
        )  # fmt: skip

    def count_bands(self, entries: Tensor, counts: Tensor, starts: Tensor) -> Tensor:
        """See `Kernels`."""
        ranks, bands = len(counts), len(starts) - 1
        found = torch.zeros(bands, ranks, dtype=torch.int64, device=entries.device)
        numbers = (len(entries), ranks, _steps(ranks), bands, _steps(bands))
        args = (entries, counts.cumsum(0), starts, found, *numbers)
        self._over_entries(loops.count_bands, len(entries), *args)
        return found

    def _move(self, source: Tensor, come: Tensor, target: Tensor, at: Tensor | None) -> None:
        """Copy rows to their spots, or each to its own line."""
        rows, width = len(come), source.shape[1]
        self._launch(
            loops.move_rows, _grid(rows, width), _raw(source), come, target,
            come if at is None else at, rows, width, source.stride(0), target.stride(0),
            AT_SPOTS=at is not None, BF16=source.dtype == torch.bfloat16,
            **_tile(width),
        )  # fmt: skip

    def _add_at(
        self, lane: Tensor, at: Tensor, source: Tensor, come: Tensor | None, weights: Tensor
    ) -> None:
        """Add rows of a source to spots of a lane, each spot's in order; negative ones get none."""
        order, counts = self.group(at + 1, len(lane) + 1)
        starts = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
        self._sum(lane, source, come, weights, order, starts[1:], seeded=True)

    def _sum(
        self, target: Tensor, source: Tensor, come: Tensor | None, weights: Tensor,
        order: Tensor | None, starts: Tensor, *, seeded: bool = False, scale: float = 1.0,
    ) -> None:  # fmt: skip
        """Add the segments of a source to the lines of a target, or write them there."""
        entries = come if order is None else order
        assert entries is not None
        terms = _Terms(source, come, weights, order)
        if len(entries) <= CHUNK:
            self._run(target, terms, starts[:-1], starts[1:], seeded, scale)
            return
        cut = cut_segments(starts, len(entries))
        later = source.new_empty(len(cut.starts), source.shape[1])
        self._run(later, terms, cut.starts, cut.stops, False, 1.0)
        self._run(target, terms, starts[:-1], first_ends(starts), seeded, 1.0)
        chunks = _Terms(later, None, weights[:0], None)
        self._run(target, chunks, cut.edges[:-1], cut.edges[1:], True, 1.0)
        if scale != 1:
            target.mul_(scale)

    def _run(
        self, target: Tensor, terms: _Terms, starts: Tensor, stops: Tensor, seeded: bool,
        scale: float,
    ) -> None:  # fmt: skip
        """Add every run of terms to its line, or write it there; lines without terms stay."""
        source, come, weights, order = terms
        rows, width = len(starts), source.shape[1]
        self._launch(
            loops.sum_runs, _grid(rows, width), source, starts if come is None else come,
            weights if len(weights) else source, starts if order is None else order,
            starts, stops, target, rows, width, source.stride(0), target.stride(0), scale,
            COMES=come is not None, WEIGHTED=len(weights) > 0, ORDERED=order is not None,
            SEEDED=seeded, SCALED=scale != 1, **_tile(width),
        )  # fmt: skip

    def _over_entries(self, kernel: Any, count: int, *args: Any, size: int = ENTRIES) -> None:
        self._launch(kernel, (-(-count // size),), *args, SIZE=size)

    def _launch(self, kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
        if not all(grid):
            return
        watched = self.watch(kernel, args, constants) if self.watch else contextlib.nullcontext()
        with watched:
            kernel[grid](*args, **constants, **OPTIONS_OF["hip" if torch.version.hip else "cuda"])


def _raw(rows: Tensor) -> Tensor:
    """Rows as kernels take them: of bf16 the bits, so that rounding is the same everywhere."""
    return rows.view(torch.int16) if rows.dtype == torch.bfloat16 else rows


def _tile(width: int) -> dict[str, int]:
    return NARROW if width <= NARROW["COLUMNS"] else WIDE


def _grid(rows: int, width: int) -> tuple[int, int]:
    tile = _tile(width)
    return -(-rows // tile["ROWS"]), -(-width // tile["COLUMNS"])


def _steps(count: int) -> int:
    """Steps of a bisection over so many bounds."""
    return count.bit_length()

"""Drawn cases for every operation, and whether two implementations give the same bits.

Tests, `benchmarks/device_gate.py` and `rowtier doctor` share these. Values have zeros of both
signs, tiny and large numbers among them; some rows have more terms than a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rowtier.runtime.device.chained import ChainedKernels
from rowtier.runtime.kernels.protocol import CHUNK, OPERATIONS, Kernels
from rowtier.runtime.kernels.rule import KINDS, Rule

# Relative; all others: the same bits.
TOLERANCE = {"squares": 2.0**-22, "weights_back": 2.0**-16}
WIDTHS = (1, 3, 16, 33, 64, 130)


@dataclass(frozen=True, eq=False)
class Case:
    """One call of an operation."""

    operation: str
    seed: int
    inputs: tuple[Any, ...]

    def run(self, kernels: Kernels, device: str = "cpu") -> list[Tensor]:
        """What the operation gives and what it changes, on the host; the case stays as it is."""
        inputs = tuple(_copied(value, device) for value in self.inputs)
        given = getattr(kernels, self.operation)(*inputs)
        given = [] if given is None else [given] if isinstance(given, Tensor) else list(given)
        changed = [value for entry in inputs for value in _tensors(entry)]
        found = [value.cpu() for value in (*given, *changed)]
        if self.operation == "remap":  # a part that has ids outside may be anything
            found[0] = found[0] * torch.repeat_interleave(~found[1], _lengths(self.inputs[1]))
        return found

    def differs(self, kernels: Kernels, device: str = "cpu") -> str:
        """In what an implementation differs from the host's loops; empty: in nothing."""
        try:
            found = self.run(kernels, device)
        except Exception as error:  # whatever a compiler or a driver raises is a finding
            return f"{self.operation}, seed {self.seed}: {type(error).__name__}: {error}"
        wanted = self.run(ChainedKernels())
        for number, (mine, theirs) in enumerate(zip(wanted, found, strict=True)):
            if not _same(mine, theirs, TOLERANCE.get(self.operation)):
                return f"{self.operation}, seed {self.seed}: tensor {number} differs"
        return ""


def draw_cases(count: int, seed: int = 0) -> Iterator[Case]:
    """So many cases, every operation in turn, the same for the same seed."""
    for number in range(count):
        operation = OPERATIONS[number % len(OPERATIONS)]
        yield draw_case(operation, seed * 1_000_003 + number)


def draw_case(operation: str, seed: int) -> Case:
    """A case of an operation."""
    draw: Any = globals()[f"_{operation}"]
    return Case(operation, seed, draw(Draw(np.random.default_rng(seed))))


@dataclass(frozen=True)
class Draw:
    """What cases are drawn from."""

    random: np.random.Generator

    def number(self, low: int, high: int) -> int:
        """A whole number, `high` included."""
        return int(self.random.integers(low, high + 1))

    def chance(self, share: float) -> bool:
        """True in so many of the cases."""
        return bool(self.random.random() < share)

    def width(self) -> int:
        """Of a row."""
        return int(self.random.choice(WIDTHS))

    def floats(self, *shape: int) -> Tensor:
        """Values of all sizes; some are zeros of either sign, some have no leading one."""
        values = self.random.standard_normal(shape, dtype=np.float32)
        kind = self.random.random(shape)
        values = np.where(kind < 0.05, np.float32(-0.0), values)
        values = np.where((kind >= 0.05) & (kind < 0.1), np.float32(0.0), values)
        values = np.where(kind > 0.97, values * np.float32(1e-39), values)
        values = np.where((kind > 0.94) & (kind <= 0.97), values * np.float32(1e12), values)
        return torch.from_numpy(values.astype(np.float32))

    def ints(self, high: int, count: int) -> Tensor:
        """So many numbers below `high`, low ones often."""
        skewed = self.random.random(count) ** 2
        return torch.from_numpy((skewed * high).astype(np.int64))

    def permuted(self, high: int, count: int) -> Tensor:
        """So many distinct numbers below `high`."""
        return torch.from_numpy(self.random.permutation(high)[:count])

    def weights(self, count: int) -> Tensor:
        """Of lookups: none in half of the cases."""
        return self.floats(0 if self.chance(0.5) else count)

    def spots(self) -> tuple[Tensor, int, int]:
        """Spots of lookups, rows of their lane, and a width: some spots have several chunks."""
        if self.chance(0.25):
            count = self.number(2 * CHUNK, 5 * CHUNK)
            return self.ints(self.number(1, 3), count), 3, int(self.random.choice(WIDTHS[:4]))
        rows = self.number(1, 90)
        return self.ints(rows, self.number(0, 120)), rows, self.width()

    def edges(self, total: int, bags: int) -> Tensor:
        """Edges of bags; some are empty."""
        inner = np.sort(self.random.integers(0, total + 1, bags - 1))
        return torch.from_numpy(np.concatenate(([0], inner, [total])).astype(np.int64))


def _remap(draw: Draw) -> tuple[Any, ...]:
    parts = draw.number(1, 9)
    rows = np.array([draw.number(1, 60) for _ in range(parts)])
    starts = np.cumsum(rows) - rows
    lengths = [draw.number(0, 150) for _ in range(parts)]
    ids = [draw.random.integers(0, n, size) for n, size in zip(rows, lengths, strict=True)]
    for part in ids:
        if len(part) and draw.chance(0.2):
            part[draw.number(0, len(part) - 1)] = draw.random.choice([-1, -(2**40), 60, 2**40])
    tables = np.concatenate([draw.random.permutation(n) for n in rows]).astype(np.int32)
    places = np.stack((starts, rows), axis=1)
    every = (np.concatenate(ids), np.cumsum(lengths), places, tables)
    return tuple(map(torch.from_numpy, every))


def _distinct(draw: Draw) -> tuple[Any, ...]:
    rows = draw.number(1, 1 << draw.number(0, 14))
    address = draw.ints(rows, draw.number(1, 700))
    return (address.int() if draw.chance(0.5) else address), rows


def _holders(draw: Draw) -> tuple[Any, ...]:
    ranks, count = draw.number(1, 9), draw.number(1, 6)
    lines, at = [], draw.number(0, 5)
    for _ in range(count):
        length, members, block = draw.number(1, 80), draw.number(1, ranks), 0
        if draw.chance(0.5):
            block = -(-length // members)
        lines.append((at, at + length, draw.number(0, 5), block, members))
        at += length + draw.number(0, 1) * draw.number(0, 9)
    owners = torch.from_numpy(draw.random.integers(0, ranks, (count, ranks)))
    address = torch.from_numpy(draw.random.integers(0, at + 5, draw.number(0, 600)))
    return (address.int() if draw.chance(0.5) else address), torch.tensor(lines), owners, ranks


def _group(draw: Draw) -> tuple[Any, ...]:
    size = draw.number(1, 12) if draw.chance(0.7) else draw.number(65, 300)
    return draw.ints(size, draw.number(0, 1300)), size


def _gather(draw: Draw) -> tuple[Any, ...]:
    rows, width, count = draw.number(1, 90), draw.width(), draw.number(0, 80)
    kind = (torch.float32, torch.float16, torch.bfloat16)[draw.number(0, 2)]
    lane = draw.floats(count + draw.number(0, 9), width)
    slots, first = draw.ints(rows, count), draw.number(0, 3) if draw.chance(0.5) else 0
    source = draw.floats(rows, first + width + draw.number(0, 3) * (first > 0)).to(kind)
    return source, slots, lane, draw.permuted(len(lane), count), first


def _add_rows(draw: Draw) -> tuple[Any, ...]:
    at, rows, width = draw.spots()
    first, sources = draw.number(0, 3), draw.number(1, 40)
    slots, wider = draw.ints(sources, len(at)), first + width + draw.number(0, 3)
    of_source, of_lane = (wider, width) if draw.chance(0.5) else (width, wider)
    source, lane = draw.floats(sources, of_source), draw.floats(rows, of_lane)
    return source, slots, draw.weights(len(at)), lane, at, first


def _pool(draw: Draw) -> tuple[Any, ...]:
    at, rows, width = draw.spots()
    bags, first = draw.number(1, 40) if draw.chance(0.7) else 1, draw.number(0, 3)
    out = draw.floats(bags, first + width + draw.number(0, 3))
    edges = draw.edges(len(at), bags)
    given = (out, first) if draw.chance(0.7) else (None, 0)
    return draw.floats(rows, width), at, edges, draw.weights(len(at)), *given


def _pool_back(draw: Draw) -> tuple[Any, ...]:
    at, rows, width = draw.spots()
    bags, first = draw.number(1, 40) if draw.chance(0.7) else 1, draw.number(0, 3)
    grad = draw.floats(bags, first + width + draw.number(0, 3))
    edges, weights = draw.edges(len(at), bags), draw.weights(len(at))
    return draw.floats(rows, width), at, edges, weights, grad, first


def _weights_back(draw: Draw) -> tuple[Any, ...]:
    # Numbers of about one size: what cancels out would show the order of terms.
    lane, at, edges, _, grad, first = _pool_back(draw)
    at = torch.where(draw.ints(10, len(at)) == 0, -1, at)
    shape = (len(lane), lane.shape[1])
    lane = torch.from_numpy(draw.random.uniform(0.5, 2, shape).astype(np.float32))
    grad = torch.from_numpy(draw.random.uniform(0.5, 2, tuple(grad.shape)).astype(np.float32))
    return lane, at, edges, grad, first, torch.zeros(len(at))


def _spread(draw: Draw) -> tuple[Any, ...]:
    at, rows, width = draw.spots()
    at = torch.where(draw.ints(10, len(at)) == 0, -1, at)
    first = draw.number(0, 3)
    out = draw.floats(len(at), first + width + draw.number(0, 3))
    return draw.floats(rows, width), at, out, first


_spread_back = _spread


def _sum_segments(draw: Draw) -> tuple[Any, ...]:
    slots, _, width = draw.spots()
    if not len(slots):
        slots = slots.new_zeros(1)
    found, inverse = ChainedKernels().distinct(slots, 90)
    order, counts = ChainedKernels().group(inverse, len(found))
    starts = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    rows = draw.number(1, 50)
    scale = float(np.float32(draw.random.choice([1.0, 0.25, 1 / 3])))
    at = draw.ints(rows, len(slots))
    return draw.floats(rows, width), at, draw.weights(len(slots)), order, starts, scale


def _sum_and_update(draw: Draw) -> tuple[Any, ...]:
    lane, at, weights, order, starts, scale = _sum_segments(draw)
    count = len(starts) - 1
    rows = count + draw.number(0, 9)
    rule, slots = Rule("sgd", 0.05), draw.permuted(rows, count)
    table = draw.floats(rows, lane.shape[1])
    return rule, table, slots, lane, at, weights, order, starts, scale


def _squares(draw: Draw) -> tuple[Any, ...]:
    return (draw.floats(draw.number(1, 60), draw.width()),)


def _update(draw: Draw) -> tuple[Any, ...]:
    kind, rows, width = KINDS[draw.number(0, len(KINDS) - 1)], draw.number(1, 90), draw.width()
    count = draw.number(1, rows)
    rule = Rule(kind, 0.05, 1e-8, 0.9, 0.999, 0.9 if kind == "momentum" else 1.0)
    if kind == "adam" and draw.chance(0.5):
        rule = replace(rule, kept=0.999)
    columns = 1 if kind == "rowwise_adagrad" else width
    state = tuple(draw.floats(rows, columns).abs() for _ in range(rule.states))
    squares = draw.floats(count if kind == "rowwise_adagrad" else 0).abs()
    dtype = (torch.float32, torch.float32, torch.float16, torch.bfloat16)[draw.number(0, 3)]
    weights, slots = draw.floats(rows, width).to(dtype), draw.permuted(rows, count)
    return rule, weights, slots, draw.floats(count, width), state, squares


def _count_bands(draw: Draw) -> tuple[Any, ...]:
    bands, ranks = draw.number(1, 20), draw.number(1, 9)
    starts = np.cumsum([draw.number(0, 3), *(draw.number(1, 30) for _ in range(bands))])
    counts = draw.random.integers(0, 150, ranks)
    entries = draw.random.integers(starts[0], starts[-1], counts.sum())
    kind = np.int32 if draw.chance(0.5) else np.int64
    return tuple(map(torch.from_numpy, (entries.astype(kind), counts, starts)))


def _copied(value: Any, device: str) -> Any:
    if isinstance(value, Tensor):
        return value.clone() if device == "cpu" else value.to(device)
    if isinstance(value, tuple):
        return tuple(_copied(entry, device) for entry in value)
    return value


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return list(value) if isinstance(value, tuple) else []


def _lengths(ends: Tensor) -> Tensor:
    return torch.diff(ends, prepend=ends.new_zeros(1))


def _same(wanted: Tensor, found: Tensor, tolerance: float | None) -> bool:
    if wanted.dtype != found.dtype or wanted.shape != found.shape:
        return False
    if tolerance is not None and wanted.dtype == torch.float32:
        return bool(torch.allclose(wanted, found, rtol=tolerance, atol=0.0))
    return bool((_bits(wanted) == _bits(found)).all())


def _bits(tensor: Tensor) -> NDArray[Any]:
    """Numbers, or of floats the bits; any NaN is as good as another."""
    if not tensor.is_floating_point():
        return np.asarray(tensor.numpy())
    tensor = torch.where(tensor.isnan(), torch.full_like(tensor, float("nan")), tensor)
    return np.asarray(tensor.contiguous().view(torch.uint8).numpy())

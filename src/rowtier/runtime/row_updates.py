"""Gradients that came back to the rows of one rank: summed, measured, clipped, applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.runtime.exchange.reduce import Reducer
from rowtier.runtime.exchange.sync import Sums
from rowtier.runtime.kernels.protocol import Array
from rowtier.runtime.kernels.side import ComputeSide
from rowtier.runtime.optim import Optimizer
from rowtier.runtime.store.storage import Shard

Ints = NDArray[np.int64]


class Ready(NamedTuple):
    """What a step applies: gradients that needed other ranks, and how to treat all others."""

    optimizers: Mapping[int, Optimizer]  # by shard
    scale: float  # of gradients that are not summed yet
    sums: dict[int, Sums]
    squares: dict[int, Array]  # of whole rows, where an optimizer wants them
    has_all: bool  # no gradients but those in `sums` are left


class RowUpdates:
    """What is done with the gradients that wait on this rank, under one plan."""

    def __init__(
        self, shards: Mapping[int, Shard], group_of: Mapping[int, int], reducer: Reducer,
        side: ComputeSide, scale: float, *, copies: Callable[[], dict[int, Sums]],
        updated: Callable[[Shard, Ints], None],
    ):  # fmt: skip
        """`copies` sums the gradients of rows with copies; `updated` is told of rows that were."""
        self._shards, self._group_of, self._reducer = shards, group_of, reducer
        self._side, self._scale = side, scale
        self._copies, self._updated = copies, updated
        self.sums: dict[int, Sums] | None = None  # all, since somebody looked at them

    def norm(self) -> float:
        """The norm of all gradients that wait, over all tables and ranks."""
        self.sums = self._every_sum()
        return float(np.sqrt(self._reducer.norm_squared(self.sums)))

    def clip_values(self, largest: float, factor: float) -> None:
        """Clamp every number of all gradients, times a factor, to at most `largest` in size."""
        limit = float(np.float32(largest))
        self.sums = {
            number: (slots, grads.clip(-limit, limit))
            for number, (slots, grads) in _scaled(self._every_sum(), factor).items()
        }

    def _every_sum(self) -> dict[int, Sums]:
        """The gradients of all rows, summed and scaled, as they are clipped so far."""
        if self.sums is not None:
            return self.sums
        return _scaled(self._reducer.sums(self._copies(), every=True), self._scale)

    def ready(self, optimizers: Sequence[Optimizer], factor: float) -> Ready:
        """Gradients times a factor, exchanged; no row changes yet."""
        sums, scale = self.sums, self._scale * factor
        has_all = sums is not None
        if sums is None:
            sums = _scaled(self._reducer.sums(self._copies(), every=False), scale)
        else:
            sums = _scaled(sums, factor)
        chosen = {number: optimizers[group] for number, group in self._group_of.items()}
        # Before any row changes: what a whole row's squares are made of lies apart, too.
        sums = {
            number: (slots, _decayed(self._shards[number], slots, grads, chosen[number].l2))
            for number, (slots, grads) in sums.items()
        }
        return Ready(chosen, scale, sums, self._reducer.squares(sums), has_all)

    def apply(self, ready: Ready, step_number: int) -> None:
        """Update every row that has gradients, once."""
        for number, shard in self._shards.items():
            optimizer = ready.optimizers[number]
            if number in ready.sums:
                slots, grads = ready.sums[number]
                squares = ready.squares.get(number)
                self._update(shard, slots, grads, optimizer, step_number, squares)
            elif not ready.has_all:
                self.sum_and_update(shard, np.float32(ready.scale), optimizer, step_number)
        self.sums = None

    def sum_and_update(
        self, shard: Shard, scale: np.float32, optimizer: Optimizer, step_number: int
    ) -> None:
        """Sum and update row by row, or block by block, while the sums are in the cache."""
        table = shard.piece.table
        rule = optimizer.rule(step_number)
        plain = rule.kind == "sgd" and not optimizer.l2
        if plain and (found := shard.take_segments()) is not None:
            shard.sum_and_update(rule, found, float(scale))
            self._updated(shard, found.slots)
            return
        for slots, grads in shard.blocks(scale):
            squares, grads = None, _decayed(shard, slots, grads, optimizer.l2)
            if table.optimizer == "rowwise_adagrad":
                squares = self._side.kernels.squares(grads) / float(table.embedding_dim)
            self._update(shard, slots, grads, optimizer, step_number, squares)

    def _update(
        self, shard: Shard, slots: Ints, grads: Array, optimizer: Optimizer, step_number: int,
        squares: Array | None,
    ) -> None:  # fmt: skip
        rule = optimizer.rule(step_number)
        for part in shard.chunks(len(slots)):
            some = None if squares is None else squares[part]
            shard.update(rule, slots[part], grads[part], some)
        self._updated(shard, slots)

    @property
    def has_gradients(self) -> bool:
        """Whether any wait for a step on this rank."""
        return self.sums is not None or any(shard.parts for shard in self._shards.values())

    def forget_gradients(self) -> None:
        """Drop gradients that were not applied."""
        self.sums = None
        for shard in self._shards.values():
            shard.parts.clear()


def _scaled(sums: dict[int, Sums], scale: float) -> dict[int, Sums]:
    """The same gradients times a number."""
    factor = float(np.float32(scale))
    if factor == 1:
        return sums
    return {number: (slots, grads * factor) for number, (slots, grads) in sums.items()}


def _decayed(shard: Shard, slots: Ints, grads: Array, l2: float) -> Array:
    """Gradients of rows with so much of their weights added."""
    return grads + float(np.float32(l2)) * shard.values(slots) if l2 else grads

"""Round by round: rows are read where they were, travel, and are written where they shall be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rowtier.runtime.engine import Engine
from rowtier.runtime.exchange.wire import Swap
from rowtier.runtime.move_rounds import Portion
from rowtier.runtime.row_moves import MovedField, RowMoves, Slots, Transfer
from rowtier.runtime.store.moving import MAP_BYTES, ArrivingRows, LeavingRows, forget_rows
from rowtier.runtime.store.storage import Shard

Ints = NDArray[np.int64]
Followed = TypeVar("Followed", LeavingRows, ArrivingRows)
NO_SLOTS = np.empty(0, dtype=np.int64)
_AT_ONCE_BYTES = 8 << 20  # of rows that stay on their rank


class Travelled(NamedTuple):
    """What one rank did, in bytes."""

    sent: Ints  # by rank
    received: Ints
    within: int  # to another tier
    headers: int
    most: int  # of memory for buffers and lists, at any time


class RowsOnTheMove:
    """Moves rows from what one engine keeps to what another does, and counts what travels."""

    def __init__(self, before: Engine, after: Engine):
        self._moves, self._engine = RowMoves(before, after), after
        self._sent, self._received = np.zeros((2, after.world.size), dtype=np.int64)
        self._within = self._most = self._lists = 0
        self._stamps = self._headers()
        self._leaving: dict[int, LeavingRows] = {}
        self._arriving: dict[int, ArrivingRows] = {}

    def _headers(self) -> int:
        return int(sum(wire.stamp_bytes[0].sum() for wire in self._engine.counters.wires))

    def run(self, portions: list[Portion]) -> None:
        """One round: what goes is read, what comes is written, what is gone is given back."""
        swaps: list[Swap] = []
        coming: list[tuple[Transfer, MovedField, NDArray[Any]]] = []
        gone: list[tuple[Portion, Slots]] = []
        for portion in portions:
            rows = portion.rows(self._engine)
            gone.append((portion, self._begin(portion, rows)))
            for transfer in self._moves.transfers(portion.table, rows):
                self._keep(transfer)
                for entry in transfer.fields:
                    swaps.append(self._swap(transfer, entry))
                    coming.append((transfer, entry, swaps[-1].got))
        self._count(swaps)
        if swaps:
            self._engine.wire.swap_all(swaps)
        for transfer, entry, came in coming:
            self._put(transfer, entry, transfer.got.data, came.reshape(-1, entry.width))
        for portion, slots in gone:
            self._end(portion, slots)
        for memory in self._engine.memories.values():
            memory.settle()

    def _begin(self, portion: Portion, rows: Ints) -> Slots:
        """Have places for rows that come; the rows that are of no use after this round."""
        if portion.parts == 1:  # all of them; new ones are written to their slots at once
            return [(shard, NO_SLOTS) for shard in self._moves.old_shards(portion.table)]
        before, after = self._moves.slots_here(portion.table, rows)
        for shard, slots in after:
            if not shard.on_disk:
                self._follow(self._arriving, shard, ArrivingRows).arrive(slots)
        for shard, _ in before:
            if not shard.on_disk:
                self._follow(self._leaving, shard, LeavingRows)
        return before

    def _follow(
        self, known: dict[int, Followed], shard: Shard, kind: Callable[[Shard], Followed]
    ) -> Followed:
        number = shard.piece.number
        if number not in known:
            known[number] = kind(shard)
            self._lists += known[number].maps * MAP_BYTES * shard.piece.rows_here
        return known[number]

    def _end(self, portion: Portion, gone: Slots) -> None:
        for shard, slots in gone:
            if portion.parts == 1:
                forget_rows(shard)
            elif not shard.on_disk:
                self._leaving[shard.piece.number].leave(slots)

    def finish(self) -> None:
        """Bring rows to their slots, and forget what the old plan kept."""
        for arrived in self._arriving.values():
            arrived.settle()
        release_rows(self._moves.before, self._engine)

    def _take(self, transfer: Transfer, entry: MovedField, slots: Ints) -> NDArray[Any]:
        leaving = self._leaving.get(transfer.source.piece.number)
        places = slots if leaving is None else leaving.places(slots)
        return transfer.source.take(entry.name, places, entry.old)

    def _put(
        self, transfer: Transfer, entry: MovedField, slots: Ints, values: NDArray[Any]
    ) -> None:
        arriving = self._arriving.get(transfer.target.piece.number)
        places = slots if arriving is None else arriving.places(slots)
        transfer.target.put(entry.name, places, values, entry.new)

    def _swap(self, transfer: Transfer, entry: MovedField) -> Swap:
        """What is sent of a field, and room for what comes."""
        sent, got = transfer.sent, transfer.got
        values = np.ascontiguousarray(self._take(transfer, entry, sent.data))
        return Swap(
            values.reshape(-1),
            sent.counts * entry.width,
            np.empty(len(got.data) * entry.width, dtype=values.dtype),
            got.counts * entry.width,
        )

    def _keep(self, transfer: Transfer) -> None:
        """Copy what stays on this rank, a part at a time."""
        slots, new_slots = transfer.kept
        if transfer.changes_tier:
            self._within += len(slots) * transfer.row_bytes
        order = np.argsort(slots if transfer.source.on_disk else new_slots, kind="stable")
        step = max(1, _AT_ONCE_BYTES // transfer.row_bytes)
        for start in range(0, len(order), step):
            some = order[start : start + step]
            for entry in transfer.fields:
                self._put(
                    transfer, entry, new_slots[some], self._take(transfer, entry, slots[some])
                )

    def _count(self, swaps: list[Swap]) -> None:
        for swap in swaps:
            self._sent += swap.counts * swap.sent.itemsize
            self._received += swap.got_counts * swap.got.itemsize
        used = sum(swap.sent.nbytes + swap.got.nbytes for swap in swaps)
        self._most = max(self._most, used + self._lists)

    def travelled(self) -> Travelled:
        """What this rank did so far."""
        headers = self._headers() - self._stamps
        return Travelled(self._sent, self._received, self._within, headers, self._most)


def release_rows(engine: Engine, other: Engine) -> None:
    """Forget rows that an engine keeps and another does not."""
    kept = {id(shard.rows) for shard in other.run_shards.values()}
    for shard in engine.run_shards.values():
        if id(shard.rows) not in kept:
            shard.rows.release()

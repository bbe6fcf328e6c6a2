"""What rows are before they are trained: weights of seed, table and row, and state that is new."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.plan.remap import TableMap
from rowtier.runtime.groups import Group
from rowtier.runtime.options import RunOptions
from rowtier.runtime.store.address import Piece
from rowtier.runtime.store.storage import Init, Shard, first_weights
from rowtier.tables import Table

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
_CHUNK = 1 << 13  # rows that are made at once


class FirstRows:
    """Rows as they are at first, whatever the plan."""

    def __init__(self, options: RunOptions, groups: Sequence[Group]):
        self._options = options
        self._optimizers = {name: group.optimizer for group in groups for name in group.tables}

    def weights(self, table: Table, rows: Ints) -> Floats:
        """The weights of some rows of a table."""
        if self._options.init is not None:
            return np.asarray(self._options.init(table, rows), dtype=np.float32)
        return first_weights(table, rows, self._options.seed)

    def fill_state(self, shards: Iterable[Shard]) -> None:
        """Set the state of all rows anew."""
        for shard in shards:
            shard.fill_state(self._optimizers[shard.piece.table.name].first_state)

    def restart(
        self, rows: Ints, entry: TableMap, layers: Sequence[Sequence[Piece]],
        shards: Mapping[int, Shard],
    ) -> None:  # fmt: skip
        """Set some rows of a table, and their state, anew where this rank holds them."""
        address = np.asarray(entry.address[rows], dtype=np.int64)
        values = self.weights(entry.table, rows)
        first_state = self._optimizers[entry.table.name].first_state
        for number, layer in enumerate(layers):
            here = np.asarray(entry.in_layer(number, address), dtype=np.int64)
            for piece in layer:
                if not piece.rows_here:
                    continue
                inside = np.flatnonzero((here >= piece.band.start) & (here < piece.band.stop))
                member, slots = piece.places(here[inside])
                mine = member == piece.position
                first, last = piece.columns
                part = np.ascontiguousarray(values[inside[mine], first:last])
                shards[piece.number].restart(slots[mine], part, first_state)


def fill_weights(shard: Shard, rows: Ints, values: Init) -> None:
    """Set the weights of a shard, which has these rows, to `values(table, rows)`."""
    table, (first, last) = shard.piece.table, shard.piece.columns
    for start in range(0, len(rows), _CHUNK):
        part = rows[start : start + _CHUNK]
        found = np.asarray(values(table, part), dtype=np.float32)
        if found.shape != (len(part), table.embedding_dim):
            raise UserError(
                f"init of table {table.name!r} gave shape {found.shape} for {len(part)} "
                f"rows; give {(len(part), table.embedding_dim)}"
            )
        slots = np.arange(start, start + len(part))
        shard.store(slots, np.ascontiguousarray(found[:, first:last]))

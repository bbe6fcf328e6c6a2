"""Where the remap table of each table lies in the memory file, and what is written there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rowtier.band import Band, layers_of
from rowtier.errors import UserError
from rowtier.plan.memory_files import aligned
from rowtier.profile.order import rows_by_position
from rowtier.profile.vocabulary import VocabularyIndex
from rowtier.tables import Table

if TYPE_CHECKING:
    from rowtier.plan.plan import Plan

Ints = NDArray[np.int64]
Addresses = NDArray[Any]  # int32, or int64 above 2³¹ rows
# Of all rows, of those that a layer of bands orders in its own way, and the vocabulary's index.
MapParts: TypeAlias = tuple[Addresses, tuple[Addresses | None, ...], VocabularyIndex | None]


@dataclass(frozen=True)
class MapLayout:
    """Where a table's arrays lie in the file: addresses, then the vocabulary's index."""

    table: Table
    start: int
    item_bytes: int
    own: tuple[bool, ...]  # per layer: whether it orders rows in its own way
    index: tuple[tuple[str, int], ...] = ()  # type and length of the index's arrays

    @property
    def _layout(self) -> list[tuple[str, int]]:
        """Type and length of all arrays."""
        address = (f"i{self.item_bytes}", self.table.num_embeddings)
        return [address] * (1 + sum(self.own)) + list(self.index)

    @property
    def stop(self) -> int:
        """Where the next table may begin."""
        return self.start + sum(aligned(np.dtype(d).itemsize * n) for d, n in self._layout)

    def _arrays(self, memory: NDArray[np.uint8]) -> Iterator[NDArray[Any]]:
        start = self.start
        for dtype, length in self._layout:
            size = length * np.dtype(dtype).itemsize
            yield memory[start : start + size].view(dtype)
            start += aligned(size)

    def parts(self, memory: NDArray[np.uint8]) -> MapParts:
        """The arrays as they lie in the file."""
        arrays = self._arrays(memory)
        address = next(arrays)
        layers = tuple(next(arrays) if own else None for own in self.own)
        vocabulary = None
        if self.index:
            *ids, slots = arrays
            vocabulary = VocabularyIndex(self.table.hash_seed, tuple(ids), slots)
        return address, layers, vocabulary

    def fill(self, memory: NDArray[np.uint8], plan: Plan) -> None:
        """Write the addresses of a plan's rows."""
        assert plan.order is not None
        arrays = self._arrays(memory)
        by_rank = rows_by_position(plan.order[self.table.name], self.table.num_embeddings)
        layers = layers_of(plan.bands[self.table.name])
        rows = _by_address(by_rank, layers[0])
        next(arrays)[rows] = np.arange(len(rows))
        for layer, own in zip(layers, self.own, strict=True):
            if own:
                next(arrays)[:] = inverse(_by_address(by_rank, layer))[rows]
        if self.index:
            index = plan.vocabularies[self.table.name].index(self.table.hash_seed)
            for place, part in zip(arrays, (*index.ids, index.slots), strict=True):
                place[:] = part


def layouts_of(plan: Plan, rows: bool) -> Iterator[MapLayout]:
    """The layouts of all tables; no vocabulary's index where batches are of `rows`."""
    start = 0
    for table, bands in plan:
        layers = layers_of(bands)
        blocks = [_blocks(layer) for layer in layers]
        item_bytes = 4 if table.num_embeddings <= 2**31 else 8
        own = tuple(found != blocks[0] for found in blocks)
        spec = MapLayout(table, start, item_bytes, own, () if rows else _index_layout(plan, table))
        yield spec
        start = spec.stop


def _index_layout(plan: Plan, table: Table) -> tuple[tuple[str, int], ...]:
    """Type and length of every array of a vocabulary's index."""
    if table.ids != "vocabulary":
        return ()
    if table.name not in plan.vocabularies:
        raise UserError(
            f"table {table.name!r} takes ids by a vocabulary, and the plan has none for it: plan "
            "from the profile that was made with it, or make rows yourself and remap with rows=True"
        )
    index = plan.vocabularies[table.name].index(table.hash_seed)
    return tuple((array.dtype.str, len(array)) for array in (*index.ids, index.slots))


def inverse(order: Addresses) -> Ints:
    """Where each number stands in an order of all of them."""
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    return places


def _blocks(layer: list[Band]) -> list[tuple[int, int]]:
    return [(band.start, band.stop) for band in layer if band.order == "blocks"]


def _by_address(by_rank: Ints, layer: list[Band]) -> Ints:
    """The rows in the order of their addresses."""
    rows = by_rank.copy()
    for start, stop in _blocks(layer):
        rows[start:stop].sort()
    return rows

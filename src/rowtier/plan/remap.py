"""From ids to addresses: one table lookup per id, checked once, wherever the batch is made.

The address of a row is its hotness rank, except that rows of a `blocks` band are in the order
of their ids among themselves; who holds a row, and where, is arithmetic on its address. Bands
that share rows (they hold other columns) and order them otherwise keep a second table, from
address to address.

The tables of a plan lie in one memory file that all processes of a node map; worker processes
of a data loader get the file's name when the remapper is pickled.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.jit import compiled
from rowtier.plan.bags import Jagged, Origin, jagged_batch, origin_of
from rowtier.plan.memory_files import memory_file, remove_file, sweep_files
from rowtier.plan.remap_layout import Addresses, Ints, MapLayout, inverse, layouts_of
from rowtier.profile.growing import IdFeature
from rowtier.profile.ids import Where, numbers_of, settled_numbers, settled_rows, unchecked_rows
from rowtier.profile.vocabulary import VocabularyIndex
from rowtier.tables import Table

if TYPE_CHECKING:
    from rowtier.plan.plan import Plan


class Read(NamedTuple):
    """A table that a feature reads, and what the result is called."""

    key: str  # the feature; feature@table if it reads several, as TorchRec says it
    feature: str
    table: Table


def reads_of(tables: Iterable[Table]) -> tuple[Read, ...]:
    """What all features read, in the order of the tables."""
    pairs = [(feature, table) for table in tables for feature in table.features]
    often = Counter(feature for feature, _ in pairs)
    return tuple(
        Read(feature if often[feature] == 1 else f"{feature}@{table.name}", feature, table)
        for feature, table in pairs
    )


# From ids of growing tables, by table and feature, to rows, and a note of when that was.
Resolver: TypeAlias = Callable[
    [Mapping[str, Sequence[IdFeature]]], tuple[Mapping[str, Sequence[Ints]], object]
]


class Addressed(dict[str, Jagged]):
    """A batch whose ids have been turned into addresses; `ShardedEmbeddings` takes it as it is."""

    def __init__(
        self, jagged: Mapping[str, Jagged], origin: Origin | None = None, mark: int | None = None
    ):
        super().__init__(jagged)
        self.origin, self.mark = origin or Origin(), mark  # the mark of the remapper

    def __reduce__(self) -> tuple[Any, ...]:
        return Addressed, (dict(self), self.origin, self.mark)


@dataclass(frozen=True, eq=False)
class TableMap:
    """One table's lookups: row → address, and for further layers address → their address."""

    table: Table
    address: Addresses
    layers: tuple[Addresses | None, ...]  # None: the same address
    vocabulary: VocabularyIndex | None = None

    def rows(self) -> Ints:
        """The row at each address."""
        return inverse(self.address)

    def in_layer(self, layer: int, address: Addresses) -> Addresses:
        """Where rows lie in a layer."""
        table = self.layers[layer]
        return address if table is None else table[address]

    def in_first_layer(self, layer: int, address: Addresses) -> Addresses:
        """Addresses of a layer as addresses of the first."""
        table = self.layers[layer]
        return address if table is None else inverse(table)[address]


class Remapper:
    """Turns the ids of a batch into addresses; safe to pickle to worker processes.

    >>> remap = plan.remapper()
    >>> loader = DataLoader(data, collate_fn=lambda samples: remap(collate(samples)), …)
    """

    def __init__(
        self, path: str, specs: tuple[MapLayout, ...], rows: bool = False, mark: int | None = None,
        *, owner: bool = False,
    ):  # fmt: skip
        self.path, self._specs, self.holds_rows = path, specs, rows
        self.mark = mark  # a digest of all addresses: the same where batches are interchangeable
        # A plain array: compiled loops take those without looking twice.
        self._file = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        self.tables = {
            spec.table.name: TableMap(spec.table, *spec.parts(self._file)) for spec in specs
        }
        self.reads = reads_of(spec.table for spec in specs)
        self._features = tuple(dict.fromkeys(read.feature for read in self.reads))
        starts = {spec.table.name: spec.start // 4 for spec in specs}
        self._narrow = self._file[: len(self._file) // 4 * 4].view(np.int32)
        self._places = np.array(
            [(starts[read.table.name], read.table.num_embeddings) for read in self.reads],
            dtype=np.int64,
        )
        self._all_narrow = all(spec.item_bytes == 4 for spec in specs)
        self._end = weakref.finalize(self, remove_file, path) if owner else None
        self.growing: Resolver | None = None  # what gives new ids of growing tables rows
        self._growing: dict[str, list[int]] = {}
        for at, read in enumerate(self.reads):
            if read.table.grows:
                self._growing.setdefault(read.table.name, []).append(at)

    @classmethod
    def of(cls, plan: Plan, *, rows: bool = False) -> Remapper:
        """Build the tables of a plan in a new memory file; with `rows` for batches of rows."""
        if plan.order is None:
            raise UserError(
                "the plan has no row order, because it was made from a curve, so nobody knows "
                "which row lies where: profile the data with `rowtier profile DATA --tables "
                "tables.yaml -o profile/`, and plan from that"
            )
        growing = [table.name for table, _ in plan if table.grows]
        if rows and growing:
            raise UserError(
                f"rows=True, and table {growing[0]!r} has `ids: grow`: which row an id has "
                "changes while training, so give the ids"
            )
        sweep_files()
        specs = tuple(layouts_of(plan, rows))
        path = memory_file(max(1, specs[-1].stop))
        try:
            memory = np.memmap(path, dtype=np.uint8, mode="r+")
            for spec in specs:
                spec.fill(memory, plan)
            memory.flush()
            mark = _mark([spec.parts(np.asarray(memory))[0] for spec in specs])
            return cls(path, specs, rows, mark, owner=True)
        except BaseException:
            remove_file(path)
            raise

    def forget(self) -> None:
        """Remove the file's name; those who have it open go on. Nobody can join afterwards."""
        if self._end is not None:
            self._end()

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (self.path, self._specs, self.holds_rows, self.mark)

    def __call__(self, batch: Any) -> Addressed:
        """The same batch with addresses for ids; what has no row is treated as its table says."""
        if isinstance(batch, Addressed):
            return self._checked(batch)
        found = jagged_batch(batch, self._features)
        jagged = [found[read.feature] for read in self.reads]
        grown, resolved = self._grown(jagged)
        rows = [
            self._rows(read, part) if known is None else known
            for read, part, known in zip(self.reads, jagged, grown, strict=True)
        ]
        addresses = self._addresses(rows)
        return Addressed(
            {
                entry[0].key: self._addressed(*entry)
                for entry in zip(self.reads, jagged, rows, addresses, strict=True)
            },
            replace(origin_of(batch), resolved=resolved),
            self.mark,
        )

    def _checked(self, batch: Addressed) -> Addressed:
        if batch.mark in (None, self.mark):
            return batch
        raise UserError(
            "a batch whose ids were turned into addresses for another plan, where its rows have "
            "other addresses (after embeddings.migrate, or of another remapper): hand the workers "
            "embeddings.plan.remapper() and make the batch anew, or give the ids"
        )

    def _grown(self, jagged: list[Jagged]) -> tuple[list[Ints | None], object]:
        """The rows of reads of growing tables, None for others; and when that was."""
        found: list[Ints | None] = [None] * len(jagged)
        if not self._growing:
            return found, None
        if self.growing is None:
            raise UserError(
                f"table {next(iter(self._growing))!r} has `ids: grow`, and ids get their rows "
                "from all ranks together: give the module the batch as it is, without a remapper"
            )
        asked = {
            name: [
                IdFeature(self.reads[at].feature, jagged[at].values, jagged[at].edges)
                for at in here
            ]
            for name, here in self._growing.items()
        }
        rows, resolved = self.growing(asked)
        for name, here in self._growing.items():
            for at, part in zip(here, rows[name], strict=True):
                found[at] = part
        return found, resolved

    def _rows(self, read: Read, jagged: Jagged) -> NDArray[np.integer[Any]]:
        """The rows of ids; one that has none is outside of the table."""
        table_map = self.tables[read.table.name]
        if self.holds_rows:
            return numbers_of(table_map.table, jagged.values, Where(read.feature))
        where = Where(read.feature)
        return unchecked_rows(table_map.table, jagged.values, table_map.vocabulary, where)

    def _addresses(self, rows: list[NDArray[np.integer[Any]]]) -> Iterator[Addresses | None]:
        """Of each read the addresses of its rows; None: some are not in the table."""
        if self._all_narrow:  # all in one loop: a call for each costs more than the look-up
            ends = np.cumsum([len(part) for part in rows])
            missing = np.empty(len(rows), dtype=np.bool_)
            every = np.concatenate(rows).astype(np.int64, copy=False)
            found = look_up_all(every, ends, self._places, self._narrow, missing)
            starts = [0, *ends.tolist()]
            for start, stop, lacks in zip(starts, starts[1:], missing.tolist(), strict=False):
                yield None if lacks else found[start:stop]
            return
        for read, part in zip(self.reads, rows, strict=True):
            address = self.tables[read.table.name].address
            here = np.empty(len(part), dtype=address.dtype)
            yield here if look_up(part, address, here) < 0 else None

    def _addressed(
        self, read: Read, jagged: Jagged, rows: NDArray[np.integer[Any]], found: Addresses | None
    ) -> Jagged:
        if found is not None:
            moved = jagged.with_values(found)
            return moved if moved.kept is None else _without_gaps(read, moved)
        table_map, where = self.tables[read.table.name], Where(read.feature, lengths=jagged.lengths)
        settle = settled_numbers if self.holds_rows else settled_rows
        settled = settle(table_map.table, rows, jagged.values, where)
        found = np.asarray(table_map.address[settled.rows])
        return _without_gaps(read, jagged.with_values(found, settled.kept))


def _without_gaps(read: Read, jagged: Jagged) -> Jagged:
    """A rectangle that lost lookups is none any more, which only a pooled table can bear."""
    if jagged.shape is None or len(jagged.values) == math.prod(jagged.shape):
        return jagged
    if read.table.pooling == "none":
        sample = int(np.argmax(jagged.lengths < math.prod(jagged.shape[1:])))
        raise UserError(
            f"feature {read.feature!r}: sample {sample} of the batch has a null or an id that is "
            f"dropped, and table {read.table.name!r} gives a row for every id of a rectangle: give "
            "lists, or (ids, lengths), which may have gaps"
        )
    return replace(jagged, shape=None)


@compiled
def look_up(ids: NDArray[Any], table: NDArray[Any], found: NDArray[Any]) -> int:
    """Fill in the addresses of ids; the position of the first that has none, or −1."""
    rows = len(table)
    for i in range(len(ids)):
        row = ids[i]
        if row < 0 or row >= rows:
            return i
        found[i] = table[row]
    return -1


@compiled
def look_up_all(
    ids: Ints, ends: Ints, places: Ints, tables: NDArray[np.int32], missing: NDArray[np.bool_]
) -> NDArray[np.int32]:
    """The addresses of ids, part by part up to `ends`; whether a part has ids without one.

    `places` are lines of where a part's table begins in `tables`, and how many rows it has.
    """
    found, i = np.empty(len(ids), dtype=np.int32), 0
    for part in range(len(ends)):
        start, rows = places[part]
        missing[part] = False
        for k in range(i, ends[part]):
            row = ids[k]
            if row < 0 or row >= rows:
                missing[part] = True
                break
            found[k] = tables[start + row]
        i = ends[part]
    return found


def _mark(addresses: Iterable[Addresses]) -> int:
    """A digest of where all rows lie."""
    digest = xxhash.xxh3_64()
    for address in addresses:
        digest.update(address.view(np.uint8).data)
    return int(digest.intdigest())


def _attach(
    path: str, specs: tuple[MapLayout, ...], rows: bool, mark: int | None = None
) -> Remapper:
    if not Path(path).exists():
        raise UserError(
            f"{path}: the remap tables are gone; the process that made them has ended, or all its "
            "ranks have joined already. Call plan.remapper() and hand that to the workers"
        )
    return Remapper(path, specs, rows, mark, owner=False)

"""Vocabularies: a row for each id that is worth one, hottest first.

Row r of the table belongs to id r of the vocabulary. Ids are ordered by their lookups in the
data that the vocabulary was built from, ties by id (numbers ascending, strings by their UTF-8).
All ids that are not in it share the table's last `num_shared` rows, by their hash.

An id is looked up by its 64-bit hash in an open-addressing table, and then compared with the id
that was found, so that equal hashes do no harm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rowtier.errors import InvalidError, Mistake, UserError
from rowtier.files import fingerprint_of
from rowtier.jit import compiled
from rowtier.manifest import MANIFEST, read_manifest
from rowtier.profile.columns import file_name
from rowtier.profile.hashing import Bytes, Hashes, hash_ints, hash_strings, string_parts
from rowtier.profile.ids import IdValues, Ints, Where, as_int64, flat_ids
from rowtier.reading import StrPath
from rowtier.tables import Table
from rowtier.writing import new_file

FOLDER = "vocabulary"
_ROW_GROUP = 2**20


@dataclass(frozen=True, eq=False)
class VocabularyIndex:
    """Finds ids: plain arrays, so that it can lie in memory that processes share."""

    seed: int
    ids: tuple[NDArray[Any], ...]  # whole numbers; or where each string begins, and all bytes
    slots: NDArray[np.signedinteger[Any]]  # by hash: the row, or −1

    @property
    def strings(self) -> bool:
        """Whether ids are strings."""
        return len(self.ids) == 2

    @property
    def size(self) -> int:
        """How many ids there are."""
        return len(self.ids[0]) - int(self.strings)

    def index(self, seed: int) -> VocabularyIndex:
        """Itself; it was made for one table, and so for one seed."""
        assert seed == self.seed
        return self

    def find(self, values: IdValues, hashes: Hashes) -> Ints:
        """The row of every id; −1 for those that are not here."""
        found = np.full(len(values), -1, dtype=np.int64)
        if not self.size or not len(values):
            return found
        if self.strings:
            starts, data = self.ids
            _find_strings(*string_parts(values), hashes, starts, data, self.slots, found)
        else:
            _find_ints(as_int64(values), hashes, self.ids[0], self.slots, found)
        return found


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The ids of a table's rows, in the order of the rows, and their lookups when it was built.

    `ids` are whole numbers (numpy) or strings (Arrow); a list works too.
    """

    ids: IdValues
    counts: Ints
    _indexes: dict[int, VocabularyIndex] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Bring ids and counts into one form, so that equal content has equal bytes."""
        ids, nulls = flat_ids(self.ids, Where("id"))
        if nulls is not None:
            raise UserError("a vocabulary holds a null; every row has an id, so drop it")
        if isinstance(ids, np.ndarray):
            large = ids.dtype == np.uint64 and len(ids) and int(ids.max()) >= 2**63
            ids = ids if large else ids.astype(np.int64, copy=False)
        counts = np.ascontiguousarray(self.counts, dtype=np.int64)
        if len(counts) != len(ids):
            raise UserError(
                f"a vocabulary of {len(ids)} ids has {len(counts)} counts; give as many"
            )
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "counts", counts)

    def __len__(self) -> int:
        return len(self.counts)

    def __reduce__(self) -> tuple[Any, ...]:
        return Vocabulary, (self.ids, self.counts)  # an index is made anew where it is needed

    @property
    def strings(self) -> bool:
        """Whether ids are strings."""
        return not isinstance(self.ids, np.ndarray)

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of the content; equal content has equal fingerprints."""
        arrays = [np.ascontiguousarray(array) for array in self._parts]
        kind = "string" if self.strings else "int64"
        return fingerprint_of(kind, *arrays, self.counts)

    @cached_property
    def _parts(self) -> tuple[NDArray[Any], ...]:
        if isinstance(self.ids, np.ndarray):
            return (as_int64(self.ids),)
        offsets, data = string_parts(self.ids)
        return offsets - offsets[0], data[offsets[0] : offsets[-1]]

    def index(self, seed: int) -> VocabularyIndex:
        """What finds ids by their hash with a seed; made once."""
        duplicate = self._duplicate(seed)
        if duplicate >= 0:
            raise UserError(f"a vocabulary holds id {self._shown(duplicate)!r} more than once")
        return self._indexes[seed]

    def _duplicate(self, seed: int) -> int:
        """Make the index; the row of an id that is there more than once, or −1."""
        if seed in self._indexes:
            return -1
        kind = np.int32 if len(self) < 2**31 else np.int64
        slots: NDArray[np.signedinteger[Any]]
        slots = np.full(1 << max(3, (2 * len(self) - 1).bit_length()), -1, dtype=kind)
        duplicate = -1
        if self.strings and len(self):
            starts, data = self._parts
            duplicate = int(_place_strings(starts, data, hash_strings(self.ids, seed), slots))
        elif len(self):
            ids = self._parts[0]
            duplicate = int(_place_ints(ids, hash_ints(ids, np.uint64(seed)), slots))
        if duplicate < 0:
            self._indexes[seed] = VocabularyIndex(seed, self._parts, slots)
        return duplicate

    def _shown(self, row: int) -> object:
        found = self.ids[row]
        return found.as_py() if self.strings else int(found)

    def mistakes(self, table: Table) -> Iterator[Mistake]:
        """What keeps the vocabulary from being that of a table."""
        if len(self) > table.num_own:
            yield Mistake(
                "id",
                len(self),
                f"so many ids, and table {table.name!r} has rows for {table.num_own} "
                f"({table.num_embeddings} less num_shared, {table.num_shared}): use the "
                "vocabulary of this table, or build it anew by profiling",
            )
        duplicate = self._duplicate(table.hash_seed)
        if duplicate >= 0:
            yield Mistake("id", self._shown(duplicate), "is there more than once; keep one of them")
        if table.grows:
            return  # rows of a vocabulary that grew are in no order
        if len(self) and int(self.counts.min()) < table.min_count:
            least = int(self.counts.min())
            yield Mistake(
                "count", least, f"must be at least the table's min_count, {table.min_count}"
            )
        if (np.diff(self.counts) > 0).any():
            yield Mistake("count", None, "must be ordered hottest first")

    def check(self, table: Table, source: object) -> None:
        """Raise `InvalidError` if this cannot be the vocabulary of a table."""
        mistakes = list(self.mistakes(table))
        if mistakes:
            raise InvalidError(source, mistakes)

    def save(self, path: StrPath) -> None:
        """Write a Parquet file: row, id, count."""
        rows = np.arange(len(self), dtype=np.int64)
        ids = pa.array(self.ids) if isinstance(self.ids, np.ndarray) else self.ids
        columns = pa.table({"row": rows, "id": ids, "count": self.counts})
        with new_file(path) as file:
            pq.write_table(columns, file, row_group_size=_ROW_GROUP, use_dictionary=False)

    @classmethod
    def load(cls, path: StrPath) -> Vocabulary:
        """Read a Parquet file that `save` wrote, or one like it."""
        from rowtier.profile.columns import read_columns

        path = Path(path)
        kinds = {"row": pa.int64(), "id": _id_kind(path), "count": pa.int64()}
        columns = read_columns(path, kinds)
        rows = columns["row"].to_numpy()
        wrong = np.flatnonzero(rows != np.arange(len(rows)))
        if len(wrong):
            at = int(wrong[0])
            accepted = f"is at place {at}; rows must be 0, 1, 2 and so on, in this order"
            raise InvalidError(path, [Mistake("row", int(rows[at]), accepted)])
        return cls(columns["id"], columns["count"].to_numpy())


def _id_kind(path: Path) -> pa.DataType:
    from rowtier.profile.columns import schema_of

    try:
        kind = schema_of(path).field("id").type
    except KeyError:
        return pa.int64()  # reading the columns says what is wrong
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_uint64(kind) or types.is_integer(kind):
        return kind if types.is_uint64(kind) else pa.int64()
    if types.is_string(kind) or types.is_large_string(kind):
        return pa.large_string()
    accepted = "the column must hold whole numbers or strings"
    raise InvalidError(path, [Mistake("id", str(kind), accepted)])


def vocabulary_file(folder: StrPath, table: Table) -> Path:
    """Where a profile or plan folder keeps the vocabulary of a table."""
    return Path(folder) / _name(table)


def _name(table: Table) -> str:
    return f"{FOLDER}/{file_name(table.name)}"


def read_vocabulary(folder: StrPath, table: Table, sealed: str | None = None) -> Vocabulary:
    """The vocabulary of a table from a profile or plan folder, checked against the table.

    `sealed` is the fingerprint that it must have, if that is known.
    """
    path = vocabulary_file(folder, table)
    if not path.exists():
        raise UserError(
            f"{path}: the vocabulary of table {table.name!r} is missing; profile again, or give a "
            "profile or plan folder that has it"
        )
    if (Path(folder) / MANIFEST).exists():  # vocabularies alone may also be written by hand
        written = read_manifest(Path(folder), "profile")
        written.check(Path(folder), _name(table), f"of table {table.name!r}", "profile")
    found = Vocabulary.load(path)
    found.check(table, path)
    if sealed not in (None, found.fingerprint):
        why = f"must be {sealed}: this is the vocabulary of another profile; put its own back"
        raise InvalidError(path, [Mistake("fingerprint", found.fingerprint, why)])
    return found


@compiled
def _place_ints(ids: Ints, hashes: Hashes, slots: NDArray[Any]) -> int:
    mask = np.uint64(len(slots) - 1)
    for i in range(len(ids)):
        place = hashes[i] & mask
        while slots[place] >= 0:
            if ids[slots[place]] == ids[i]:
                return i
            place = (place + np.uint64(1)) & mask
        slots[place] = i
    return -1


@compiled
def _find_ints(values: Ints, hashes: Hashes, ids: Ints, slots: NDArray[Any], found: Ints) -> None:
    mask = np.uint64(len(slots) - 1)
    for i in range(len(values)):
        place = hashes[i] & mask
        while slots[place] >= 0:
            row = slots[place]
            if ids[row] == values[i]:
                found[i] = row
                break
            place = (place + np.uint64(1)) & mask


@compiled
def _same(
    data: Bytes, start: int, stop: int, others: Bytes, other_start: int, other_stop: int
) -> bool:
    if stop - start != other_stop - other_start:
        return False
    same = 0
    while same < stop - start and data[start + same] == others[other_start + same]:
        same += 1
    return same == stop - start


@compiled
def _place_strings(offsets: Ints, data: Bytes, hashes: Hashes, slots: NDArray[Any]) -> int:
    mask = np.uint64(len(slots) - 1)
    for i in range(len(offsets) - 1):
        place = hashes[i] & mask
        while slots[place] >= 0:
            row = slots[place]
            if _same(data, offsets[i], offsets[i + 1], data, offsets[row], offsets[row + 1]):
                return i
            place = (place + np.uint64(1)) & mask
        slots[place] = i
    return -1


@compiled
def _find_strings(
    offsets: Ints,
    data: Bytes,
    hashes: Hashes,
    own_offsets: Ints,
    own: Bytes,
    slots: NDArray[Any],
    found: Ints,
) -> None:
    mask = np.uint64(len(slots) - 1)
    for i in range(len(offsets) - 1):
        place = hashes[i] & mask
        while slots[place] >= 0:
            row = slots[place]
            start, stop = own_offsets[row], own_offsets[row + 1]
            if _same(data, offsets[i], offsets[i + 1], own, start, stop):
                found[i] = row
                break
            place = (place + np.uint64(1)) & mask

"""From the ids in the data to the rows of a table: the one place where that is done.

What happens to an id is said by its table. `as_is` takes the id as the row, `modulo` its
remainder, `hash` the remainder of XXH64 with the table's seed: of the eight little-endian bytes
of an integer, or of a string's UTF-8. `hashed` ids are such hashes already. `vocabulary` gives
hot ids a row each, and lets all others share some rows (`vocabulary.py`). A null is no lookup.

It takes two steps, so that ids that all have a row are gone through once: `unchecked_rows`
leaves an id without a row outside of the table, and whoever finds one there asks
`settled_rows` (or `rows_outside`) what the table's `on_out_of_range` makes of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.jit import compiled
from rowtier.profile.hashing import Hashes, hash_ints, hash_strings
from rowtier.tables import Table

if TYPE_CHECKING:
    from rowtier.profile.vocabulary import Vocabulary, VocabularyIndex

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
# Ids of one feature without nulls: a numpy array of whole numbers, or an Arrow array of strings.
IdValues: TypeAlias = NDArray[np.integer[Any]] | pa.LargeStringArray

_ACCEPTED = "ids are whole numbers (int8 to uint64) or strings; cast the column"


@dataclass(frozen=True, eq=False)
class Where:
    """Where ids come from, for messages."""

    feature: str = ""
    path: str = ""  # of the file; empty for a batch
    first_sample: int = 0  # in all data
    lengths: Ints | None = None  # ids per sample; None: one

    def __str__(self) -> str:
        named = f"column {self.feature!r}" if self.feature else "the column"
        return f"{self.path}: {named}" if self.path else named

    def sample_of(self, position: int) -> str:
        """The sample of the id at a position, in words."""
        sample = position
        if self.lengths is not None:
            sample = int(np.searchsorted(np.cumsum(self.lengths), position, side="right"))
        return f"sample {self.first_sample + sample}" + ("" if self.path else " of the batch")


@dataclass(frozen=True, eq=False)
class MappedRows:
    """The rows of lookups; those that are no longer there are not `kept`."""

    rows: Ints
    kept: Mask | None = None  # of all lookups; None: all of them

    def lengths(self, before: Ints | None) -> Ints | None:
        """How many lookups each sample has now."""
        if self.kept is None:
            return before
        return lengths_of(before, self.kept)


def rows_of(table: Table, ids: Any, vocabulary: Vocabulary | None = None) -> Ints:
    """The rows that ids stand for, as the table says; −1 is no lookup.

    `ids` are one column: a list, a numpy or Arrow array or a tensor of whole numbers or strings.
    A null is no lookup, and neither is an id that the table's `on_out_of_range: drop` drops.
    The result has the shape of `ids`.
    """
    values, valid = flat_ids(ids, Where(table.features[0]))
    there = None if valid is None else valid.astype(np.int64)
    where = Where(table.features[0], lengths=there)
    found = checked_rows(table, values, vocabulary, where)
    rows = found.rows if found.kept is None else spread(found.rows, found.kept)
    rows = rows if valid is None else spread(rows, valid)
    shape = getattr(ids, "shape", None)
    return rows if shape is None else rows.reshape(tuple(shape))


def checked_rows(
    table: Table, values: IdValues, vocabulary: Vocabulary | None, where: Where
) -> MappedRows:
    """The rows of ids, every one of them in the table."""
    rows = unchecked_rows(table, values, vocabulary, where)
    if first_outside(rows, table.num_embeddings) < 0:
        return MappedRows(rows.astype(np.int64, copy=False))
    return settled_rows(table, rows, values, where)


def unchecked_rows(
    table: Table,
    values: IdValues,
    vocabulary: Vocabulary | VocabularyIndex | None,
    where: Where,
    hashes: Hashes | None = None,
) -> NDArray[np.integer[Any]]:
    """The rows of ids; an id without a row has one that is not in the table.

    `hashes` are those of `id_hashes`, if they are known.
    """
    strings = _check_kind(table, values, where)
    if table.has_vocabulary:
        return _vocabulary_rows(table, values, vocabulary, where, hashes)
    if table.ids == "hash":
        found = id_hashes(table, values) if hashes is None else hashes
        return hashed_rows(found, table)
    assert not strings
    if table.ids == "hashed":
        return hashed_rows(as_int64(values).view(np.uint64), table)
    if table.ids == "modulo":
        if values.dtype == np.uint64:
            return hashed_rows(values.view(np.uint64), table)
        wide: Ints = values.astype(np.int64, copy=False) % table.num_embeddings
        return wide
    return as_int64(values) if values.dtype == np.uint64 else values


def settled_rows(
    table: Table, rows: NDArray[np.integer[Any]], values: IdValues, where: Where
) -> MappedRows:
    """Rows with those outside of the table treated as its `on_out_of_range` says."""
    outside: Mask = (rows < 0) | (rows >= table.num_embeddings)
    settled = rows_outside(table, values, outside, where)
    if settled is None:
        kept = ~outside
        return MappedRows(rows[kept].astype(np.int64), kept)
    whole = rows.astype(np.int64)
    whole[outside] = settled
    return MappedRows(whole)


def rows_outside(table: Table, values: IdValues, outside: Mask, where: Where) -> Ints | None:
    """The rows that ids without one count for; None if they are dropped."""
    if table.on_out_of_range == "drop":
        return None
    if table.on_out_of_range == "error":
        raise _no_row(table, values, int(np.argmax(outside)), where)
    chosen = values[outside] if isinstance(values, np.ndarray) else values.filter(pa.array(outside))
    if table.on_out_of_range == "hash":
        return hashed_rows(id_hashes(table, chosen), table)
    assert table.ids == "as_is"
    last = table.num_embeddings - 1
    if chosen.dtype == np.uint64:
        return np.minimum(chosen, np.uint64(last)).astype(np.int64)
    return np.clip(chosen.astype(np.int64), 0, last)


def numbers_of(table: Table, values: IdValues, where: Where) -> NDArray[np.integer[Any]]:
    """The rows of a batch that holds rows already, as `rows_of` made them; none is checked."""
    if isinstance(values, np.ndarray):
        return as_int64(values) if values.dtype == np.uint64 else values
    raise UserError(
        f"{where} holds strings, and rows of table {table.name!r} were expected: give what rows_of "
        "made of them, or take ids (without rows=True)"
    )


def settled_numbers(
    table: Table, rows: NDArray[np.integer[Any]], values: IdValues, where: Where
) -> MappedRows:
    """The rows of a batch that holds rows already: −1 is no lookup, another is an error."""
    kept: Mask = rows != -1
    wrong = kept & ((rows < 0) | (rows >= table.num_embeddings))
    if wrong.any():
        position = int(np.argmax(wrong))
        raise UserError(
            f"feature {where.feature!r} has row {values[position]} in {where.sample_of(position)}, "
            f"and table {table.name!r} has rows 0 to {table.num_embeddings - 1}: give what rows_of "
            "made, or take ids (without rows=True)"
        )
    return MappedRows(rows[kept].astype(np.int64), kept)


def id_hashes(table: Table, values: IdValues) -> Hashes:
    """A 64-bit hash of every id, that which `ids: hash` takes."""
    if not isinstance(values, np.ndarray):
        return hash_strings(values, table.hash_seed)
    if table.ids == "hashed":
        return as_int64(values).view(np.uint64)
    return hash_ints(as_int64(values), np.uint64(table.hash_seed))


def hashed_rows(hashes: Hashes, table: Table) -> Ints:
    """The rows that hashes fall on."""
    return (hashes % np.uint64(table.num_embeddings)).astype(np.int64)


@compiled
def first_outside(rows: NDArray[np.integer[Any]], num_embeddings: int) -> int:
    """The position of the first row that the table does not have, or −1."""
    for i in range(len(rows)):
        if rows[i] < 0 or rows[i] >= num_embeddings:
            return i
    return -1


def as_int64(values: NDArray[np.integer[Any]]) -> Ints:
    """The same 64 bits as int64: an id of 2⁶³ or more becomes negative."""
    if values.dtype == np.uint64:
        return np.ascontiguousarray(values).view(np.int64)
    return values.astype(np.int64, copy=False)


def spread(rows: Ints, mask: Mask) -> Ints:
    """Rows at the places of a mask, and −1 at all others."""
    whole = np.full(len(mask), -1, dtype=np.int64)
    whole[mask] = rows
    return whole


def lengths_of(before: Ints | None, kept: Mask) -> Ints:
    """How many of the kept lookups each sample has."""
    if before is None:
        return kept.astype(np.int64)
    total = np.concatenate(([0], np.cumsum(kept)))
    stops = np.cumsum(before)
    return np.asarray(total[stops] - total[stops - before])


def flat_ids(values: Any, where: Where) -> tuple[IdValues, Mask | None]:
    """One column of ids without its nulls, and a mask of those that are not null.

    Whole numbers keep their type; strings become one Arrow array.
    """
    if isinstance(values, (str, bytes)):
        raise UserError(f"{where} is one {type(values).__name__}; give a list of ids: [{values!r}]")
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
        return np.ascontiguousarray(values.reshape(-1)), None
    array = as_arrow(values, where)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    valid = None
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        array = array.drop_null()
    return _plain(array, where), valid


def as_arrow(values: Any, where: Where) -> pa.Array:
    """A column as one Arrow array, or an error that says why it cannot hold ids."""
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, np.ndarray):
        values = values.reshape(-1)
        if values.dtype.kind not in "UOT" and len(values):
            raise UserError(f"{where} holds {values.dtype}; {_ACCEPTED}")
    try:
        return python_array(values)
    except (pa.ArrowException, TypeError, OverflowError, ValueError) as error:
        why = " ".join(str(error).split())
        raise UserError(f"{where} holds something that is no id ({why}); {_ACCEPTED}") from None


def python_array(values: Any) -> pa.Array:
    """Numbers, strings or lists of them as an Arrow array, ids of 2⁶³ or more included."""
    if isinstance(values, np.ndarray) and values.dtype.kind not in "UO":
        values = values.tolist()
    try:
        return pa.array(values, from_pandas=True)  # NaN, which pandas puts for None, is a null
    except OverflowError:
        nested = any(isinstance(value, (list, tuple, np.ndarray)) for value in values)
        kind = pa.list_(pa.uint64()) if nested else pa.uint64()
        return pa.array(values, kind, from_pandas=True)


def _plain(array: pa.Array, where: Where) -> IdValues:
    kind, types = array.type, pa.types
    if types.is_null(kind) or not len(array):
        return np.empty(0, dtype=np.int64)
    if types.is_integer(kind):
        return array.to_numpy(zero_copy_only=False)
    view = getattr(types, "is_string_view", lambda _: False)  # younger than the oldest pyarrow
    if types.is_large_string(kind):
        return array
    if types.is_string(kind) or view(kind):
        return array.cast(pa.large_string())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        raise UserError(f"{where} holds lists; give the ids of all samples one after the other")
    raise UserError(f"{where} holds {kind}; {_ACCEPTED}")


def _check_kind(table: Table, values: IdValues, where: Where) -> bool:
    """Whether ids are strings; a table that cannot take them refuses."""
    if isinstance(values, np.ndarray):
        return False
    if table.ids in ("hash", "vocabulary", "grow"):
        return True
    example = values[0].as_py() if len(values) else ""
    raise UserError(
        f"{where} holds strings such as {example!r}, and table {table.name!r} takes ids "
        f"{table.ids}; write `ids: hash` or `ids: vocabulary` for the table, and profile again"
    )


def _vocabulary_rows(
    table: Table,
    values: IdValues,
    vocabulary: Vocabulary | VocabularyIndex | None,
    where: Where,
    hashes: Hashes | None,
) -> Ints:
    if vocabulary is None:
        raise UserError(
            f"table {table.name!r} takes ids by a vocabulary, and there is none: give that of the "
            "profile or the plan, such as plan.vocabularies[name], or call plan.rows_of"
        )
    index = vocabulary.index(table.hash_seed)
    _check_same_kind(table, values, index, where)
    found = id_hashes(table, values) if hashes is None else hashes
    rows = index.find(values, found)
    if table.num_shared:
        missing = rows < 0
        shared = (found[missing] % np.uint64(table.num_shared)).astype(np.int64)
        rows[missing] = table.num_own + shared
    return rows


def _check_same_kind(table: Table, values: IdValues, index: VocabularyIndex, where: Where) -> None:
    strings = not isinstance(values, np.ndarray)
    if strings != index.strings and len(values) and index.size:
        kinds = ("whole numbers", "strings")
        raise UserError(
            f"{where} holds {kinds[strings]}, and the vocabulary of table {table.name!r} holds "
            f"{kinds[not strings]}: give ids of the kind that was profiled, or profile again"
        )


def _no_row(table: Table, values: IdValues, position: int, where: Where) -> UserError:
    found = values[position]
    shown = int(found) if isinstance(values, np.ndarray) else repr(found.as_py())
    head = f"{where.path}: " if where.path else ""
    has = f"{head}feature {where.feature!r} has id {shown} in {where.sample_of(position)}"
    if table.ids == "vocabulary":
        return UserError(
            f"{has}, and the vocabulary of table {table.name!r} does not have it: set num_shared "
            "to 1 or more for rows that such ids share, profile with more data, or write "
            "`on_out_of_range: drop` or `hash` for the table"
        )
    return UserError(
        f"{has}, and table {table.name!r} has rows 0 to {table.num_embeddings - 1}: raise "
        "num_embeddings, write `ids: modulo` or `ids: hash` for the table, or choose "
        "`on_out_of_range: clip`, `drop` or `hash` (--on-out-of-range for all tables)"
    )

"""Arrow and NumPy arrays to ids: any width of integer, strings, lists of either, nulls."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rowtier.errors import InvalidError, Mistake
from rowtier.profile.readers.base import Ids, Ints, Unsigned
from rowtier.reading import StrPath

ACCEPTED = (
    "ids are whole numbers (int8 to uint64) or strings, one a sample or a list of them; "
    "cast the column, or take the feature out of the tables"
)
LARGEST = 2**63 - 1


def id_kind(kind: pa.DataType) -> Literal["int", "string", "null"] | None:
    """What the ids of an Arrow column are; None if it cannot hold ids."""
    inner = kind.value_type if is_list(kind) else kind
    if pa.types.is_dictionary(inner):
        inner = inner.value_type
    if pa.types.is_integer(inner):
        return "int"
    if _is_string(inner):
        return "string"
    return "null" if pa.types.is_null(inner) else None


def from_arrow(column: pa.ChunkedArray, path: StrPath, feature: str) -> Ids:
    """The ids of an Arrow column; nulls are dropped and leave their sample without the feature."""
    chunks = column.chunks or [pa.array([], column.type)]
    pieces = [_from_array(chunk, path, feature) for chunk in chunks]
    return pieces[0] if len(pieces) == 1 else _joined(pieces)


def to_int64(values: NDArray[Any], path: StrPath, feature: str) -> Ints:
    """Any integers as int64, without a copy where they are that already."""
    if values.dtype.kind not in "iu":
        raise InvalidError(path, [Mistake(feature, str(values.dtype), ACCEPTED)])
    if values.dtype.kind == "u" and values.dtype.itemsize == 8 and len(values):
        largest = int(values.max())
        if largest > LARGEST:
            accepted = f"ids go up to 2^63 - 1 = {LARGEST}; hash or renumber them first"
            raise InvalidError(path, [Mistake(feature, largest, accepted)])
    return values.astype(np.int64, copy=False)


def to_ids(values: NDArray[Any], path: StrPath, feature: str) -> Ints | Unsigned:
    """Any integers as int64; where one is 2⁶³ or more, all of them as uint64."""
    if values.dtype == np.uint64 and len(values) and int(values.max()) > LARGEST:
        return values
    return to_int64(values, path, feature)


def check_lengths(lengths: Ints, values: int, path: StrPath, feature: str) -> None:
    """Refuse lengths that do not divide up the values."""
    if len(lengths) and int(lengths.min()) < 0:
        mistake = Mistake(feature, int(lengths.min()), "lengths must not be negative")
        raise InvalidError(path, [mistake])
    if int(lengths.sum()) != values:
        text = (
            f"lengths add up to {int(lengths.sum())} and there are {values} values; they must agree"
        )
        raise InvalidError(path, [Mistake(feature, None, text)])


def _from_array(array: pa.Array, path: StrPath, feature: str) -> Ids:
    lengths = None
    if is_list(array.type):
        array, lengths = flatten_lists(array)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()  # before looking for nulls: it may hold one itself
    if _is_string(array.type) and not pa.types.is_large_string(array.type):
        array = array.cast(pa.large_string())
    if array.null_count:
        array, lengths = _without_nulls(array, lengths)
    if pa.types.is_large_string(array.type):
        return Ids(array, lengths)
    if pa.types.is_null(array.type):
        return Ids(np.empty(0, dtype=np.int64), lengths)
    return Ids(to_ids(array.to_numpy(), path, feature), lengths)


def flatten_lists(array: pa.Array) -> tuple[pa.Array, Ints | None]:
    """All values of a list array that belong to it, and the length of every list."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        if size == 1 and not array.null_count:
            return array.flatten(), None
        lengths = np.full(len(array), size, dtype=np.int64)
    else:
        lengths = np.diff(array.offsets.to_numpy()).astype(np.int64, copy=False)
    if array.null_count:
        lengths = lengths * _valid(array)
    return array.flatten(), lengths  # not `.values`, which knows of neither slices nor nulls


def _without_nulls(array: pa.Array, lengths: Ints | None) -> tuple[pa.Array, Ints]:
    valid = _valid(array)
    if lengths is None:
        return array.drop_null(), valid.astype(np.int64)
    before = np.concatenate(([0], np.cumsum(valid)))
    stops = np.cumsum(lengths)
    return array.drop_null(), before[stops] - before[stops - lengths]


def _valid(array: pa.Array) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return mask


def _joined(pieces: list[Ids]) -> Ids:
    """Ids that Arrow handed out in several arrays, as one."""
    lengths = None
    if any(piece.lengths is not None for piece in pieces):
        lengths = np.concatenate([_lengths(piece) for piece in pieces])
    if isinstance(pieces[0].values, np.ndarray):
        values = [piece.values for piece in pieces]
        if any(array.dtype == np.uint64 for array in values):  # numpy would make them floats
            values = [array.astype(np.uint64) for array in values]
        return Ids(np.concatenate(values), lengths)
    return Ids(pa.concat_arrays([piece.values for piece in pieces]), lengths)


def _lengths(ids: Ids) -> Ints:
    return np.ones(ids.samples, dtype=np.int64) if ids.lengths is None else ids.lengths


def is_list(kind: pa.DataType) -> bool:
    """Whether a column holds lists."""
    # Not views of lists: nobody writes them, and pyarrow can abort the process on casting them.
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_string(kind: pa.DataType) -> bool:
    types = pa.types
    view = getattr(types, "is_string_view", lambda _: False)  # younger than the oldest pyarrow
    return bool(types.is_string(kind) or types.is_large_string(kind) or view(kind))

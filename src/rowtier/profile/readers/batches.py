"""Batches from Python: TorchRec's KeyedJaggedTensors, or dictionaries of arrays.

Neither torch nor TorchRec is imported: whatever has their methods will do. A dictionary
gives per feature a pair (values, lengths), or with weights (values, lengths, weights), `Bags`,
an array with one id a sample, or a matrix with a fixed number of them. Weights are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from rowtier.errors import InvalidError, Mistake, UserError
from rowtier.profile.ids import python_array
from rowtier.profile.readers.arrays import (
    ACCEPTED,
    check_lengths,
    from_arrow,
    id_kind,
    to_ids,
    to_int64,
)
from rowtier.profile.readers.base import Chunk, DataPart, Ids, missing, no_time

_FORMS = (
    "give KeyedJaggedTensors, or dictionaries of feature -> (values, lengths), "
    "feature -> (values, lengths, weights) or feature -> one id a sample"
)


@dataclass(frozen=True, eq=False)
class BatchSource:
    """Batches of an iterable, in one part. Only as often readable as the iterable itself."""

    batches: Iterable[Any]
    samples: int | None = None
    count: int | None = None  # of batches, if known
    features: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()  # of the features, those that the batches must have
    _begun: list[bool] = field(default_factory=list, repr=False)

    kind = "batches"
    ordered = True  # by the order in which the batches are given

    @property
    def parts(self) -> tuple[DataPart, ...]:
        """All batches are one part."""
        return (DataPart(0, "batches", max(1, self.count or 1), samples=self.samples),)

    def read(self, part: DataPart, features: Sequence[str]) -> Iterator[Chunk]:  # noqa: ARG002
        """Every batch as a chunk."""
        seen = 0
        for index, batch in enumerate(self._again()):
            samples, ids = _features_of(batch, features, f"batch {index}")
            yield Chunk(samples, ids, seen, self._done(index, seen + samples))
            seen += samples

    def count_samples(self) -> int | None:
        """How many samples there are; None for an iterator, which can be read only once."""
        if self.samples is not None:
            return self.samples
        if iter(self.batches) is self.batches:
            return None
        return sum(chunk.samples for chunk in self.read(self.parts[0], self.asked[:1]))

    def times(self, part: DataPart, column: str) -> pa.Array:
        """The entry of this name in every batch, one after the other."""
        found = [_times(batch, column, f"batch {i}") for i, batch in enumerate(self._again())]
        kinds = {times.type for times in found}
        if len(kinds) > 1:
            text = f"must be of one type in all batches, and there are {', '.join(map(str, kinds))}"
            raise InvalidError(part.path, [Mistake(column, None, text)])
        return pa.concat_arrays(found) if found else pa.array([], pa.int64())

    def _again(self) -> Iterator[Any]:
        batches = iter(self.batches)
        if batches is self.batches and self._begun:
            raise UserError(
                "the batches come from an iterator that was read already; "
                "give a list or a DataLoader, which can be read again"
            )
        self._begun.append(True)
        return batches

    def _done(self, index: int, seen: int) -> float:
        if self.samples:
            return min(1.0, seen / self.samples)
        return min(1.0, (index + 1) / self.count) if self.count else 0.0


def open_batches(data: Any, features: Sequence[str], samples: int | None = None) -> BatchSource:
    """Take an iterable of batches, or a single one."""
    if isinstance(data, Mapping) or _is_keyed(data):
        data = [data]
    if not isinstance(data, Iterable):
        raise UserError(
            f"cannot read ids from a {type(data).__name__}; give a path, or {_FORMS[5:]}"
        )
    names = _names(data[0]) if isinstance(data, (list, tuple)) and data else None
    if names is not None:
        _check_names(names, features, "batch 0")
    try:
        count: int | None = len(cast(Sized, data))
    except TypeError:  # a generator, or a DataLoader of something endless
        count = None
    source = BatchSource(data, samples, count, tuple(names or ()), tuple(features))
    if samples is None and isinstance(data, (list, tuple)):
        return replace(source, samples=source.count_samples())
    return source


def _features_of(batch: Any, features: Sequence[str], where: str) -> tuple[int, dict[str, Ids]]:
    names = _names(batch)
    if names is None:
        raise UserError(f"{where}: is a {type(batch).__name__}; {_FORMS}")
    batch = getattr(batch, "sparse_features", batch)
    _check_names(names, features, where)
    ids = {name: _ids(batch[name], where, name) for name in features}
    samples = next((found.samples for found in ids.values()), 0)
    for name, found in ids.items():
        if found.samples != samples:
            text = f"samples, and {next(iter(ids))!r} has {samples}; all features need as many"
            raise InvalidError(where, [Mistake(name, found.samples, text)])
    return samples, ids


def _times(batch: Any, column: str, where: str) -> pa.Array:
    if not isinstance(batch, Mapping):
        raise no_time(where, column, f"it is a {type(batch).__name__} and holds ids only")
    _check_names(list(batch), [column], where)
    found = batch[column]
    if callable(getattr(found, "detach", None)):
        found = found.detach().cpu().numpy()
    if isinstance(found, (pa.Array, pa.ChunkedArray)):
        return found if isinstance(found, pa.Array) else found.combine_chunks()
    try:
        return pa.array(found)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        why = f"a {type(found).__name__} that holds no times ({error}); give one for each sample"
        raise InvalidError(where, [Mistake(column, None, why)]) from None


def _names(batch: Any) -> list[str] | None:
    batch = getattr(batch, "sparse_features", batch)  # a TorchRec Batch
    return list(batch.keys()) if isinstance(batch, Mapping) or _is_keyed(batch) else None


def _check_names(names: list[str], features: Sequence[str], where: str) -> None:
    mistakes = [missing(name, names, "feature") for name in features if name not in names]
    if mistakes:
        raise InvalidError(where, mistakes)


def _is_keyed(batch: Any) -> bool:
    return all(callable(getattr(batch, name, None)) for name in ("keys", "to_dict", "stride"))


def _ids(found: Any, where: str, name: str) -> Ids:
    """What a batch holds of one feature: a jagged tensor, `Bags`, a tuple, or an array."""
    if callable(getattr(found, "values", None)) and callable(getattr(found, "lengths", None)):
        found = (found.values(), found.lengths())
    elif all(hasattr(found, fact) for fact in ("values", "lengths", "offsets", "weights")):
        return _bags(found, where, name)
    if not isinstance(found, tuple) and not _is_collated(found):
        return _each(found, where, name)
    if len(found) not in (2, 3):
        text = "entries in a tuple; there must be two, values and lengths, or three with weights"
        raise InvalidError(where, [Mistake(name, len(found), text)])
    values, lengths = (_each(entry, where, name) for entry in found[:2])
    if not (values.lengths is lengths.lengths is None and isinstance(lengths.values, np.ndarray)):
        raise InvalidError(where, [Mistake(name, None, "values and lengths must be flat arrays")])
    counts = to_int64(lengths.values, where, name)
    check_lengths(counts, len(values.values), where, name)
    if len(found) == 3 and found[2] is not None:
        _check_weights(len(found[2]), len(values.values), where, name)
    return Ids(values.values, counts)


def _bags(found: Any, where: str, name: str) -> Ids:
    """The ids of the training module's `Bags`: with lengths, with offsets, or as a rectangle."""
    if found.lengths is not None:
        return _ids((found.values, found.lengths, found.weights), where, name)
    if found.offsets is None:
        ids = _each(found.values, where, name)
    else:
        offsets = _each(found.offsets, where, name).values
        if not isinstance(offsets, np.ndarray) or not len(offsets) or offsets[0] != 0:
            text = "offsets must be whole numbers that begin with 0 and end with the number of ids"
            raise InvalidError(where, [Mistake(name, None, text)])
        ids = _ids((found.values, np.diff(offsets)), where, name)
    if found.weights is not None:
        weights = found.weights
        _check_weights(int(np.prod(np.shape(weights))), len(ids.values), where, name)
    return ids


def _check_weights(weights: int, ids: int, where: str, name: str) -> None:
    if weights != ids:
        text = f"weights and {ids} ids; there must be one weight for every id"
        raise InvalidError(where, [Mistake(name, weights, text)])


def _is_collated(found: Any) -> bool:
    """Collating turns tuples into lists; a list of numbers is one id a sample.

    A list of three arrays is a tuple with weights if the last one holds fractions.
    """
    if not isinstance(found, list) or len(found) not in (2, 3):
        return False
    if any(len(getattr(entry, "shape", ())) != 1 for entry in found):
        return False
    return len(found) == 2 or "float" in str(found[2].dtype)


def _each(found: Any, where: str, name: str) -> Ids:
    """An array that says for each sample what it has."""
    if callable(getattr(found, "detach", None)):
        found = found.detach().cpu().numpy()
    if isinstance(found, np.ndarray) and found.dtype.kind in "iu" and found.ndim in (1, 2):
        values = to_ids(found.reshape(-1), where, name)
        fixed = found.ndim == 2
        return Ids(values, np.full(len(found), found.shape[1], np.int64) if fixed else None)
    if not isinstance(found, (pa.Array, pa.ChunkedArray)):
        found = _arrow(found, where, name)
    if id_kind(found.type) is None:
        raise InvalidError(where, [Mistake(name, str(found.type), ACCEPTED)])
    chunks = found.chunks if isinstance(found, pa.ChunkedArray) else [found]
    return from_arrow(pa.chunked_array(chunks, found.type), where, name)


def _arrow(found: Any, where: str, name: str) -> pa.Array:
    try:
        return python_array(found)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        why = f"a {type(found).__name__} that is no array of ids ({error}); {ACCEPTED}"
        raise InvalidError(where, [Mistake(name, None, why)]) from None

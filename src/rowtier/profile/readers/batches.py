"""Batches from Python: TorchRec's KeyedJaggedTensors, or dictionaries of arrays.

Neither torch nor TorchRec is imported: whatever has their methods will do. A dictionary
gives per feature a pair (values, lengths), an array with one id a sample, or a matrix with
a fixed number of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
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
from rowtier.profile.readers.base import Chunk, Ids, Part, missing

_FORMS = (
    "give KeyedJaggedTensors, or dictionaries of feature -> (values, lengths) or "
    "feature -> one id a sample"
)


@dataclass(frozen=True, eq=False)
class BatchSource:
    """Batches of an iterable, in one part. Only as often readable as the iterable itself."""

    batches: Iterable[Any]
    samples: int | None = None
    count: int | None = None  # of batches, if known
    features: tuple[str, ...] = ()
    _begun: list[bool] = field(default_factory=list, repr=False)

    kind = "batches"

    @property
    def ordered(self) -> bool:
        """Whether the middle of the data is known beforehand."""
        return self.samples is not None or self.count is not None

    @property
    def parts(self) -> tuple[Part, ...]:
        """All batches are one part."""
        return (Part(0, "batches", max(1, self.count or 1), first_sample=0),)

    def read(self, part: Part, features: Sequence[str]) -> Iterator[Chunk]:  # noqa: ARG002
        """Every batch as a chunk, or two where the halves of the data meet."""
        batches = iter(self.batches)
        if batches is self.batches and self._begun:
            raise UserError(
                "the batches come from an iterator that was read already; "
                "give a list or a DataLoader, which can be read again"
            )
        self._begun.append(True)
        seen = 0
        for index, batch in enumerate(batches):
            chunk = _chunk(batch, features, f"batch {index}")
            chunk = Chunk(
                chunk.samples, chunk.features, done=self._done(index, seen + chunk.samples)
            )
            yield from chunk.halves(self._late_from(index, seen, chunk.samples))
            seen += chunk.samples

    def _late_from(self, index: int, seen: int, samples: int) -> int | None:
        if self.samples is not None:
            return self.samples // 2 - seen
        # Batches are of equal size but for the last: the middle one is cut in two.
        return None if self.count is None else int((self.count / 2 - index) * samples)

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
    return BatchSource(data, samples, count, tuple(names or ()))


def _chunk(batch: Any, features: Sequence[str], where: str) -> Chunk:
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
    return Chunk(samples, ids)


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
    """What a batch holds of one feature: a jagged tensor, a pair, or an array."""
    if callable(getattr(found, "values", None)) and callable(getattr(found, "lengths", None)):
        found = (found.values(), found.lengths())
    if not isinstance(found, tuple) and not _is_pair(found):
        return _each(found, where, name)
    if len(found) != 2:
        text = "entries in a tuple; there must be two, values and lengths"
        raise InvalidError(where, [Mistake(name, len(found), text)])
    values, lengths = (_each(entry, where, name) for entry in found)
    if not (values.lengths is lengths.lengths is None and isinstance(lengths.values, np.ndarray)):
        raise InvalidError(where, [Mistake(name, None, "values and lengths must be flat arrays")])
    counts = to_int64(lengths.values, where, name)
    check_lengths(counts, len(values.values), where, name)
    return Ids(values.values, counts)


def _is_pair(found: Any) -> bool:
    """Collating turns tuples into lists; a list of numbers is one id a sample."""
    return (
        isinstance(found, list)
        and len(found) == 2
        and all(len(getattr(entry, "shape", ())) == 1 for entry in found)
    )


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

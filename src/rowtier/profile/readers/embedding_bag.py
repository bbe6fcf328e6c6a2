"""Meta's public embedding accesses (github.com/facebookresearch/dlrm_datasets): `.pt`, `.pt.gz`.

A file is one batch of B samples for T tables: a triple of tensors (indices, offsets,
lengths). `lengths` is T × B, `offsets` its running sum with T·B entries or one more, and
`indices` holds the ids, table after table. Table t is the feature `t0`, `t1`, …
"""

from __future__ import annotations

import errno
import gzip
import importlib.util
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from rowtier.errors import InvalidError, Mistake, UserError
from rowtier.profile.readers.arrays import check_lengths, to_ids, to_int64
from rowtier.profile.readers.base import Chunk, Columns, DataPart, Ids, no_time, numbered
from rowtier.profile.readers.files import check_unchanged, damaged, reading, stamp_of

_TRIPLE = (
    "holds no triple of integer tensors (indices, offsets, lengths) with T × B lengths; "
    "give a file of dlrm_datasets"
)


@dataclass(frozen=True, eq=False)
class EmbeddingBagSource:
    """One or more files of Meta's embedding accesses."""

    files: tuple[DataPart, ...]

    kind = "embedding_bag"
    ordered = True
    features: tuple[str, ...] = ()  # how many tables there are is only known on reading

    @cached_property
    def parts(self) -> tuple[DataPart, ...]:
        """A part for each file; of several, the samples are counted first."""
        if len(self.files) < 2:
            return self.files
        return numbered(self.files, [_samples(file) for file in self.files])

    @property
    def samples(self) -> int | None:
        """How many samples there are, if there are several files."""
        return sum(part.samples or 0 for part in self.parts) if len(self.files) > 1 else None

    def count_samples(self) -> int:
        """How many samples there are."""
        return sum(_samples(file) if file.samples is None else file.samples for file in self.parts)

    def times(self, part: DataPart, column: str) -> pa.Array:
        """Refused: the format holds ids only."""
        raise no_time(part.path, column, "the files of dlrm_datasets hold ids only")

    def read(self, part: DataPart, features: Sequence[str]) -> Iterator[Chunk]:
        """A file as one chunk."""
        check_unchanged(part.path, part.stamp)
        with _unpacked(part.path) as path:
            bags = _load(path, part.path)
            bags.check(features)
            samples = bags.lengths.shape[1]
            yield Chunk(samples, Columns(features, bags.ids), part.first_sample)


def open_embedding_bag(files: Sequence[Path], features: Sequence[str]) -> EmbeddingBagSource:
    """List the files. Nothing is read yet."""
    _need_torch(files[0])
    odd = [name for name in features if _table(name) is None]
    if odd:
        text = "the tables in this format have no names; call the features t0, t1, …"
        raise InvalidError(files[0], [Mistake(name, None, text) for name in odd])
    stamps = [stamp_of(path) for path in files]
    parts = (
        DataPart(index, str(path), path.stat().st_size, stamp=stamp)
        for index, (path, stamp) in enumerate(zip(files, stamps, strict=True))
    )
    return EmbeddingBagSource(tuple(parts))


def _samples(file: DataPart) -> int:
    check_unchanged(file.path, file.stamp)
    with _unpacked(file.path) as path:
        return int(_load(path, file.path).lengths.shape[1])


@dataclass(frozen=True, eq=False)
class _BagFile:
    """The content of one file, as NumPy views."""

    path: str
    indices: Any
    offsets: Any
    lengths: Any

    def check(self, features: Sequence[str]) -> None:
        """Refuse tables that are not there."""
        tables = len(self.lengths)
        beyond = [name for name in features if (_table(name) or 0) >= tables]
        if beyond:
            text = f"there is no such table; there are t0 to t{tables - 1}"
            raise InvalidError(self.path, [Mistake(name, None, text) for name in beyond])

    def ids(self, feature: str) -> Ids:
        """The ids of one table."""
        table = _table(feature)
        assert table is not None
        samples = self.lengths.shape[1]
        first, last = table * samples, (table + 1) * samples
        start = int(self.offsets[first]) if first < len(self.offsets) else len(self.indices)
        stop = int(self.offsets[last]) if last < len(self.offsets) else len(self.indices)
        if not 0 <= start <= stop <= len(self.indices):
            raise damaged(self.path, f"offsets {start} to {stop} of {len(self.indices)}", feature)
        lengths = to_int64(self.lengths[table], self.path, f"{feature} lengths")
        check_lengths(lengths, stop - start, self.path, feature)
        return Ids(to_ids(self.indices[start:stop], self.path, feature), lengths)


def _table(feature: str) -> int | None:
    found = re.fullmatch(r"t(0|[1-9]\d{0,8})", feature)
    return None if found is None else int(found[1])


def _need_torch(path: str | Path) -> None:
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            f"{path}: reading PyTorch's files needs PyTorch; pip install 'rowtier[torch]'"
        )


@contextmanager
def _unpacked(path: str) -> Iterator[str]:
    """The file itself, or its unpacked content for as long as it is needed."""
    with reading(path):
        with open(path, "rb") as file:  # noqa: PTH123
            packed = file.read(2) == b"\x1f\x8b"
        if not packed:
            yield path
            return
        # On disk, where it can be mapped: in memory it would be there twice.
        with tempfile.NamedTemporaryFile(prefix="rowtier-", suffix=".pt") as plain:
            _unpack(path, plain)
            yield plain.name


def _unpack(path: str, plain: IO[bytes]) -> None:
    try:
        with gzip.open(path) as file:
            shutil.copyfileobj(file, plain, 2**20)
        plain.flush()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise UserError(
            f"{path}: no room to unpack it in {tempfile.gettempdir()}; "
            "set TMPDIR to a larger disk, or unpack it yourself with gunzip"
        ) from None


def _load(path: str, named: str) -> _BagFile:
    _need_torch(named)
    import torch

    with open(path, "rb") as file:  # noqa: PTH123
        mapped = file.read(2) == b"PK"  # the format of PyTorch before 1.6 cannot be mapped
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (FileNotFoundError, PermissionError, MemoryError):
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise damaged(named, str(error).split("\n", 1)[0][:200]) from None
    triple = content if isinstance(content, (tuple, list)) else ()
    if len(triple) != 3 or not all(isinstance(entry, torch.Tensor) for entry in triple):
        raise InvalidError(named, [Mistake("", None, f"the file {_TRIPLE}")])
    indices, offsets, lengths = (entry.detach().numpy() for entry in triple)
    shapes = (indices.ndim, offsets.ndim, lengths.ndim) == (1, 1, 2)
    kinds = all(array.dtype.kind in "iu" for array in (indices, offsets, lengths))
    if not shapes or not kinds or len(offsets) not in (lengths.size, lengths.size + 1):
        raise InvalidError(named, [Mistake("", None, f"the file {_TRIPLE}")])
    return _BagFile(named, indices, offsets, np.atleast_2d(lengths))

"""NumPy's `.npz`: per feature an array, or the pair of its values and lengths.

A feature F is either `F`, one id a sample or a matrix with a fixed number of them, or
`F_values` beside `F_lengths` (`F.values` beside `F.lengths` as well).
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rowtier.errors import InvalidError, Mistake
from rowtier.profile.readers.arrays import ACCEPTED, check_lengths, to_ids, to_int64
from rowtier.profile.readers.base import Chunk, DataPart, Ids, Ints, missing, numbered
from rowtier.profile.readers.files import check_unchanged, damaged, reading, stamp_of
from rowtier.reading import StrPath

BLOCK_SAMPLES = 2**16


@dataclass(frozen=True, eq=False)
class NpzSource:
    """One or more `.npz` files, read from end to end without holding them."""

    parts: tuple[DataPart, ...]
    features: tuple[str, ...]

    kind = "npz"
    ordered = True

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return sum(part.samples or 0 for part in self.parts)

    def read(self, part: DataPart, features: Sequence[str]) -> Iterator[Chunk]:
        """A file in blocks of samples."""
        assert part.samples is not None
        check_unchanged(part.path, part.stamp)
        with reading(part.path), ExitStack() as stack:
            file = stack.enter_context(zipfile.ZipFile(part.path))
            streams = {
                name: _FeatureStream(part.path, name, _arrays(file, part.path, name, stack))
                for name in features
            }
            for start in range(0, part.samples, BLOCK_SAMPLES):
                count = min(BLOCK_SAMPLES, part.samples - start)
                ids = {name: stream.take(count) for name, stream in streams.items()}
                first = part.first_sample + start
                yield Chunk(count, ids, first, done=(start + count) / part.samples)
            for stream in streams.values():
                stream.finish()

    def count_samples(self) -> int:
        """How many samples there are; the headers say so."""
        return self.samples

    def times(self, part: DataPart, column: str) -> pa.Array:
        """An array with one entry a sample."""
        check_unchanged(part.path, part.stamp)
        with reading(part.path), zipfile.ZipFile(part.path) as file:
            if f"{column}.npy" not in file.namelist():
                raise InvalidError(part.path, [missing(column, _features(file), "array")])
            array = read_array(file, f"{column}.npy", part.path)
        if array.shape != (part.samples,):
            text = f"must have one entry for each of {part.samples} samples"
            raise InvalidError(part.path, [Mistake(column, f"shape {array.shape}", text)])
        return pa.array(array)


def open_npz(files: Sequence[Path], features: Sequence[str]) -> NpzSource:
    """Read the headers of the arrays that are needed, and check that they fit together."""
    parts: list[DataPart] = []
    names: dict[str, None] = {}
    for path in files:
        stamp = stamp_of(path)
        with reading(path), zipfile.ZipFile(path) as file:
            names.update(dict.fromkeys(_features(file)))
            samples = _samples(file, path, features)
            weight = path.stat().st_size
        parts.append(DataPart(len(parts), str(path), weight, samples=samples, stamp=stamp))
    return NpzSource(numbered(parts, [part.samples or 0 for part in parts]), tuple(names))


@dataclass(eq=False)
class _Array:
    """An array inside the zip file, read piece by piece."""

    stream: IO[bytes]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: int = 0

    def take(self, rows: int) -> NDArray[Any]:
        """The next rows."""
        width = math.prod(self.shape[1:]) * self.dtype.itemsize
        raw = self.stream.read(rows * width)
        if len(raw) < rows * width:
            raise EOFError(f"an array ends after {self.read} of {self.shape[0]} entries")
        self.read += rows
        return np.frombuffer(raw, dtype=self.dtype).reshape(rows, *self.shape[1:])

    def scalar(self) -> NDArray[Any]:
        """The only entry of an array without dimensions."""
        return np.frombuffer(self.stream.read(self.dtype.itemsize), dtype=self.dtype).reshape(())


@dataclass(eq=False)
class _FeatureStream:
    """A feature, read block by block."""

    path: str
    feature: str
    arrays: tuple[_Array, ...]

    def take(self, samples: int) -> Ids:
        """The ids of the next samples."""
        if len(self.arrays) == 2:
            values, lengths = self.arrays
            found = to_int64(lengths.take(samples), self.path, f"{self.feature} lengths")
            total, left = int(found.sum()), values.shape[0] - values.read
            check_lengths(found, total if total <= left else left, self.path, self.feature)
            return Ids(to_ids(values.take(total), self.path, self.feature), found)
        block = to_ids(self.arrays[0].take(samples), self.path, self.feature)
        if block.ndim == 1 or block.shape[1] == 1:
            return Ids(block.reshape(-1))
        lengths_of_rows: Ints = np.full(samples, block.shape[1], dtype=np.int64)
        return Ids(block.reshape(-1), lengths_of_rows)

    def finish(self) -> None:
        """Check that nothing is left, and let the zip file compare its checksums."""
        for array in self.arrays:
            if array.read != array.shape[0]:
                text = f"{array.shape[0] - array.read} values are left after the last length"
                raise InvalidError(self.path, [Mistake(self.feature, None, text)])
            array.stream.read(1)


def _features(file: zipfile.ZipFile) -> list[str]:
    """What the file offers: single arrays under their name, pairs under the name they share."""
    names = [name.removesuffix(".npy") for name in file.namelist() if name.endswith(".npy")]
    shared: dict[str, str] = {}
    for name in names:
        stem, mark = name[: -len("_values")], name[-len("_values") : -len("values")]
        if name.endswith(("_values", ".values")) and f"{stem}{mark}lengths" in names:
            shared |= {name: stem, f"{stem}{mark}lengths": stem}
    return list(dict.fromkeys(shared.get(name, name) for name in names))


def _entries(file: zipfile.ZipFile, feature: str) -> tuple[str, ...]:
    """The names in the zip file that hold a feature: one, two, or none."""
    known = set(file.namelist())
    for names in (
        (f"{feature}.npy",),
        (f"{feature}_values.npy", f"{feature}_lengths.npy"),
        (f"{feature}.values.npy", f"{feature}.lengths.npy"),
    ):
        if known.issuperset(names):
            return names
    return ()


def _arrays(
    file: zipfile.ZipFile, path: StrPath, feature: str, stack: ExitStack
) -> tuple[_Array, ...]:
    entries = _entries(file, feature)
    if not entries:
        raise InvalidError(path, [missing(feature, _features(file), "array")])
    arrays = [_opened(stack, file, name, path) for name in entries]
    for array, name in zip(arrays, entries, strict=True):
        most = 2 if len(arrays) == 1 else 1
        if array.dtype.kind not in "iu" or not 1 <= len(array.shape) <= most:
            found = f"{array.dtype} of shape {array.shape}"
            raise InvalidError(path, [Mistake(name.removesuffix(".npy"), found, ACCEPTED)])
    return tuple(arrays)


def read_array(file: zipfile.ZipFile, name: str, path: StrPath) -> NDArray[Any]:
    """A whole array; never one of Python's objects, which would have to be unpickled."""
    with ExitStack() as stack:
        array = _opened(stack, file, name, path)
        if array.dtype.hasobject:
            raise damaged(path, "it holds Python objects", name)
        return array.take(array.shape[0]) if array.shape else array.scalar()


def _opened(stack: ExitStack, file: zipfile.ZipFile, name: str, path: StrPath) -> _Array:
    """An array whose content is as long as its header says."""
    array = _header(stack.enter_context(file.open(name)), path, name)
    there = file.getinfo(name).file_size - array.stream.tell()
    wanted = math.prod(array.shape) * array.dtype.itemsize
    if min(array.shape, default=0) < 0 or there != wanted:
        said = f"{array.dtype} of shape {array.shape}"
        raise damaged(path, f"{there} bytes where {said} takes {wanted}", name)
    return array


def _header(stream: IO[bytes], path: StrPath, name: str) -> _Array:
    """Read how an array is stored; its content stays in the stream."""
    try:
        version = np.lib.format.read_magic(stream)
        read = {1: np.lib.format.read_array_header_1_0}.get(
            version[0], np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(stream)
    except Exception as error:  # numpy reads the header as Python text, so anything may come
        raise damaged(path, error, name) from None
    if fortran and len(shape) == 2 and min(shape) > 1:
        text = "is stored column by column; save np.ascontiguousarray of it"
        raise InvalidError(path, [Mistake(name.removesuffix(".npy"), shape, text)])
    return _Array(stream, shape, dtype)


def _samples(file: zipfile.ZipFile, path: StrPath, features: Sequence[str]) -> int:
    """How many samples the features have; they must agree."""
    counts: dict[str, int] = {}
    mistakes: list[Mistake] = []
    for name in features:
        if not _entries(file, name):
            mistakes.append(missing(name, _features(file), "array"))
            continue
        with ExitStack() as stack:
            counts[name] = _arrays(file, path, name, stack)[-1].shape[0]
    wanted = next(iter(counts.values()), 0)
    for name, count in counts.items():
        if count != wanted:
            text = f"samples, and {next(iter(counts))!r} has {wanted}; all features need as many"
            mistakes.append(Mistake(name, count, text))
    if mistakes:
        raise InvalidError(path, mistakes)
    return wanted

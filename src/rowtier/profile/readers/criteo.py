"""Criteo's display-ads logs: label, 13 integers, 26 hexadecimal categories, with tabs between.

The features are C1 … C26, and I1 … I13 for whoever wants them. An empty field is a sample
without the feature; files of test data have no label. Plain files are read in ranges of bytes,
gzipped ones from end to end. Where there are several of either, their lines are counted first.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rowtier.errors import InvalidError, Mistake, UserError
from rowtier.profile.readers import criteo_text
from rowtier.profile.readers.arrays import LARGEST
from rowtier.profile.readers.base import Chunk, DataPart, Ids, Ints, no_time, numbered
from rowtier.profile.readers.files import check_unchanged, damaged, reading, stamp_of

COLUMNS = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))
FEATURES = COLUMNS[1:]
PART_BYTES = 64 * 2**20
BLOCK_BYTES = 2 * 2**20  # larger, and the fresh pages of the result cost more than the parsing
LONGEST_LINE = 2**20
_COUNTING_THREADS = 4
_NEWLINE, _RETURN = 10, 13


@dataclass(frozen=True, eq=False)
class CriteoSource:
    """Lines of one or more files in Criteo's format."""

    ranges: tuple[DataPart, ...]  # of bytes; their samples are not numbered yet

    kind = "criteo"
    ordered = True
    features = FEATURES

    @cached_property
    def parts(self) -> tuple[DataPart, ...]:
        """The ranges of bytes; of several, the lines are counted first."""
        return numbered(self.ranges, self._counts) if len(self.ranges) > 1 else self.ranges

    @cached_property
    def _counts(self) -> list[int]:
        with ThreadPoolExecutor(_COUNTING_THREADS) as pool:  # which wait for files for the most
            return list(pool.map(_count_lines, self.ranges))

    @property
    def samples(self) -> int | None:
        """How many lines there are, if there are several parts."""
        return sum(self._counts) if len(self.ranges) > 1 else None

    def count_samples(self) -> int:
        """How many lines there are."""
        return sum(self._counts)

    def times(self, part: DataPart, column: str) -> pa.Array:
        """Refused: the format has no time."""
        raise no_time(part.path, column, "Criteo's files have I1 to I13 and C1 to C26")

    def read(self, part: DataPart, features: Sequence[str]) -> Iterator[Chunk]:
        """The lines that begin inside the part, some megabytes at a time."""
        _check_features(part.path, features)
        check_unchanged(part.path, part.stamp)
        columns = _columns_of(part)
        lines, first = 0, part.first_sample
        for text, done in _blocks(part):
            parsed = _parse(text, features, columns)
            if isinstance(parsed, _Wrong):
                raise _explain(part, parsed, lines, columns)
            samples, ids = parsed
            lines += _newlines(text)
            if samples:
                yield Chunk(samples, ids, first, done)
            first += samples


def open_criteo(files: Sequence[Path], features: Sequence[str]) -> CriteoSource:
    """List the byte ranges of all files. Nothing is read yet."""
    _check_features(str(files[0]), features)
    parts: list[DataPart] = []
    for path in files:
        stamp, size = stamp_of(path), path.stat().st_size
        cuts = [0, size] if _is_gzip(path) else _cuts(size)
        for piece, (start, stop) in enumerate(pairwise(cuts)):
            parts.append(
                DataPart(
                    index=len(parts),
                    path=str(path),
                    weight_bytes=stop - start,
                    piece=piece,
                    start_byte=start,
                    stop_byte=stop,
                    stamp=stamp,
                )
            )
    return CriteoSource(tuple(parts))


def _cuts(size: int) -> list[int]:
    """Where to cut a plain file into equal parts."""
    count = -(-size // PART_BYTES)
    return sorted({0, size} | {size * i // count for i in range(1, count)})


def _check_features(path: str, features: Sequence[str]) -> None:
    unknown = [name for name in features if name not in FEATURES]
    if unknown:
        # All names look alike, so near ones would mislead.
        text = "Criteo's files have I1 to I13 and C1 to C26; name the tables' features so"
        raise InvalidError(path, [Mistake(name, None, text) for name in unknown])


def _is_gzip(path: str | Path) -> bool:
    with reading(path), open(path, "rb") as file:  # noqa: PTH123 - a str or a Path
        return file.read(2) == b"\x1f\x8b"


def _blocks(part: DataPart) -> Iterator[tuple[bytes, float]]:
    """Whole lines of a part, and the share of it that is done."""
    return _gzip_blocks(part) if _is_gzip(part.path) else _plain_blocks(part)


def _plain_blocks(part: DataPart) -> Iterator[tuple[bytes, float]]:
    """Whole lines of a range of bytes."""
    with reading(part.path), open(part.path, "rb", buffering=0) as file:  # noqa: PTH123
        at = _line_start(file, part.start_byte, part)
        stop = _line_start(file, part.stop_byte, part)
        first, size = at, max(1, stop - at)
        file.seek(at)
        rest = b""
        while at < stop:
            block = file.read(min(BLOCK_BYTES, stop - at))
            if not block:
                raise damaged(part.path, f"it ends at byte {at} of {stop}")
            at += len(block)
            text, rest = _whole_lines(rest + block, part, last=at >= stop)
            yield text, (at - first) / size


def _gzip_blocks(part: DataPart) -> Iterator[tuple[bytes, float]]:
    """Whole lines of a gzipped file."""
    with (
        reading(part.path),
        open(part.path, "rb") as packed,  # noqa: PTH123
        gzip.GzipFile(fileobj=packed) as file,
    ):
        block_bytes = min(BLOCK_BYTES, max(2**16, part.weight_bytes // 4))
        rest, block = b"", b"-"
        while block:
            block = file.read(block_bytes)
            text, rest = _whole_lines(rest + block, part, last=not block)
            yield text, min(1.0, packed.tell() / part.weight_bytes)


def _count_lines(part: DataPart) -> int:
    """How many lines of a part are samples."""
    check_unchanged(part.path, part.stamp)
    return sum(_filled_lines(text) for text, _ in _blocks(part))


def _filled_lines(text: bytes) -> int:
    """How many of some whole lines are not empty."""
    raw: NDArray[np.uint8] = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero(raw == _NEWLINE)
    bytes_before = np.diff(ends, prepend=-1) - 1
    short = ends[bytes_before == 1]
    empty = np.count_nonzero(bytes_before == 0) + np.count_nonzero(raw[short - 1] == _RETURN)
    return len(ends) - int(empty)


def _columns_of(part: DataPart) -> tuple[str, ...]:
    """The columns of a file, by its first line: with a label, or without."""
    opened = gzip.open if _is_gzip(part.path) else open
    with reading(part.path), opened(part.path, "rb") as file:
        line = b"\n"
        while line and not line.strip(b"\r\n"):
            line = file.readline(LONGEST_LINE)
    return FEATURES if line.count(b"\t") == len(FEATURES) - 1 else COLUMNS


def _whole_lines(text: bytes, part: DataPart, last: bool) -> tuple[bytes, bytes]:
    """Cut after the last newline; the end of the data counts as one."""
    if last:
        return (text if not text or text.endswith(b"\n") else text + b"\n"), b""
    end = text.rfind(b"\n") + 1
    if len(text) - end > LONGEST_LINE:
        raise _endless(part)
    return text[:end], text[end:]


def _line_start(file: IO[bytes], byte: int, part: DataPart) -> int:
    """Where the first line begins that does not begin before `byte`."""
    if byte == 0:
        return 0
    at = byte - 1
    file.seek(at)
    while block := file.read(2**12):
        found = block.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(block)
        if at - byte > LONGEST_LINE:
            raise _endless(part)
    return at


def _endless(part: DataPart) -> UserError:
    return UserError(
        f"{part.path}: a line is longer than {LONGEST_LINE} bytes, so this is not Criteo's format; "
        "give text with 40 fields a line, or 39 without the label, and tabs between them"
    )


@dataclass(frozen=True)
class _Wrong:
    """A mistake in a block of text."""

    what: int
    text: bytes
    line_at: int
    field: int


def _parse(
    text: bytes, features: Sequence[str], columns: Sequence[str]
) -> tuple[int, dict[str, Ids]] | _Wrong:
    actions = np.full(len(columns), criteo_text.SKIP, dtype=np.int64)
    actions[0] = criteo_text.LABEL  # so that a header is not taken for ids: C1 is hexadecimal
    slots = np.full(len(columns), -1, dtype=np.int64)
    for slot, name in enumerate(features):
        field = columns.index(name)
        actions[field] = criteo_text.HEX if name.startswith("C") else criteo_text.INT
        slots[field] = slot
    most = _newlines(text)
    values = np.empty((len(features), most), dtype=np.int64)
    present = np.empty((len(features), most), dtype=np.bool_)
    filled = np.zeros(len(features), dtype=np.int64)
    raw: NDArray[np.uint8] = np.frombuffer(text, dtype=np.uint8)
    samples, what, line_at, field = criteo_text.parse(raw, actions, slots, values, present, filled)
    if what != criteo_text.FINE:
        return _Wrong(what, text, line_at, field)
    ids = {
        name: _ids(values[slot, : filled[slot]], present[slot, :samples])
        for slot, name in enumerate(features)
    }
    return samples, ids


def _ids(values: Ints, present: NDArray[np.bool_]) -> Ids:
    return Ids(values, None if len(values) == len(present) else present.astype(np.int64))


def _newlines(text: bytes) -> int:
    return text.count(b"\n")


def _explain(part: DataPart, wrong: _Wrong, lines: int, columns: Sequence[str]) -> InvalidError:
    """The error for people: which line of the file, which field, which value."""
    lines += _newlines(wrong.text[: wrong.line_at]) + 1
    if part.start_byte:
        with reading(part.path), open(part.path, "rb") as file:  # noqa: PTH123
            start = _line_start(file, part.start_byte, part)
            file.seek(0)
            lines += sum(_newlines(block) for block in _up_to(file, start))
    line = wrong.text[wrong.line_at :].split(b"\n", 1)[0].rstrip(b"\r").decode(errors="replace")
    fields = line.split("\t")
    if len(fields) != len(columns):  # or a value that is wrong for being in the wrong field
        accepted = f"Criteo's format has {len(COLUMNS)}, or {len(FEATURES)} without the label"
        if len(fields) in (len(COLUMNS), len(FEATURES)):
            accepted = f"the first line of the file has {len(columns)}"
        text = f"{len(fields)} fields where {accepted}; fix or drop the line"
        return InvalidError(part.path, [Mistake(f"line {lines}", None, text)])
    name = columns[wrong.field]
    if wrong.what == criteo_text.TOO_LARGE:
        text = f"is more than {LARGEST}; ids must fit into 63 bits"
    elif name == "label" or (wrong.field == 0 and fields[0] in COLUMNS):
        text = "is not a number; drop the header line, or give Criteo's own files"
    else:
        kind = "a hexadecimal" if name.startswith("C") else "a whole"
        text = f"is not {kind} number; fix it, or leave the field empty"
    return InvalidError(part.path, [Mistake(f"line {lines}, {name}", fields[wrong.field], text)])


def _up_to(file: IO[bytes], stop: int) -> Iterator[bytes]:
    while stop > 0 and (block := file.read(min(stop, BLOCK_BYTES))):
        stop -= len(block)
        yield block

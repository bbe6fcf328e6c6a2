"""Criteo's display-ads logs: label, 13 integers, 26 hexadecimal categories, with tabs between.

The features are C1 … C26, and I1 … I13 for whoever wants them. An empty field is a sample
without the feature. Plain files are read in ranges of bytes, gzipped ones from end to end.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import InvalidError, Mistake, UserError
from rowtier.profile.readers import criteo_text
from rowtier.profile.readers.arrays import LARGEST
from rowtier.profile.readers.base import Chunk, Ids, Ints, Part, late_in
from rowtier.profile.readers.files import check_unchanged, damaged, reading, stamp_of

COLUMNS = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))
FEATURES = COLUMNS[1:]
PART_BYTES = 64 * 2**20
BLOCK_BYTES = 2 * 2**20  # larger, and the fresh pages of the result cost more than the parsing
LONGEST_LINE = 2**20


@dataclass(frozen=True, eq=False)
class CriteoSource:
    """Lines of one or more files in Criteo's format."""

    parts: tuple[Part, ...]

    kind = "criteo"
    ordered = True
    features = FEATURES
    samples = None

    def read(self, part: Part, features: Sequence[str]) -> Iterator[Chunk]:
        """The lines that begin inside the part, some megabytes at a time."""
        _check_features(part.path, features)
        check_unchanged(part.path, part.stamp)
        lines = 0
        for text, done, late in _gzip_blocks(part) if _is_gzip(part.path) else _blocks(part):
            parsed = _parse(text, features)
            if isinstance(parsed, _Wrong):
                raise _explain(part, parsed, lines)
            samples, ids = parsed
            lines += _newlines(text)
            if samples:
                yield Chunk(samples, ids, late, done)


def open_criteo(files: Sequence[Path], features: Sequence[str]) -> CriteoSource:
    """List the byte ranges of all files. Nothing is read yet."""
    _check_features(str(files[0]), features)
    sizes = [(path, stamp_of(path), path.stat().st_size) for path in files]
    half = sum(size for _, _, size in sizes) // 2
    parts: list[Part] = []
    before = 0
    for path, stamp, size in sizes:
        cuts = [0, size] if _is_gzip(path) else _cuts(size, half - before)
        for piece, (start, stop) in enumerate(pairwise(cuts)):
            late_from = late_in(before + start, stop - start, half)
            parts.append(
                Part(
                    index=len(parts),
                    path=str(path),
                    weight_bytes=stop - start,
                    piece=piece,
                    start_byte=start,
                    stop_byte=stop,
                    late_from=late_from,
                    stamp=stamp,
                )
            )
        before += size
    return CriteoSource(tuple(parts))


def _cuts(size: int, half: int) -> list[int]:
    """Where to cut a plain file: into equal parts, and where the halves of the data meet."""
    inner = {half} if 0 < half < size else set()
    count = -(-size // PART_BYTES)
    return sorted({0, size} | inner | {size * i // count for i in range(1, count)})


def _check_features(path: str, features: Sequence[str]) -> None:
    unknown = [name for name in features if name not in FEATURES]
    if unknown:
        # All names look alike, so near ones would mislead.
        text = "Criteo's files have I1 to I13 and C1 to C26; name the tables' features so"
        raise InvalidError(path, [Mistake(name, None, text) for name in unknown])


def _is_gzip(path: str | Path) -> bool:
    with reading(path), open(path, "rb") as file:  # noqa: PTH123 - a str or a Path
        return file.read(2) == b"\x1f\x8b"


def _blocks(part: Part) -> Iterator[tuple[bytes, float, bool]]:
    """Whole lines of a range of bytes, the share of it that is done, and whether it is late."""
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
            yield text, (at - first) / size, part.late_from is not None


def _gzip_blocks(part: Part) -> Iterator[tuple[bytes, float, bool]]:
    """Whole lines of a gzipped file; they are late by how far the file itself was read."""
    with (
        reading(part.path),
        open(part.path, "rb") as packed,  # noqa: PTH123
        gzip.GzipFile(fileobj=packed) as file,
    ):
        block_bytes = min(BLOCK_BYTES, max(2**16, part.weight_bytes // 4))
        rest, block = b"", b"-"
        while block:
            late = part.late_from is not None and packed.tell() >= part.late_from
            block = file.read(block_bytes)
            text, rest = _whole_lines(rest + block, part, last=not block)
            yield text, min(1.0, packed.tell() / part.weight_bytes), late


def _whole_lines(text: bytes, part: Part, last: bool) -> tuple[bytes, bytes]:
    """Cut after the last newline; the end of the data counts as one."""
    if last:
        return (text if not text or text.endswith(b"\n") else text + b"\n"), b""
    end = text.rfind(b"\n") + 1
    if len(text) - end > LONGEST_LINE:
        raise _endless(part)
    return text[:end], text[end:]


def _line_start(file: IO[bytes], byte: int, part: Part) -> int:
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


def _endless(part: Part) -> UserError:
    return UserError(
        f"{part.path}: a line is longer than {LONGEST_LINE} bytes, so this is not Criteo's format; "
        "give text with 40 fields a line and tabs between them"
    )


@dataclass(frozen=True)
class _Wrong:
    """A mistake in a block of text."""

    what: int
    text: bytes
    line_at: int
    field: int


def _parse(text: bytes, features: Sequence[str]) -> tuple[int, dict[str, Ids]] | _Wrong:
    actions = np.full(len(COLUMNS), criteo_text.SKIP, dtype=np.int64)
    actions[0] = criteo_text.LABEL  # so that a header is not taken for ids: C1 is hexadecimal
    slots = np.full(len(COLUMNS), -1, dtype=np.int64)
    for slot, name in enumerate(features):
        field = COLUMNS.index(name)
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


def _explain(part: Part, wrong: _Wrong, lines: int) -> InvalidError:
    """The error for people: which line of the file, which field, which value."""
    lines += _newlines(wrong.text[: wrong.line_at]) + 1
    if part.start_byte:
        with reading(part.path), open(part.path, "rb") as file:  # noqa: PTH123
            start = _line_start(file, part.start_byte, part)
            file.seek(0)
            lines += sum(_newlines(block) for block in _up_to(file, start))
    line = wrong.text[wrong.line_at :].split(b"\n", 1)[0].rstrip(b"\r").decode(errors="replace")
    fields = line.split("\t")
    if wrong.what == criteo_text.WRONG_FIELDS:
        text = (
            f"{len(fields)} fields where Criteo's format has {len(COLUMNS)}; mend or drop the line"
        )
        return InvalidError(part.path, [Mistake(f"line {lines}", None, text)])
    name = COLUMNS[wrong.field]
    if wrong.what == criteo_text.TOO_LARGE:
        text = f"is more than {LARGEST}; ids must fit into 63 bits"
    elif name == "label":
        text = "is not a number; drop the header line, or give Criteo's own files"
    else:
        kind = "a hexadecimal" if name.startswith("C") else "a whole"
        text = f"is not {kind} number; mend it, or leave the field empty"
    return InvalidError(part.path, [Mistake(f"line {lines}, {name}", fields[wrong.field], text)])


def _up_to(file: IO[bytes], stop: int) -> Iterator[bytes]:
    while stop > 0 and (block := file.read(min(stop, BLOCK_BYTES))):
        stop -= len(block)
        yield block

"""A safetensors file of tables with checksums of its header and of every table's bytes.

Any reader of safetensors takes it. The checksums are in the header's `__metadata__`:

    xxh3                    of the header, with zeros in the place of this very number
    xxh3 of <tensor>        of the tensor's blocks of 16 MiB
    position of <tensor>    the name of its weights, and how many deltas led there

Beside a table's `weight` there may be `scale`, of int8 rows, and the ids that its first rows stand
for: `ids` if they are numbers, else `id_text` and where in it each one begins, `id_starts`.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import IO, Any, NamedTuple

from rowtier.errors import InvalidError, Mistake, UserError
from rowtier.reading import StrPath
from rowtier.runtime.checkpoint.checksums import BLOCK_BYTES, SummedRun, first_change, xxh3
from rowtier.runtime.deltas import tensor_file
from rowtier.runtime.deltas.delta import POSITION_OF

SUFFIX = ".safetensors"
_AGAIN = "export the checkpoint again"
_BLANK = "0" * 16
_MOST_HEADER_BYTES = 100_000_000  # as the safetensors library has it
ITEM_BYTES = {"I64": 8, "U64": 8, "F32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1}
WEIGHT = ".weight"  # how names of tables' weights end


class Entry(NamedTuple):
    """A tensor of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sums: tuple[str, ...] = ()  # of its blocks, once they are known
    position: str = ""  # what its weights are called, for deltas

    @property
    def size_bytes(self) -> int:
        """Bytes of its numbers."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def header(entries: list[Entry]) -> bytes:
    """What stands before the tensors; as long with checksums as without."""
    facts = {"format": "pt", "xxh3": _BLANK}
    for entry in entries:
        count = -(-entry.size_bytes // BLOCK_BYTES)
        facts[f"xxh3 of {entry.name}"] = " ".join(entry.sums or [_BLANK] * count)
        if entry.position:
            facts[f"{POSITION_OF}{entry.name}"] = entry.position
    raw = tensor_file.header([(e.name, e.dtype, e.shape, e.size_bytes) for e in entries], facts)
    return raw.replace(_sealed(_BLANK), _sealed(xxh3(raw)), 1)


def check_export(path: StrPath) -> dict[str, Any]:
    """Refuse a file of tables if any bit of it changed since it was written; what it holds."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            entries, start = read_header(path, file)
            for entry in entries:
                changed = first_change(file, SummedRun(start, start + entry.size_bytes, entry.sums))
                if changed is not None:
                    first, last = changed
                    raise UserError(
                        f"{path}: bytes {first}-{last} of table {table_of(entry.name)!r} "
                        f"({entry.name}) differ from what was exported (checksum); {_AGAIN}"
                    )
                start += entry.size_bytes
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    total = sum(entry.size_bytes for entry in entries)
    tables = sum(entry.name.endswith(WEIGHT) for entry in entries)
    return {"kind": "export", "tables": tables, "bytes": total}


def read_header(path: Path, file: IO[bytes]) -> tuple[list[Entry], int]:
    """The tensors of a file, and where the first begins; refused if it is not what was written."""
    length = int.from_bytes(file.read(8), "little")
    raw = file.read(length) if length <= _MOST_HEADER_BYTES else b""
    try:
        content = json.loads(raw)
        facts = content.pop("__metadata__")
        sealed, raw = str(facts["xxh3"]), length.to_bytes(8, "little") + raw
        entries = [_entry(name, its, facts) for name, its in content.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _broken(path, "has no header with checksums, as rowtier's exports do") from None
    if xxh3(raw.replace(_sealed(sealed), _sealed(_BLANK), 1)) != sealed:
        raise _broken(path, "has another header than was written (checksum)")
    start = len(raw)
    total = start + sum(entry.size_bytes for entry in entries)
    found = path.stat().st_size
    if found != total:
        raise _broken(path, f"has {found} bytes, and {total} were written")
    return entries, start


def _entry(name: str, its: dict[str, Any], facts: dict[str, str]) -> Entry:
    """A tensor of a header."""
    sums = tuple(facts[f"xxh3 of {name}"].split())
    entry = Entry(name, its["dtype"], tuple(its["shape"]), sums)
    if len(sums) != -(-entry.size_bytes // BLOCK_BYTES):
        raise ValueError(name)
    return entry._replace(position=str(facts.get(f"{POSITION_OF}{name}", "")))


def _sealed(number: str) -> bytes:
    return f'"xxh3":"{number}"'.encode()


def table_of(name: str) -> str:
    """The table that a tensor belongs to."""
    found = re.search(r"(?:^|\.)embedding(?:s|_bags)\.(.+)\.[a-z_]+$", name)
    return found[1] if found else name


def _broken(path: Path, why: str) -> InvalidError:
    return InvalidError(path, [Mistake("", None, f"the file {why}; {_AGAIN}")])

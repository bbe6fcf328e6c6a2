"""Tensors in a safetensors file, written from arrays as they are, without another copy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

DTYPE_NAMES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}  # of tables
ITEM_BYTES = {"I64": 8, "I32": 4, "F32": 4, "F16": 2, "BF16": 2, "U8": 1}
_AT_ONCE_BYTES = 8 << 20  # what is written while nobody else waits


class Stream(Protocol):
    """What bytes are written to."""

    def write(self, data: Any, /) -> int:
        """Take bytes, all of them."""
        ...


class Held(NamedTuple):
    """A tensor to write."""

    name: str
    dtype: str
    values: NDArray[Any]  # 16-bit numbers as their bits


def header(
    entries: Iterable[tuple[str, str, Sequence[int], int]], facts: Mapping[str, str]
) -> bytes:
    """What stands before the tensors, given by name, type, shape and bytes."""
    content: dict[str, Any] = {"__metadata__": dict(facts)} if facts else {}
    at = 0
    for name, dtype, shape, size_bytes in entries:
        offsets = [at, at + size_bytes]
        content[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        at += size_bytes
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_tensors(file: Stream, tensors: Sequence[Held]) -> None:
    """Write a whole file."""
    # Wide numbers first, so that all are aligned, as the safetensors library does it.
    tensors = sorted(tensors, key=lambda held: -ITEM_BYTES[held.dtype])
    entries = [(held.name, held.dtype, held.values.shape, held.values.nbytes) for held in tensors]
    file.write(header(entries, {}))
    for held in tensors:
        if held.values.size:
            view = np.ascontiguousarray(held.values).data.cast("B")
            for start in range(0, len(view), _AT_ONCE_BYTES):
                file.write(view[start : start + _AT_ONCE_BYTES])

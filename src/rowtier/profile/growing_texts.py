"""The texts of string ids that have a row, in a file: memory holds 128 bits of each only.

One process per machine writes, all of its processes read. New texts are put at the end; when most
of the file is of ids that are gone, it is written anew.
"""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa

from rowtier.profile.growing_loops import Ints
from rowtier.profile.hashing import string_parts

_WORTH_BYTES = 2**26  # a file below that stays as it is


class IdTexts:
    """Texts by row; `spans` says where each begins and ends in the file."""

    def __init__(self, path: str, spans: Ints):
        self._handle, self._spans = os.open(path, os.O_RDWR), spans

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._handle)

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._handle).st_size

    def read(self, rows: Ints) -> pa.Array:
        """The texts of rows."""
        spans = self._spans[rows]
        texts = [os.pread(self._handle, int(stop - start), int(start)) for start, stop in spans]
        return pa.array([text.decode() for text in texts], pa.large_string())

    def write(self, rows: Ints, texts: pa.Array, size: int) -> None:
        """Put the texts of rows at the end; `size` rows have one."""
        self._append(rows, texts, self.size_bytes)
        live = int(np.diff(self._spans[:size]).sum())
        if self.size_bytes > max(_WORTH_BYTES, 2 * live):
            self.replace(self.read(np.arange(size)))

    def replace(self, texts: pa.Array) -> None:
        """Have these texts, of rows 0, 1, 2 and so on, and no others."""
        os.ftruncate(self._handle, 0)
        self._append(np.arange(len(texts)), texts, 0)

    def _append(self, rows: Ints, texts: pa.Array, at: int) -> None:
        offsets, data = string_parts(texts)
        part = data[offsets[0] : offsets[-1]]
        view = memoryview(part.tobytes())
        while view:
            done = os.pwrite(self._handle, view, at + len(part) - len(view))
            view = view[done:]
        self._spans[rows, 0] = offsets[:-1] - offsets[0] + at
        self._spans[rows, 1] = offsets[1:] - offsets[0] + at

"""Reading a source in full, and the same by plain Python, to compare."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rowtier.errors import UserError
from rowtier.profile.readers import Chunk, Ids, Source, open_source


def lists_of(ids: Ids) -> list[list[Any]]:
    """The ids of every sample."""
    if isinstance(ids.values, np.ndarray):
        assert ids.values.dtype in (np.int64, np.uint64)
        assert ids.values.ndim == 1
    else:
        assert ids.values.type == pa.large_string()
        assert ids.values.null_count == 0
    values = ids.values.tolist() if isinstance(ids.values, np.ndarray) else ids.values.to_pylist()
    if ids.lengths is None:
        return [[value] for value in values]
    assert ids.lengths.dtype == np.int64
    assert int(ids.lengths.sum()) == len(values)
    ends = np.cumsum(ids.lengths).tolist()
    return [values[end - length : end] for end, length in zip(ends, ids.lengths, strict=True)]


def chunks_of(source: Source, features: Sequence[str]) -> list[Chunk]:
    """All chunks, in order."""
    found = []
    for part in source.parts:
        chunks = list(source.read(part, features))
        assert all(0 <= a.done <= b.done <= 1 for a, b in pairwise(chunks))
        found += chunks
    return found


def samples_of(source: Source, features: Sequence[str]) -> dict[str, list[list[Any]]]:
    """Per feature the ids of every sample in the data."""
    found: dict[str, list[list[Any]]] = {name: [] for name in features}
    for chunk in chunks_of(source, features):
        assert list(chunk.features) == list(features)
        for name in features:
            lists = lists_of(chunk.features[name])
            assert len(lists) == chunk.samples
            found[name] += lists
    return found


def late_of(source: Source, features: Sequence[str]) -> list[bool]:
    """Per sample whether it lies in the second half."""
    return [chunk.late for chunk in chunks_of(source, features) for _ in range(chunk.samples)]


def plain(value: Any) -> list[Any]:
    """What a sample holds, from the Python value of a column."""
    if value is None:
        return []
    entries = value if isinstance(value, list) else [value]
    return [entry for entry in entries if entry is not None]


def refused(data: Any, features: Sequence[str], *words: str) -> str:
    """Read everything; it must fail with an error that contains these words."""
    with pytest.raises(UserError) as caught:
        samples_of(open_source(data, features), features)
    message = str(caught.value)
    for word in words:
        assert word in message, message
    return message


def real_data(name: str) -> Path:
    """A file of the real data that is not part of the project, or skip."""
    folder = Path(os.environ.get("ROWTIER_DATA", Path(__file__).parents[4] / "shared" / "data"))
    if not (folder / name).exists():
        pytest.skip(f"{name} is not there; set ROWTIER_DATA to the folder that holds it")
    return folder / name

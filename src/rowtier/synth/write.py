"""Writing a dataset folder: Parquet in row groups, one group in memory at a time.

tables.yaml                the tables, as `rowtier profile` wants them
workload.json              how the data was made: workload, seed and every parameter
data/part-00000.parquet    one column per feature, samples in order over the parts
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rowtier.files import FORMAT_VERSION, dump_json
from rowtier.folders import replace_folder
from rowtier.reading import StrPath
from rowtier.synth.columns import Column
from rowtier.synth.workload import Dataset, Written

MARKER = "workload.json"
GROUP_CELLS = 2**21  # ids and empty lists held at once: about 16 MiB
GROUPS_PER_FILE = 4
LEAST_GROUPS = 8  # so that even a small dataset has several files of several groups


def write_dataset(
    dataset: Dataset,
    folder: StrPath,
    origin: Mapping[str, Any],
    progress: Callable[[float], None] | None = None,
) -> Written:
    """Write a dataset folder in one step: it is there completely, or not at all.

    `origin` (workload, seed, options) leads `workload.json`.
    """
    ids = 0
    with replace_folder(folder, MARKER) as path:
        dataset.tables.save(path / "tables.yaml")
        facts = {"format_version": FORMAT_VERSION, **origin, "samples": dataset.samples}
        text = dump_json({**facts, **dataset.facts})
        (path / MARKER).write_text(text, encoding="utf-8")
        (path / "data").mkdir()
        groups = list(group_bounds(dataset))
        for number in range(0, len(groups), GROUPS_PER_FILE):
            part = path / "data" / f"part-{number // GROUPS_PER_FILE:05d}.parquet"
            for stop, drawn in _write_part(
                part, dataset.columns, groups[number : number + GROUPS_PER_FILE]
            ):
                ids += drawn
                if progress is not None:
                    progress(stop / dataset.samples)
        parts = list((path / "data").iterdir())
        size_bytes = sum(part.stat().st_size for part in parts)
    return Written(
        workload=str(origin["workload"]),
        folder=Path(folder),
        tables=len(dataset.tables),
        samples=dataset.samples,
        ids=ids,
        files=len(parts),
        bytes=size_bytes,
    )


def group_bounds(dataset: Dataset) -> Iterator[tuple[int, int]]:
    """The samples of every row group, first to last; no group holds more than GROUP_CELLS."""
    cells = sum(max(1.0, column.lengths.mean) for column in dataset.columns)
    size = max(1, int(GROUP_CELLS / cells))
    size = min(size, -(-dataset.samples // LEAST_GROUPS))
    for start in range(0, dataset.samples, size):
        yield start, min(start + size, dataset.samples)


def _write_part(
    path: Path, columns: tuple[Column, ...], groups: list[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Write one file; yields (samples done, ids written) after every row group."""
    schema = pa.schema([(column.name, _kind(column)) for column in columns])
    # Random ids have no repeats worth a dictionary; packed to the bits they need, they
    # are both smaller and faster to write and read than any general compression of them.
    encoding = {
        column.name + (".list.element" if column.is_list else ""): "DELTA_BINARY_PACKED"
        for column in columns
    }
    with pq.ParquetWriter(
        path, schema, compression="none", use_dictionary=False, column_encoding=encoding
    ) as writer:
        for start, stop in groups:
            arrays, ids = [], 0
            for column in columns:
                offsets, values = column.draw(start, stop)
                ids += len(values)
                arrays.append(_array(column, offsets, values))
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            yield stop, ids


def _kind(column: Column) -> pa.DataType:
    return pa.list_(pa.int64()) if column.is_list else pa.int64()


def _array(column: Column, offsets: Any, ids: Any) -> pa.Array:
    if not column.is_list:
        return pa.array(ids)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(ids))

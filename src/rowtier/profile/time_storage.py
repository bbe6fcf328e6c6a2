"""The files of a profile that hold what happened when: slices and windows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rowtier.errors import InvalidError, Mistake
from rowtier.fields import Count
from rowtier.files import Noun
from rowtier.profile.columns import numpy_of, read_columns, write_columns
from rowtier.profile.slices import Slices
from rowtier.profile.windows import BINS, Seen, Span, Windows

Ints = NDArray[np.int64]
BINS_FILE = "windows.parquet"
_HEAD, _TAIL = 0, 1


class TimeFacts(Noun):
    """What `profile.json` says of a table's slices and windows."""

    slice_bits: Count  # a slice has 2^bits samples
    slice_thinning: Count  # only rows whose hash begins with so many zero bits are in it
    first_slice: Count
    slice_samples: tuple[Count, ...]
    spans: tuple[tuple[Count, Count], ...] | None = None  # of samples; None: some are missing


def time_facts(slices: Slices, windows: Windows | None) -> TimeFacts:
    """The facts that are not arrays."""
    return TimeFacts(
        slice_bits=slices.bits,
        slice_thinning=slices.thinning,
        first_slice=slices.first,
        slice_samples=tuple(slices.samples.tolist()),
        spans=None if windows is None else tuple((s.first, s.stop) for s in windows.spans),
    )


def write_slices(slices: Slices, path: Path) -> None:
    """One column per slice."""
    columns = {f"slice {slices.first + i}": column for i, column in enumerate(slices.counts.T)}
    write_columns(path, {"row": slices.rows, **columns})


def read_slices(path: Path, facts: TimeFacts) -> Slices:
    """The slices of a table."""
    count = len(facts.slice_samples)
    names = [f"slice {facts.first_slice + i}" for i in range(count)]
    columns = read_columns(path, {"row": pa.int64(), **dict.fromkeys(names, pa.uint64())})
    rows = numpy_of(columns.pop("row"))
    counts = np.empty((len(rows), count), dtype=np.uint64)
    for index, column in enumerate(columns.values()):
        counts[:, index] = numpy_of(column)
    samples = np.array(facts.slice_samples, dtype=np.int64)
    bits, thinning = facts.slice_bits, facts.slice_thinning
    return Slices(bits, thinning, facts.first_slice, samples, rows, counts)


def write_open_ends(windows: Windows, path: Path) -> None:
    """The rows of windows that a span leaves open."""
    ends = [
        (index, side, seen)
        for index, span in enumerate(windows.spans)
        for side, seen in ((_HEAD, span.head), (_TAIL, span.tail))
    ]
    none = np.empty(0, dtype=np.int64)
    columns = {
        "span": [np.full(len(seen.row), index) for index, _, seen in ends],
        "end": [np.full(len(seen.row), side) for _, side, seen in ends],
        "row": [seen.row for *_, seen in ends],
        "sample": [seen.sample for *_, seen in ends],
    }
    merged = {name: np.concatenate([none, *parts]) for name, parts in columns.items()}
    write_columns(path, {name: array.astype(np.int64) for name, array in merged.items()})


def bins_table(known: Mapping[str, Windows]) -> pa.Table:
    """Lookups by slice and bits of all tables that know their windows."""
    parts = {name: np.nonzero(windows.bins) for name, windows in known.items()}
    names = [name for name, found in parts.items() for _ in found[0]]
    none = np.empty(0, dtype=np.int64)
    slices = [known[name].numbers[at] for name, (at, _) in parts.items()]
    lookups = [known[name].bins[found] for name, found in parts.items()]
    return pa.table(
        {
            "table": pa.array(names, pa.string()),
            "slice": np.concatenate([none, *slices]),
            "bits": np.concatenate([none, *(bits for _, bits in parts.values())]),
            "lookups": np.concatenate([none, *lookups]),
        }
    )


def read_bins(path: Path) -> dict[str, tuple[Ints, Ints, Ints]]:
    """Slice, bits and lookups of every table."""
    kinds = {"table": pa.string(), **dict.fromkeys(("slice", "bits", "lookups"), pa.int64())}
    columns = read_columns(path, kinds)
    tables = np.array(columns.pop("table").to_pylist(), dtype=object)
    slices, bits, lookups = (numpy_of(column) for column in columns.values())
    if len(bits) and not 0 <= int(bits.min()) <= int(bits.max()) < BINS:
        raise InvalidError(path, [Mistake("bits", None, f"must be 0 to {BINS - 1}")])
    return {
        name: (slices[tables == name], bits[tables == name], lookups[tables == name])
        for name in dict.fromkeys(tables)
    }


def read_windows(path: Path, facts: TimeFacts, bins: tuple[Ints, Ints, Ints] | None) -> Windows:
    """The windows of a table."""
    held = np.flatnonzero(np.array(facts.slice_samples, dtype=np.int64)) + facts.first_slice
    counts = np.zeros((len(held), BINS), dtype=np.int64)
    if bins is not None:
        slices, bits, lookups = bins
        if not np.isin(slices, held).all():
            raise InvalidError(path, [Mistake("slice", None, "a slice has no samples")])
        counts[np.searchsorted(held, slices), bits] = lookups
    kinds = dict.fromkeys(("span", "end", "row", "sample"), pa.int64())
    span, end, row, sample = (numpy_of(c) for c in read_columns(path, kinds).values())
    spans = [
        Span(first, stop, *(_seen(row, sample, (span == i) & (end == e)) for e in (_HEAD, _TAIL)))
        for i, (first, stop) in enumerate(facts.spans or ())
    ]
    return Windows(facts.slice_bits, held, counts, tuple(spans))


def _seen(row: Ints, sample: Ints, mine: NDArray[np.bool_]) -> Seen:
    return Seen.of(row[mine], sample[mine])

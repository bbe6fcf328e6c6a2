"""The profile folder: `profile.json`, and the rows or curves in Parquet beside it.

profile.json               what people read: tables, samples, features
counts/TABLE.parquet       counted: row, count, late; hottest first, ties by row
    distinct/TABLE.parquet     where ids are hashed: the distinct ids' hashes, or a sketch of them
    vocabulary/TABLE.parquet   where ids become rows by one: row, id, count
curves.parquet             curve: table, stop, lookups
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from rowtier.errors import InvalidError, Mistake, UserError
from rowtier.fields import Count, PositiveCount
from rowtier.files import (
    FORMAT_VERSION,
    Noun,
    StrPath,
    check_version,
    dump_json,
    parse,
    read_mapping,
    replace_folder,
    seal_mistakes,
    write_atomic,
)
from rowtier.profile.curve import Curve
from rowtier.profile.profile import FeatureStats, Profile, RowCounts, TableStats
from rowtier.tables import Table, Tables

if TYPE_CHECKING:
    from rowtier.profile.distinct import DistinctIds
    from rowtier.profile.vocabulary import Vocabulary

MARKER = "profile.json"
CURVES = "curves.parquet"
_ROW_GROUP = 2**20


class _Facts(Noun):
    samples: Count
    touched: Count
    distinct_ids: Count | None = None
    distinct_ids_exact: bool | None = None
    vocabulary: str | None = None  # its fingerprint
    features: tuple[FeatureStats, ...]


class _ProfileFile(Noun):
    form: Literal["counted", "curve"]
    sealed: str | None = Field(default=None, alias="fingerprint")
    batch_size: PositiveCount
    tables: tuple[Table, ...] = Field(min_length=1)
    statistics: dict[str, _Facts]

    @classmethod
    def cross_mistakes(cls, data: Any) -> Iterator[Mistake]:
        yield from Tables.cross_mistakes(data)
        names = [t.get("name") for t in data.get("tables") or () if isinstance(t, dict)]
        statistics = data.get("statistics")
        for name in statistics if isinstance(statistics, dict) else ():
            if name not in names:
                yield Mistake(f"statistics.{name}", None, "there is no such table; drop the entry")
        for name in names:
            if isinstance(statistics, dict) and name not in statistics:
                yield Mistake("statistics", name, "the table's statistics are missing; add them")


def save(profile: Profile, folder: StrPath) -> None:
    """Write the folder beside its place, then rename it."""
    with replace_folder(folder, MARKER) as path:
        data = {
            "format_version": FORMAT_VERSION,
            "form": profile.form,
            "fingerprint": profile.fingerprint,
            **profile.tables.to_data(),
            "statistics": {stats.table.name: stats.facts() for stats in profile.stats},
        }
        write_atomic(path / MARKER, dump_json(data))
        if profile.form == "counted":
            (path / "counts").mkdir()
            for stats in profile.stats:
                assert stats.counts is not None
                _write_counts(stats.counts, path / _file("counts", stats.table))
                if stats.distinct is not None:
                    _write_distinct(stats.distinct, path / _file("distinct", stats.table))
                if stats.vocabulary is not None:
                    stats.vocabulary.save(path / _file("vocabulary", stats.table))
        else:
            pq.write_table(_curve_table(profile), path / CURVES)


def load(folder: StrPath, whole: bool = True) -> Profile:
    """Read a folder; every mistake in it is listed in one error.

    A part of a profile (not `whole`) need not add up.
    """
    path = Path(folder)
    if not path.is_dir():
        what = "is a file, not a" if path.exists() else "there is no such"
        raise UserError(f"{path}: {what} profile folder; make one with rowtier profile")
    if not (path / MARKER).exists():
        raise UserError(
            f"{path}: holds no {MARKER}, so it is no profile; make one with rowtier profile"
        )
    data = read_mapping(path / MARKER)
    check_version(path / MARKER, data)
    file = parse(_ProfileFile, data, path / MARKER)
    read = _read_counts if file.form == "counted" else _read_curves
    stats = []
    for table, (curve, counts) in zip(file.tables, read(path, file), strict=True):
        facts = file.statistics[table.name]
        distinct = None
        if facts.distinct_ids is not None:
            distinct = _read_distinct(path / _file("distinct", table))
        seen = None if counts is not None else facts.touched
        words = _read_vocabulary(path, table, facts, whole and file.form == "counted")
        found = TableStats(
            table,
            facts.samples,
            facts.features,
            curve,
            counts,
            distinct,
            seen_rows=seen,
            vocabulary=words,
        )
        stats.append(found)
    mistakes = [
        mistake.below(f"statistics.{entry.table.name}")
        for entry in stats
        for mistake in (entry.mistakes() if whole else ())
    ]
    profile = Profile(file.batch_size, tuple(stats))
    mistakes = mistakes or seal_mistakes(file.sealed, profile.fingerprint, "profile")
    if mistakes:
        raise InvalidError(path / MARKER, mistakes)
    return profile


def _file(folder: str, table: Table) -> str:
    return f"{folder}/{quote(table.name, safe=' ')}.parquet"


def _write_counts(counts: RowCounts, path: Path) -> None:
    columns = {"row": counts.rows, "count": counts.counts, "late": counts.late}
    # Row ids in hotness order are noise, which no encoding makes smaller; counts fall slowly.
    encodings = {"row": "PLAIN", "count": "DELTA_BINARY_PACKED", "late": "DELTA_BINARY_PACKED"}
    schema = pa.schema(
        pa.field(name, pa.from_numpy_dtype(column.dtype), nullable=False)
        for name, column in columns.items()
    )
    with pq.ParquetWriter(
        path,
        schema,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        column_encoding=encodings,
    ) as writer:
        for start in range(0, len(counts.rows), _ROW_GROUP):
            part = [column[start : start + _ROW_GROUP] for column in columns.values()]
            writer.write_table(pa.table(part, schema=schema))


def _write_distinct(distinct: DistinctIds, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    column = {"hash": distinct.hashes} if distinct.exact else {"register": distinct.registers}
    pq.write_table(pa.table(column), path, use_dictionary=False)


def _read_distinct(path: Path) -> DistinctIds:
    from rowtier.profile.distinct import DistinctIds

    if "hash" in pq.read_schema(path).names:
        return DistinctIds(_numpy(read_columns(path, {"hash": pa.uint64()})["hash"]))
    registers = _numpy(read_columns(path, {"register": pa.uint8()})["register"])
    return DistinctIds(None, registers)


def _read_vocabulary(path: Path, table: Table, facts: _Facts, needed: bool) -> Vocabulary | None:
    """The vocabulary of a table that has one; parts of a profile need none of their own."""
    if facts.vocabulary is None and not (needed and table.ids == "vocabulary"):
        return None
    from rowtier.profile.vocabulary import read_vocabulary

    return read_vocabulary(path, table, facts.vocabulary)


def _curve_table(profile: Profile) -> pa.Table:
    sizes = [len(stats.curve.stops) for stats in profile.stats]
    names = pa.array([stats.table.name for stats in profile.stats])
    index = pa.array(np.repeat(np.arange(len(sizes), dtype=np.int32), sizes))
    return pa.table(
        {
            "table": pa.DictionaryArray.from_arrays(index, names),
            "stop": np.concatenate([stats.curve.stops for stats in profile.stats]),
            "lookups": np.concatenate([stats.curve.lookups for stats in profile.stats]),
        }
    )


def _read_counts(path: Path, file: _ProfileFile) -> Iterator[tuple[Curve | None, RowCounts | None]]:
    for table in file.tables:
        kinds = dict.fromkeys(("row", "count", "late"), pa.int64())
        columns = read_columns(path / _file("counts", table), kinds, optional="late")
        rows, counts = _numpy(columns["row"]), _numpy(columns["count"])
        late = _numpy(columns["late"]) if "late" in columns else np.zeros_like(counts)
        yield None, RowCounts(rows, counts, late)


def _read_curves(path: Path, file: _ProfileFile) -> Iterator[tuple[Curve | None, RowCounts | None]]:
    kinds = {"table": pa.string(), "stop": pa.int64(), "lookups": pa.float64()}
    columns = read_columns(path / CURVES, kinds)
    encoded = columns["table"].combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    index = encoded.indices.to_numpy(zero_copy_only=False)
    stops, lookups = _numpy(columns["stop"]), _numpy(columns["lookups"])
    unknown = set(names) - {table.name for table in file.tables}
    if unknown:
        mistake = Mistake("table", sorted(unknown)[0], "profile.json has no such table")
        raise InvalidError(path / CURVES, [mistake])
    for table in file.tables:
        mine = index == names.index(table.name) if table.name in names else np.zeros_like(index) > 0
        yield Curve(stops[mine], lookups[mine]), None


def read_columns(
    path: Path, kinds: dict[str, pa.DataType], optional: str = ""
) -> dict[str, pa.ChunkedArray]:
    """Read Parquet columns of the given types without nulls, or say what is wrong with them."""
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise UserError(f"{path}: the file is missing; profile again") from None
    except (OSError, pa.ArrowException) as error:
        why = " ".join(str(error).split())
        mistake = Mistake("", None, f"the file is not readable Parquet ({why}); profile again")
        raise InvalidError(path, [mistake]) from None
    mistakes, found = [], {}
    for name, kind in kinds.items():
        if name not in table.column_names:
            if name == optional:
                continue
            mistakes.append(Mistake(name, None, f"this column is missing; it holds {kind}"))
            continue
        try:
            column = table[name].cast(kind)
        except pa.ArrowException:
            mistakes.append(Mistake(name, str(table[name].type), f"the column must hold {kind}"))
            continue
        if column.null_count:
            mistakes.append(Mistake(name, None, f"{column.null_count} values are null; fill in"))
        found[name] = column
    if mistakes:
        raise InvalidError(path, mistakes)
    return found


def _numpy(column: pa.ChunkedArray) -> NDArray[Any]:
    array: NDArray[Any] = np.ascontiguousarray(column.to_numpy())
    return array

"""The profile folder: `profile.json`, and the rows or curves in Parquet beside it.

    profile.json               what people read: tables, samples, features

of a counted profile

    counts/TABLE.parquet       row, count, samples that hold it; hottest first, ties by row
    slices/TABLE.parquet       row, and how often it was looked up in every time slice
    windows/TABLE.parquet      rows of windows that are open at an end: span, end, row, sample
    windows.parquet            table, slice, bits, lookups (`windows.py` says of what)
    distinct/TABLE.parquet     where ids are hashed: the distinct ids' hashes, or a sketch of them
    vocabulary/TABLE.parquet   where ids become rows by one: row, id, count

and of a curve

    curves.parquet             table, stop, lookups, shape, low, high, once
    distinct.parquet           table, samples, value, low, high, locality
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from rowtier.errors import InvalidError, Mistake, UserError, VersionError
from rowtier.fields import MOST_HORIZON, MOST_TABLES, BatchSize, Count, Rows
from rowtier.files import Noun, dump_json, mappings, parse, seal_mistakes
from rowtier.folders import PARTS, replace_folder
from rowtier.manifest import read_manifest, write_manifest
from rowtier.profile.columns import file_name, numpy_of, read_columns, schema_of, write_columns
from rowtier.profile.curve import Curve
from rowtier.profile.rarefaction import LADDER, Batches, DistinctRows
from rowtier.profile.table_stats import FeatureStats, RowCounts, TableStats
from rowtier.profile.time_storage import (
    BINS_FILE,
    TimeFacts,
    bins_table,
    read_bins,
    read_slices,
    read_windows,
    time_facts,
    write_open_ends,
    write_slices,
)
from rowtier.reading import StrPath, read_mapping
from rowtier.tables import Table, Tables

if TYPE_CHECKING:
    from rowtier.profile.distinct import DistinctIds
    from rowtier.profile.profile import Profile
    from rowtier.profile.vocabulary import Vocabulary

_OF_CURVE = ("shape", "low", "high", "once")
_RUNGS = ("value", "low", "high", "locality")
MARKER = "profile.json"
CURVES = "curves.parquet"
DISTINCT = "distinct.parquet"
PROFILE_VERSION = 2  # 1 knew halves of the data, not samples and time slices


class _Facts(Noun):
    samples: Count
    touched: Rows
    distinct_ids: Count | None = None
    distinct_ids_exact: bool | None = None
    rows_held: Count | None = None
    arranged: bool = Field(default=False, strict=True)  # by another order than that of heat
    vocabulary: str | None = None  # its fingerprint
    features: tuple[FeatureStats, ...]
    time: TimeFacts | None = None


class _ProfileFile(Noun):
    form: Literal["counted", "curve"]
    sealed: str | None = Field(default=None, alias="fingerprint")
    batch_size: BatchSize
    batches: Batches = "shuffled"
    horizon: float = Field(default=1.0, gt=0, le=MOST_HORIZON)
    tables: tuple[Table, ...] = Field(min_length=1, max_length=MOST_TABLES)
    statistics: dict[str, _Facts]

    @classmethod
    def cross_mistakes(cls, data: Any) -> Iterator[Mistake]:
        yield from Tables.cross_mistakes(data)
        names = [t["name"] for _, t in mappings(data, "tables") if isinstance(t.get("name"), str)]
        statistics = data.get("statistics")
        for name in statistics if isinstance(statistics, dict) else ():
            if name not in names:
                yield Mistake(f"statistics.{name}", None, "there is no such table; drop the entry")
        for name in names:
            if isinstance(statistics, dict) and name not in statistics:
                yield Mistake("statistics", name, "the table's statistics are missing; add them")


def save(profile: Profile, folder: StrPath) -> None:
    """Write the folder beside its place, then let it take its place."""
    with replace_folder(folder, MARKER) as path:
        _fill(profile, path)


def save_inside(profile: Profile, folder: Path) -> None:
    """Write a profile as part of a folder that is being filled."""
    folder.mkdir()
    _fill(profile, folder)
    write_manifest(folder)


def _fill(profile: Profile, path: Path) -> None:
    data = {
        "format_version": PROFILE_VERSION,
        "form": profile.form,
        "fingerprint": profile.fingerprint,
        "batches": profile.batches,
        "horizon": profile.horizon,
        **profile.tables.to_data(),
        "statistics": {stats.table.name: _facts(stats) for stats in profile.stats},
    }
    (path / MARKER).write_text(dump_json(data), encoding="utf-8")
    if profile.form == "counted":
        _save_counted(profile, path)
    else:
        pq.write_table(_curve_table(profile), path / CURVES)
        if any(stats.ladder is not None for stats in profile.stats):
            pq.write_table(_ladder_table(profile), path / DISTINCT)


def _facts(stats: TableStats) -> dict[str, Any]:
    facts = stats.facts()
    if stats.counts is not None and stats.slices is not None:
        facts["time"] = time_facts(stats.slices, stats.windows).to_data()
    return facts


def _save_counted(profile: Profile, path: Path) -> None:
    for stats in profile.stats:
        assert stats.counts is not None
        _write_counts(stats.counts, path / _file("counts", stats.table))
        if stats.slices is not None:
            write_slices(stats.slices, path / _file("slices", stats.table))
        if stats.windows is not None:
            write_open_ends(stats.windows, path / _file("windows", stats.table))
        if stats.distinct_ids is not None:
            _write_distinct(stats.distinct_ids, path / _file("distinct", stats.table))
        if stats.vocabulary is not None:
            stats.vocabulary.save(path / _file("vocabulary", stats.table))
    known = {s.table.name: s.windows for s in profile.stats if s.windows is not None}
    if known:
        pq.write_table(bins_table(known), path / BINS_FILE)


def load(kind: type[Profile], folder: StrPath, whole: bool = True) -> Profile:
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
    _check_version(path, data)
    file = parse(_ProfileFile, data, path / MARKER)
    _check_files(path, file)
    read = _read_counted if file.form == "counted" else _read_curves
    stats = []
    for table, found in zip(file.tables, read(path, file), strict=True):
        facts = file.statistics[table.name]
        words = _read_vocabulary(path, table, facts, whole and file.form == "counted")
        known = TableStats(table, facts.samples, facts.features, vocabulary=words, **found)
        stats.append(replace(known, horizon=file.horizon))
    mistakes = [
        mistake.below(f"statistics.{entry.table.name}")
        for entry in stats
        for mistake in (entry.mistakes() if whole else ())
    ]
    profile = kind(file.batch_size, tuple(stats), file.batches)
    mistakes = mistakes or seal_mistakes(file.sealed, profile.fingerprint, "profile")
    if mistakes:
        raise InvalidError(path / MARKER, mistakes)
    return profile


def _check_files(path: Path, file: _ProfileFile) -> None:
    """Refuse files that are not what was written; vocabularies are checked where they are read."""
    again = _again(path)
    written = read_manifest(path, again)
    shared = [CURVES, DISTINCT] if file.form == "curve" else []
    for table in file.tables if file.form == "counted" else ():
        facts = file.statistics[table.name]
        spans = facts.time is not None and facts.time.spans is not None
        kinds = {"slices": facts.time is not None, "windows": spans}
        kinds["distinct"] = facts.distinct_ids is not None
        for kind in ("counts", *(kind for kind, needed in kinds.items() if needed)):
            written.check(path, _file(kind, table), f"of table {table.name!r}", again)
        shared += [BINS_FILE] if spans else []
    for name in dict.fromkeys(shared):
        if name != DISTINCT or name in written.files or (path / name).exists():
            written.check(path, name, "of all tables", again)


def _again(path: Path) -> str:
    """How a folder is written anew, by what it is part of."""
    if (path.parent / "plan.json").exists():
        return "plan"
    if path.parent.parent.name.endswith(f".rowtier-{PARTS}"):
        return "run without --resume, which counts"
    return "profile"


def _check_version(path: Path, data: Mapping[str, Any]) -> None:
    """Refuse a folder of another version, and say how to make it anew."""
    found = data.get("format_version", PROFILE_VERSION)
    if found == PROFILE_VERSION and not isinstance(found, bool):
        return
    inside = _again(path) == "plan"  # the statistics that a plan was made from
    again = f"rowtier profile DATA --tables tables.yaml -o {path.parent if inside else path}"
    told = "profile and plan again" if inside else f"make it anew with `{again}`"
    text = (
        f"this rowtier reads profiles of format_version {PROFILE_VERSION} and this one has "
        f"{found!r}, which counted other things: {told}"
    )
    raise VersionError(path / MARKER, [Mistake("format_version", found, text)])


def _file(folder: str, table: Table) -> str:
    return f"{folder}/{file_name(table.name)}"


def _write_counts(counts: RowCounts, path: Path) -> None:
    columns = {"row": counts.rows, "count": counts.counts}
    if counts.samples is not counts.counts:
        columns["samples"] = counts.samples
    # Row ids in hotness order are noise, which no encoding makes smaller; counts fall slowly.
    write_columns(path, columns, plain=("row",))


def _write_distinct(distinct: DistinctIds, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)  # `distinct/`
    column = {"hash": distinct.hashes} if distinct.exact else {"register": distinct.registers}
    pq.write_table(pa.table(column), path, use_dictionary=False)


def _read_distinct(path: Path) -> DistinctIds:
    from rowtier.profile.distinct import LIMIT, REGISTERS, DistinctIds

    if "hash" in schema_of(path).names:
        found = read_columns(path, {"hash": pa.uint64()}, most_rows=LIMIT)
        return DistinctIds(numpy_of(found["hash"]))
    found = read_columns(path, {"register": pa.uint8()}, most_rows=REGISTERS)
    return DistinctIds(None, numpy_of(found["register"]))


def _read_vocabulary(path: Path, table: Table, facts: _Facts, needed: bool) -> Vocabulary | None:
    """The vocabulary of a table that has one; parts of a profile need none of their own."""
    if facts.vocabulary is None and not (needed and table.has_vocabulary):
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
            **{
                name: np.concatenate([getattr(stats.curve, name) for stats in profile.stats])
                for name in _OF_CURVE
            },
        }
    )


def _ladder_table(profile: Profile) -> pa.Table:
    known = {s.table.name: s.ladder for s in profile.stats if s.ladder is not None}
    columns = {
        name: np.concatenate([np.empty(0), *(getattr(one, name) for one in known.values())])
        for name in _RUNGS
    }
    names = pa.array([name for name in known for _ in LADDER], pa.string())
    return pa.table({"table": names, "samples": np.tile(LADDER, len(known)), **columns})


def _read_counted(path: Path, file: _ProfileFile) -> Iterator[dict[str, Any]]:
    """The fields of TableStats, table by table."""
    timed = {name: facts.time for name, facts in file.statistics.items() if facts.time is not None}
    whole = any(facts.spans is not None for facts in timed.values())
    bins = read_bins(path / BINS_FILE) if whole else {}
    for table in file.tables:
        facts, time = file.statistics[table.name], timed.get(table.name)
        kinds = dict.fromkeys(("row", "count", "samples"), pa.int64())
        columns = read_columns(
            path / _file("counts", table), kinds, "samples", table.num_embeddings
        )
        found: dict[str, Any] = {"counts": RowCounts(*(numpy_of(c) for c in columns.values()))}
        if time is not None:
            found["slices"] = read_slices(path / _file("slices", table), time)
        if time is not None and time.spans is not None:
            ends = path / _file("windows", table)
            found["windows"] = read_windows(ends, time, bins.get(table.name))
        if facts.distinct_ids is not None:
            found["distinct_ids"] = _read_distinct(path / _file("distinct", table))
        yield found


def _read_curves(path: Path, file: _ProfileFile) -> Iterator[dict[str, Any]]:
    """The fields of TableStats, table by table."""
    kinds = {"stop": pa.int64(), **dict.fromkeys(("lookups", *_OF_CURVE), pa.float64())}
    curves = _by_table(path / CURVES, kinds, file)
    rungs_of: dict[str, dict[str, NDArray[Any]]] = {}
    if (path / DISTINCT).exists():
        kinds = dict.fromkeys(("samples", *_RUNGS), pa.float64())
        rungs_of = _by_table(path / DISTINCT, kinds, file)
    for table in file.tables:
        facts, curve = file.statistics[table.name], curves[table.name]
        found = {
            "bucketed": Curve(*curve.values()),
            "seen_rows": facts.touched,
            "held": facts.rows_held,
            "arranged": facts.arranged,
        }
        rungs = rungs_of.get(table.name)
        if rungs is not None and len(rungs["samples"]):
            if not np.array_equal(rungs["samples"], LADDER):
                mistake = Mistake("samples", None, f"table {table.name!r} has another ladder")
                raise InvalidError(path / DISTINCT, [mistake])
            found["ladder"] = DistinctRows(*(rungs[name] for name in _RUNGS))
        yield found


def _by_table(
    path: Path, kinds: dict[str, pa.DataType], file: _ProfileFile
) -> dict[str, dict[str, NDArray[Any]]]:
    """The columns of a file that holds all tables, for each of them."""
    columns = read_columns(path, {"table": pa.string(), **kinds})
    encoded = columns.pop("table").combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    index = encoded.indices.to_numpy(zero_copy_only=False)
    unknown = set(names) - {table.name for table in file.tables}
    if unknown:
        mistake = Mistake("table", sorted(unknown)[0], "profile.json has no such table")
        raise InvalidError(path, [mistake])
    arrays = {name: numpy_of(column) for name, column in columns.items()}
    found = {}
    for table in file.tables:
        mine = index == (names.index(table.name) if table.name in names else -1)
        found[table.name] = {name: array[mine] for name, array in arrays.items()}
    return found

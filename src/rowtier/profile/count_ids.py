"""Building vocabularies: a first pass over the data counts how often each id is looked up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rowtier.errors import UserError
from rowtier.files import StrPath
from rowtier.profile.ids import IdValues
from rowtier.profile.profile import Profile
from rowtier.profile.readers import Source
from rowtier.profile.vocabulary import Vocabulary, read_vocabulary
from rowtier.tables import Table, Tables

Progress = Callable[[float], None]
Vocabularies = Mapping[str, Vocabulary]
_WAITING = 2**20  # distinct ids of chunks that are added up in one go, at least


class IdCounter:
    """How often every id of one table was seen."""

    def __init__(self, table: Table):
        self._table = table
        self._counted: pa.Table | None = None
        self._waiting: list[pa.Table] = []
        self._kind: pa.DataType | None = None
        self._negative = False

    def add(self, values: IdValues, feature: str, path: str) -> None:
        """Count the ids of a chunk."""
        if not len(values):
            return
        self._note_kind(values, feature, path)
        counted = pc.value_counts(pa.array(values) if isinstance(values, np.ndarray) else values)
        columns = {"id": counted.field("values"), "count": counted.field("counts")}
        self._waiting.append(pa.table(columns))
        known = 0 if self._counted is None else len(self._counted)
        if sum(map(len, self._waiting)) > max(_WAITING, known):
            self._add_up()

    def finish(self) -> Vocabulary:
        """The vocabulary: ids that are seen often enough, hottest first."""
        self._add_up()
        if self._counted is None:
            return Vocabulary(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
        often = self._counted.filter(pc.field("count") >= self._table.min_count)
        keys = [("count", "descending"), ("id", "ascending")]
        chosen = often.take(pc.sort_indices(often, keys)[: self._table.num_own])
        return Vocabulary(chosen["id"], chosen["count"].to_numpy())

    def _add_up(self) -> None:
        known = [] if self._counted is None else [self._counted]
        if not known and not self._waiting:
            return
        # An id of 2⁶³ or more makes the column unsigned; chunks before it may not have been.
        parts = [part.set_column(0, "id", part["id"].cast(self._kind)) for part in self._waiting]
        parts += [part.set_column(0, "id", part["id"].cast(self._kind)) for part in known]
        summed = pa.concat_tables(parts).group_by("id").aggregate([("count", "sum")])
        self._counted = summed.rename_columns(_names(summed)).select(["id", "count"])
        self._waiting = []

    def _note_kind(self, values: IdValues, feature: str, path: str) -> None:
        """Refuse a vocabulary of numbers and strings, or of numbers that no type can hold."""
        kind = pa.from_numpy_dtype(values.dtype) if isinstance(values, np.ndarray) else values.type
        before = self._kind or kind
        self._negative = self._negative or (kind == pa.int64() and int(values.min()) < 0)
        if pa.types.is_integer(before) != pa.types.is_integer(kind):
            raise UserError(
                f"{path}: column {feature!r} holds {_spoken(kind)}, and other data of table "
                f"{self._table.name!r} holds {_spoken(before)}: a vocabulary has ids of one kind; "
                "cast the column"
            )
        self._kind = pa.uint64() if pa.uint64() in (before, kind) else kind
        if self._kind == pa.uint64() and self._negative:
            raise UserError(
                f"{path}: column {feature!r}: table {self._table.name!r} has ids below 0 and ids "
                "above 2^63 - 1, which no column holds together: write them as strings"
            )


def _names(table: pa.Table) -> list[str]:
    """pyarrow before 18 calls the sum `count_sum` and puts it first."""
    return ["count" if name == "count_sum" else name for name in table.column_names]


def _spoken(kind: pa.DataType) -> str:
    return "whole numbers" if pa.types.is_integer(kind) else "strings"


def build_vocabularies(
    source: Source, tables: Tables, progress: Progress | None = None
) -> dict[str, Vocabulary]:
    """Read the data once, and give every table with `ids: vocabulary` one."""
    wanted = [table for table in tables if table.ids == "vocabulary"]
    if not wanted:
        return {}
    _refuse_single_use(source, wanted[0])
    counters = {table.name: IdCounter(table) for table in wanted}
    features = list(dict.fromkeys(name for table in wanted for name in table.features))
    total = sum(max(1, part.weight_bytes) for part in source.parts)
    read = 0.0
    for part in source.parts:
        weight = max(1, part.weight_bytes)
        for chunk in source.read(part, features):
            for table in wanted:
                for name in table.features:
                    counters[table.name].add(chunk.features[name].values, name, part.path)
            if progress is not None:
                progress((read + weight * chunk.done) / total)
        read += weight
    return {name: counter.finish() for name, counter in counters.items()}


def given_vocabularies(given: StrPath | Vocabularies, tables: Tables) -> dict[str, Vocabulary]:
    """The vocabularies of tables from an earlier profile or plan folder, or as they are."""
    wanted = [table for table in tables if table.ids == "vocabulary"]
    if not isinstance(given, Mapping):
        return {table.name: read_vocabulary(given, table) for table in wanted}
    missing = [table.name for table in wanted if table.name not in given]
    if missing:
        raise UserError(f"vocabulary: that of table {missing[0]!r} is missing; add it")
    for table in wanted:
        given[table.name].check(table, f"vocabulary of table {table.name!r}")
    return {table.name: given[table.name] for table in wanted}


def vocabularies_for(
    source: Source,
    tables: Tables,
    given: StrPath | Vocabularies | None,
    progress: Progress | None,
) -> tuple[dict[str, Vocabulary], Progress | None]:
    """The vocabularies that tables ask for, and how the counting that follows tells progress."""
    if given is not None:
        return given_vocabularies(given, tables), progress
    if progress is None or all(table.ids != "vocabulary" for table in tables):
        return build_vocabularies(source, tables), progress
    found = build_vocabularies(source, tables, lambda share: progress(share / 2))
    return found, lambda share: progress(0.5 + share / 2)


def with_vocabularies(profile: Profile, vocabularies: Vocabularies) -> Profile:
    """The same statistics, with the vocabularies that they were counted with."""
    if not vocabularies:
        return profile
    stats = (replace(s, vocabulary=vocabularies.get(s.table.name)) for s in profile.stats)
    return replace(profile, stats=tuple(stats))


def _refuse_single_use(source: Source, table: Table) -> None:
    inner: Any = getattr(source, "source", source)
    if hasattr(getattr(inner, "batches", None), "__next__"):
        raise UserError(
            f"table {table.name!r} takes ids by a vocabulary, for which the data is read twice, "
            "and these batches come from an iterator: give files, a list or a DataLoader, or the "
            "vocabulary of an earlier profile (vocabulary=)"
        )

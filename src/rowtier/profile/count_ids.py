"""Building vocabularies: a first pass over the data counts how often each id is looked up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.jit import compiled
from rowtier.profile.ids import IdValues, Ints, as_int64
from rowtier.profile.profile import Profile
from rowtier.profile.readers import Source
from rowtier.profile.vocabulary import Vocabulary, read_vocabulary
from rowtier.reading import StrPath
from rowtier.tables import Table, Tables

Progress = Callable[[float], None]
Vocabularies = Mapping[str, Vocabulary]
_WAITING = 2**20  # distinct strings of chunks that are added up in one go, at least
_BLOCK = 2**16  # numbers that are counted before the table may have to grow
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class IdCounter:
    """How often every id of one table was seen."""

    def __init__(self, table: Table):
        self._table = table
        self._numbers = NumberCounts()
        self._words = WordCounts()
        self._unsigned = self._negative = False

    def add(self, values: IdValues, feature: str, path: str) -> None:
        """Count the ids of a chunk."""
        if not len(values):
            return
        if isinstance(values, np.ndarray):
            self._check(bool(self._words), feature, path, ("strings", "whole numbers"))
            self._note_sign(values, feature, path)
            self._numbers.add(as_int64(values))
        else:
            self._check(bool(self._numbers), feature, path, ("whole numbers", "strings"))
            self._words.add(values)

    def finish(self) -> Vocabulary:
        """The vocabulary: ids that are seen often enough, hottest first."""
        least, most = self._table.least_count, self._table.num_own
        if self._words:
            return Vocabulary(*self._words.hottest(least, most))
        return Vocabulary(*self._numbers.hottest(least, most, self._unsigned))

    def _check(self, mixed: bool, feature: str, path: str, kinds: tuple[str, str]) -> None:
        if mixed:
            raise UserError(
                f"{path}: column {feature!r} holds {kinds[1]}, and other data of table "
                f"{self._table.name!r} holds {kinds[0]}: a vocabulary has ids of one kind; cast "
                "the column"
            )

    def _note_sign(self, values: NDArray[Any], feature: str, path: str) -> None:
        """Refuse ids that neither int64 nor uint64 can hold together."""
        self._unsigned = self._unsigned or values.dtype == np.uint64
        self._negative = self._negative or int(values.min()) < 0
        if self._unsigned and self._negative:
            raise UserError(
                f"{path}: column {feature!r}: table {self._table.name!r} has ids below 0 and ids "
                "above 2^63 - 1, which no column holds together: write them as strings"
            )


class NumberCounts:
    """Counts of whole numbers, in an open-addressing table that grows with them."""

    def __init__(self) -> None:
        self._ids, self._counts = np.zeros((2, 2**12), dtype=np.int64)
        self._used = 0

    def __bool__(self) -> bool:
        return self._used > 0

    def add(self, values: Ints) -> None:
        """Count numbers."""
        for start in range(0, len(values), _BLOCK):
            block = values[start : start + _BLOCK]
            if 2 * (self._used + len(block)) > len(self._ids):
                self._grow(4 * (self._used + len(block)))
            ones = np.ones(1, dtype=np.int64)
            self._used += int(_count(block, ones, self._ids, self._counts))

    def hottest(self, least: int, most: int, unsigned: bool) -> tuple[NDArray[Any], Ints]:
        """Numbers with at least so many lookups, hottest first, ties ascending."""
        often = self._counts >= least
        ids, counts = self._ids[often], self._counts[often]
        ids = ids.view(np.uint64) if unsigned else ids
        by_id = np.argsort(ids)
        order = by_id[np.argsort(-counts[by_id], kind="stable")][:most]
        return ids[order], counts[order]

    def _grow(self, wanted: int) -> None:
        kept = self._counts > 0
        ids, counts = self._ids[kept], self._counts[kept]
        self._ids, self._counts = np.zeros((2, 1 << (wanted - 1).bit_length()), dtype=np.int64)
        _count(ids, counts, self._ids, self._counts)


@compiled
def _count(values: Ints, times: Ints, ids: Ints, counts: Ints) -> int:
    """Add `times` to the counts of values (once for all, or one each); how many are new."""
    mask, new = np.uint64(len(ids) - 1), 0
    for i in range(len(values)):
        mixed = np.uint64(values[i]) * _GOLDEN
        place = (mixed ^ (mixed >> np.uint64(32))) & mask
        while counts[place] > 0 and ids[place] != values[i]:
            place = (place + np.uint64(1)) & mask
        if counts[place] == 0:
            ids[place] = values[i]
            new += 1
        counts[place] += times[i] if len(times) > 1 else times[0]
    return new


class WordCounts:
    """Counts of strings: those of chunks wait, and are added up when there are many."""

    def __init__(self) -> None:
        self._counted: pa.Table | None = None
        self._waiting: list[pa.Table] = []

    def __bool__(self) -> bool:
        return bool(self._waiting) or self._counted is not None

    def add(self, values: Any) -> None:
        """Count strings."""
        found = pc.value_counts(values)
        self._waiting.append(
            pa.table({"id": found.field("values"), "count": found.field("counts")})
        )
        known = 0 if self._counted is None else len(self._counted)
        if sum(map(len, self._waiting)) > max(_WAITING, known):
            self._add_up()

    def hottest(self, least: int, most: int) -> tuple[Any, Ints]:
        """Strings with at least so many lookups, hottest first, ties by their UTF-8."""
        self._add_up()
        assert self._counted is not None
        often = self._counted.filter(pc.field("count") >= least)
        keys = [("count", "descending"), ("id", "ascending")]
        chosen = often.take(pc.sort_indices(often, keys)[:most])
        return chosen["id"], chosen["count"].to_numpy()

    def _add_up(self) -> None:
        if not self._waiting:
            return
        parts = [*self._waiting, *([] if self._counted is None else [self._counted])]
        summed = pa.concat_tables(parts).group_by("id").aggregate([("count", "sum")])
        self._counted = pa.table({"id": summed["id"], "count": summed["count_sum"]})
        self._waiting = []


def build_vocabularies(
    source: Source, tables: Tables, progress: Progress | None = None
) -> dict[str, Vocabulary]:
    """Read the data once, and give every table that takes ids by one its vocabulary."""
    wanted = [table for table in tables if table.has_vocabulary]
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
    wanted = [table for table in tables if table.has_vocabulary]
    if not isinstance(given, Mapping):
        if not Path(given).is_dir():
            raise UserError(f"{given}: there is no such folder; give that of a profile or a plan")
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
    if progress is None or not any(table.has_vocabulary for table in tables):
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

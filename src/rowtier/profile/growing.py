"""Vocabularies that grow: ids get rows while training, and lose them to others when it is full.

Everything here is arithmetic on plain arrays, so that it may lie in memory that processes share,
and so that all ranks that are told the same come to the same vocabulary. Who tells them is
`runtime/growing.py`; in one process `GrowingTable.resolve` does all of it.

Ids that have no row are taken in the order in which the global batch has them first. An id that
was seen `admit_after` times gets a row: a free one as long as there is one, the lowest first, then
that of the id that was used least recently (`evict: lru`) or least often (`lfu`), ties by the
higher row. Rows that were used from batch `oldest` on are not taken away: their gradients may be
on the way. What gets no row shares the table's last `num_shared` rows, by its hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.profile import growing_loops as loops
from rowtier.profile.growing_loops import Ints, Keys
from rowtier.profile.hashing import hash_ints, hash_strings
from rowtier.profile.ids import IdValues, Where, as_int64
from rowtier.profile.vocabulary import Vocabulary
from rowtier.tables import Table

_LINES = 4  # of the sketch
_LEAST_COUNTERS = 2**16  # in each of them
_SECOND_SEED = 0x9E3779B97F4A7C15  # of the other half of a string's hash
_COLDEST = 32  # one in so many rows is kept at hand as one that may go
SIZE, COUNTED = range(2)  # rows that have an id; ids counted in the sketch since it was halved


class UnknownIds(NamedTuple):
    """Distinct ids without a row, in the order in which they were seen, and how often."""

    keys: Keys
    counts: Ints
    first: Ints = np.empty(0, dtype=np.int64)  # where each is seen first

    @classmethod
    def of(cls, keys: Keys, counts: Ints) -> UnknownIds:
        """Each id once, its counts added up."""
        first, sums = loops.distinct_keys(np.ascontiguousarray(keys), counts)
        return cls(keys[first], sums, first)


class Growth(NamedTuple):
    """What became of unknown ids: those that got rows, and the rows that were others' before."""

    at: Ints  # which of the unknown ids
    rows: Ints  # their rows
    reused: Ints  # rows, of these, that start anew
    gone: Keys  # what had these rows before


@dataclass(eq=False)
class Coldest:
    """Rows that may go next: all that are used no more than `limit` says, and maybe others.

    Use only grows, but for rows that get another id, and those are added. So most searches for rows
    that go look at these only.
    """

    rows: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    limit: int = -1

    def find(self, use: Ints, count: int) -> Ints:
        """So many rows that are used least, of all."""
        if not len(use):
            return self.rows
        self.limit = int(np.partition(use, count - 1)[count - 1] if count < len(use) else use.max())
        return np.flatnonzero(use <= self.limit)


def growing_layout(table: Table, strings: bool) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of every array of a growing vocabulary, by name."""
    own, width = table.num_own, 2 if strings else 1
    places = 1 << max(3, (own + own // 2).bit_length())
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        "header": ("i8", (2,)),
        "held": ("u8", (places, width + 1)),
        "row_keys": ("u8", (own, width)),
    }
    if table.evict != "never":
        found |= {"last": ("i8", (own,)), "counts": ("i8", (own,))}
    if table.admit_after > 1:
        counters = max(_LEAST_COUNTERS, 1 << (4 * own - 1).bit_length())
        found["sketch"] = ("u2", (_LINES, counters))
    if strings:
        found["texts"] = ("i8", (own, 2))
    return found


@dataclass(frozen=True, eq=False)
class GrowingVocabulary:
    """Which id has which row of a table, as of now; arrays by the names of the layout."""

    table: Table
    strings: bool
    arrays: Mapping[str, NDArray[Any]]
    coldest: Coldest = field(default_factory=lambda: Coldest())

    @classmethod
    def of(cls, table: Table, start: Vocabulary | None = None) -> GrowingVocabulary:
        """In memory of its own; it starts with the ids of a profile."""
        strings = start is not None and start.strings
        layout = growing_layout(table, strings)
        made = cls(
            table, strings, {n: np.zeros(shape, kind) for n, (kind, shape) in layout.items()}
        )
        if start is not None:
            made.start(start)
        return made

    def start(self, words: Vocabulary) -> None:
        """Take the ids of a profile's vocabulary, in empty memory."""
        self.fill(self.keys_of(words.ids), words.counts)

    def fill(self, keys: Keys, counts: Ints | None = None, last: Ints | None = None) -> None:
        """Become a vocabulary that has these ids, in the order of their rows, and no others."""
        for name in ("held", "last", "counts"):
            if name in self.arrays:
                self.arrays[name][:] = 0
        loops.put_keys(keys, np.arange(len(keys)), self.arrays["held"], self.arrays["row_keys"])
        self.arrays["header"][SIZE] = len(keys)
        self.coldest.rows, self.coldest.limit = np.empty(0, dtype=np.int64), -1
        if self.keeps_marks:
            if counts is not None:
                self.arrays["counts"][: len(keys)] = counts
            if last is not None:
                self.arrays["last"][: len(keys)] = last

    @property
    def size(self) -> int:
        """How many ids have a row."""
        return int(self.arrays["header"][SIZE])

    @property
    def free(self) -> int:
        """How many rows no id has had yet."""
        return self.table.num_own - self.size

    @property
    def takes_more(self) -> bool:
        """Whether any further id can get a row."""
        return self.free > 0 or self.keeps_marks

    @property
    def keeps_marks(self) -> bool:
        """Whether it matters when and how often rows are used."""
        return self.table.evict != "never"

    @property
    def row_keys(self) -> Keys:
        """The ids of all rows that have one."""
        found: Keys = self.arrays["row_keys"][: self.size]
        return found

    def keys_of(self, values: IdValues) -> Keys:
        """Ids as what the vocabulary holds of them."""
        if isinstance(values, np.ndarray):
            return np.ascontiguousarray(as_int64(values)).view(np.uint64)[:, None]
        seed = self.table.hash_seed
        halves = hash_strings(values, seed), hash_strings(values, seed ^ _SECOND_SEED)
        return np.stack(halves, axis=1)

    def check_kind(self, values: IdValues, where: Where) -> None:
        """Refuse ids of another kind than those that were profiled."""
        strings = not isinstance(values, np.ndarray)
        if len(values) and strings != self.strings:
            kinds = ("whole numbers", "strings")
            raise UserError(
                f"{where} holds {kinds[strings]}, and the vocabulary of table {self.table.name!r} "
                f"holds {kinds[self.strings]}: give ids of the kind that was profiled, or profile "
                "again"
            )

    def find(self, keys: Keys) -> Ints:
        """The row of every id; −1 for those that have none."""
        return loops.find_rows(keys, self.arrays["held"])

    def shared(self, keys: Keys) -> Ints:
        """The rows that ids without one of their own share."""
        hashes = keys[:, 0]
        if not self.strings:
            hashes = hash_ints(hashes.view(np.int64), np.uint64(self.table.hash_seed))
        rows = (hashes % np.uint64(self.table.num_shared)).astype(np.int64)
        return np.asarray(self.table.num_own + rows)

    def add_marks(self, rows: Ints, when: Ints, often: Ints) -> None:
        """Take note of when and how often rows were used, on one rank."""
        loops.add_marks(rows, when, often, self.arrays["last"], self.arrays["counts"])

    def grow(self, unknown: UnknownIds, clock: int, oldest: int) -> Growth:
        """Give ids rows, in their order, as far as there are any; marks must be known by now."""
        at = np.arange(len(unknown.keys))
        if self.table.admit_after > 1:
            at = at[self._count(unknown) >= self.table.admit_after]
        size = self.size
        fresh = np.arange(size, min(size + len(at), self.table.num_own), dtype=np.int64)
        reused = self._victims(len(at) - len(fresh), oldest)
        gone = self.arrays["row_keys"][reused]
        loops.remove_rows(reused, self.arrays["held"], self.arrays["row_keys"])
        rows = np.concatenate((fresh, reused))
        at = at[: len(rows)]
        loops.put_keys(unknown.keys[at], rows, self.arrays["held"], self.arrays["row_keys"])
        self.arrays["header"][SIZE] = size + len(fresh)
        if self.keeps_marks:
            self.arrays["last"][rows] = clock
            self.arrays["counts"][rows] = 0
            cold = rows[self._use(rows) <= self.coldest.limit]
            self.coldest.rows = np.union1d(self.coldest.rows, cold)
        return Growth(at, rows, reused, gone)

    def _count(self, unknown: UnknownIds) -> Ints:
        header, sketch = self.arrays["header"], self.arrays["sketch"]
        if header[COUNTED] >= sketch.shape[1]:  # what came long ago counts half
            sketch >>= np.uint16(1)
            header[COUNTED] = 0
        header[COUNTED] += len(unknown.keys)
        return loops.count_seen(unknown.keys, unknown.counts, sketch)

    def _victims(self, wanted: int, oldest: int) -> Ints:
        """The rows that go, in the order in which they do."""
        if wanted <= 0 or not self.keeps_marks:
            return np.empty(0, dtype=np.int64)
        last, known = self.arrays["last"], self.coldest
        rows = known.rows[self._use(known.rows) <= known.limit]
        if np.count_nonzero(last[rows] < oldest) < wanted:
            rows = known.find(self._use(np.arange(self.size)), wanted + self.size // _COLDEST)
        known.rows = rows
        rows = rows[last[rows] < oldest]
        if len(rows) < wanted:  # many of them must stay: look at all others, too
            rows = np.flatnonzero(last[: self.size] < oldest)
        return np.asarray(rows[np.argsort(self._use(rows))][:wanted])

    def _use(self, rows: Ints) -> Ints:
        """How rows are used, in one number each: those with less go first; none are equal."""
        used = self.arrays["last" if self.table.evict == "lru" else "counts"]
        return np.asarray(used[rows] * len(used) + (len(used) - 1 - rows))


@dataclass(eq=False)
class UseMarks:
    """When and how often one rank used rows since all ranks were told."""

    marks: Ints  # by row: how often, and when last
    touched: Ints  # rows that have marks
    size: int = 0  # how many

    @classmethod
    def of(cls, table: Table) -> UseMarks:
        """None yet."""
        own = table.num_own if table.evict != "never" else 0
        return cls(np.zeros((own, 2), dtype=np.int64), np.empty(own, dtype=np.int64))

    def note(self, rows: Ints, clock: int) -> None:
        """Rows were used by a batch."""
        if len(self.marks):
            self.size = loops.mark_rows(rows, clock, self.marks, self.touched, self.size)

    def take(self) -> tuple[Ints, Ints, Ints]:
        """Rows, when and how often they were used; none are left."""
        rows = self.touched[: self.size].copy()
        found = rows, self.marks[rows, 1], self.marks[rows, 0]
        self.marks[rows] = 0
        self.size = 0
        return found


@dataclass(frozen=True, eq=False)
class AskedIds:
    """The ids of one table in one rank's batch, and what is known of them so far."""

    keys: Keys  # of all features, one after the other
    rows: Ints  # −1: has none
    edges: tuple[int, ...]  # where each feature ends
    unknown: UnknownIds
    texts: pa.Array | None  # of the unknown ids, if they are strings
    size: int  # of the vocabulary when they were looked for


@dataclass(frozen=True, eq=False)
class GrowingTable:
    """A vocabulary that grows, as one rank uses it."""

    vocabulary: GrowingVocabulary
    marks: UseMarks

    @classmethod
    def of(cls, vocabulary: GrowingVocabulary) -> GrowingTable:
        """Nothing was used yet."""
        return cls(vocabulary, UseMarks.of(vocabulary.table))

    def ask(self, features: Sequence[IdFeature], clock: int) -> AskedIds:
        """Look for the ids of a batch; those that have no row are unknown, in their order."""
        words = self.vocabulary
        for feature in features:
            words.check_kind(feature.values, Where(feature.name))
        parts = [words.keys_of(f.values) for f in features if len(f.values)]
        width = words.row_keys.shape[1]
        keys = np.concatenate([np.empty((0, width), dtype=np.uint64), *parts])
        rows = words.find(keys)
        self.marks.note(rows, clock)
        edges = np.cumsum([len(feature.values) for feature in features])
        missing = np.flatnonzero(rows < 0)
        if not words.takes_more:
            missing = missing[:0]
        if len(missing):
            missing = missing[_order(features, edges, missing)]
        unknown = UnknownIds.of(keys[missing], np.ones(len(missing), dtype=np.int64))
        texts = None
        if words.strings and len(missing):
            every = pa.concat_arrays([f.values for f in features if len(f.values)])
            texts = every.take(pa.array(missing[unknown.first]))
        return AskedIds(keys, rows, tuple(edges.tolist()), unknown, texts, words.size)

    def answer(self, asked: AskedIds, clock: int) -> list[Ints]:
        """The rows of a batch's ids by feature, now that ids that get one have it."""
        rows, words = asked.rows, self.vocabulary
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            found = words.find(asked.keys[missing])
            self.marks.note(found, clock)
            without = found < 0
            found[without] = words.shared(asked.keys[missing[without]])
            rows[missing] = found
        return np.split(rows, asked.edges[:-1])

    def peek(self, features: Sequence[IdFeature]) -> list[Ints]:
        """The rows of ids as they are; nothing is counted, and no id gets a row."""
        found = []
        for feature in features:
            self.vocabulary.check_kind(feature.values, Where(feature.name))
            keys = self.vocabulary.keys_of(feature.values)
            rows = self.vocabulary.find(keys)
            missing = rows < 0
            rows[missing] = self.vocabulary.shared(keys[missing])
            found.append(rows)
        return found

    def needs_marks(self, unknown: int, size: int) -> bool:
        """Whether rows may have to go for so many unknown ids."""
        return self.vocabulary.keeps_marks and size + unknown > self.vocabulary.table.num_own

    def resolve(self, features: Sequence[IdFeature], clock: int, oldest: int) -> list[Ints]:
        """The rows of a global batch that one process has whole."""
        asked = self.ask(features, clock)
        if len(asked.unknown.keys):
            if self.needs_marks(len(asked.unknown.keys), asked.size):
                self.vocabulary.add_marks(*self.marks.take())
            self.vocabulary.grow(asked.unknown, clock, oldest)
        return self.answer(asked, clock)


class IdFeature(NamedTuple):
    """The ids of a feature, without nulls, and where the samples begin (and the last one ends)."""

    name: str
    values: IdValues
    edges: Ints


def _order(features: Sequence[IdFeature], ends: Ints, missing: Ints) -> Ints:
    """The order of lookups: by sample, then feature, then place in the sample."""
    starts = np.concatenate(([0], ends[:-1]))
    of = np.searchsorted(ends, missing, side="right")
    samples = np.empty(len(missing), dtype=np.int64)
    for number, feature in enumerate(features):
        here = of == number
        at = missing[here] - starts[number]
        samples[here] = np.searchsorted(feature.edges[1:], at, side="right")
    return np.argsort(samples, kind="stable")

"""Growing vocabularies of all ranks: ids without a row are told to all, once a batch.

Every machine has the vocabularies once, in memory that all its processes map; the first of them
writes. A batch is resolved in these steps, all but the first only if some rank has unknown ids:

1. ids are looked for, and each rank tells all others those that it did not find;
2. where rows may have to go, each rank tells which rows it used, when and how often, since the
   last time;
3. on each machine the first rank gives rows to ids, all in the same order;
4. all wait for that, look again, and set rows anew that were others' before.

Nothing depends on how the global batch is cut into those of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.plan.plan import Plan
from rowtier.profile.growing import (
    AskedIds,
    GrowingVocabulary,
    IdFeature,
    UnknownIds,
)
from rowtier.profile.hashing import string_parts, strings_of
from rowtier.profile.vocabulary import Vocabulary
from rowtier.runtime.exchange.wire import Wire
from rowtier.runtime.growing_memory import shared_tables
from rowtier.runtime.growing_names import LostIds, names_of

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class IdTicket(NamedTuple):
    """When a batch's ids were turned into rows."""

    clock: int
    marked: bool  # its rows stay until the next step
    evictions: int  # that there had been


class GrowingIds:
    """The vocabularies of a plan's growing tables, as one rank sees them."""

    def __init__(self, plan: Plan, wire: Wire, begin: Callable[[], None]):
        self._wire, self._begin = wire, begin
        starts = {
            table.name: plan.vocabularies.get(table.name)
            or Vocabulary([], np.empty(0, dtype=np.int64))
            for table, _ in plan
            if table.grows
        }
        self._unsigned = {name for name, words in starts.items() if _is_unsigned(words)}
        tables = [table for table, _ in plan if table.grows]
        self.tables, self.texts, self._writes = shared_tables(tables, starts, wire)
        self.reset: Callable[[str, Ints], None] = lambda _table, _rows: None
        self.renamed: Callable[[str, Ints], None] = lambda _table, _rows: None
        self.lost: LostIds | None = None  # for deltas
        self.clock = 0  # batches whose ids were resolved
        self.admits = True  # whether new ids get rows
        self._asked: list[int] = []  # batches that were not looked up yet
        self._waiting: list[int] = []  # batches whose gradients may wait for a step
        self._evictions = self._evicted_before = 0

    def __call__(
        self, features: Mapping[str, Sequence[IdFeature]]
    ) -> tuple[dict[str, list[Ints]], IdTicket]:
        """The rows of a batch's ids, by table and feature; all ranks must call this."""
        if not self.admits:
            found = {name: self.tables[name].peek(given) for name, given in features.items()}
            return found, IdTicket(self.clock, False, self._evictions)
        self.clock += 1
        asked = {name: self.tables[name].ask(given, self.clock) for name, given in features.items()}
        self._grow(asked)
        found = {name: self.tables[name].answer(one, self.clock) for name, one in asked.items()}
        self._asked.append(self.clock)
        return found, IdTicket(self.clock, True, self._evictions)

    def _grow(self, asked: Mapping[str, AskedIds]) -> None:
        self._begin()
        unknown = {name: _Told.of(one) for name, one in asked.items()}
        told = self._told(unknown)
        new = {name: _Told.joined(parts) for name, parts in told.items()}
        if not any(len(one.keys) for one in new.values()):
            return
        wanted = [
            name
            for name, one in new.items()
            if self.tables[name].needs_marks(len(one.keys), asked[name].size)
        ]
        self._join_marks(wanted)
        if self._writes:
            for name, one in new.items():
                self._give_rows(name, one)
        self._wait()
        for name, one in new.items():
            rows = self.tables[name].vocabulary.find(one.keys)
            rows = np.unique(rows[rows >= 0])
            self.renamed(name, rows)
            reused = rows[rows < asked[name].size]
            if len(reused):
                self._evictions += 1
                self._evicted_before = self.oldest
                self.reset(name, reused)

    def _told(self, unknown: Mapping[str, _Told]) -> dict[str, list[_Told]]:
        """What all ranks do not know, by table, in the order of ranks."""
        if self._wire.world.group is None:
            return {name: [one] for name, one in unknown.items()}
        message = [] if not any(len(one.keys) for one in unknown.values()) else [
            part for one in unknown.values() for part in one.parts()
        ]  # fmt: skip
        got = self._swap(message)
        found: dict[str, list[_Told]] = {name: [] for name in unknown}
        for rank, data in enumerate(got):
            if rank == self._wire.world.rank:
                for name, one in unknown.items():
                    found[name].append(one)
            elif len(data):
                reader = _Reader(data)
                for name in unknown:
                    words = self.tables[name].vocabulary
                    found[name].append(_Told.read(reader, words))
        return found

    def _swap(self, message: Sequence[NDArray[Any]]) -> list[Bytes]:
        parts = [np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in message]
        return self._wire.swap_unknown([parts] * self._wire.world.size)

    def _wait(self) -> None:
        if self._wire.world.group is not None:
            self._wire.barrier()

    def _join_marks(self, names: Sequence[str]) -> None:
        """Have all ranks know when and how often rows were used on any of them."""
        if not names:
            return
        marks = {name: self.tables[name].marks.take() for name in names}
        if self._wire.world.group is None:
            for name, three in marks.items():
                self.tables[name].vocabulary.add_marks(*three)
            return
        message = [
            part
            for three in marks.values()
            for part in (np.array([len(three[0])], dtype=np.int64), *three)
        ]
        got = self._swap(message)
        if not self._writes:
            return
        for rank, data in enumerate(got):
            reader = _Reader(data)
            for name, three in marks.items():
                if rank != self._wire.world.rank:
                    count = int(reader.take(1)[0])
                    three = reader.take(count), reader.take(count), reader.take(count)
                self.tables[name].vocabulary.add_marks(*three)

    def _give_rows(self, name: str, new: _Told) -> None:
        words = self.tables[name].vocabulary
        unknown = UnknownIds.of(new.keys, new.counts)
        growth = words.grow(unknown, self.clock, self.oldest)
        if self.lost is not None and len(growth.rows):
            before: Any = growth.gone[:, 0].view(np.int64)
            if words.strings:
                before = self.texts[name].read(growth.reused)
            self.lost.note(name, growth.rows, growth.reused, before)
        if new.texts is not None and len(growth.rows):
            texts = new.texts.take(pa.array(unknown.first[growth.at]))
            self.texts[name].write(growth.rows, texts, words.size)

    @property
    def oldest(self) -> int:
        """The first batch whose rows must stay: its gradients may be on the way."""
        return min([*self._asked, *self._waiting, self.clock])

    def looked_up(self, ticket: IdTicket, *, records: bool) -> None:
        """A batch is looked up; with `records` its gradients will come. Asked ones go in order."""
        self.check(ticket, "a lookup")
        if ticket.marked:
            self._asked = [clock for clock in self._asked if clock > ticket.clock]
            if records:
                self._waiting.append(ticket.clock)

    def stepped(self) -> None:
        """Gradients that waited are applied."""
        self._waiting.clear()

    def check(self, ticket: IdTicket, what: str) -> None:
        """Refuse rows that may stand for other ids by now."""
        gone = ticket.clock < self._evicted_before
        if not ticket.marked:
            gone = ticket.evictions != self._evictions
        if gone:
            raise UserError(
                f"{what} of a batch whose ids were resolved before the last optimizer step, and "
                "since then rows of growing tables went to other ids: call backward before "
                "step(), look up what was asked ahead in its order, or give the batch again"
            )

    def vocabulary(self, name: str) -> Vocabulary:
        """The ids of a table's rows, in the order of rows; all ranks must call this."""
        self._begin()
        words = self.tables[name].vocabulary
        self._settle([name])
        counts = np.zeros(words.size, dtype=np.int64)
        if words.keeps_marks:
            counts = words.arrays["counts"][: words.size].copy()
        if words.strings:
            return Vocabulary(self.texts[name].read(np.arange(words.size)), counts)
        kind = np.uint64 if name in self._unsigned else np.int64
        return Vocabulary(words.row_keys[:, 0].astype(kind), counts)

    def keep_lost(self) -> None:
        """Remember ids that lose their rows from now on, where rows are given away."""
        if self._writes:
            self.lost = LostIds({name: one.vocabulary for name, one in self.tables.items()})

    def names_of(self, name: str, rows: Ints) -> dict[str, NDArray[Any]]:
        """The ids of rows, as arrays that can be written."""
        return names_of(self.tables[name].vocabulary, self.texts.get(name), rows)

    def _settle(self, names: Sequence[str]) -> None:
        """Bring counts up to date."""
        self._join_marks([n for n in names if self.tables[n].vocabulary.keeps_marks])
        self._wait()

    def state(self, name: str) -> dict[str, NDArray[Any]]:
        """Everything that makes a table's vocabulary what it is; all ranks must call this."""
        words, ids = self.tables[name].vocabulary, self.vocabulary(name).ids
        arrays, size = words.arrays, words.size
        found: dict[str, NDArray[Any]] = {}
        if isinstance(ids, np.ndarray):
            found["ids"] = ids.view(np.int64)
        else:
            ends, text = string_parts(ids)
            found["ends"], found["text"] = ends.copy(), text[: ends[-1]].copy()
        for key in ("last", "counts"):
            if key in arrays:
                found[key] = arrays[key][:size].copy()
        if "sketch" in arrays:
            found["sketch"] = arrays["sketch"].view(np.int16).copy()
        found["facts"] = np.array([self.clock, *arrays["header"]], dtype=np.int64)
        self._wait()  # nobody changes it while another copies
        return found

    def state_names(self, name: str) -> list[str]:
        """The keys of `state`."""
        words = self.tables[name].vocabulary
        ids = ["ends", "text"] if words.strings else ["ids"]
        return [*ids, *(k for k in ("last", "counts", "sketch") if k in words.arrays), "facts"]

    def load(self, name: str, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on where another stopped; all ranks must call this."""
        table, facts = self.tables[name], state["facts"]
        words = table.vocabulary
        ids = _ids_of(state)
        if self._writes:
            words.fill(words.keys_of(ids), state.get("counts"), state.get("last"))
            if "sketch" in words.arrays:
                words.arrays["sketch"][:] = state["sketch"].view(np.uint16)
            words.arrays["header"][:] = facts[1:]
            if name in self.texts:
                self.texts[name].replace(ids)
        table.marks.take()
        self.clock = max(self.clock, int(facts[0]))
        self._asked, self._waiting = [], []
        self._evictions += 1
        self._evicted_before = self.clock + 1
        if self.lost is not None:
            self.lost.forget(name)
        self.renamed(name, np.arange(words.table.num_own))
        self._wait()


class _Told(NamedTuple):
    """Ids that a rank does not know, each once, in the order of its batch."""

    keys: NDArray[np.uint64]
    counts: Ints
    texts: pa.Array | None

    @classmethod
    def of(cls, asked: AskedIds) -> _Told:
        return cls(asked.unknown.keys, asked.unknown.counts, asked.texts)

    @classmethod
    def joined(cls, parts: Sequence[_Told]) -> _Told:
        texts = [part.texts for part in parts if part.texts is not None]
        return cls(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.counts for part in parts]),
            pa.concat_arrays(texts) if texts else None,
        )

    def parts(self) -> list[NDArray[Any]]:
        """What others need to read it back."""
        found: list[NDArray[Any]] = [
            np.array([len(self.keys)], dtype=np.int64), self.keys, self.counts,
        ]  # fmt: skip
        if self.texts is not None:
            ends, data = string_parts(self.texts)
            text = data[ends[0] : ends[-1]]
            padded = np.zeros(-(-len(text) // 8) * 8, dtype=np.uint8)
            padded[: len(text)] = text
            found += [ends - ends[0], padded]
        return found

    @classmethod
    def read(cls, reader: _Reader, words: GrowingVocabulary) -> _Told:
        count, width = int(reader.take(1)[0]), 2 if words.strings else 1
        keys = reader.take(count * width).view(np.uint64).reshape(count, width)
        counts, texts = reader.take(count), None
        if words.strings and count:
            ends = reader.take(count + 1)
            text = reader.take(-(-int(ends[-1]) // 8)).view(np.uint8)
            texts = strings_of(ends, text)
        return cls(keys, counts, texts)


class _Reader:
    """Takes numbers from a message, one array after the other."""

    def __init__(self, data: Bytes):
        self._data, self._at = np.ascontiguousarray(data), 0

    def take(self, count: int) -> Ints:
        start, self._at = self._at, self._at + 8 * count
        return np.frombuffer(self._data[start : self._at].tobytes(), dtype=np.int64)


def _is_unsigned(words: Vocabulary) -> bool:
    return isinstance(words.ids, np.ndarray) and words.ids.dtype == np.uint64


def _ids_of(state: Mapping[str, NDArray[Any]]) -> Any:
    """The ids of a state, by row."""
    return state["ids"] if "ids" in state else strings_of(state["ends"], state["text"])

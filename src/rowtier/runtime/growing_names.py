"""Ids of growing tables for deltas: those of rows now, and those that have lost theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rowtier.profile.growing import GrowingVocabulary
from rowtier.profile.growing_texts import IdTexts
from rowtier.profile.hashing import string_parts

Ints = NDArray[np.int64]
INT_NAMES, NAME_STARTS, NAME_TEXT = "names", "name_starts", "name_text"
_MOST = 2  # ids that are remembered, for each row


class LostIds:
    """Ids that lost their rows since the last delta; kept by the process that gives rows.

    Only ids that something written since may have: those that came and went in between nobody
    knows. If there are more than `_MOST` for each row, a table is `full`, and no more are kept:
    then all of its rows are written, so that whatever is not among them is gone.
    """

    def __init__(self, vocabularies: Mapping[str, GrowingVocabulary]):
        self._words = vocabularies
        # Rows whose ids came since anything was written.
        self._new = {
            name: np.zeros(words.table.num_own, dtype=np.bool_)
            for name, words in vocabularies.items()
        }
        self._gone: dict[str, list[Any]] = {name: [] for name in vocabularies}
        self._full: set[str] = set()

    @property
    def full(self) -> list[str]:
        """Tables that lost more ids than are kept."""
        return sorted(self._full)

    def note(self, name: str, rows: Ints, reused: Ints, ids: Any) -> None:
        """Rows got other ids; some of them were those of `ids` before."""
        known = ~self._new[name][reused]
        self._new[name][rows] = True
        if not known.any() or name in self._full:
            return
        gone = self._gone[name]
        gone.append(ids[known] if isinstance(ids, np.ndarray) else ids.filter(pa.array(known)))
        if sum(map(len, gone)) > _MOST * self._words[name].table.num_own:
            self._full.add(name)
            gone.clear()

    def is_written(self) -> None:
        """All ids that have rows now may be known from here on."""
        for new in self._new.values():
            new[:] = False

    def forget(self, name: str | None = None) -> None:
        """Begin anew: everything up to now is in a delta; of one table, or of all."""
        for one in self._gone if name is None else (name,):
            self._new[one][:] = False
            self._gone[one].clear()
            self._full.discard(one)

    def ids(self, name: str) -> tuple[int | str, ...]:
        """The ids of a table that have no row any more."""
        gone, words = self._gone[name], self._words[name]
        if not gone:
            return ()
        if words.strings:
            every = pa.concat_arrays(gone).unique()
            without = words.find(words.keys_of(every)) < 0
            return tuple(every.filter(pa.array(without)).to_pylist())
        numbers = np.unique(np.concatenate(gone))
        return tuple(numbers[words.find(words.keys_of(numbers)) < 0].tolist())


def names_of(words: GrowingVocabulary, texts: IdTexts | None, rows: Ints) -> dict[str, Any]:
    """The ids of rows as arrays; 0, or no text, where a row has none."""
    has = rows < words.size
    if texts is None:
        numbers = np.zeros(len(rows), dtype=np.int64)
        numbers[has] = words.row_keys[rows[has], 0].view(np.int64)
        return {INT_NAMES: numbers}
    ends, data = string_parts(texts.read(rows[has]))
    lengths = np.zeros(len(rows), dtype=np.int64)
    lengths[has] = np.diff(ends)
    starts = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths)))
    return {NAME_STARTS: starts, NAME_TEXT: data[ends[0] : ends[-1]]}

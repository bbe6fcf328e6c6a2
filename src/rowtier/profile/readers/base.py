"""What every reader gives: parts to choose from, and chunks of samples in each part."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import Mistake

if TYPE_CHECKING:
    import pyarrow as pa

Ints = NDArray[np.int64]
Unsigned = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Ids:
    """One feature's ids in a chunk: all ids in a row, and how many of them each sample has.

    `lengths` is None where every sample has exactly one id. A sample without the feature
    has length 0. Ids are whole numbers (uint64 where one of them is 2⁶³ or more), or strings in
    one Arrow array without nulls; where no sample has any, they may be an empty array of numbers
    although other chunks hold strings.
    """

    values: Ints | Unsigned | pa.LargeStringArray
    lengths: Ints | None = None

    @property
    def samples(self) -> int:
        """How many samples these are the ids of."""
        return len(self.values) if self.lengths is None else len(self.lengths)

    def cut(self, start: int, stop: int) -> Ids:
        """The ids of samples `start` to `stop`, without copying them."""
        if self.lengths is None:
            return Ids(self.values[start:stop])
        lengths = self.lengths[start:stop]
        first = int(self.lengths[:start].sum())
        return Ids(self.values[first : first + int(lengths.sum())], lengths)


class Columns(Mapping[str, Ids]):
    """Features that are decoded each time they are asked for, and not kept.

    Whoever takes one feature after the other has one of them in memory at a time.
    """

    def __init__(self, names: Sequence[str], load: Callable[[str], Ids]):
        self._names = tuple(names)
        self._load = load

    def __getitem__(self, name: str) -> Ids:
        if name not in self._names:
            raise KeyError(name)
        return self._load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some consecutive samples of a part."""

    samples: int
    features: Mapping[str, Ids]
    late: bool = False  # lies in the second half of the ordered data
    done: float = 1.0  # share of the part that is read when this chunk is

    def halves(self, late_from: int | None) -> Iterator[Chunk]:
        """The chunk, cut where the second half of the data begins, if that is inside it."""
        if late_from is None or late_from >= self.samples:
            yield self
        elif late_from <= 0:
            yield replace(self, late=True)
        else:
            yield from self._cut(late_from)

    def _cut(self, at: int) -> Iterator[Chunk]:
        kept: dict[str, Ids] = {}  # so that a column that is decoded on demand is decoded once

        def early(name: str) -> Ids:
            ids = self.features[name]
            kept[name] = ids.cut(at, self.samples)
            return ids.cut(0, at)

        def late(name: str) -> Ids:
            ids = kept.pop(name, None)
            return self.features[name].cut(at, self.samples) if ids is None else ids

        names = tuple(self.features)
        yield replace(self, samples=at, features=Columns(names, early))
        yield replace(self, samples=self.samples - at, features=Columns(names, late), late=True)


@dataclass(frozen=True)
class Part:
    """A piece of the data that is read in one go. `dataclasses.asdict` of it is plain JSON.

    `late_from` is where in the part the second half of the data begins: counted in samples
    if `samples` is known and in bytes of the file if not; 0 is all of it, None nothing.
    """

    index: int  # place in the order of the data
    path: str  # the file, or what stands for it in messages
    weight_bytes: int  # for a progress bar
    piece: int = 0  # row group, or number of the byte range, in the file
    samples: int | None = None
    first_sample: int | None = None  # in all data
    start_byte: int = 0
    stop_byte: int = 0
    late_from: int | None = None
    stamp: str = ""  # size and age of the file, to notice that it changed


class Source(Protocol):
    """Data that is read part by part. Sources can be pickled, unless they read an iterable."""

    @property
    def kind(self) -> str:
        """The format, in one word."""
        ...

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts, in the order of the data."""
        ...

    @property
    def features(self) -> tuple[str, ...]:
        """What the data offers; empty where only reading tells."""
        ...

    @property
    def samples(self) -> int | None:
        """How many samples there are; None where only reading tells."""
        ...

    @property
    def ordered(self) -> bool:
        """Whether chunks say in which half of the data they lie."""
        ...

    def read(self, part: Part, features: Sequence[str]) -> Iterator[Chunk]:
        """The samples of a part, with these features only."""
        ...


def late_in(start: int, length: int, half: int) -> int | None:
    """Where inside [start, start + length) the second half begins, as `Part.late_from` says it."""
    if start + length <= half:
        return None
    return max(0, half - start)


def missing(feature: str, known: Sequence[str], what: str = "column") -> Mistake:
    """The mistake of asking for a feature that the data does not have."""
    near = difflib.get_close_matches(feature, known, n=3, cutoff=0.5)
    near += [name for name in known if name.lower() == feature.lower() and name not in near]
    if near:
        hint = f"did you mean {' or '.join(map(repr, near))}?"
    else:
        some = ", ".join(known[:8]) + (", …" if len(known) > 8 else "")
        hint = f"there are {some}" if known else f"there is no {what} at all"
    return Mistake(feature, None, f"there is no such {what}; {hint}")

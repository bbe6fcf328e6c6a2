"""What every reader gives: parts to choose from, and chunks of samples in each part."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import Mistake, UserError

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
    """Some samples of a part, in the order of the data.

    They are consecutive from `first_sample` on, unless `numbers` gives the number of each.
    """

    samples: int
    features: Mapping[str, Ids]
    first_sample: int = 0  # in all data
    done: float = 1.0  # share of the part that is read when this chunk is
    numbers: Ints | None = None  # of the samples in all data, ascending

    def cut(self, start: int, stop: int) -> Chunk:
        """Samples `start` to `stop` of the chunk; features are decoded when they are asked for."""
        if start <= 0 and stop >= self.samples:
            return self
        features = self.features
        columns = Columns(tuple(features), lambda name: features[name].cut(start, stop))
        numbers = None if self.numbers is None else self.numbers[start:stop]
        first = self.first_sample + start if numbers is None else int(numbers[0])
        return Chunk(stop - start, columns, first, self.done, numbers)

    def position(self, number: int) -> int:
        """How many samples of the chunk come before the sample with this number in all data."""
        if self.numbers is None:
            return min(max(0, number - self.first_sample), self.samples)
        return int(np.searchsorted(self.numbers, number))

    def shifted(self, by: int) -> Chunk:
        """The same samples, with numbers that are larger by so many."""
        numbers = None if self.numbers is None else self.numbers + by
        return replace(self, first_sample=self.first_sample + by, numbers=numbers)


@dataclass(frozen=True)
class DataPart:
    """A piece of the data that is read in one go. `dataclasses.asdict` of it is plain JSON."""

    index: int  # place in the order of the data
    path: str  # the file, or what stands for it in messages
    weight_bytes: int  # for a progress bar
    piece: int = 0  # row group, or number of the byte range, in the file
    samples: int | None = None  # always known where there are several parts
    first_sample: int = 0  # in all data
    start_byte: int = 0
    stop_byte: int = 0
    stamp: str = ""  # size and age of the file, to notice that it changed


class Source(Protocol):
    """Data that is read part by part. Sources can be pickled, unless they read an iterable."""

    @property
    def kind(self) -> str:
        """The format, in one word."""
        ...

    @property
    def parts(self) -> tuple[DataPart, ...]:
        """All parts, in the order of the data."""
        ...

    @property
    def features(self) -> tuple[str, ...]:
        """What the data offers; empty where only reading tells."""
        ...

    @property
    def samples(self) -> int | None:
        """How many samples there are; None where only reading the one part tells."""
        ...

    @property
    def ordered(self) -> bool:
        """Whether the order of the data means something."""
        ...

    def count_samples(self) -> int | None:
        """How many samples there are, by reading; None if the data can be read only once."""
        ...

    def times(self, part: DataPart, column: str) -> pa.Array:
        """The time of every sample of a part: numbers, timestamps, dates or strings."""
        ...

    def read(self, part: DataPart, features: Sequence[str]) -> Iterator[Chunk]:
        """The samples of a part, with these features only."""
        ...


@dataclass(frozen=True, eq=False)
class Wrapper:
    """A source that gives what another one has, in part or with other numbers."""

    source: Source

    @property
    def kind(self) -> str:
        """The format of the source."""
        return self.source.kind

    @property
    def features(self) -> tuple[str, ...]:
        """What the source offers."""
        return self.source.features

    @property
    def ordered(self) -> bool:
        """Whether the order of the source means something."""
        return self.source.ordered


def numbered(parts: Sequence[DataPart], counts: Sequence[int]) -> tuple[DataPart, ...]:
    """Parts in order, with how many samples each has and the number of its first one."""
    found, first = [], 0
    for index, (part, samples) in enumerate(zip(parts, counts, strict=True)):
        found.append(replace(part, index=index, samples=samples, first_sample=first))
        first += samples
    return tuple(found)


def no_time(path: str, column: str, why: str) -> UserError:
    """The error for a format that has no column to tell the time by."""
    return UserError(
        f"{path}: there is no time column {column!r}, as {why}; leave --time out to take the order "
        "of the data"
    )


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

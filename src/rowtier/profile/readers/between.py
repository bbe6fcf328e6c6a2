"""A window of the data: the samples from one number up to another, of any source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from rowtier.profile.readers.base import Chunk, DataPart, Wrapper

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, eq=False)
class Between(Wrapper):
    """Another source, of which samples `first` to `stop` are read; they keep their numbers.

    Parts that lie outside are not read at all.
    """

    first: int
    stop: int

    @property
    def samples(self) -> int:
        """How many samples the window has."""
        return self.stop - self.first

    def count_samples(self) -> int:
        """How many samples the window has."""
        return self.samples

    @cached_property
    def parts(self) -> tuple[DataPart, ...]:
        """The parts inside the window, or what of them is inside."""
        cut = (self._inside(part) for part in self.source.parts)
        return tuple(part for part in cut if part is not None)

    @cached_property
    def _whole(self) -> dict[int, DataPart]:
        return {part.index: part for part in self.source.parts}

    def _inside(self, part: DataPart) -> DataPart | None:
        end = self.stop if part.samples is None else part.first_sample + part.samples
        first, stop = max(self.first, part.first_sample), min(self.stop, end)
        if first >= stop:
            return None
        if part.samples == stop - first:
            return part
        whole = part.samples or self.stop - part.first_sample
        weight = max(1, part.weight_bytes * (stop - first) // max(1, whole))
        return replace(part, first_sample=first, samples=stop - first, weight_bytes=weight)

    def read(self, part: DataPart, features: Sequence[str]) -> Iterator[Chunk]:
        """The samples of a part that lie inside the window."""
        whole = self._whole[part.index]
        for chunk in self.source.read(whole, features):
            start, stop = chunk.position(self.first), chunk.position(self.stop)
            if start < stop:
                inside = chunk.cut(start, stop)
                yield inside if whole == part else replace(inside, done=self._done(part, inside))
            if chunk.first_sample + chunk.samples >= self.stop:
                return

    def _done(self, part: DataPart, chunk: Chunk) -> float:
        assert part.samples is not None
        return min(1.0, (chunk.first_sample + chunk.samples - part.first_sample) / part.samples)

    def times(self, part: DataPart, column: str) -> pa.Array:
        """The times of the samples inside the window."""
        whole = self._whole[part.index]
        skipped = part.first_sample - whole.first_sample
        return self.source.times(whole, column)[skipped : skipped + (part.samples or 0)]


@dataclass(frozen=True, eq=False)
class Shifted(Wrapper):
    """Another source that is part of a whole: its first sample has the number `by` there."""

    by: int

    @property
    def samples(self) -> int | None:
        """How many samples the source has."""
        return self.source.samples

    def count_samples(self) -> int | None:
        """How many samples the source has."""
        return self.source.count_samples()

    @cached_property
    def parts(self) -> tuple[DataPart, ...]:
        """The parts of the source, with the numbers of their samples in the whole."""
        return tuple(
            replace(part, first_sample=part.first_sample + self.by) for part in self.source.parts
        )

    def read(self, part: DataPart, features: Sequence[str]) -> Iterator[Chunk]:
        """The samples of a part, with their numbers in the whole."""
        for chunk in self.source.read(self._own(part), features):
            yield chunk.shifted(self.by)

    def times(self, part: DataPart, column: str) -> pa.Array:
        """The times of the samples of a part."""
        return self.source.times(self._own(part), column)

    def _own(self, part: DataPart) -> DataPart:
        return replace(part, first_sample=part.first_sample - self.by)

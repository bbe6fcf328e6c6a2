"""Reading a share of the samples: seeded, and the same however the work is divided."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.jit import compiled
from rowtier.profile.readers.base import Chunk, Columns, DataPart, Ids, Wrapper
from rowtier.splitmix import STEP, mix

LEAST_GROUPS = 20  # so that the sample is spread over the data
_GROUPS_PER_SHARE = (
    10  # at 1 % a tenth of the row groups are decoded, and a tenth of their rows kept
)


@dataclass(frozen=True)
class Sample:
    """A share of the samples, picked by `seed`."""

    share: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UserError(
                f"a sample of {self.share:g} is not possible; give a share above 0 and up to 1, "
                "such as 0.01 or 1%"
            )


@dataclass(frozen=True, eq=False)
class Sampled(Wrapper):
    """Another source, of which only some samples are read.

    Of many row groups only some are decoded, and of those some rows are kept, with the numbers
    that they have in all data.
    """

    sample: Sample

    @property
    def samples(self) -> None:
        """How many are picked, only reading tells."""
        return None

    @cached_property
    def parts(self) -> tuple[DataPart, ...]:
        """The parts that are read; they keep their place and their number."""
        parts = self.source.parts
        if self.source.kind != "parquet" or len(parts) < 2 * LEAST_GROUPS:
            return parts
        count = math.ceil(len(parts) * min(1.0, _GROUPS_PER_SHARE * self.sample.share))
        drawn = uniform(_key(self.sample.seed, "row groups"), 0, len(parts))
        chosen = np.sort(np.argsort(drawn, kind="stable")[: max(LEAST_GROUPS, count)])
        return tuple(parts[i] for i in chosen)

    @cached_property
    def row_share(self) -> float:
        """The share of samples that is kept in the parts that are read."""
        everything = sum(part.samples or 0 for part in self.source.parts)
        chosen = sum(part.samples or 0 for part in self.parts)
        return min(1.0, self.sample.share * everything / chosen) if chosen else self.sample.share

    def read(self, part: DataPart, features: Sequence[str]) -> Iterator[Chunk]:
        """The samples of a part that were picked."""
        key = _key(self.sample.seed, "rows")
        for chunk in self.source.read(part, features):
            assert chunk.numbers is None  # of a sample, no sample is taken
            keep = uniform(key, chunk.first_sample, chunk.samples) < self.row_share
            if keep.any():
                yield kept(chunk, keep)

    def count_samples(self) -> None:
        """How many are picked is told by reading alone."""
        return

    def times(self, part: DataPart, column: str) -> pa.Array:
        """Of all samples of the part, picked or not."""
        return self.source.times(part, column)


def kept(chunk: Chunk, keep: NDArray[np.bool_]) -> Chunk:
    """Those samples of a chunk that are to be kept."""
    features: Mapping[str, Ids] = chunk.features
    columns = Columns(tuple(features), lambda name: filtered(features[name], keep))
    numbers = chunk.first_sample + np.flatnonzero(keep)
    return replace(
        chunk,
        samples=len(numbers),
        features=columns,
        first_sample=int(numbers[0]),
        numbers=numbers,
    )


def filtered(ids: Ids, keep: NDArray[np.bool_]) -> Ids:
    """The ids of those samples that are to be kept."""
    each = keep if ids.lengths is None else np.repeat(keep, ids.lengths)
    lengths = None if ids.lengths is None else ids.lengths[keep]
    if isinstance(ids.values, np.ndarray):
        return Ids(ids.values[each], lengths)
    return Ids(ids.values.filter(pa.array(each)), lengths)


def _key(seed: int, purpose: str) -> np.uint64:
    text = f"{purpose} {seed}".encode()
    return np.uint64(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))


@compiled
def uniform(key: np.uint64, start: int, count: int) -> NDArray[np.float64]:
    """A number in [0, 1) for every position, by SplitMix64: nothing but key and position matter."""
    drawn = np.empty(count)
    for i in range(count):
        word = mix(key + np.uint64(start + i) * STEP)
        drawn[i] = np.float64(word >> np.uint64(11)) * 2.0**-53
    return drawn

"""Which samples are in which batch of which rank: arithmetic on the sizes of the files' parts.

In the order of the files, batch k of all ranks together is the next `world × batch_size` samples,
rank after rank. Shuffled, the parts (row groups) are permuted and gathered into windows; the
samples of a window are permuted. Every rank has a contiguous stretch of that, cut into batches.
Its batches alternate between lanes, which are contiguous again, so that workers that take turns
decode different windows. Nothing here depends on the number of workers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.profile.readers.sample import uniform

Ints = NDArray[np.int64]
Last = Literal["drop", "short"]
LANES = (12, 4, 2)  # one of them if there is enough data; else 1. Workers best divide them
_WINDOWS_PER_LANE = 4  # or more: the window in which a lane ends is decoded for the next one, too


class WindowSlice(NamedTuple):
    """Samples `start` to `stop` of a window, counted in the order in which they are dealt."""

    window: int
    start: int
    stop: int


@dataclass(frozen=True)
class Dealing:
    """All that decides the order, but for the epoch."""

    part_samples: tuple[int, ...]
    batch_size: int  # of a rank
    world: int = 1
    shuffle: bool = False
    shuffle_window: int = 2**17
    seed: int = 0
    last: Last = "drop"

    def __post_init__(self) -> None:
        for name in ("batch_size", "shuffle_window", "world"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; give 1 or more")
        if self.last not in get_args(Last):
            known = ", ".join(map(repr, get_args(Last)))
            raise UserError(f"last is {self.last!r}; give one of {known}")

    @cached_property
    def samples(self) -> int:
        """All samples of the data."""
        return sum(self.part_samples)

    @cached_property
    def batches(self) -> int:
        """How many batches every rank gets in an epoch."""
        samples, step = self.samples, self.world * self.batch_size
        return samples // step if self.last == "drop" else -(-samples // step)

    def before(self, rank: int) -> int:
        """How many samples the ranks before this one get in an epoch."""
        if self.last == "drop":
            return rank * self.batches * self.batch_size
        each, more = divmod(self.samples, self.world)
        return rank * each + min(rank, more)

    def span(self, rank: int, index: int) -> tuple[int, int]:
        """Where batch `index` begins and ends among the samples of a rank."""
        stop, size = self.before(rank + 1) - self.before(rank), self.batch_size
        last = stop - (self.batches - 1) * size
        if last == 0 and self.batches > 1 and size > 1:
            last = 1  # taken from the batch before, as a mean over no sample is not a number
        if index == self.batches - 1:
            return stop - last, stop
        return index * size, min((index + 1) * size, stop - last)

    def epoch(self, number: int) -> EpochOrder:
        """The order of an epoch."""
        return EpochOrder(self, number)


@dataclass(frozen=True)
class EpochOrder:
    """The windows of an epoch, and where each batch lies in them."""

    dealing: Dealing
    number: int

    @cached_property
    def windows(self) -> tuple[tuple[int, ...], ...]:
        """The parts in each window; without shuffling every part is one."""
        sizes = self.dealing.part_samples
        if not self.dealing.shuffle:
            return tuple((part,) for part in range(len(sizes)))
        windows: list[tuple[int, ...]] = []
        gathered: list[int] = []
        samples = 0
        for part in self._permuted("parts", len(sizes)).tolist():
            gathered.append(part)
            samples += sizes[part]
            if samples >= self.dealing.shuffle_window:
                windows.append(tuple(gathered))
                gathered, samples = [], 0
        return (*windows, tuple(gathered)) if gathered else tuple(windows)

    @cached_property
    def lanes(self) -> int:
        """How many windows a rank's batches alternate between."""
        if not self.dealing.shuffle:
            return 1
        widest = int(np.diff(self._edges).max(initial=0))
        room = LANES[0] * self.dealing.shuffle_window // max(1, widest)
        windows = len(self.windows) // (_WINDOWS_PER_LANE * self.dealing.world)
        return next((lanes for lanes in LANES if lanes <= min(room, windows)), 1)

    def lane(self, number: int) -> int:
        """The lane of a batch."""
        return number % self.lanes

    def slices(self, rank: int, number: int) -> list[WindowSlice]:
        """The samples of a rank's batch."""
        index = self._index(number)
        start, stop = self.dealing.span(rank, index)
        first = self._first(rank, index, start)
        return self._cut(first, first + stop - start)

    def permutation(self, window: int) -> Ints | None:
        """The samples of a window in the order in which they are dealt; None: as they are."""
        if not self.dealing.shuffle:
            return None
        return self._permuted(f"window {window}", int(np.diff(self._edges)[window]))

    @cached_property
    def _edges(self) -> Ints:
        """Where each window begins among all samples, and where the last ends."""
        sizes = self.dealing.part_samples
        totals = [sum(sizes[part] for part in parts) for parts in self.windows]
        return np.concatenate(([0], np.cumsum(totals, dtype=np.int64))).astype(np.int64)

    def _index(self, number: int) -> int:
        """Which batch of the rank's stretch comes as this number; a short one comes last."""
        full = self.dealing.batches - (self.dealing.last == "short")
        if number >= full:
            return number
        turn, lane = divmod(number, self.lanes)
        return lane * (full // self.lanes) + min(lane, full % self.lanes) + turn

    def _first(self, rank: int, index: int, start: int) -> int:
        """The place of a batch's first sample in the order of all."""
        dealing = self.dealing
        if dealing.shuffle:
            return dealing.before(rank) + start
        if index < dealing.batches - 2:  # only the last two may be of different sizes
            return (index * dealing.world + rank) * dealing.batch_size
        others = [dealing.span(other, index) for other in range(dealing.world)]
        # Whatever was dealt before, to all ranks, and to the ranks before in this batch.
        return sum(begin for begin, _ in others) + sum(end - begin for begin, end in others[:rank])

    def _cut(self, start: int, stop: int) -> list[WindowSlice]:
        edges, found = self._edges, []
        window = int(np.searchsorted(edges, start, side="right")) - 1
        while start < stop:
            end = min(stop, int(edges[window + 1]))
            if end > start:
                found.append(
                    WindowSlice(window, start - int(edges[window]), end - int(edges[window]))
                )
            start, window = end, window + 1
        return found

    def _permuted(self, purpose: str, count: int) -> Ints:
        """A permutation by sorting random numbers: the same under every version of NumPy."""
        text = f"{purpose} {self.dealing.seed} {self.number}".encode()
        key = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        return np.argsort(uniform(np.uint64(key), 0, count), kind="stable")

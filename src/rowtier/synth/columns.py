"""A feature column from three parts: how many ids, which positions, which rows they are.

    lengths   Fixed · Sessions · Rounded     how many ids each sample has
    positions     Zipf · Steps                   how hot those ids are
    placing   Scattered · Hashed · Drifting  which row a position is

All parts are keyed, so a column can be drawn from any sample to any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Protocol

import numpy as np

from rowtier.synth import kernels
from rowtier.synth.kernels import Floats, Ints


class Lengths(Protocol):
    """How many ids each sample has."""

    @property
    def mean(self) -> float:
        """Ids per sample, on average."""
        ...

    def draw(self, start: int, stop: int) -> Ints:
        """One length for every sample from `start` to `stop`."""
        ...


class Positions(Protocol):
    """How hot the ids are; position 0 is the hottest."""

    def draw(self, start: int, offsets: Ints) -> Ints:
        """Positions; sample `start + i` owns those from offsets[i] to offsets[i+1]."""
        ...


class RowPlacing(Protocol):
    """Which row a position is."""

    def apply(self, positions: Ints, start: int, offsets: Ints) -> None:
        """Turn positions into rows, in place."""
        ...


@dataclass(frozen=True)
class Column:
    """One feature of a dataset."""

    name: str
    lengths: Lengths
    positions: Positions
    placing: RowPlacing

    @property
    def is_list(self) -> bool:
        """Whether samples hold a list of ids, rather than exactly one id each."""
        return self.lengths != Fixed(1)

    def draw(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """The ids of the samples from `start` to `stop`, and the offsets that part them."""
        offsets = np.zeros(stop - start + 1, dtype=np.int64)
        np.cumsum(self.lengths.draw(start, stop), out=offsets[1:])
        ids = self.positions.draw(start, offsets)
        self.placing.apply(ids, start, offsets)
        return offsets, ids


@dataclass(frozen=True)
class Fixed:
    """Every sample has the same number of ids."""

    size: int

    @property
    def mean(self) -> float:
        """Ids per sample."""
        return float(self.size)

    def draw(self, start: int, stop: int) -> Ints:
        """The same length for every sample."""
        return np.full(stop - start, self.size, dtype=np.int64)


@dataclass(frozen=True)
class Sessions:
    """⌈e^(mu + spread·z)⌉ ids clipped to 1..longest, z normal; `mean` is that of the result."""

    mean: float
    spread: float
    longest: int
    key: np.uint64

    @cached_property
    def mu(self) -> float:
        """The mean of the underlying normal, found so that the clipped lengths have `mean`."""
        points = 4096
        z = np.array([NormalDist().inv_cdf((i + 0.5) / points) for i in range(points)])
        low, high = -40.0, 40.0
        while high - low > 1e-9:
            middle = (low + high) / 2
            lengths = np.ceil(np.exp(np.minimum(middle + self.spread * z, 50.0)))
            mean = np.clip(lengths, 1, self.longest).mean()
            low, high = (middle, high) if mean < self.mean else (low, middle)
        return high

    def draw(self, start: int, stop: int) -> Ints:
        """A length for every sample."""
        lengths = np.empty(stop - start, dtype=np.int64)
        kernels.fill_lognormal(lengths, start, self.key, self.mu, self.spread, self.longest)
        return lengths


@dataclass(frozen=True)
class Rounded:
    """`mean` ids, rounded up or down at random: below 1 some samples have none."""

    mean: float
    key: np.uint64

    def draw(self, start: int, stop: int) -> Ints:
        """A length for every sample."""
        lengths = np.empty(stop - start, dtype=np.int64)
        kernels.fill_rounded(lengths, start, self.key, self.mean)
        return lengths


@dataclass(frozen=True)
class Zipf:
    """p(position) ∝ (position + 1 + shift)^−exponent over `n` positions (Zipf–Mandelbrot)."""

    n: int
    exponent: float
    key: np.uint64
    shift: float = 0.0

    @cached_property
    def _shape(self) -> kernels.ZipfShape:
        return kernels.zipf_shape(self.n, self.exponent, self.shift)

    def draw(self, start: int, offsets: Ints) -> Ints:
        """Positions for every id."""
        positions = np.empty(offsets[-1], dtype=np.int64)
        kernels.fill_zipf(positions, offsets, start, self.key, self._shape)
        return positions


@dataclass(frozen=True, eq=False)
class Steps:
    """Positions in buckets: the cumulative mass of the buckets, equal chances inside each."""

    mass: Floats
    stops: Ints
    key: np.uint64

    @classmethod
    def from_rates(cls, rates: Floats, widths: Ints, key: np.uint64) -> Steps:
        """Buckets of `widths` positions, looked up at `rates` each; some rate is above 0."""
        kept = widths > 0
        mass = np.cumsum((rates * widths)[kept])
        return cls(mass / mass[-1], np.concatenate(([0], np.cumsum(widths[kept]))), key)

    def draw(self, start: int, offsets: Ints) -> Ints:
        """Positions for every id."""
        positions = np.empty(offsets[-1], dtype=np.int64)
        kernels.fill_steps(positions, offsets, start, self.key, self.mass, self.stops)
        return positions


@dataclass(frozen=True)
class Scattered:
    """A seeded bijection: every position has a row of its own, anywhere in the table."""

    n: int
    key: np.uint64

    def apply(self, positions: Ints, start: int, offsets: Ints) -> None:  # noqa: ARG002
        """Turn positions into rows, in place."""
        kernels.scatter(positions, self.n, self.key)


@dataclass(frozen=True)
class Hashed:
    """A seeded hash: positions collide as hashed values do, and rows stay unused."""

    n: int
    key: np.uint64

    def apply(self, positions: Ints, start: int, offsets: Ints) -> None:  # noqa: ARG002
        """Turn positions into rows, in place."""
        kernels.hash_rows(positions, self.n, self.key)


@dataclass(frozen=True)
class Drifting:
    """A bijection that changes: position r and position n−1−r swap rows, each pair in its time."""

    n: int
    swapped_per_sample: float
    key: np.uint64

    def apply(self, positions: Ints, start: int, offsets: Ints) -> None:
        """Turn positions into the rows that hold them when their sample comes."""
        kernels.swap_positions(positions, offsets, start, self.key, self.n, self.swapped_per_sample)
        kernels.scatter(positions, self.n, self.key)

"""Compiled inner loops: skewed positions, scattered rows and session lengths, in constant memory.

Every random number is a hash of (key, sample, position), so what a sample holds
depends on nothing but the seed: not on chunk sizes, not on the samples before it.

* Zipf–Mandelbrot positions by rejection-inversion (W. Hörmann, G. Derflinger, "Rejection-
  inversion to generate variates from monotone discrete distributions", 1996): no table
  of probabilities, so a table of a billion rows costs as much as one of ten.
* Position → row by a Feistel network with cycle walking: a bijection on any [0, n) that
  scatters like a random permutation. An affine map would spread the hot rows evenly
  over every block of rows, which hashed ids never do.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.jit import compiled
from rowtier.splitmix import MIX_1, MIX_2, STEP, mix

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Beside SplitMix64's increment a second odd constant, to tell samples apart.
_SAMPLE = np.uint64(0xD1342543DE82EF95)
_S11, _S32 = np.uint64(11), np.uint64(32)
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_TO_UNIT = 2.0**-53
_ROUNDS = 3  # of two half-rounds each; four half-rounds already make a strong permutation


class ZipfShape(NamedTuple):
    """The constants of rejection-inversion for p(k) ∝ (k + shift)^−exponent, k = 1..n."""

    n: int
    exponent: float
    shift: float
    first: float  # where the hat's area begins …
    last: float  # … and where it ends
    squeeze: float  # closer to k than this, x is accepted without another power


def zipf_shape(n: int, exponent: float, shift: float = 0.0) -> ZipfShape:
    """Prepare to draw positions of a Zipf–Mandelbrot distribution."""
    assert n >= 1
    assert exponent >= 0
    assert shift >= 0
    first = _area(1.5 + shift, exponent) - _height(1.0 + shift, exponent)
    two = _area(2.5 + shift, exponent) - _height(2.0 + shift, exponent)
    squeeze = 2.0 + shift - _area_inverse(two, exponent)
    last = _area(n + 0.5 + shift, exponent)
    return ZipfShape(n, float(exponent), float(shift), first, last, squeeze)


@compiled
def _height(y: float, exponent: float) -> float:
    return math.exp(-exponent * math.log(y))


@compiled
def _area(y: float, exponent: float) -> float:
    """∫ t^−exponent dt from 1 to y, continuous in the exponent where it passes 1."""
    log_y = math.log(y)
    t = (1.0 - exponent) * log_y
    if abs(t) < 1e-8:
        return log_y * (1.0 + t * 0.5)
    return log_y * math.expm1(t) / t


@compiled
def _area_inverse(area: float, exponent: float) -> float:
    t = max(area * (1.0 - exponent), -1.0)
    if abs(t) < 1e-8:
        return math.exp(area * (1.0 - t * 0.5))
    return math.exp(area * math.log1p(t) / t)


@compiled
def _stream(key: np.uint64, sample: int) -> np.uint64:
    """The state from which one sample draws its random numbers."""
    return mix(key + np.uint64(sample) * _SAMPLE)


@compiled
def _unit(state: np.uint64) -> float:
    """A number in [0, 1) from a state."""
    return np.float64(mix(state) >> _S11) * _TO_UNIT


@compiled
def fill_zipf(out: Ints, offsets: Ints, start: int, key: np.uint64, shape: ZipfShape) -> None:
    """Fill `out` with positions 0..n−1; sample `start + i` owns out[offsets[i]:offsets[i+1]]."""
    for i in range(len(offsets) - 1):
        state = _stream(key, start + i)
        for j in range(offsets[i], offsets[i + 1]):
            while True:
                state += STEP
                area = shape.last + _unit(state) * (shape.first - shape.last)
                x = _area_inverse(area, shape.exponent) - shape.shift
                position = min(max(int(x + 0.5), 1), shape.n)
                if position - x <= shape.squeeze:
                    break
                y = position + shape.shift
                if area >= _area(y + 0.5, shape.exponent) - _height(y, shape.exponent):
                    break
            out[j] = position - 1


@compiled
def fill_steps(
    out: Ints, offsets: Ints, start: int, key: np.uint64, mass: Floats, stops: Ints
) -> None:
    """Fill `out` with positions of a distribution that is constant inside each bucket.

    `mass` is cumulative and ends at 1; bucket b holds the positions stops[b]..stops[b+1].
    """
    for i in range(len(offsets) - 1):
        state = _stream(key, start + i)
        for j in range(offsets[i], offsets[i + 1]):
            state += STEP
            bucket = int(np.searchsorted(mass, _unit(state), side="right"))
            state += STEP
            bucket = min(bucket, len(mass) - 1)
            width = stops[bucket + 1] - stops[bucket]
            out[j] = stops[bucket] + min(int(_unit(state) * width), width - 1)


@compiled
def fill_lognormal(
    out: Ints, start: int, key: np.uint64, mu: float, sigma: float, longest: int
) -> None:
    """Fill `out` with ⌈e^(mu + sigma·z)⌉ clipped to 1..longest, z normal (Box–Muller)."""
    for i in range(len(out)):
        state = _stream(key, start + i)
        radius = math.sqrt(-2.0 * math.log(1.0 - _unit(state + STEP)))
        z = radius * math.cos(2.0 * math.pi * _unit(state + STEP + STEP))
        length = math.ceil(min(math.exp(mu + sigma * z), float(longest)))
        out[i] = max(int(length), 1)


@compiled
def fill_rounded(out: Ints, start: int, key: np.uint64, mean: float) -> None:
    """Fill `out` with `mean` rounded up or down at random, so that it is the mean."""
    low = math.floor(mean)
    for i in range(len(out)):
        up = _unit(_stream(key, start + i)) < mean - low
        out[i] = low + 1 if up else low


@compiled
def _permute(position: np.uint64, low_bits: np.uint64, high_bits: np.uint64, key: np.uint64) -> Any:
    """One pass of the Feistel network over low_bits + high_bits bits."""
    low_mask, high_mask = (_ONE << low_bits) - _ONE, (_ONE << high_bits) - _ONE
    low, high = position & low_mask, position >> low_bits
    for _ in range(_ROUNDS):
        key += STEP
        low ^= _half(high, key) & low_mask
        key += STEP
        high ^= _half(low, key) & high_mask
    return (high << low_bits) | low


@compiled
def _half(word: np.uint64, key: np.uint64) -> np.uint64:
    """A round function that is cheaper than `mix` and good enough in its upper half."""
    z = (word ^ key) * MIX_1
    z = (z ^ (z >> _S32)) * MIX_2
    return z >> _S32


@compiled
def scatter(positions: Ints, n: int, key: np.uint64) -> None:
    """Turn positions into rows in place by a seeded bijection on [0, n)."""
    bits = _ZERO
    while (_ONE << bits) < np.uint64(n):
        bits += _ONE
    low_bits = max(bits >> _ONE, _ONE)
    high_bits = max(bits - low_bits, _ONE)
    for i in range(len(positions)):
        row = _permute(np.uint64(positions[i]), low_bits, high_bits, key)
        while row >= np.uint64(n):  # walk the cycle until it is back in the table
            row = _permute(row, low_bits, high_bits, key)
        positions[i] = np.int64(row)


@compiled
def hash_rows(positions: Ints, n: int, key: np.uint64) -> None:
    """Turn positions into rows in place by hashing: positions may collide, rows may stay unused."""
    for i in range(len(positions)):
        positions[i] = np.int64(mix(key + np.uint64(positions[i]) * _SAMPLE) % np.uint64(n))


@compiled
def swap_positions(
    positions: Ints, offsets: Ints, start: int, key: np.uint64, n: int, swapped_per_sample: float
) -> None:
    """Let position r and position n−1−r change places, in place, each pair from its own sample on.

    After s samples a share s · swapped_per_sample of the pairs has changed places.
    """
    for i in range(len(offsets) - 1):
        swapped = (start + i) * swapped_per_sample
        for j in range(offsets[i], offsets[i + 1]):
            partner = n - 1 - positions[j]
            if _unit(_stream(key, min(positions[j], partner))) < swapped:
                positions[j] = partner

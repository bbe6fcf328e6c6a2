"""Randomness by name: every purpose has a key of its own, so none disturbs another."""

from __future__ import annotations

import hashlib

import numpy as np


def key_of(seed: int, *words: str | int) -> np.uint64:
    """A 64-bit key for one purpose, such as the lengths of feature "history"."""
    text = "\0".join(map(str, (seed, *words)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def generator(seed: int, *words: str | int) -> np.random.Generator:
    """A numpy generator for one purpose."""
    return np.random.Generator(np.random.Philox(int(key_of(seed, *words))))

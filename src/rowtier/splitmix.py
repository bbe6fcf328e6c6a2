"""SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014): random numbers from a counter."""

from __future__ import annotations

import numpy as np

from rowtier.jit import compiled

STEP = np.uint64(0x9E3779B97F4A7C15)  # from one state to the next
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)


@compiled
def mix(state: np.uint64) -> np.uint64:
    """A bijection on 64 bits that looks random."""
    z = (state ^ (state >> _S30)) * MIX_1
    z = (z ^ (z >> _S27)) * MIX_2
    return z ^ (z >> _S31)

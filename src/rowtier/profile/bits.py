"""How many bits a number has, in one instruction."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rowtier.jit import compiled


@intrinsic  # type: ignore[untyped-decorator]
def _leading_zeros(_context: Any, number: Any) -> Any:
    signature = types.uint32(types.uint32)
    assert number is not None

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

    return signature, generate


@compiled
def bit_length(number: np.uint32) -> int:
    """Bits of a number without leading zeros: 0 has none, 4 has three."""
    return 32 - int(_leading_zeros(number))

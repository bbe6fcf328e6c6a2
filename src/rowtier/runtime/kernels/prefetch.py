"""Ask the processor for rows a little before they are needed.

Rows of a large table lie anywhere in memory, and a loop that meets them unprepared waits for
each. One instruction per cache line, some rows ahead, makes gathers and updates two to three
times faster (`benchmarks/kernels.py`); it changes no result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from rowtier.jit import compiled

AHEAD = 12  # rows; from 8 to 16 it makes no difference that can be measured
_LINE_FLOATS = 16


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(_context: Any, array: Any, row: Any, column: Any) -> Any:
    """The instruction itself, for element [row, column] of an array of two dimensions."""
    signature = types.void(array, types.int64, types.int64)
    assert row is not None
    assert column is not None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0])
        strides = cgutils.unpack_tuple(builder, struct.strides)
        offset = builder.add(builder.mul(args[1], strides[0]), builder.mul(args[2], strides[1]))
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        address = builder.gep(builder.bitcast(struct.data, byte), [offset])
        builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return signature, generate


@compiled
def prefetch_row(rows: NDArray[Any], slots: NDArray[np.int64], i: int) -> None:
    """Ask for the row that entry i + AHEAD is of, if there is one."""
    if i + AHEAD < len(slots):
        row = slots[i + AHEAD]
        if row >= 0:
            for column in range(0, rows.shape[1], _LINE_FLOATS):
                _prefetch(rows, row, column)

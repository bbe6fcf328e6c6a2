"""Instructions that Python has no word for: the bits of a number, and asking for memory ahead."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
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


@intrinsic  # type: ignore[untyped-decorator]
def prefetch_to_write(_context: Any, array: Any, place: Any) -> Any:
    """Ask for element `place` of an array of one dimension, which will be written."""
    signature = types.void(array, types.uint64)
    assert place is not None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0])
        (stride,) = cgutils.unpack_tuple(builder, struct.strides)
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        offset = builder.mul(args[1], stride)
        address = builder.gep(builder.bitcast(struct.data, byte), [offset])
        builder.call(function, [address, number(1), number(3), number(1)])
        return context.get_dummy_value()

    return signature, generate

"""A helper process: compiles what is listed, from the end, leaving out what others are at."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
import time
from typing import Any

import numpy as np

from rowtier.jit import ahead, notice, store

_LOOK_S = 0.1


def main() -> None:
    """Run as the helper of a slot, for a process."""
    slot, parent = sys.argv[1], int(sys.argv[2])
    if not store.claim(f"helper {slot}"):
        return
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    notice.be_quiet()
    gc.disable()  # a tenth of the time, and the process is short
    for name, types in reversed(ahead.listed()["kernels"]):
        compile_listed(name, types)


def _end_with(parent: int) -> None:
    """End this process when the one that started it ends: nobody waits for it any more."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(0)


def compile_listed(name: str, types: list[Any]) -> None:
    """Compile a kernel unless it is there, or someone else is at it."""
    module, function = name.split(":")
    kernel = getattr(importlib.import_module(module), function)
    sig = tuple(map(type_of, types))
    kept = kernel._cache.name_of(sig)
    if not store.has(kept) and store.claim(kept):
        kernel.compile(sig)


def type_of(said: Any) -> Any:
    """A type of numba's: "int64", "float64 2 C" for an array, a list for a tuple of a class.

    Arrays that nobody may write are "float64 2 C readonly".
    """
    from numba import types
    from numba.np.numpy_support import from_dtype

    if isinstance(said, list):
        module, name = said[0].split(":")
        kind = getattr(importlib.import_module(module), name)
        return types.BaseTuple.from_types([type_of(one) for one in said[1:]], kind)
    word, *rest = said.split()
    scalar = from_dtype(np.dtype(word))
    if not rest:
        return scalar
    return types.Array(scalar, int(rest[0]), rest[1], readonly="readonly" in rest)

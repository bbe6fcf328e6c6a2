"""A guard over triton's interpreter: which program touches which address, and whether it may.

The interpreter runs programs one after the other, so it sees neither races nor reads past an end.
Here every access of a launch is noted. It is a race if an address that one program stores to is
touched by another, or stored to twice by one store; atomics may meet each other. The interpreter's
functions that are wrapped are private to triton 3.7.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Addresses = NDArray[np.uint64]
KINDS = ("load", "store", "atomic")
LOAD, STORE, ATOMIC = range(len(KINDS))


class Guard:
    """Notes what launches do; enter `watching` for all, and `launch` around each."""

    def __init__(self) -> None:
        self.races: list[str] = []
        self.outside: list[str] = []
        self.launches = 0
        self._seen: list[tuple[int, int, Addresses]] = []  # kind, program, addresses
        self._spans: NDArray[np.uint64] = np.empty((0, 2), dtype=np.uint64)
        self._name = ""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Wrap the interpreter's accesses meanwhile."""
        from triton.runtime.interpreter import InterpreterBuilder as Builder

        real = Builder.create_masked_load, Builder.create_masked_store, Builder.create_atomic_rmw

        def load(builder: Any, places: Any, mask: Any, *rest: Any) -> Any:
            self._note(builder, LOAD, places, mask)
            return real[0](builder, places, mask, *rest)

        def store(builder: Any, places: Any, value: Any, mask: Any, *rest: Any) -> Any:
            self._note(builder, STORE, places, mask)
            return real[1](builder, places, value, mask, *rest)

        def change(builder: Any, how: Any, places: Any, value: Any, mask: Any, *rest: Any) -> Any:
            self._note(builder, ATOMIC, places, mask)
            return real[2](builder, how, places, value, mask, *rest)

        names = ("create_masked_load", "create_masked_store", "create_atomic_rmw")
        for name, wrapped in zip(names, (load, store, change), strict=True):
            setattr(Builder, name, wrapped)
        try:
            yield
        finally:
            for name, was in zip(names, real, strict=True):
                setattr(Builder, name, was)

    @contextlib.contextmanager
    def launch(self, name: str, args: tuple[Any, ...]) -> Iterator[None]:
        """Judge one launch, which may touch the tensors among its arguments and nothing else."""
        spans = sorted(span for arg in args if isinstance(arg, Tensor) for span in _span(arg))
        self._spans = np.array(spans, dtype=np.uint64).reshape(-1, 2)
        self._name, self._seen = name, []
        self.launches += 1
        yield
        if found := _race(self._seen):
            self.races.append(f"{name}: {found}")
        self._seen = []

    def _note(self, builder: Any, kind: int, places: Any, mask: Any) -> None:
        x, y, z = builder.grid_idx
        chosen = np.broadcast_to(mask.data, places.data.shape)
        address = np.asarray(places.data)[chosen].astype(np.uint64)
        size = np.uint64(max(1, places.get_element_ty().primitive_bitwidth // 8))
        self._within(address, size, KINDS[kind])
        if kind == STORE and len(np.unique(address)) < len(address):
            self.races.append(f"{self._name}: one store writes an address twice")
        self._seen.append((kind, (x << 40) + (y << 20) + z, address))

    def _within(self, address: Addresses, size: np.uint64, what: str) -> None:
        """Whether all accesses are inside one of the tensors."""
        if not len(address):
            return
        # Views of one buffer overlap: an access is fine if any that begins before it reaches on.
        reach = np.maximum.accumulate(self._spans[:, 1])
        at = np.searchsorted(self._spans[:, 0], address, side="right").astype(np.int64) - 1
        if (at < 0).any() or (address + size > reach[at]).any():
            self.outside.append(f"{self._name}: a {what} outside of its tensors")


def _span(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """The first byte of a tensor and the one after its last."""
    if tensor.numel():
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        yield tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _race(seen: list[tuple[int, int, Addresses]]) -> str:
    """What two programs do to one address that they must not; empty: nothing."""
    if not seen:
        return ""
    address = np.concatenate([part for *_, part in seen])
    lengths = [len(part) for *_, part in seen]
    kind = np.repeat([kind for kind, *_ in seen], lengths)
    program = np.repeat([program for _, program, _ in seen], lengths)
    found, inverse = np.unique(address, return_inverse=True)
    low, high = np.full(len(found), 2**62), np.full(len(found), -1)
    np.minimum.at(low, inverse, program)
    np.maximum.at(high, inverse, program)
    stored, plain = np.zeros(len(found), dtype=bool), np.zeros(len(found), dtype=bool)
    atomic = np.zeros(len(found), dtype=bool)
    stored[inverse[kind == STORE]] = True
    plain[inverse[kind != ATOMIC]] = True
    atomic[inverse[kind == ATOMIC]] = True
    bad = (low != high) & (stored | (atomic & plain))
    return f"{int(bad.sum())} addresses are shared by programs that store" if bad.any() else ""

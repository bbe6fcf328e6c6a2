"""What a kernel is made from, as one hash.

Not of files: of the code as it was loaded, so that a file that changes while a program runs, a
clock or another folder make no difference. numba freezes constants and links what is called, so
both are followed, into whatever file they are in.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

_WORD = re.compile(r"\w+")
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)


def digest_of(function: FunctionType) -> str:
    """A hash of a function's code, of all that it calls and of the constants in it."""
    found, todo, seen = hashlib.sha256(), [function], set[int]()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        found.update(repr(_facts(one.__code__)).encode())
        found.update(repr(one.__defaults__).encode())
        for name, value in _read(one):
            called = _function(value)
            if called is not None:
                todo.append(called)
            else:
                found.update(f"{name}={_said(value)};".encode())
    return found.hexdigest()


def _facts(code: CodeType) -> tuple[Any, ...]:
    """What a code object does, but for where it is."""
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)
    return (code.co_name, code.co_code, names, tuple(_constant(one) for one in code.co_consts))


def _constant(value: object) -> object:
    if isinstance(value, CodeType):
        return _facts(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)


def _read(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The globals and cells that a function reads, by name; classes in its annotations, too."""
    names = set(_names(function.__code__))
    names.update(_WORD.findall(" ".join(map(str, function.__annotations__.values()))))
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        yield name, value
        if isinstance(value, ModuleType) and value.__name__.startswith("rowtier."):
            yield from ((n, vars(value)[n]) for n in sorted(names & vars(value).keys()))
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    yield from ((name, cell.cell_contents) for name, cell in cells)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _function(value: object) -> FunctionType | None:
    """The Python function behind a kernel, an intrinsic or itself."""
    for attribute in ("py_func", "_defn"):
        value = getattr(value, attribute, value)
    return value if isinstance(value, FunctionType) else None


def _said(value: object) -> str:
    """A constant in full; of a tuple class its fields; of all else the name."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, type):
        return f"{value.__qualname__}{getattr(value, '_fields', ())}"
    if isinstance(value, _PLAIN):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_said, value))})"
    return str(getattr(value, "__name__", type(value).__qualname__))

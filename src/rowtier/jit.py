"""One way to compile inner loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function with numba and keep the machine code for the next process."""
    try:
        return cast(F, njit(cache=True, nogil=True)(function))
    except RuntimeError:  # nowhere to keep it: a read-only installation without a home
        return cast(F, njit(nogil=True)(function))

"""One way to compile inner loops, and machine code that is never stale."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function with numba and keep the machine code for the next process."""
    try:
        return cast(F, njit(cache=True, nogil=True)(function))
    except RuntimeError:  # nowhere to keep it: a read-only installation without a home
        return cast(F, njit(nogil=True)(function))


def forget_stale_code(folder: Path) -> None:
    """Drop machine code that is older than any source of a folder that it may be made from.

    Where functions call those of other files, numba looks only at the file that defines a
    function when it decides whether what it kept is still true.
    """
    with contextlib.suppress(OSError):
        sources = [file for file in folder.glob("*.py") if "_jit import" in file.read_text("utf-8")]
        newest = max(file.stat().st_mtime_ns for file in sources)
        for kept in (folder / "__pycache__").glob("*.nb[ic]"):
            with contextlib.suppress(OSError):
                if kept.stat().st_mtime_ns < newest:
                    kept.unlink()

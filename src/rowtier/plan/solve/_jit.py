"""Compiled functions that call each other across files, and machine code that is never stale."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rowtier.jit import compiled

__all__ = ["compiled", "forget_stale_code"]


def forget_stale_code(folder: Path) -> None:
    """Drop machine code that is older than any source it may be made from.

    Functions here call those of other files, and numba looks only at the file that
    defines a function when it decides whether what it kept is still true.
    """
    sources = [file for file in folder.glob("*.py") if "_jit import" in file.read_text("utf-8")]
    newest = max(file.stat().st_mtime_ns for file in sources)
    for kept in (folder / "__pycache__").glob("*.nb[ic]"):
        with contextlib.suppress(OSError):
            if kept.stat().st_mtime_ns < newest:
                kept.unlink()


with contextlib.suppress(OSError):
    forget_stale_code(Path(__file__).parent)

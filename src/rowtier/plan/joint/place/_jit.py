"""Compiled functions that call each other across files of this folder."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rowtier.plan.solve._jit import compiled, forget_stale_code

__all__ = ["compiled"]

with contextlib.suppress(OSError):
    forget_stale_code(Path(__file__).parent)

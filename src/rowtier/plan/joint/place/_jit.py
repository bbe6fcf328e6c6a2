"""Compiled functions that call each other across files of this folder."""

from pathlib import Path

from rowtier.jit import compiled, forget_stale_code

__all__ = ["compiled"]

forget_stale_code(Path(__file__).parent)

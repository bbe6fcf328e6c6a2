"""One line for who waits: that functions are compiled, and that it is done only once."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from rowtier.jit import store
from rowtier.jit.ahead import expected_s

PATIENCE_S = 2.0  # of compiling in all, before a word is said


@dataclass
class _Watch:
    """What this process spent on compiling; kernels that are compiled for others count once."""

    spent_s: float = 0.0
    began: list[float] = field(default_factory=list)  # of those under way, the outermost first
    quiet: bool = False

    def total_s(self) -> float:
        return self.spent_s + (time.monotonic() - self.began[0] if self.began else 0.0)


_WATCH = _Watch()


@contextlib.contextmanager
def timed() -> Iterator[None]:
    """Count the time of compiling something, and say so if it was a while already."""
    if not _WATCH.quiet and _WATCH.total_s() > PATIENCE_S:
        be_quiet()
        _say()
    _WATCH.began.append(time.monotonic())
    try:
        yield
    finally:
        began = _WATCH.began.pop()
        if not _WATCH.began:
            _WATCH.spent_s += time.monotonic() - began


def be_quiet() -> None:
    """Say nothing from now on."""
    _WATCH.quiet = True


def _say() -> None:
    # Of ranks the first, and of processes that compile at the same time one.
    if os.environ.get("RANK", "0") == "0" and store.claim("said"):
        text = f"compiling for this machine, once; ~{expected_s():.0f} s"
        with contextlib.suppress(OSError):  # nobody listens
            print(f"rowtier: {text}", file=sys.stderr or io.StringIO(), flush=True)

"""How a caller follows a planner that takes long, and how it stops it: a planner reads no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _never() -> bool:
    return False


def _nobody(share: float) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class Watch:
    """Told what share of the work is done; says when to return the best that was found."""

    progress: Callable[[float], None] = _nobody
    stop: Callable[[], bool] = _never


ALONE = Watch()  # nobody watches, and nobody stops it

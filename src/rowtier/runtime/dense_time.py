"""How long the rest of a model takes: what `rowtier plan --dense` wants to know."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rowtier.errors import UserError


class DenseTime:
    """Steps of a training loop, less the time inside the embeddings' own calls."""

    def __init__(self) -> None:
        self._steps: list[float] = []
        self._inside = 0.0
        self._began = time.perf_counter()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Leave out what happens in here."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._inside += time.perf_counter() - began

    def end_step(self) -> None:
        """The embeddings have been updated; what follows is of the next step."""
        now = time.perf_counter()
        self._steps.append(now - self._began - self._inside)
        self._began, self._inside = now, 0.0

    @property
    def steps(self) -> int:
        """How many steps were measured."""
        return len(self._steps)

    @property
    def seconds(self) -> float:
        """The median of a step: everything but the embeddings, on this rank."""
        if not self._steps:
            raise UserError(
                "no step was measured: call the embeddings, backward and "
                "embeddings.optimizer.step() inside `with embeddings.measure_dense() as dense`"
            )
        return statistics.median(self._steps)

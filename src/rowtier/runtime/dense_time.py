"""How long the rest of a model takes: what `rowtier plan --dense` wants to know."""

from __future__ import annotations

import statistics
import time
from typing import Any

from rowtier.errors import UserError
from rowtier.runtime.exchange.watchdog import RankWatch


class DenseTime:
    """Steps of a training loop, less the time inside the embeddings' own calls."""

    def __init__(self) -> None:
        self._steps: list[float] = []
        self._inside = 0.0
        self._began = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Time that the embeddings took."""
        self._inside += seconds

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


class Inside:
    """A context around one call of the embeddings: who measures, or watches, learns of it."""

    __slots__ = ("_before", "_began", "_call", "_timed", "_watch")

    def __init__(self, watch: RankWatch | None, timed: DenseTime | None, call: str):
        self._watch, self._timed, self._call = watch, timed, call

    def __enter__(self) -> None:
        watch = self._watch
        if watch is not None:  # as `watch.enter` does
            self._before, watch.call, watch.moves = watch.call, self._call, watch.moves + 1
        if self._timed is not None:
            self._began = time.perf_counter()

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        watch = self._watch
        if error is None and watch is not None:  # as `watch.leave` does
            watch.last, watch.call, watch.moves = self._call, self._before, watch.moves + 1
        elif watch is not None:
            watch.leave(self._before, error)
        if self._timed is not None:
            self._timed.leave_out(time.perf_counter() - self._began)

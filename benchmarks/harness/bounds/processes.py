"""Problems of `bounds.py` in several processes, and what they have shown so far on stderr."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from typing import Any

ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
LINES = 20  # that a whole run prints where no bar can be drawn

Task = tuple[str, int]  # a kind of problem and the number of one
Rows = list[dict[str, Any]]


def mixed(numbers: Mapping[str, Sequence[int]]) -> list[Task]:
    """The problems of all kinds, so that of every kind the same share is done at any time."""
    placed = [
        ((at + 0.5) / len(those), (kind, number))
        for kind, those in numbers.items()
        for at, number in enumerate(those)
    ]
    return [task for _, task in sorted(placed, key=lambda entry: entry[0])]


def in_processes(
    work: Callable[[Task], Rows], tasks: Sequence[Task], processes: int, seconds: float
) -> Iterator[tuple[Task, Rows]]:
    """What tasks show, as they end; none is begun after so long, or once told to stop."""
    os.environ.update(ONE_THREAD)  # read when a process imports numpy and numba
    ends, left, waiting = time.monotonic() + seconds, iter(tasks), dict[Future[Rows], Task]()
    with (
        _stopping() as told,
        ProcessPoolExecutor(processes, get_context("spawn"), _begin) as pool,
    ):
        while True:
            if time.monotonic() < ends and not told:
                more = islice(left, processes + 1 - len(waiting))  # one is ready for who ends
                waiting |= {pool.submit(work, task): task for task in more}
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                yield waiting.pop(future), future.result()


def _begin() -> None:
    """A process leaves its end to the one that started it, and standard output to JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(sys.stderr.fileno(), 1)


@contextmanager
def _stopping() -> Iterator[list[int]]:
    """A list that signals to stop go to; a second one ends all at once."""
    told: list[int] = []

    def stop(number: int, _: object) -> None:
        told.append(number)
        signal.signal(number, signal.default_int_handler)

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield told
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@dataclass
class Tally:
    """What was seen so far."""

    total: int
    done: int = 0
    plans: int = 0
    broken: int = 0

    def add(self, rows: Rows) -> None:
        """One more problem."""
        self.done += 1
        self.plans += sum(row.get("plans", 0) for row in rows)
        self.broken += sum(row.get("broken", 0) for row in rows)

    def __str__(self) -> str:
        done = f"{self.done:,} of {self.total:,} problems"
        return f"{done}, {self.plans:,} plans, {self.broken} bounds broken"


def told(results: Iterable[tuple[Task, Rows]], total: int) -> Iterator[tuple[Task, Rows]]:
    """The same results, with a bar on a terminal; elsewhere with a line now and then."""
    tally = Tally(total)
    with _bar() if sys.stderr.isatty() else _lines() as tell:
        for task, rows in results:
            tally.add(rows)
            tell(tally)
            yield task, rows


@contextmanager
def _bar() -> Iterator[Callable[[Tally], None]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        shown = bar.add_task("starting")
        yield lambda tally: bar.update(
            shown, total=tally.total, completed=tally.done, description=str(tally)
        )


@contextmanager
def _lines() -> Iterator[Callable[[Tally], None]]:
    def tell(tally: Tally) -> None:
        if tally.done * LINES // tally.total > (tally.done - 1) * LINES // tally.total:
            print(tally, file=sys.stderr, flush=True)

    yield tell
